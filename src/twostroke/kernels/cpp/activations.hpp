// Gated activations: activation(gate) * up, of [rows, 2 * size], gates first.
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

inline void silu_mul(const bf16* gate_up, bf16* out, int64_t rows, int64_t size) {
    multiply_gates<Silu>(gate_up, out, rows, size);
}

inline void gated_mul(const bf16* gate_up, bf16* out, int64_t rows, int64_t size,
                      int32_t activation) {
    if (activation == kTanhGelu)
        multiply_gates<TanhGelu>(gate_up, out, rows, size);
    else if (activation == kGelu)
        multiply_gates<Gelu>(gate_up, out, rows, size);
    else
        silu_mul(gate_up, out, rows, size);
}

}  // namespace
}  // namespace twostroke
