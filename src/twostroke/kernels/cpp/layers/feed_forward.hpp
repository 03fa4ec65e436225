// A layer's second half: an MLP, or experts.
#pragma once

#include <cstdint>

#include "activations.hpp"
#include "experts/experts.hpp"
#include "kernels.hpp"
#include "layers/token_part.hpp"
#include "thread_pool.hpp"

namespace twostroke {
namespace {

// All tokens' way through experts, which all threads share. The tokens are normed already.
inline void run_experts(const PassCall& pass, int64_t tokens, const ExpertsCall& weights) {
    const double start = pass.seconds ? now() : 0.0;
    ExpertsCall call = weights;
    call.x = pass.normed, call.onto = call.out = pass.x, call.tokens = tokens;
    experts(call);
    if (pass.seconds) pass.seconds[kGemm] += now() - start;
}

// `read`: what the MLP reads of the part's tokens. `gates`, `activation`: room for gate_up's and
// for down's input, of min(mlp_tokens, part.count).
inline void run_mlp(TokenPart& part, const LayerCall& layer, const bf16* read, bf16* gates,
                    bf16* activation) {
    const MlpCall& mlp = layer.mlp;
    for_mlp_turns(part, [&](int64_t row, int64_t rows) {
        const bf16* const turn_read = read + row * part.pass.hidden;
        apply(mlp.gate_up, rows, turn_read, gates, nullptr);
        adapt(part, layer, kGateUp, row, rows, turn_read, gates);
        part.add_time(kGemm);
        activate(gates, activation, rows, mlp.down.linear.inputs, mlp.activation);
        part.add_time(kActivation);
        add_half(part, layer, kDown, row, rows, activation);
    });
}

}  // namespace
}  // namespace twostroke
