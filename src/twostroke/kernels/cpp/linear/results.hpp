// What a tile of a linear layer ends with: its sums get bias, factors, rounding and residual.
#pragma once

#include <cstdint>

#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// Writes the last columns of a row, fewer than a block. `at`: the element of `out`.
inline void write_last_columns(const LinearCall& call, int64_t at, int64_t column,
                               const float* sums) {
    for (int64_t i = 0; i < call.outputs - column; ++i) {
        float value = call.bias ? sums[i] + to_float(call.bias[column + i]) : sums[i];
        if (call.factors) value *= call.factors[column + i];
        if (call.float_out) {
            static_cast<float*>(call.out)[at + i] = value;
            continue;
        }
        bf16 result = to_bf16(value);
        if (call.residual) result = to_bf16(to_float(result) + to_float(call.residual[at + i]));
        static_cast<bf16*>(call.out)[at + i] = result;
    }
}

// Writes a tile's sums, [rows][blocks][16], with bias, factors, rounding and residual.
__attribute__((noinline)) void write_tile(const LinearCall& call, int64_t row, int64_t rows,
                                          int64_t block, int64_t blocks, const float* sums) {
    const int64_t stride = call.out_stride ? call.out_stride : call.outputs;
    for (int64_t index = 0; index < rows * blocks; ++index, sums += kLanes) {
        const int64_t column = (block + index % blocks) * kLanes;
        const int64_t at = (row + index / blocks) * stride + column;
        if (call.outputs - column < kLanes) {
            write_last_columns(call, at, column, sums);
            continue;
        }
        UNROLL for (int lane = 0; lane < kLanes; lane += kVectorLanes) {
            vfloat value = load<vfloat>(sums + lane);
            if (call.bias) value += load_vector(call.bias + column + lane);
            if (call.factors) value *= load<vfloat>(call.factors + column + lane);
            if (call.float_out) {
                store(static_cast<float*>(call.out) + at + lane, value);
                continue;
            }
            vword result = bf16_lanes(value);
            if (call.residual) {
                const vfloat residual = load_vector(call.residual + at + lane);
                result = bf16_lanes((vfloat)(result << 16) + residual);
            }
            store(static_cast<bf16*>(call.out) + at + lane, to_halves(result));
        }
    }
}

}  // namespace
}  // namespace twostroke
