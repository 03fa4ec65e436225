// attention/few_rows.hpp over a cache of integers: few query rows, keys read where they lie.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/factors.hpp"
#include "attention/few_rows.hpp"
#include "attention/scaled/integers.hpp"
#include "attention/scaled/layout.hpp"
#include "attention/softmax.hpp"
#include "attention/walk.hpp"
#include "kernels.hpp"

namespace twostroke {
namespace {

// Sums of one query row with as many keys as a vector has lanes.
struct RowSums {
    vint high = {}, low = {};
    vfloat scaled = {};

    // Ends a group: its products, scaled, are added.
    void end_group(int32_t zero, vfloat scales) {
        scaled = multiply_add(to_floats((high << 7) + low - zero), scales, scaled);
        high = low = vint{};
    }
};

// Adds the products of ROWS query rows of a KV head and word `word` of its keys' rows; ends a group
// behind its last word. `scales`: of these keys, [groups][kKeys].
template <int BITS, int ROWS>
inline __attribute__((always_inline)) void score_word(RowSums* sums, const RoundedQuery* query,
                                                      vword column, int64_t word,
                                                      const float* scales) {
    if constexpr (BITS == 8) {
        const vword key = prepare_key(column);
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const vword high = broadcast_word(query[r].high + 4 * word);
            const vword low = broadcast_word(query[r].low + 4 * word);
            sums[r].high = dot_steps<8>(sums[r].high, high, key);
            sums[r].low = dot_steps<8>(sums[r].low, low, key);
        }
    } else {
        constexpr int kGroupWords = 4;  // 32 elements
        const int64_t group = word / kGroupWords, inside = word % kGroupWords;
        const vword both[2] = {column & 0x0f0f0f0fu, (column >> 4) & 0x0f0f0f0fu};
        UNROLL for (int r = 0; r < ROWS; ++r)
            UNROLL for (int half = 0; half < 2; ++half) {
                const int64_t at = group * kScaleGroup + half * kLanes + 4 * inside;
                const vword high = broadcast_word(query[r].high + at);
                const vword low = broadcast_word(query[r].low + at);
                sums[r].high = dot_steps<4>(sums[r].high, high, both[half]);
                sums[r].low = dot_steps<4>(sums[r].low, low, both[half]);
            }
        if (inside == kGroupWords - 1)
            UNROLL for (int r = 0; r < ROWS; ++r)
                sums[r].end_group(query[r].zeros[group], load<vfloat>(scales + group * kKeys));
    }
}

// Ends a KV head's rows: writes the scores of a vector of keys.
template <int BITS, int ROWS>
inline __attribute__((always_inline)) void end_head(RowSums* sums, const RoundedQuery* query,
                                                    const float* scales, float (*scores)[kKeys]) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
        if constexpr (BITS == 8) sums[r].end_group(query[r].zeros[0], load<vfloat>(scales));
        store(scores[r], sums[r].scaled * query[r].scale);
        sums[r] = RowSums();
    }
}

// scores[head][r][..] = query row r of `heads` KV heads . 16 keys. ROW: a row's bytes. `scales`: of
// these keys, [heads][groups][kKeys]. Rows that fill a vector together are loaded together.
template <int BITS, int ROW, int ROWS>
inline void score_scaled_keys(float (*scores)[ROWS][kKeys], const RoundedQuery (*query)[ROWS],
                              const char* keys, const int64_t* offsets, int heads,
                              int64_t groups, const float* scales,
                              TokenPrefetcher<ScaledRows<BITS>>& prefetcher) {
    constexpr int kTogether = ROW < kVectorBytes ? kVectorBytes / ROW : 1;
    constexpr int kVectors = ROW < kVectorBytes ? 1 : ROW / kVectorBytes;
    for (int head = 0; head < heads; head += kTogether)
        for (int j = 0; j < kSplit; ++j) {
            const bool whole = head + kTogether <= heads;
            RowSums sums[ROWS];
            UNROLL for (int v = 0; v < kVectors; ++v) {
                vword columns[kVectorLanes];
                const char* from = keys + head * ROW + v * kVectorBytes;
                const int bytes = whole ? kVectorBytes : kVectorBytes / 2;
                load_columns(columns, from, offsets + j * kVectorLanes, bytes);
                UNROLL for (int i = 0; i < kVectorLanes; ++i) {
                    if (i * kVectorBytes % 64 == 0) prefetcher.prefetch_line();
                    const int byte = v * kVectorBytes + 4 * i, word = byte % ROW / 4;
                    const int at = head + byte / ROW;
                    if (byte >= ROW && !whole) break;
                    const float* head_scales = scales + at * groups * kKeys + j * kVectorLanes;
                    score_word<BITS, ROWS>(sums, query[at], columns[i], word, head_scales);
                    if (word == ROW / 4 - 1)
                        end_head<BITS, ROWS>(sums, query[at], head_scales,
                                             (float (*)[kKeys])&scores[at][0][j * kVectorLanes]);
                }
            }
        }
}

// The same for rows of any size.
template <int BITS, int ROWS>
inline void score_any_scaled_keys(float (*scores)[ROWS][kKeys], const RoundedQuery (*query)[ROWS],
                                  const char* keys, const int64_t* offsets, int heads, int64_t row,
                                  int64_t groups, const float* scales,
                                  TokenPrefetcher<ScaledRows<BITS>>& prefetcher) {
    for (int head = 0; head < heads; ++head)
        for (int j = 0; j < kSplit; ++j) {
            const float* head_scales = scales + head * groups * kKeys + j * kVectorLanes;
            RowSums sums[ROWS];
            for (int64_t byte = 0; byte < row; byte += kVectorBytes) {
                vword columns[kVectorLanes];
                const int64_t left = row - byte < kVectorBytes ? row - byte : kVectorBytes;
                load_columns(columns, keys + head * row + byte, offsets + j * kVectorLanes, left);
                for (int i = 0; i < left / 4; ++i) {
                    if (i * kVectorBytes % 64 == 0) prefetcher.prefetch_line();
                    score_word<BITS, ROWS>(sums, query[head], columns[i], byte / 4 + i,
                                           head_scales);
                }
            }
            end_head<BITS, ROWS>(sums, query[head], head_scales,
                                 (float (*)[kKeys])&scores[head][0][j * kVectorLanes]);
        }
}

// sums[r][..] += weights of `count` keys times their values, COLUMNS at a time in registers.
// `weights` are [groups][ROWS][kKeys], times the values' scales.
template <int BITS, int COLUMNS, int ROWS>
inline void add_scaled_values(float* sums, const float (*weights)[ROWS][kKeys], const char* values,
                              const int64_t* offsets, int first, int count, int64_t dim,
                              TokenPrefetcher<ScaledRows<BITS>>& prefetcher) {
    constexpr int kVectors = COLUMNS / kLanes, kEach = kStride<BITS> / kLanes;
    for (int64_t column = 0; column < dim; column += COLUMNS) {
        floats partial[ROWS][kVectors];
        UNROLL for (int r = 0; r < ROWS; ++r)
            UNROLL for (int i = 0; i < kVectors; ++i)
                partial[r][i] = load<floats>(sums + r * dim + column + i * kLanes);
        for (int k = first; k < first + count; ++k) {
            if (k * COLUMNS * BITS / 8 % 64 == 0) prefetcher.prefetch_line();
            UNROLL for (int i = 0; i < kVectors; i += kEach) {
                floats value[kEach];
                widen_values<BITS>(values + offsets[k], column + i * kLanes, value);
                const int64_t group = BITS == 8 ? 0 : (column + i * kLanes) / kScaleGroup;
                UNROLL for (int r = 0; r < ROWS; ++r)
                    UNROLL for (int j = 0; j < kEach; ++j)
                        partial[r][i + j] += value[j] * weights[group][r][k];
            }
        }
        UNROLL for (int r = 0; r < ROWS; ++r)
            UNROLL for (int i = 0; i < kVectors; ++i)
                store16(sums + r * dim + column + i * kLanes, partial[r][i]);
    }
}

// to[group][r][..] = weights[r][..] times the scales of the group.
template <int ROWS>
inline void scale_weights(float (*to)[ROWS][kKeys], const float (*weights)[kKeys],
                          const float (*scales)[kKeys], int64_t groups) {
    for (int64_t group = 0; group < groups; ++group)
        for (int r = 0; r < ROWS; ++r)
            for (int k = 0; k < kKeys; k += kLanes)
                store16(to[group][r] + k,
                        load<floats>(weights[r] + k) * load<floats>(scales[group] + k));
}

template <int BITS, int DIM, int ROWS>
void attend_to_scaled_tokens(const AttentionCall& call, int64_t request, int64_t kv_head,
                             int heads) {
    constexpr int kLeast = kStride<BITS>, kChosen = choose_columns(DIM, ROWS);
    constexpr int kColumns = kChosen < kLeast ? kLeast : kChosen;
    static_assert((DIM ? DIM : kLeast) % kColumns == 0);
    const ScaledRows<BITS> rows(call, request, kv_head, 0);
    const int64_t dim = DIM ? DIM : call.head_dim, value_dim = DIM ? DIM : call.value_dim;
    const int64_t groups = rows.sizes.groups, value_groups = rows.value_sizes.groups;
    // From one KV head's queries to the next's, and from its output to the next's.
    const int64_t span = rows.group * dim, out_span = rows.group * value_dim;
    constexpr int kRoom = DIM ? DIM : kMaxHeadDim;
    alignas(64) float sums[kMaxSpan][ROWS * kRoom];
    alignas(64) float scores[kMaxSpan][ROWS][kKeys];
    alignas(64) float weights[kMaxSpan * kMaxGroups][ROWS][kKeys];
    Softmax softmax[kMaxSpan][ROWS];
    RoundedQuery query[kMaxSpan][ROWS];
    TokenScales key_scales, value_scales;
    memset(sums, 0, static_cast<size_t>(heads) * sizeof(sums[0]));
    for (int head = 0; head < heads; ++head)
        for (int r = 0; r < ROWS; ++r) {
            round_query<BITS>(rows, r, head * span, query[head][r]);
            if (call.sinks)
                softmax[head][r].start_with(call.sinks[rows.head_of(r) + head * rows.group]);
        }
    const int64_t row = rows.key_step(), value_row = rows.value_step();
    KeyWalk<ScaledRows<BITS>> walk(rows, rows.oldest(0), rows.end(ROWS - 1), heads);
    TokenPrefetcher<ScaledRows<BITS>> prefetcher(walk);
    for (; walk.count > 0; walk.advance()) {
        const int64_t *offsets = walk.token_offsets().keys, position = walk.position;
        const int64_t* value_offsets = walk.token_offsets().values;
        const int scored = (walk.count + kLanes - 1) / kLanes * kLanes;
        const int64_t end = position + walk.count;
        const int64_t oldest = rows.oldest(0);
        key_scales.load_all(rows, rows.sizes, call.keys, position, oldest, walk.count,
                            walk.next_count, heads);
        value_scales.load_all(rows, rows.value_sizes, call.values, position, oldest, walk.count,
                              walk.next_count, heads);
        for (int k = 0; k < walk.count; k += kLanes) {
            auto* first_scores = (float (*)[ROWS][kKeys])&scores[0][0][k];
            const float* scales = &key_scales.rows[0][k];
            if constexpr (DIM)
                score_scaled_keys<BITS, DIM * BITS / 8, ROWS>(first_scores, query, rows.keys,
                                                              offsets + k, heads, groups, scales,
                                                              prefetcher);
            else
                score_any_scaled_keys<BITS, ROWS>(first_scores, query, rows.keys, offsets + k,
                                                  heads, row, groups, scales, prefetcher);
        }
        for (int head = 0; head < heads; ++head)
            for (int r = 0; r < ROWS; ++r) {
                float* row_scores = scores[head][r];
                for (int k = scored; k < kKeys; k += kLanes) store16(row_scores + k, floats{});
                const int64_t row_end = rows.end(r) < end ? rows.end(r) : end;
                softmax[head][r].scale_and_mask(row_scores, position, rows.oldest(r), row_end,
                                                call);
            }
        for (int head = 0; head < heads; ++head) {
            for (int r = 0; r < ROWS; ++r) {
                float* sum = sums[head] + r * value_dim;
                const float correction = softmax[head][r].to_weights(scores[head][r]);
                for (int64_t d = 0; d < value_dim; d += kLanes)
                    store16(sum + d, load<floats>(sum + d) * correction);
            }
        }
        for (int head = 0; head < heads; ++head)
            scale_weights<ROWS>(&weights[head * value_groups], scores[head],
                                &value_scales.rows[head * value_groups], value_groups);
        // Some tokens of all KV heads, in the order in which they lie and are fetched.
        for (int k = 0; k < walk.count; k += kLanes)
            for (int head = 0; head < heads; ++head) {
                const int count = walk.min_of(walk.count - k, kLanes);
                add_scaled_values<BITS, kColumns, ROWS>(sums[head], &weights[head * value_groups],
                                                        rows.values + head * value_row,
                                                        value_offsets, k, count, value_dim,
                                                        prefetcher);
            }
    }
    for (int head = 0; head < heads; ++head)
        for (int r = 0; r < ROWS; ++r)
            rows.write(r, head * out_span, sums[head] + r * value_dim, softmax[head][r].total());
}

template <int BITS, int DIM>
void attend_few_scaled_rows(const AttentionCall& call, int64_t request, int64_t kv_head, int heads,
                            int64_t rows) {
    static_assert(kFewRows == 4);
    if (rows == 4)
        attend_to_scaled_tokens<BITS, DIM, 4>(call, request, kv_head, heads);
    else if (rows == 3)
        attend_to_scaled_tokens<BITS, DIM, 3>(call, request, kv_head, heads);
    else if (rows == 2)
        attend_to_scaled_tokens<BITS, DIM, 2>(call, request, kv_head, heads);
    else
        attend_to_scaled_tokens<BITS, DIM, 1>(call, request, kv_head, heads);
}

}  // namespace
}  // namespace twostroke
