// What is between an expert's two products.
#pragma once

#include <cstdint>

#include "activations.hpp"
#include "elementwise.hpp"
#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

constexpr float kClamp = 7.0f, kSlope = 1.702f;

// `clamped_mul` in layers/activation.py of 16 values; NaN stays NaN.
INLINED floats clamped16(floats gate, floats up) {
    const floats g = choose(gate > kClamp, splat(kClamp), gate);
    const floats below = choose(up > kClamp, splat(kClamp), up);
    const floats u = choose(below < -kClamp, splat(-kClamp), below);
    return (u + 1.0f) * (g / (1.0f + exp16(g * -kSlope)));
}

inline void clamped_mul(const bf16* gate_up, bf16* out, int64_t rows, int64_t size) {
    auto activate = [&](int64_t row) {
        const bf16* gate = gate_up + row * 2 * size;
        const bf16* up = gate + size;
        bf16* to = out + row * size;
        for (int64_t i = 0; i < size; i += kLanes) {
            const int64_t left = size - i;
            store_first(to + i, clamped16(load_first(gate + i, left), load_first(up + i, left)),
                        left);
        }
    };
    for_rows(rows, 2 * size, activate);
}

inline void activate(int32_t activation, const bf16* gate_up, bf16* out, int64_t rows,
                     int64_t size) {
    if (activation == kClamped)
        clamped_mul(gate_up, out, rows, size);
    else
        gated_mul(gate_up, out, rows, size, activation);
}

}  // namespace
}  // namespace twostroke
