// A matrix that each token decays, adds to and reads: linear attention, token by token.
//
//   S = decay * S + key (x) added;  out = query S
//
// where `added` is the value times the token's rate or, by the delta rule, the value less what the
// decayed S has for the key, times the rate.
//
// 16 columns of all rows at a time: they stay in the first cache while all tokens of a request pass
// by. A token is one pass over them, which also collects what the next token's key recalls. The
// chunked form (arXiv:2412.06464, section 3.3) needs as many operations; it wins where matrix
// units multiply, and its sums would depend on where a prompt is cut.
#pragma once

#include <cstdint>
#include <cstring>

#include "buffer.hpp"
#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// One head's inputs and outputs. Tokens are `stride`, `gate_stride` and `out_stride` apart.
struct HeadWalk {
    const float *key, *query, *value;
    const float *decay, *rate;
    float* out;
    int64_t stride, gate_stride, out_stride;
    int64_t rows, columns;
};

// 16 columns of a state that is kept in `room`, [rows, 16]. An even number of rows.
template <bool DELTA, bool ROUNDED>
class StripWalk {
  public:
    StripWalk(const HeadWalk& head_walk, int64_t first_column, float* room)
        : head(head_walk), column(first_column), left(head.columns - column), strip(room) {}

    void run(int64_t begin, int64_t end) const {
        floats recalled = {};
        if constexpr (DELTA) recalled = recall(head.key + begin * head.stride);
        for (int64_t token = begin; token < end; ++token) {
            const int64_t at = token * head.stride, gate = token * head.gate_stride;
            const float decay = head.decay[gate], rate = head.rate[gate];
            floats added = load_first(head.value + at + column, left);
            if constexpr (DELTA) added = added - recalled * decay;
            added = added * rate;
            // After the last token, what is collected is not used.
            const float* next = head.key + at + (token + 1 < end ? head.stride : 0);
            const floats out = pass(head.key + at, head.query + at, next, decay, added, &recalled);
            store_first(head.out + token * head.out_stride + column, out, left);
        }
    }

  private:
    // Two sums, of even and odd rows: one would wait for itself.
    floats recall(const float* key) const {
        floats even = {}, odd = {};
        for (int64_t row = 0; row < head.rows; row += 2) {
            even += load16(strip + row * kLanes) * key[row];
            odd += load16(strip + (row + 1) * kLanes) * key[row + 1];
        }
        return even + odd;
    }

    floats pass(const float* key, const float* query, const float* next, float decay,
                const floats& added, floats* recalled) const {
        floats outs[2] = {}, nexts[2] = {};
        for (int64_t row = 0; row < head.rows; row += 2)
            UNROLL for (int i = 0; i < 2; ++i) {
                float* at = strip + (row + i) * kLanes;
                floats state = load16(at) * decay + added * key[row + i];
                if constexpr (ROUNDED) state = rounded(state);
                store16(at, state);
                outs[i] += state * query[row + i];
                if constexpr (DELTA) nexts[i] += state * next[row + i];
            }
        if constexpr (DELTA) *recalled = nexts[0] + nexts[1];
        return outs[0] + outs[1];
    }

    const HeadWalk& head;
    const int64_t column, left;
    float* const strip;  // [rows, 16]
};

// Some columns of a head's state, in strips. ROUNDED: to bf16 after each token, not only where a
// state is stored: else results would depend on where a prompt is cut.
template <bool ROUNDED>
class Columns {
  public:
    Columns(const HeadWalk& head_walk, int64_t first_column, int64_t end_column)
        : head(head_walk),
          first(first_column),
          end(end_column),
          strips((end - first + kLanes - 1) / kLanes),
          room(strips * head.rows * kLanes) {}

    // `state`: [rows, columns], float32 or bf16.
    void load(const void* state) const {
        for (int64_t row = 0; row < head.rows; ++row)
            for (int64_t column = first; column < end; column += kLanes) {
                const int64_t at = row * head.columns + column;
                const Number* from = static_cast<const Number*>(state) + at;
                const floats values = load_first(from, end - column);
                store16(place(row, column), values);
            }
    }

    void save(void* state) const {
        for (int64_t row = 0; row < head.rows; ++row)
            for (int64_t column = first; column < end; column += kLanes) {
                const int64_t at = row * head.columns + column;
                const floats values = load16(place(row, column));
                store_first(static_cast<Number*>(state) + at, values, end - column);
            }
    }

    template <bool DELTA>
    void run(int64_t begin_token, int64_t end_token) const {
        for (int64_t column = first; column < end; column += kLanes)
            StripWalk<DELTA, ROUNDED>(head, column, place(0, column)).run(begin_token, end_token);
    }

  private:
    template <bool IS_BF16, typename Wide, typename Narrow>
    struct Choice {
        using Type = Wide;
    };
    template <typename Wide, typename Narrow>
    struct Choice<true, Wide, Narrow> {
        using Type = Narrow;
    };
    using Number = typename Choice<ROUNDED, float, bf16>::Type;

    float* place(int64_t row, int64_t column) const {
        return room.data() + ((column - first) / kLanes * head.rows + row) * kLanes;
    }

    const HeadWalk& head;
    const int64_t first, end, strips;
    const Buffer<float> room;  // [strips, rows, 16]
};

}  // namespace
}  // namespace twostroke
