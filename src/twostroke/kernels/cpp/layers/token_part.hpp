// Some tokens of a pass, and what every kind of layer does to them.
#pragma once

#include <cstdint>
#include <cstddef>

#include "elementwise.hpp"
#include "kernels.hpp"
#include "linear/low_rank.hpp"
#include "linear/several.hpp"
#include "norms.hpp"
#include "thread_pool.hpp"

namespace twostroke {
namespace {

// Bytes of `count` bf16.
inline size_t bf16_bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(bf16); }

// Some tokens of a pass, and the seconds of each component while they are computed.
class TokenPart {
  public:
    TokenPart(const PassCall& pass_call, int64_t first_token, int64_t num_tokens)
        : pass(pass_call),
          first(first_token),
          count(num_tokens),
          last_time_(pass.seconds ? now() : 0.0) {}

    const PassCall& pass;
    const int64_t first, count;
    double seconds[kComponents] = {};

    bf16* x() const { return pass.x + first * pass.hidden; }
    bf16* normed() const { return pass.normed + first * pass.hidden; }

    // The time since the last call was spent on this component.
    void add_time(Component component) {
        if (!pass.seconds) return;
        const double time = now();
        seconds[component] += time - last_time_;
        last_time_ = time;
    }

    // What another part took meanwhile is its time alone.
    void add_times(const TokenPart& other) {
        for (int i = 0; i < kComponents; ++i) seconds[i] += other.seconds[i];
        last_time_ = other.last_time_;
    }

  private:
    double last_time_;
};

inline void apply(const LinearCall& weights, int64_t rows, const bf16* x, bf16* out,
                  const bf16* residual) {
    LinearCall call = weights;
    call.x = x, call.x_stride = weights.inputs, call.rows = rows;
    call.out = out, call.residual = residual, call.float_out = 0;
    linear(call);
}

inline void apply_wide(const LinearCall& weights, int64_t rows, const bf16* x, float* out) {
    LinearCall call = weights;
    call.x = x, call.x_stride = weights.inputs, call.rows = rows;
    call.out = out, call.residual = nullptr, call.float_out = 1;
    linear(call);
}

// Adds what adapters do to `rows` rows of a linear layer's outputs, from the part's row `row` on.
inline void adapt(TokenPart& part, const LayerCall& layer, AdaptedLinear which, int64_t row,
                  int64_t rows, const bf16* x, bf16* out) {
    const PassCall& pass = part.pass;
    if (!pass.additions) return;
    const int64_t place = (&layer - pass.layers) * kAdaptedLinears + which;
    add_low_rank(pass.additions + place * pass.num_adapters, pass.num_adapters,
                 pass.owners + part.first + row, rows, x, out);
}

// Calls body(row, rows) for all rows of a part, at most mlp_tokens at a time.
template <typename Body>
inline void for_mlp_turns(const TokenPart& part, const Body& body) {
    const int64_t turns = (part.count + part.pass.mlp_tokens - 1) / part.pass.mlp_tokens;
    for (int64_t turn = 0; turn < turns; ++turn) {
        const int64_t row = part.count * turn / turns;
        body(row, part.count * (turn + 1) / turns - row);
    }
}

// The rows that a branch reads: normed, in `room`, or as they are.
inline const bf16* read_rows(TokenPart& part, const NormCall& norm, bf16* room) {
    const PassCall& pass = part.pass;
    if (!norm.weight) return part.x();
    norm_rows(norm, 1, part.x(), room, part.count, pass.hidden, pass.eps);
    part.add_time(kNorm);
    return room;
}

// Adds what a branch ends with, applied to `inner`, to `rows` rows of the part, from `row` on.
// `adapt(out)` adds what adapters do to the product.
template <typename Adapt>
inline void add_branch(TokenPart& part, const AdditionCall& addition, int64_t row, int64_t rows,
                       const bf16* inner, const Adapt& adapt) {
    const PassCall& pass = part.pass;
    const NormCall& norm = addition.norm;
    bf16* const x = part.x() + row * pass.hidden;
    bf16* const room = part.normed() + row * pass.hidden;
    const bool is_plain = !norm.weight && addition.scale == 1.0f;
    apply(addition.linear, rows, inner, is_plain ? x : room, is_plain ? x : nullptr);
    adapt(is_plain ? x : room);
    part.add_time(kGemm);
    if (is_plain) return;
    if (norm.weight) norm_rows(norm, 1, room, room, rows, pass.hidden, pass.eps);
    add_rows(x, room, rows, pass.hidden, addition.scale);
    part.add_time(kNorm);
}

// Of a layer's half, whose product `which` is.
inline void add_half(TokenPart& part, const LayerCall& layer, AdaptedLinear which, int64_t row,
                     int64_t rows, const bf16* inner) {
    add_branch(part, which == kDown ? layer.mlp.down : layer.mixer.output, row, rows, inner,
               [&](bf16* out) { adapt(part, layer, which, row, rows, inner, out); });
}

}  // namespace
}  // namespace twostroke
