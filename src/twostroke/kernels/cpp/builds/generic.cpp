// The kernels for the processor that the compiler assumes by default.
#include "kernel_table.hpp"

const twostroke::Kernels* twostroke::generic_kernels() {
    static constexpr Kernels kTable = make_table("generic");
    return &kTable;
}
