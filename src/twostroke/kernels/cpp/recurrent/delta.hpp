// A layer of the gated delta rule, between its first and its last product.
#pragma once

#include <cmath>
#include <cstdint>

#include "elementwise.hpp"
#include "kernels.hpp"
#include "recurrent/matrix.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

inline void scale_row(float* row, int64_t size, float scale) {
    for (int64_t i = 0; i < size; i += kLanes)
        store_first(row + i, load_first(row + i, size - i) * scale, size - i);
}

// Queries and keys of length 1, queries scaled; the heads' rates and decays.
inline void prepare_token(const DeltaCall& call, const MatrixTurn& turn, int64_t token) {
    const MatrixCall& matrix = call.matrix;
    float* const heads = turn.active.data() + token * matrix.convolution.channels;
    const float query_scale = 1.0f / sqrtf(static_cast<float>(matrix.rows));
    for (int64_t i = 0; i < 2 * matrix.groups; ++i) {
        float* head = heads + i * matrix.rows;
        const float length = 1.0f / sqrtf(sum_of_squares(head, matrix.rows) + 1e-6f);
        scale_row(head, matrix.rows, i < matrix.groups ? length * query_scale : length);
    }
    const float* gates = call.gates + (turn.begin + token) * 2 * matrix.heads;
    for (int64_t head = 0; head < matrix.heads; ++head) {
        const int64_t at = token * matrix.heads + head;
        const float step = softplus(gates[matrix.heads + head] + matrix.bias[head]);
        turn.rates.data()[at] = sigmoid(gates[head]);
        turn.decays.data()[at] = expf(-matrix.rates[head] * step);
    }
}

// norm(out) * silu(gate), rounded where PyTorch's layers round.
inline void finish_token(const MatrixCall& call, const MatrixTurn& turn, int64_t token) {
    const int64_t size = call.heads * call.columns, row = turn.begin + token;
    for (int64_t head = 0; head < size; head += call.columns) {
        float* from = turn.outs.data() + token * size + head;
        const bf16* gate = call.gate + row * call.gate_stride + head;
        bf16* to = call.out + row * size + head;
        for (int64_t i = 0; i < call.columns; i += kLanes) {
            const int64_t left = call.columns - i;
            store_first(from + i, rounded(load_first(from + i, left)), left);
        }
        const float mean = sum_of_squares(from, call.columns) / static_cast<float>(call.columns);
        const float scale = 1.0f / sqrtf(mean + call.eps);
        for (int64_t i = 0; i < call.columns; i += kLanes) {
            const int64_t left = call.columns - i;
            const floats unit = rounded(load_first(from + i, left) * scale);
            const floats normed = rounded(unit * load_first(call.norm + i, left));
            store_first(to + i, normed * silu16(load_first(gate + i, left)), left);
        }
    }
}

inline void gated_delta(const DeltaCall& call) {
    const MatrixCall& matrix = call.matrix;
    const int64_t keys = matrix.groups * matrix.rows, values = matrix.heads * matrix.columns;
    for_turns(matrix, [&](const MatrixTurn& turn) {
        turn.activate();
        auto prepare = [&](int64_t token) { prepare_token(call, turn, token); };
        for_rows(turn.num_rows(), 2 * keys, prepare);
        turn.walk<true>(keys, 0, 2 * keys);
        auto finish = [&](int64_t token) { finish_token(matrix, turn, token); };
        for_rows(turn.num_rows(), 2 * values, finish);
    });
}

}  // namespace
}  // namespace twostroke
