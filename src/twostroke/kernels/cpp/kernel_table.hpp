// All kernels of one build. Each file in builds/ includes this once, with its own compiler flags.
//
// Everything below this header is in unnamed namespaces, so that builds share no function. Kernels
// call no templates or inline functions of the standard library for the same reason: the linker
// would keep one copy, compiled for one instruction set, for all builds.
#pragma once

#include "activations.hpp"
#include "attention/attention.hpp"
#include "elementwise.hpp"
#include "experts/experts.hpp"
#include "kernels.hpp"
#include "layers/decoder_layers.hpp"
#include "layers/drafting.hpp"
#include "linear/pack_stored.hpp"
#include "linear/several.hpp"
#include "norms.hpp"
#include "recurrent/convolution.hpp"
#include "recurrent/delta.hpp"
#include "recurrent/mamba2.hpp"

namespace twostroke {
namespace {

constexpr Kernels make_table(const char* build) {
#define TWOSTROKE_ENTRY(kernel, ...) , kernel
    return {build TWOSTROKE_KERNELS(TWOSTROKE_ENTRY)};
#undef TWOSTROKE_ENTRY
}

}  // namespace
}  // namespace twostroke
