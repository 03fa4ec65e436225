#define NAME avx2
#define TWOSTROKE_STRING_(x) #x
#define TWOSTROKE_STRING(x) TWOSTROKE_STRING_(x)
#if defined(__x86_64__) && !defined(TWOSTROKE_WITHOUT)
#include "kernels.inc"

namespace twostroke {
const Kernels* avx2_kernels() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &avx2::kTable : nullptr;
}
}  // namespace twostroke
#else
#include "kernels.h"
const twostroke::Kernels* twostroke::avx2_kernels() { return nullptr; }
#endif
