// The kernels for AVX2.
#include "kernels.hpp"

#if defined(__x86_64__) && !defined(TWOSTROKE_OMIT_BUILD)
#include "kernel_table.hpp"

const twostroke::Kernels* twostroke::avx2_kernels() {
    static constexpr Kernels kTable = make_table("avx2");
    const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return supported ? &kTable : nullptr;
}
#else
const twostroke::Kernels* twostroke::avx2_kernels() { return nullptr; }
#endif
