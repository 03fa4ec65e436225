#define NAME generic
#define TWOSTROKE_STRING_(x) #x
#define TWOSTROKE_STRING(x) TWOSTROKE_STRING_(x)
#include "kernels.inc"

namespace twostroke {
const Kernels* generic_kernels() { return &generic::kTable; }
}  // namespace twostroke
