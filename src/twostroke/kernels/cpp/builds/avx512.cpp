// The kernels for AVX-512 with bf16 and VNNI.
#include "kernels.hpp"

#if defined(__x86_64__) && !defined(TWOSTROKE_OMIT_BUILD)
#define TWOSTROKE_AVX512
#include "kernel_table.hpp"

const twostroke::Kernels* twostroke::avx512_kernels() {
    static constexpr Kernels kTable = make_table("avx512");
    const bool supported =
        __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    return supported ? &kTable : nullptr;
}
#else
const twostroke::Kernels* twostroke::avx512_kernels() { return nullptr; }
#endif
