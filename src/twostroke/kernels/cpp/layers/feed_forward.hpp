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
    const PassCall& pass = part.pass;
    const MlpCall& mlp = layer.mlp;
    const int64_t turns = (part.count + pass.mlp_tokens - 1) / pass.mlp_tokens;
    for (int64_t turn = 0; turn < turns; ++turn) {
        const int64_t first = part.count * turn / turns;
        const int64_t count = part.count * (turn + 1) / turns - first;
        const bf16* const turn_read = read + first * pass.hidden;
        apply(mlp.gate_up, count, turn_read, gates, nullptr);
        adapt(part, layer, kGateUp, first, count, turn_read, gates);
        part.add_time(kGemm);
        activate(gates, activation, count, mlp.down.linear.inputs, mlp.activation);
        part.add_time(kActivation);
        add_branch(part, layer, kDown, first, count, activation);
    }
}

}  // namespace
}  // namespace twostroke
