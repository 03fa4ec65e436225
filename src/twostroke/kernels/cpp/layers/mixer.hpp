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

// A layer's other mixer, as that of a layer of its own, whose rooms lie behind the first one's.
// Adapters do not add to it.
struct OtherMixer {
    OtherMixer(const PassCall& whole, const LayerCall& both) : layer(both), pass(whole) {
        layer.mixer = *both.other, layer.other = nullptr;
        pass.wide += whole.tokens * both.mixer.wide;
        pass.narrow += whole.tokens * both.mixer.narrow;
        pass.additions = nullptr;
    }

    LayerCall layer;
    PassCall pass;
};

// Calls run(part, layer) for the other mixer, if the layer has one.
template <typename Run>
inline void run_other(TokenPart& part, const LayerCall& layer, const Run& run) {
    if (!layer.other) return;
    const OtherMixer other(part.pass, layer);
    TokenPart own(other.pass, part.first, part.count);
    run(own, other.layer);
    part.add_times(own);
}

inline void run_before_mixing(TokenPart& part, const LayerCall& layer) {
    const PassCall& pass = part.pass;
    const MixerCall& mixer = layer.mixer;
    if (mixer.kind == kNoMixer) return;
    run_other(part, layer, run_before_mixing);
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
    run_other(part, layer, run_after_mixing);
    if (mixer.kind == kLatents) return run_after_latents(part, layer);
    const bf16* mixed = part.pass.narrow + part.first * mixer.narrow;
    add_half(part, layer, kOutput, 0, part.count, mixed);
}

// All tokens, which all threads share.
inline void mix_tokens(const PassCall& pass, const LayerCall& layer) {
    if (layer.other) {
        const OtherMixer other(pass, layer);
        mix_tokens(other.pass, other.layer);
    }
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
