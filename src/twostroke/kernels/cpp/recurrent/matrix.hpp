// What recurrent layers with a matrix as their state share: all tokens of a pass, turn by turn.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "buffer.hpp"
#include "elementwise.hpp"
#include "kernels.hpp"
#include "recurrent/convolution.hpp"
#include "recurrent/segments.hpp"
#include "recurrent/walk.hpp"
#include "thread_pool.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// So many tokens at a time: what the convolution gives them stays in the second cache.
constexpr int64_t kTurnRows = 128;
constexpr int64_t kTaskColumns = 128;  // of a head, that one thread takes

INLINED floats silu16(const floats& x) { return x / (1.0f + exp16(-x)); }
inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

inline float sum_of_squares(const float* from, int64_t size) {
    floats squares = {};
    for (int64_t i = 0; i < size; i += kLanes) {
        const floats part = load_first(from + i, size - i);
        squares += part * part;
    }
    return sum_lanes(squares);
}

// What a turn's tokens have between the convolution and the output. All are [tokens, ...].
struct MatrixTurn {
    MatrixTurn(const MatrixCall& matrix_call, int64_t most)
        : call(matrix_call),
          active(most * call.convolution.channels),
          decays(most * call.heads),
          rates(most * call.heads),
          outs(most * call.heads * call.columns) {}

    int64_t num_rows() const { return end - begin; }

    // Convolution and activation, rounded as hidden states are, as in transformers.
    void activate() const {
        const int64_t channels = call.convolution.channels;
        convolve(call.convolution, begin, end,
                 [&](int64_t row, int64_t channel, int64_t left, const floats& sum) {
                     float* to = active.data() + (row - begin) * channels + channel;
                     store_first(to, rounded(silu16(sum)), left);
                 });
    }

    // Takes the states of all heads through the turn's tokens.
    template <bool DELTA>
    void walk(int64_t key, int64_t query, int64_t value) const {
        if (call.bf16_states)
            walk_as<DELTA, true>(key, query, value);
        else
            walk_as<DELTA, false>(key, query, value);
    }

    const MatrixCall& call;
    int64_t begin = 0, end = 0;         // rows of the pass
    const Buffer<float> active;         // channels
    const Buffer<float> decays, rates;  // heads
    const Buffer<float> outs;           // heads, columns

  private:
    template <bool DELTA, bool ROUNDED>
    void walk_as(int64_t key, int64_t query, int64_t value) const {
        const int64_t parts = (call.columns + kTaskColumns - 1) / kTaskColumns;
        const int64_t size = call.rows * call.columns;
        auto run = [&](int64_t task) {
            const int64_t index = task / parts, first = task % parts * kTaskColumns;
            const int64_t after = first + kTaskColumns;
            const int64_t last = after < call.columns ? after : call.columns;
            const HeadWalk head = walk_of(index, key, query, value);
            const Columns<ROUNDED> columns(head, first, last);
            for_segments(call.convolution, begin, end, [&](const Segment& part, bool is_last) {
                const auto state = [&](int64_t slot) {
                    const int64_t at = (slot * call.heads + index) * size;
                    return static_cast<char*>(call.states) + at * (ROUNDED ? 2 : 4);
                };
                columns.load(state(part.slot));
                columns.template run<DELTA>(part.begin - begin, part.end - begin);
                columns.save(state(part.slot));
                if (is_last && part.copy >= 0) columns.save(state(part.copy));
            });
        };
        run_some(call.heads * parts, num_rows() * call.heads * size, run);
    }

    // Of the turn's first token; `key`, `query` and `value`: their first channels.
    HeadWalk walk_of(int64_t head, int64_t key, int64_t query, int64_t value) const {
        const int64_t shared = head / (call.heads / call.groups) * call.rows;
        const float* token = active.data();
        return {token + key + shared,
                token + query + shared,
                token + value + head * call.columns,
                decays.data() + head,
                rates.data() + head,
                outs.data() + head * call.columns,
                call.convolution.channels,
                call.heads,
                call.heads * call.columns,
                call.rows,
                call.columns};
    }
};

// Calls body(turn) for all rows of a pass, some at a time.
template <typename Body>
inline void for_turns(const MatrixCall& call, const Body& body) {
    const ConvolutionCall& own = call.convolution;
    if (own.num_segments == 0) return;
    const int64_t begin = own.segments[0].begin, end = own.segments[own.num_segments - 1].end;
    MatrixTurn turn(call, end - begin < kTurnRows ? end - begin : kTurnRows);
    for (turn.begin = begin; turn.begin < end; turn.begin = turn.end) {
        turn.end = end - turn.begin < kTurnRows ? end : turn.begin + kTurnRows;
        body(turn);
    }
}

}  // namespace
}  // namespace twostroke
