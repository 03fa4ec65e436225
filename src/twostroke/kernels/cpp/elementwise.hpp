// Kernels that work element by element: norm, rotation, and the peaks of rows.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels.hpp"
#include "thread_pool.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// Calls body(row) for all rows of `size` elements: few rows on this thread, else some rows a task.
template <typename Body>
void for_rows(int64_t rows, int64_t size, Body& body) {
    if (rows == 0) return;
    const int64_t per_task = rows * size < 1 << 15 ? rows : 1 + (1 << 14) / size;
    auto task = [&](int64_t index) {
        const int64_t end = (index + 1) * per_task < rows ? (index + 1) * per_task : rows;
        for (int64_t row = index * per_task; row < end; ++row) body(row);
    };
    parallel_for((rows + per_task - 1) / per_task, task);
}

// One row of `size` elements, rounded before the weight is applied, as transformers does.
inline void norm_row(const bf16* from, const bf16* weight, bf16* to, int64_t size, float eps) {
    floats squares = {};
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        const floats part = load16(from + i);
        squares += part * part;
    }
    float sum = sum_lanes(squares);
    for (; i < size; ++i) sum += to_float(from[i]) * to_float(from[i]);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(size) + eps);
    for (i = 0; i + kLanes <= size; i += kLanes)
        store16(to + i, rounded(load16(from + i) * scale) * load16(weight + i));
    for (; i < size; ++i) {
        const float normed = to_float(to_bf16(to_float(from[i]) * scale));
        to[i] = to_bf16(normed * to_float(weight[i]));
    }
}

inline void rms_norm(const bf16* x, const bf16* weight, bf16* out, int64_t rows, int64_t size,
                     float eps) {
    auto norm = [&](int64_t row) { norm_row(x + row * size, weight, out + row * size, size, eps); };
    for_rows(rows, size, norm);
}

// Rotates the first 2 * half elements of each of [heads, dim], in place, by the angles of one
// position.
inline void rotate_heads(bf16* qk, int64_t heads, int64_t dim, int64_t half, const float* cos,
                         const float* sin) {
    for (int64_t head = 0; head < heads; ++head, qk += dim) {
        int64_t i = 0;
        for (; i + kLanes <= half; i += kLanes) {
            const floats left = load16(qk + i), right = load16(qk + i + half);
            const floats c = load<floats>(cos + i), s = load<floats>(sin + i);
            store16(qk + i, left * c - right * s);
            store16(qk + i + half, right * c + left * s);
        }
        for (; i < half; ++i) {
            const float left = to_float(qk[i]), right = to_float(qk[i + half]);
            qk[i] = to_bf16(left * cos[i] - right * sin[i]);
            qk[i + half] = to_bf16(right * cos[i] + left * sin[i]);
        }
    }
}

inline void rotate(bf16* qk, int64_t stride, int64_t tokens, int64_t heads, int64_t head_dim,
                   const int64_t* positions, const float* cos, const float* sin) {
    const int64_t half = head_dim / 2;
    auto rotate_token = [&](int64_t token) {
        const int64_t angles = positions[token] * half;
        rotate_heads(qk + token * stride, heads, head_dim, half, cos + angles, sin + angles);
    };
    for_rows(tokens, heads * head_dim, rotate_token);
}

// row *= factor, rounded.
inline void multiply_row(bf16* row, int64_t size, float factor) {
    for (int64_t i = 0; i < size; i += kLanes)
        store_first(row + i, load_first(row + i, size - i) * factor, size - i);
}

// What queries at a position are multiplied with, see TemperatureSpec in model_spec.
inline float growth_at(int64_t position, float every, float scale) {
    return log1pf(floorf((static_cast<float>(position) + 1.0f) / every)) * scale + 1.0f;
}

inline void grow(bf16* queries, int64_t stride, int64_t tokens, int64_t size,
                 const int64_t* positions, float every, float scale) {
    auto grow_token = [&](int64_t token) {
        multiply_row(queries + token * stride, size, growth_at(positions[token], every, scale));
    };
    for_rows(tokens, size, grow_token);
}

// The largest element of `size`, NaN if there is a NaN.
inline float max_of_row(const float* row, int64_t size) {
    floats largest = splat(-INFINITY);
    ints nan_lanes = {};
    int64_t i = 0;
    for (; i < size / kLanes * kLanes; i += kLanes) {
        const floats part = load16(row + i);
        largest = choose(part > largest, part, largest);
        nan_lanes |= part != part;
    }
    float result = max_lanes(largest);
    bool has_nan = false;
    for (int lane = 0; lane < kLanes; ++lane) has_nan |= nan_lanes[lane] != 0;
    for (; i < size; ++i) {
        result = row[i] > result ? row[i] : result;
        has_nan |= row[i] != row[i];
    }
    return has_nan ? NAN : result;
}

// The largest of each row and the first position that holds it; of NaN, any position.
inline void peaks(const float* x, float* highest, int64_t* index, int64_t rows, int64_t size) {
    auto find_peak = [&](int64_t row) {
        const float* from = x + row * size;
        const float peak = max_of_row(from, size);
        int64_t position = 0;
        while (position < size - 1 && from[position] != peak) ++position;
        highest[row] = peak, index[row] = position;
    };
    for_rows(rows, size, find_peak);
}

}  // namespace
}  // namespace twostroke
