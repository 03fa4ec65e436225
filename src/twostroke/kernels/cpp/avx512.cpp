#define NAME avx512
#define TWOSTROKE_AVX512
#define TWOSTROKE_STRING_(x) #x
#define TWOSTROKE_STRING(x) TWOSTROKE_STRING_(x)
#if defined(__x86_64__) && !defined(TWOSTROKE_WITHOUT)
#include "kernels.inc"

namespace twostroke {
const Kernels* avx512_kernels() {
    const bool supported = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
                           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    return supported ? &avx512::kTable : nullptr;
}
}  // namespace twostroke
#else
#include "kernels.h"
const twostroke::Kernels* twostroke::avx512_kernels() { return nullptr; }
#endif
