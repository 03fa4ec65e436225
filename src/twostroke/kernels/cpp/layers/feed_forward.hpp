// A layer's second half: an MLP, or experts.
#pragma once

#include <cstdint>

#include "activations.hpp"
#include "experts/experts.hpp"
#include "kernels.hpp"
#include "layers/token_part.hpp"
#include "norms.hpp"
#include "thread_pool.hpp"

namespace twostroke {
namespace {

// All tokens' way through experts, which all threads share. The tokens are normed already.
inline void run_experts(const PassCall& pass, int64_t tokens, const MlpCall& mlp) {
    const double start = pass.seconds ? now() : 0.0;
    ExpertsCall call = *mlp.experts;
    call.x = pass.normed, call.tokens = tokens;
    if (mlp.beside)
        call.routed = call.out = pass.routed, call.onto = nullptr;
    else
        call.routed = nullptr, call.onto = call.out = pass.x;
    experts(call);
    if (pass.seconds) pass.seconds[kGemm] += now() - start;
}

// Calls end(row, rows, inner) with what lies between an MLP's products, some rows at a time.
// `read`: what the MLP reads of the part's tokens. `gates`, `activation`: room for gate_up's and
// for down's input, of min(mlp_tokens, part.count).
template <typename End>
inline void run_gates(TokenPart& part, const LayerCall& layer, const bf16* read, bf16* gates,
                      bf16* activation, const End& end) {
    const MlpCall& mlp = layer.mlp;
    for_mlp_turns(part, [&](int64_t row, int64_t rows) {
        const bf16* const turn_read = read + row * part.pass.hidden;
        apply(mlp.gate_up, rows, turn_read, gates, nullptr);
        adapt(part, layer, kGateUp, row, rows, turn_read, gates);
        part.add_time(kGemm);
        activate(gates, activation, rows, mlp.down.linear.inputs, mlp.activation);
        part.add_time(kActivation);
        end(row, rows, activation);
    });
}

inline void run_mlp(TokenPart& part, const LayerCall& layer, const bf16* read, bf16* gates,
                    bf16* activation) {
    run_gates(part, layer, read, gates, activation,
              [&](int64_t row, int64_t rows, const bf16* inner) {
                  add_half(part, layer, kDown, row, rows, inner);
              });
}

// What an MLP beside experts gives, which waits in `beside`, and then what the experts read.
inline void run_beside(TokenPart& part, const LayerCall& layer, bf16* gates, bf16* activation) {
    const PassCall& pass = part.pass;
    const BesideCall& own = *layer.mlp.beside;
    const int64_t first = part.first * pass.hidden;
    bf16 *const given = pass.beside + first, *const routed = pass.routed + first;
    const bf16* const read = read_rows(part, layer.mlp.norm, part.normed());
    run_gates(part, layer, read, gates, activation,
              [&](int64_t row, int64_t rows, const bf16* inner) {
                  bf16* const out = given + row * pass.hidden;
                  apply(layer.mlp.down.linear, rows, inner, out, nullptr);
                  adapt(part, layer, kDown, row, rows, inner, out);
                  part.add_time(kGemm);
              });
    norm_rows(own.mlp_norm, 1, given, given, part.count, pass.hidden, pass.eps);
    norm_rows(own.router_norm, 1, part.x(), routed, part.count, pass.hidden, pass.eps);
    norm_rows(own.norm, 1, part.x(), part.normed(), part.count, pass.hidden, pass.eps);
    part.add_time(kNorm);
}

// Adds what an MLP and the experts beside it give.
inline void add_beside(TokenPart& part, const BesideCall& own) {
    const PassCall& pass = part.pass;
    const int64_t first = part.first * pass.hidden, size = pass.hidden, count = part.count;
    bf16 *const given = pass.beside + first, *const experts_given = pass.routed + first;
    norm_rows(own.experts_norm, 1, experts_given, experts_given, count, size, pass.eps);
    add_rows(given, experts_given, count, size, 1.0f);
    norm_rows(own.added_norm, 1, given, given, count, size, pass.eps);
    add_rows(part.x(), given, count, size, 1.0f);
    part.add_time(kNorm);
}

}  // namespace
}  // namespace twostroke
