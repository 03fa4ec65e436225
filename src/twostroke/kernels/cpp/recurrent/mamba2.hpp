// A layer of Mamba-2, between its first and its last product.
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

inline void prepare_token(const Mamba2Call& call, const MatrixTurn& turn, int64_t token) {
    const MatrixCall& matrix = call.matrix;
    const bf16* inputs = call.steps + (turn.begin + token) * call.steps_stride;
    for (int64_t head = 0; head < matrix.heads; ++head) {
        const int64_t at = token * matrix.heads + head;
        float step = softplus(to_float(inputs[head]) + matrix.bias[head]);
        step = step < call.least_step ? call.least_step : step;
        turn.rates.data()[at] = step;
        turn.decays.data()[at] = expf(-step * matrix.rates[head]);
    }
}

// norm((out + skip * value) * silu(gate)), rounded where PyTorch's layers round.
inline void finish_token(const Mamba2Call& call, const MatrixTurn& turn, int64_t token) {
    const MatrixCall& matrix = call.matrix;
    const int64_t size = matrix.heads * matrix.columns, row = turn.begin + token;
    float* outs = turn.outs.data() + token * size;
    const float* values = turn.active.data() + token * matrix.convolution.channels;
    const bf16* gates = matrix.gate + row * matrix.gate_stride;
    for (int64_t head = 0; head < matrix.heads; ++head)
        for (int64_t i = 0; i < matrix.columns; i += kLanes) {
            const int64_t left = matrix.columns - i, at = head * matrix.columns + i;
            const floats skipped = load_first(values + at, left) * call.skip[head];
            const floats out = load_first(outs + at, left) + skipped;
            store_first(outs + at, out * silu16(load_first(gates + at, left)), left);
        }
    bf16* to = matrix.out + row * size;
    const int64_t group = call.norm_groups ? size / call.norm_groups : size;
    for (int64_t first = 0; first < size; first += group) {
        const float mean = sum_of_squares(outs + first, group) / static_cast<float>(group);
        const float scale = 1.0f / sqrtf(mean + matrix.eps);
        for (int64_t i = first; i < first + group; i += kLanes) {
            const int64_t left = first + group - i;
            floats out = load_first(outs + i, left);
            if (matrix.norm) out = out * scale * load_first(matrix.norm + i, left);
            store_first(to + i, out, left);
        }
    }
}

inline void mamba2(const Mamba2Call& call) {
    const MatrixCall& matrix = call.matrix;
    const int64_t values = matrix.heads * matrix.columns, keys = matrix.groups * matrix.rows;
    for_turns(matrix, [&](const MatrixTurn& turn) {
        turn.activate();
        auto prepare = [&](int64_t token) { prepare_token(call, turn, token); };
        for_rows(turn.num_rows(), 64 * matrix.heads, prepare);
        turn.walk<false>(values, values + keys, 0);
        auto finish = [&](int64_t token) { finish_token(call, turn, token); };
        for_rows(turn.num_rows(), 2 * values, finish);
    });
}

}  // namespace
}  // namespace twostroke
