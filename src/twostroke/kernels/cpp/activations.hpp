// Activations of MLPs, most of them gated: activation(gate) * up, of [rows, 2 * size], gates first.
#pragma once

#include <cmath>
#include <cstdint>

#include "elementwise.hpp"
#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// Each has the activation of 16 lanes and that of one number.
struct Silu {
    INLINED static floats of(floats g) { return g / (1.0f + exp16(-g)); }
    static float of(float g) { return g / (1.0f + expf(-g)); }
};

// 0.5 g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))), as g / (1 + exp(-2 ...)).
struct TanhGelu {
    static constexpr float kFirst = -1.59576912f, kThird = -0.0713548162f;

    INLINED static floats of(floats g) { return g / (1.0f + exp16(g * (g * g * kThird + kFirst))); }
    static float of(float g) { return g / (1.0f + expf(g * (g * g * kThird + kFirst))); }
};

struct Gelu {
    INLINED static floats of(floats g) {
        float lanes[kLanes];
        store(lanes, g);
        for (float& lane : lanes) lane = of(lane);
        return load<floats>(lanes);
    }
    static float of(float g) { return 0.5f * g * (1.0f + erff(g * 0.707106781f)); }
};

template <typename Function>
void multiply_gates(const bf16* gate_up, bf16* out, int64_t rows, int64_t size) {
    auto activate = [&](int64_t row) {
        const bf16* gate = gate_up + row * 2 * size;
        const bf16* up = gate + size;
        bf16* to = out + row * size;
        int64_t i = 0;
        for (; i + kLanes <= size; i += kLanes)
            store16(to + i, rounded(Function::of(load16(gate + i))) * load16(up + i));
        for (; i < size; ++i) {
            const float activated = Function::of(to_float(gate[i]));
            to[i] = to_bf16(to_float(to_bf16(activated)) * to_float(up[i]));
        }
    };
    for_rows(rows, 2 * size, activate);
}

constexpr float kClamp = 7.0f, kSlope = 1.702f;

// `clamped_mul` in layers/activation.py of 16 values; NaN stays NaN.
INLINED floats clamped16(floats gate, floats up) {
    const floats g = choose(gate > kClamp, splat(kClamp), gate);
    const floats below = choose(up > kClamp, splat(kClamp), up);
    const floats u = choose(below < -kClamp, splat(-kClamp), below);
    return (u + 1.0f) * (g / (1.0f + exp16(g * -kSlope)));
}

inline void clamped_mul(const bf16* gate_up, bf16* out, int64_t rows, int64_t size) {
    auto multiply = [&](int64_t row) {
        const bf16* gate = gate_up + row * 2 * size;
        const bf16* up = gate + size;
        bf16* to = out + row * size;
        for (int64_t i = 0; i < size; i += kLanes) {
            const int64_t left = size - i;
            store_first(to + i, clamped16(load_first(gate + i, left), load_first(up + i, left)),
                        left);
        }
    };
    for_rows(rows, 2 * size, multiply);
}

// max(x, 0)^2; NaN stays NaN.
inline void squared_relu(const bf16* x, bf16* out, int64_t rows, int64_t size) {
    auto square = [&](int64_t row) {
        for (int64_t i = 0; i < size; i += kLanes) {
            const floats from = load_first(x + row * size + i, size - i);
            const floats above = choose(from < 0.0f, splat(0.0f), from);
            store_first(out + row * size + i, above * above, size - i);
        }
    };
    for_rows(rows, size, square);
}

inline void activate(const bf16* x, bf16* out, int64_t rows, int64_t size, int32_t activation) {
    if (activation == kSquaredRelu)
        squared_relu(x, out, rows, size);
    else if (activation == kClamped)
        clamped_mul(x, out, rows, size);
    else if (activation == kTanhGelu)
        multiply_gates<TanhGelu>(x, out, rows, size);
    else if (activation == kGelu)
        multiply_gates<Gelu>(x, out, rows, size);
    else
        multiply_gates<Silu>(x, out, rows, size);
}

// x *= sigmoid(gates), rounded after each step.
inline void sigmoid_mul(const bf16* gates, int64_t stride, bf16* x, int64_t rows, int64_t size) {
    auto multiply = [&](int64_t row) {
        bf16* to = x + row * size;
        for (int64_t i = 0; i < size; i += kLanes) {
            const int64_t left = size - i;
            const floats gate = load_first(gates + row * stride + i, left);
            const floats weight = rounded(1.0f / (1.0f + exp16(-gate)));
            store_first(to + i, load_first(to + i, left) * weight, left);
        }
    };
    for_rows(rows, 2 * size, multiply);
}

}  // namespace
}  // namespace twostroke
