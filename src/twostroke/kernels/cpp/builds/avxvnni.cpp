// The kernels for AVX2 with VNNI.
#include "kernels.hpp"

#if defined(__x86_64__) && !defined(TWOSTROKE_OMIT_BUILD)
#include "kernel_table.hpp"

const twostroke::Kernels* twostroke::avxvnni_kernels() {
    static constexpr Kernels kTable = make_table("avxvnni");
    const bool supported = __builtin_cpu_supports("avxvnni") && __builtin_cpu_supports("fma");
    return supported ? &kTable : nullptr;
}
#else
const twostroke::Kernels* twostroke::avxvnni_kernels() { return nullptr; }
#endif
