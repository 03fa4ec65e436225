// What a layer does at last: it adds what its own embedding says of a token, and scales.
#pragma once

#include <cstdint>
#include <cstring>

#include "activations.hpp"
#include "elementwise.hpp"
#include "kernels.hpp"
#include "layers/token_part.hpp"

namespace twostroke {
namespace {

// Rows [row, row + rows) of the part. `gates` has room for [rows, 2 * size]: each row's gates and
// then its inputs.
inline void add_layer_input(TokenPart& part, const LayerInputCall& input, int64_t row,
                            int64_t rows, bf16* gates, bf16* activation) {
    const PassCall& pass = part.pass;
    const int64_t size = input.gate.outputs;
    LinearCall gate = input.gate;
    gate.out_stride = 2 * size;
    apply(gate, rows, part.x() + row * pass.hidden, gates, nullptr);
    part.add_time(kGemm);
    const bf16* const own = pass.layer_inputs + input.first;
    for (int64_t i = 0; i < rows; ++i)
        memcpy(gates + (2 * i + 1) * size,
               own + (part.first + row + i) * pass.layer_inputs_size, bf16_bytes(size));
    activate(gates, activation, rows, size, input.activation);
    part.add_time(kActivation);
    add_branch(part, input.output, row, rows, activation, [](bf16*) {});
}

// `gates`, `activation`: room as for an MLP.
inline void run_layer_input(TokenPart& part, const LayerInputCall& input, bf16* gates,
                            bf16* activation) {
    const PassCall& pass = part.pass;
    if (input.gate.outputs > 0)
        for_mlp_turns(part, [&](int64_t row, int64_t rows) {
            add_layer_input(part, input, row, rows, gates, activation);
        });
    auto scale = [&](int64_t row) {
        multiply_row(part.x() + row * pass.hidden, pass.hidden, input.scale);
    };
    for_rows(part.count, pass.hidden, scale);
    part.add_time(kNorm);
}

}  // namespace
}  // namespace twostroke
