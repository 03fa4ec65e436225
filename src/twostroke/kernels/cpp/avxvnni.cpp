#define NAME avxvnni
#define TWOSTROKE_STRING_(x) #x
#define TWOSTROKE_STRING(x) TWOSTROKE_STRING_(x)
#if defined(__x86_64__) && !defined(TWOSTROKE_WITHOUT)
#include "kernels.inc"

namespace twostroke {
const Kernels* avxvnni_kernels() {
    const bool supported = __builtin_cpu_supports("avxvnni") && __builtin_cpu_supports("fma");
    return supported ? &avxvnni::kTable : nullptr;
}
}  // namespace twostroke
#else
#include "kernels.h"
const twostroke::Kernels* twostroke::avxvnni_kernels() { return nullptr; }
#endif
