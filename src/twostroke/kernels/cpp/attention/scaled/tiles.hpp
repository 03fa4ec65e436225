// attention/tiles.hpp over a cache of integers: many query rows of one KV head.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/factors.hpp"
#include "attention/scaled/few_rows.hpp"
#include "attention/scaled/integers.hpp"
#include "attention/scaled/layout.hpp"
#include "attention/softmax.hpp"
#include "attention/tiles.hpp"
#include "attention/walk.hpp"
#include "buffer.hpp"
#include "kernels.hpp"

namespace twostroke {
namespace {

// Packed keys: [dim / 4][kKeys] words of four integers in the order of a query's.
template <int BITS>
inline void pack_scaled_keys(uint32_t* packed, const char* keys, const int64_t* offsets,
                             int64_t row) {
    for (int k = 0; k < kKeys; k += kVectorLanes)
        for (int64_t byte = 0; byte < row; byte += kVectorBytes) {
            vword columns[kVectorLanes];
            const int64_t left = row - byte < kVectorBytes ? row - byte : kVectorBytes;
            load_columns(columns, keys + byte, offsets + k, left);
            for (int i = 0; i < left / 4; ++i) {
                const int64_t word = byte / 4 + i;
                if constexpr (BITS == 8) {
                    store(packed + word * kKeys + k, prepare_key(columns[i]));
                } else {
                    uint32_t* to = packed + (word / 4 * 8 + word % 4) * kKeys + k;
                    store(to, columns[i] & 0x0f0f0f0fu);
                    store(to + 4 * kKeys, (columns[i] >> 4) & 0x0f0f0f0fu);
                }
            }
        }
}

// scores[i][..] = query row i . packed keys, for a tile's rows and BLOCKS times 16 keys.
template <int BITS, int BLOCKS>
inline void score_scaled_tile(float (*scores)[kKeys], const RoundedQuery* const* query,
                              const uint32_t* packed, const float (*scales)[kKeys], int64_t dim) {
    const int64_t size = BITS == 4 ? kScaleGroup : dim;
    for (int64_t first = 0, group = 0; first < dim; first += size, ++group) {
        ints sums[kTileRows][BLOCKS] = {};
        const auto add = [&](int64_t d, const int8_t* const* steps) __attribute__((always_inline)) {
            UNROLL for (int i = 0; i < kTileRows; ++i)
                UNROLL for (int j = 0; j < BLOCKS; ++j) {
                    const words keys = load<words>(packed + d / 4 * kKeys + j * kLanes);
                    sums[i][j] = dot_steps<BITS>(sums[i][j], broadcast_word(steps[i] + d), keys);
                }
        };
        const int8_t *high[kTileRows], *low[kTileRows];
        for (int i = 0; i < kTileRows; ++i) high[i] = query[i]->high, low[i] = query[i]->low;
        for (int64_t d = first; d < first + size; d += 4) add(d, high);
        UNROLL for (int i = 0; i < kTileRows; ++i)
            UNROLL for (int j = 0; j < BLOCKS; ++j) sums[i][j] = sums[i][j] << 7;
        for (int64_t d = first; d < first + size; d += 4) add(d, low);
        for (int i = 0; i < kTileRows; ++i)
            for (int j = 0; j < BLOCKS; ++j) {
                float* to = &scores[i][j * kLanes];
                floats sum = group > 0 ? load<floats>(to) : floats{};
                sum = multiply_add(to_floats(sums[i][j] - query[i]->zeros[group]),
                                   load<floats>(scales[group] + j * kLanes), sum);
                store16(to, first + size < dim ? sum : sum * query[i]->scale);
            }
    }
}

// Scores of the first `count` keys at least.
template <int BITS>
inline void score_packed_steps(float (*scores)[kKeys], const RoundedQuery* const* query,
                               const uint32_t* packed, const float (*scales)[kKeys], int count,
                               int64_t dim) {
    constexpr int kBlocks = kTileBlocks == 4 ? 2 : 1;
    for (int k = 0; k < count; k += kBlocks * kLanes)
        score_scaled_tile<BITS, kBlocks>((float (*)[kKeys])&scores[0][k], query, packed + k,
                                         (const float (*)[kKeys])&scales[0][k], dim);
}

// As add_weighted_values, with weights by group of columns.
template <int BITS>
inline void add_scaled_weighted(float* sums, const float* corrections,
                                const float (*weights)[kTileRows][kKeys], const float* values,
                                int count, int64_t dim) {
    if constexpr (BITS == 8) {
        add_weighted_values(sums, corrections, weights[0], values, count, dim);
    } else {
        constexpr int kBlocks = kTileBlocks < 2 ? 1 : 2;
        for (int64_t d = 0; d < dim; d += kBlocks * kLanes)
            value_tile<kBlocks>(sums + d, corrections, weights[d / kScaleGroup], values + d, count,
                                dim);
    }
}

// `count` query rows from `first_row` on.
template <int BITS>
void attend_in_scaled_tiles(const AttentionCall& call, int64_t request, int64_t kv_head,
                            int64_t first_row, int count) {
    const ScaledRows<BITS> rows(call, request, kv_head, first_row);
    const int64_t dim = call.head_dim, value_dim = call.value_dim;
    const int tiles = (count + kTileRows - 1) / kTileRows;
    alignas(64) float sums[kTaskRows * kMaxHeadDim], values[kKeys * kMaxHeadDim];
    alignas(64) float scores[kTileRows][kKeys], weights[kMaxGroups][kTileRows][kKeys];
    alignas(64) uint32_t packed[kKeys * kMaxHeadDim / 4];
    const Buffer<RoundedQuery> rounded_rows(tiles * kTileRows);
    const RoundedQuery* query[kTileRows];
    float corrections[kTileRows];
    Softmax softmax[kTaskRows];
    TokenScales key_scales, value_scales;
    memset(sums, 0, static_cast<size_t>(tiles * kTileRows * value_dim) * sizeof(float));
    for (int r = 0; r < tiles * kTileRows; ++r) {
        const int row = r < count ? r : count - 1;  // The last row fills up the last tile.
        round_query<BITS>(rows, row, 0, rounded_rows.data()[r]);
        if (call.sinks) softmax[r].start_with(call.sinks[rows.head_of(row)]);
    }
    KeyWalk<ScaledRows<BITS>> walk(rows, rows.oldest(0), rows.end(count - 1), 1);
    for (; walk.count > 0; walk.advance()) {
        const TokenOffsets& offsets = walk.token_offsets();
        const int64_t position = walk.position;
        pack_scaled_keys<BITS>(packed, rows.keys, offsets.keys, rows.sizes.row);
        const int64_t oldest = rows.oldest(0);
        key_scales.load_all(rows, rows.sizes, call.keys, position, oldest, walk.count,
                            walk.next_count, 1);
        value_scales.load_all(rows, rows.value_sizes, call.values, position, oldest, walk.count,
                              walk.next_count, 1);
        for (int k = 0; k < walk.count; ++k)
            for (int64_t d = 0; d < value_dim; d += kStride<BITS>) {
                floats wide[2];
                widen_values<BITS>(rows.values + offsets.values[k], d, wide);
                for (int i = 0; i < kStride<BITS> / kLanes; ++i)
                    store16(values + k * value_dim + d + i * kLanes, wide[i]);
            }
        for (int first = 0; first < tiles * kTileRows; first += kTileRows) {
            const int last = first + kTileRows < count ? first + kTileRows : count;
            const int64_t seen = rows.end(last - 1) - position;
            if (seen <= 0) continue;  // All of these keys come after all of these rows.
            const int keys = walk.min_of(seen, walk.count);
            for (int r = 0; r < kTileRows; ++r) query[r] = rounded_rows.data() + first + r;
            score_packed_steps<BITS>(scores, query, packed, key_scales.rows, keys, dim);
            for (int r = 0; r < kTileRows; ++r) {
                const int row = first + r < count ? first + r : count - 1;
                softmax[first + r].scale_and_mask(scores[r], position, rows.oldest(row),
                                                  rows.end(row), call);
            }
            for (int r = 0; r < kTileRows; ++r)
                corrections[r] = softmax[first + r].to_weights(scores[r]);
            scale_weights<kTileRows>(weights, scores, value_scales.rows, rows.value_sizes.groups);
            add_scaled_weighted<BITS>(sums + first * value_dim, corrections, weights, values, keys,
                                      value_dim);
        }
    }
    for (int r = 0; r < count; ++r)
        rows.write(r, 0, sums + r * value_dim, softmax[r].total());
}

}  // namespace
}  // namespace twostroke
