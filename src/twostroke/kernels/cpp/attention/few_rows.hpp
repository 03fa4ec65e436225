// Attention of few query rows (decoding), for KV heads that lie side by side in the cache. Keys and
// values are read where they lie; the time goes to waiting for memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/factors.hpp"
#include "attention/softmax.hpp"
#include "attention/walk.hpp"
#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

constexpr int kFewRows = 4;   // Query rows of a KV head, at most.
constexpr int kMaxSpan = 8;   // KV heads of a task, at most.

// scores[r][..] = query row r . 16 keys. Each key is read once for all rows. DIM is the head's
// size, or 0 if only `head_dim` knows it.
template <typename T, typename Stored, int DIM, int ROWS>
inline void score_keys(float (*scores)[kKeys], const Factor<T>* const* query, const Stored* keys,
                       const int64_t* offsets, int64_t head_dim,
                       TokenPrefetcher<QueryRows<T, Stored>>& prefetcher) {
    const int64_t dim = DIM ? DIM : head_dim;
    vfloat sums[ROWS][kSplit] = {};
    const auto add = [&](int64_t d, int num_words) __attribute__((always_inline)) {
        vword columns[kSplit][kVectorLanes];
        UNROLL for (int j = 0; j < kSplit; ++j)
            load_columns(columns[j], keys + d, offsets + j * kVectorLanes, 4 * num_words);
        for (int i = 0; i < num_words; ++i) {
            prefetcher.prefetch_line();  // 16 words are a line.
            UNROLL for (int j = 0; j < kSplit; ++j) {
                vword wide[kWidened<T, Stored>];
                widen_word<T, Stored>(columns[j][i], wide);
                UNROLL for (int w = 0; w < kWidened<T, Stored>; ++w)
                    UNROLL for (int r = 0; r < ROWS; ++r) {
                        const int word = i * kWidened<T, Stored> + w;
                        const Factor<T>* factors = query[r] + d + word * kInWord<T>;
                        sums[r][j] = dot_word<T>(sums[r][j], factors, wide[w]);
                    }
            }
        }
    };
    int64_t d = 0;
    for (; d + kInVector<Stored> <= dim; d += kInVector<Stored>) add(d, kVectorLanes);
    if constexpr (DIM == 0 && kInVector<Stored> > kLanes)
        if (d < dim) add(d, static_cast<int>(dim - d) / kInWord<Stored>);
    for (int r = 0; r < ROWS; ++r) memcpy(scores[r], sums[r], sizeof(sums[r]));
}

// sums[r][..] += weights of `count` keys times their values, COLUMNS at a time in registers.
template <typename T, typename Stored, int COLUMNS, int ROWS>
inline void add_values(float* sums, const float (*weights)[kKeys], const Stored* values,
                       const int64_t* offsets, int count, int64_t dim,
                       TokenPrefetcher<QueryRows<T, Stored>>& prefetcher) {
    constexpr int kVectors = COLUMNS / kLanes;
    constexpr int kLine = TokenPrefetcher<QueryRows<T, Stored>>::kLine;
    constexpr int kPerLine = kLine / kLanes / static_cast<int>(sizeof(Stored));
    for (int64_t column = 0; column < dim; column += COLUMNS) {
        floats partial[ROWS][kVectors];
        UNROLL for (int r = 0; r < ROWS; ++r)
            UNROLL for (int i = 0; i < kVectors; ++i)
                partial[r][i] = load<floats>(sums + r * dim + column + i * kLanes);
        for (int k = 0; k < count; ++k) {
            UNROLL for (int i = 0; i < kVectors; ++i) {
                if ((k * kVectors + i) % kPerLine == 0) prefetcher.prefetch_line();
                const floats value = load16(values + offsets[k] + column + i * kLanes);
                UNROLL for (int r = 0; r < ROWS; ++r) partial[r][i] += value * weights[r][k];
            }
        }
        UNROLL for (int r = 0; r < ROWS; ++r)
            UNROLL for (int i = 0; i < kVectors; ++i)
                store16(sums + r * dim + column + i * kLanes, partial[r][i]);
    }
}

// Columns of values whose sums stay in registers.
constexpr int choose_columns(int dim, int rows) {
    int columns = dim == 0 ? kLanes : dim;
    while (columns > kLanes && rows * columns > kSumRegisters * 2 / 3 * kVectorLanes)
        columns = columns > 64 ? 64 : columns / 2;
    return columns;
}

// ROWS query rows of each of `heads` KV heads from `kv_head` on. Those heads of a token are read
// together, in the order in which they lie.
template <typename T, typename Stored, int DIM, int ROWS>
void attend_to_tokens(const AttentionCall& call, int64_t request, int64_t kv_head, int heads) {
    constexpr int kColumns = choose_columns(DIM, ROWS);
    static_assert((DIM ? DIM : kLanes) % kColumns == 0);
    const QueryRows<T, Stored> rows(call, request, kv_head, 0);
    const int64_t dim = DIM ? DIM : call.head_dim, value_dim = DIM ? DIM : call.value_dim;
    const int64_t key_step = rows.key_step(), value_step = rows.value_step();
    // From one KV head's queries to the next's, and from its output to the next's.
    const int64_t span = rows.group * dim, out_span = rows.group * value_dim;
    constexpr int kRoom = DIM ? DIM : kMaxHeadDim;
    alignas(64) float sums[kMaxSpan][ROWS * kRoom];
    alignas(64) float scores[kMaxSpan][ROWS][kKeys], wide[kMaxSpan][ROWS][kRoom];
    Softmax softmax[kMaxSpan][ROWS];
    const Factor<T>* query[kMaxSpan][ROWS];
    memset(sums, 0, static_cast<size_t>(heads) * sizeof(sums[0]));
    for (int head = 0; head < heads; ++head)
        for (int r = 0; r < ROWS; ++r) {
            query[head][r] = to_factors(rows.query(r) + head * span, wide[head][r], dim);
            if (call.sinks)
                softmax[head][r].start_with(call.sinks[rows.head_of(r) + head * rows.group]);
        }
    KeyWalk<QueryRows<T, Stored>> walk(rows, rows.oldest(0), rows.end(ROWS - 1), heads);
    TokenPrefetcher<QueryRows<T, Stored>> prefetcher(walk);
    for (; walk.count > 0; walk.advance()) {
        const TokenOffsets& offsets = walk.token_offsets();
        const int scored = (walk.count + kLanes - 1) / kLanes * kLanes;
        const int64_t end = walk.position + walk.count;
        for (int k = 0; k < walk.count; k += kLanes)
            for (int head = 0; head < heads; ++head) {
                auto* first_scores = (float (*)[kKeys])&scores[head][0][k];
                score_keys<T, Stored, DIM, ROWS>(first_scores, query[head],
                                                 rows.keys + head * key_step, offsets.keys + k, dim,
                                                 prefetcher);
            }
        for (int head = 0; head < heads; ++head)
            for (int r = 0; r < ROWS; ++r) {
                float* row = scores[head][r];
                for (int k = scored; k < kKeys; k += kLanes) store16(row + k, floats{});
                const int64_t row_end = rows.end(r) < end ? rows.end(r) : end;
                softmax[head][r].scale_and_mask(row, walk.position, rows.oldest(r), row_end,
                                                call);
            }
        for (int head = 0; head < heads; ++head)
            for (int r = 0; r < ROWS; ++r) {
                float* sum = sums[head] + r * value_dim;
                const float correction = softmax[head][r].to_weights(scores[head][r]);
                for (int64_t d = 0; d < value_dim; d += kLanes)
                    store16(sum + d, load<floats>(sum + d) * correction);
            }
        for (int k = 0; k < walk.count; k += kLanes)
            for (int head = 0; head < heads; ++head) {
                const auto* weights = (const float (*)[kKeys])&scores[head][0][k];
                const int count = walk.min_of(walk.count - k, kLanes);
                add_values<T, Stored, kColumns, ROWS>(sums[head], weights,
                                                      rows.values + head * value_step,
                                                      offsets.values + k, count, value_dim,
                                                      prefetcher);
            }
    }
    for (int head = 0; head < heads; ++head)
        for (int r = 0; r < ROWS; ++r) {
            const float* sum = sums[head] + r * value_dim;
            write_row(rows.out(r) + head * out_span, sum, value_dim, softmax[head][r].total());
        }
}

template <typename T, typename Stored, int DIM>
void attend_few_rows(const AttentionCall& call, int64_t request, int64_t kv_head, int heads,
                     int64_t rows) {
    static_assert(kFewRows == 4);
    if (rows == 4)
        attend_to_tokens<T, Stored, DIM, 4>(call, request, kv_head, heads);
    else if (rows == 3)
        attend_to_tokens<T, Stored, DIM, 3>(call, request, kv_head, heads);
    else if (rows == 2)
        attend_to_tokens<T, Stored, DIM, 2>(call, request, kv_head, heads);
    else
        attend_to_tokens<T, Stored, DIM, 1>(call, request, kv_head, heads);
}

}  // namespace
}  // namespace twostroke
