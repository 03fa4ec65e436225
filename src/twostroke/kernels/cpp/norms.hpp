// Norms of rows in all their forms, see NormCall, and what is added to the hidden state.
#pragma once

#include <cmath>
#include <cstdint>

#include "elementwise.hpp"
#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// to = (from - mean) * scale * weight, rounded once.
inline void scale_row(const bf16* from, const float* weight, bf16* to, int64_t size, float mean,
                      float scale) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes)
        store16(to + i, (load16(from + i) - mean) * scale * load<floats>(weight + i));
    for (; i < size; ++i) to[i] = to_bf16((to_float(from[i]) - mean) * scale * weight[i]);
}

inline float mean_of_row(const bf16* row, int64_t size) {
    floats parts = {};
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) parts += load16(row + i);
    float sum = sum_lanes(parts);
    for (; i < size; ++i) sum += to_float(row[i]);
    return sum / static_cast<float>(size);
}

// One over the root of the mean square of what differs from `mean`.
inline float inverse_deviation(const bf16* row, int64_t size, float mean, float eps) {
    floats squares = {};
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        const floats part = load16(row + i) - mean;
        squares += part * part;
    }
    float sum = sum_lanes(squares);
    for (; i < size; ++i) {
        const float part = to_float(row[i]) - mean;
        sum += part * part;
    }
    return 1.0f / sqrtf(sum / static_cast<float>(size) + eps);
}

// One row of `size` elements with the weights from `first` on; `to` may be `from`.
inline void norm_row(const NormCall& norm, int64_t first, const bf16* from, bf16* to, int64_t size,
                     float eps) {
    if (norm.kind == kRmsNorm) {
        norm_row(from, static_cast<const bf16*>(norm.weight) + first, to, size, eps);
    } else {
        const float mean = norm.kind == kCenteredNorm ? mean_of_row(from, size) : 0.0f;
        const float scale = inverse_deviation(from, size, mean, eps);
        scale_row(from, static_cast<const float*>(norm.weight) + first, to, size, mean, scale);
    }
    if (norm.factor != 0.0f) multiply_row(to, size, norm.factor);
}

// `size`: of a row; row r has the weights of row r % `weights`.
inline void norm_rows(const NormCall& call, int64_t weights, const bf16* x, bf16* out, int64_t rows,
                      int64_t size, float eps) {
    auto norm = [&](int64_t row) {
        norm_row(call, row % weights * size, x + row * size, out + row * size, size, eps);
    };
    for_rows(rows, size, norm);
}

// x += scale * added, rounded after each step.
inline void add_rows(bf16* x, const bf16* added, int64_t rows, int64_t size, float scale) {
    auto add = [&](int64_t row) {
        bf16* to = x + row * size;
        const bf16* from = added + row * size;
        int64_t i = 0;
        for (; i + kLanes <= size; i += kLanes)
            store16(to + i, load16(to + i) + rounded(load16(from + i) * scale));
        for (; i < size; ++i)
            to[i] = to_bf16(to_float(to[i]) + to_float(to_bf16(to_float(from[i]) * scale)));
    };
    for_rows(rows, size, add);
}

}  // namespace
}  // namespace twostroke
