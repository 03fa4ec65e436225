// Recurrent layers, between their products. The products' outputs lie in `wide`, part after part.
#pragma once

#include <cstdint>

#include "kernels.hpp"
#include "recurrent/convolution.hpp"
#include "recurrent/delta.hpp"
#include "recurrent/mamba2.hpp"

namespace twostroke {
namespace {

// A layer's convolution, of the outputs from `first` on.
inline void set_inputs(const PassCall& pass, const MixerCall& mixer, int64_t first,
                       ConvolutionCall& call) {
    call.segments = pass.segments, call.num_segments = pass.num_segments;
    call.x = pass.wide + first, call.x_stride = mixer.wide;
}

// Of the outputs from `channels` on, and from `gate` on.
inline void set_matrix(const PassCall& pass, const MixerCall& mixer, int64_t channels, int64_t gate,
                       MatrixCall& call) {
    set_inputs(pass, mixer, channels, call.convolution);
    call.gate = pass.wide + gate, call.gate_stride = mixer.wide;
    call.out = pass.narrow;
}

// The outputs are channels and gates.
inline void mix_delta(const PassCall& pass, const MixerCall& mixer) {
    DeltaCall call = *static_cast<const DeltaCall*>(mixer.own);
    set_matrix(pass, mixer, 0, call.matrix.convolution.channels, call.matrix);
    call.gates = pass.rates;
    gated_delta(call);
}

// The outputs are gates, channels and steps.
inline void mix_mamba2(const PassCall& pass, const MixerCall& mixer) {
    Mamba2Call call = *static_cast<const Mamba2Call*>(mixer.own);
    const int64_t values = call.matrix.heads * call.matrix.columns;
    set_matrix(pass, mixer, values, 0, call.matrix);
    call.steps = pass.wide + values + call.matrix.convolution.channels;
    call.steps_stride = mixer.wide;
    mamba2(call);
}

inline void mix_convolution(const PassCall& pass, const MixerCall& mixer) {
    ConvolutionCall call = *static_cast<const ConvolutionCall*>(mixer.own);
    set_inputs(pass, mixer, 0, call);
    call.out = pass.narrow;
    gated_convolution(call);
}

}  // namespace
}  // namespace twostroke
