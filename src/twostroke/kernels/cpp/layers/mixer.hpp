// A layer's first half, by its kind: where all tokens meet, what comes before, and what after.
#pragma once

#include <cstdint>

#include "kernels.hpp"
#include "layers/heads.hpp"
#include "layers/latent.hpp"
#include "layers/recurrent.hpp"
#include "layers/token_part.hpp"
#include "thread_pool.hpp"

namespace twostroke {
namespace {

inline void run_before_mixing(TokenPart& part, const LayerCall& layer) {
    const PassCall& pass = part.pass;
    const MixerCall& mixer = layer.mixer;
    if (mixer.kind == kNoMixer) return;
    const bf16* read = read_rows(part, mixer.norm, part.normed());
    if (mixer.kind == kLatents) return run_before_latents(part, layer, read);
    bf16* const outputs = pass.wide + part.first * mixer.wide;
    apply(mixer.input, part.count, read, outputs, nullptr);
    adapt(part, layer, kInput, 0, part.count, read, outputs);
    if (mixer.rates) {
        float* const rates = pass.rates + part.first * mixer.rates->outputs;
        apply_wide(*mixer.rates, part.count, read, rates);
    }
    part.add_time(kGemm);
    if (mixer.kind != kHeads) return;
    place_heads(part, layer);
    part.add_time(kPlace);
}

// Adds what was mixed, which lies in `narrow`.
inline void run_after_mixing(TokenPart& part, const LayerCall& layer) {
    const MixerCall& mixer = layer.mixer;
    if (mixer.kind == kNoMixer) return;
    if (mixer.kind == kLatents) return run_after_latents(part, layer);
    const bf16* mixed = part.pass.narrow + part.first * mixer.narrow;
    add_half(part, layer, kOutput, 0, part.count, mixed);
}

// All tokens, which all threads share.
inline void mix_tokens(const PassCall& pass, const LayerCall& layer) {
    const double start = pass.seconds ? now() : 0.0;
    switch (layer.mixer.kind) {
        case kHeads: mix_heads(pass, layer); break;
        case kGatedDelta: mix_delta(pass, layer.mixer); break;
        case kMamba2: mix_mamba2(pass, layer.mixer); break;
        case kConvolution: mix_convolution(pass, layer.mixer); break;
        case kLatents: mix_latents(pass, layer); break;
        default: return;
    }
    if (pass.seconds) pass.seconds[kAttention] += now() - start;
}

}  // namespace
}  // namespace twostroke
