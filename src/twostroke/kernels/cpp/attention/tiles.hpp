// Attention of many query rows of one KV head: tiles of rows times keys, whose sums stay in
// registers. Some keys at a time are packed; the time goes to arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/factors.hpp"
#include "attention/softmax.hpp"
#include "attention/walk.hpp"
#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"
#include "vectors/products.hpp"

namespace twostroke {
namespace {

constexpr int kSums = kSumRegisters / kSplit;       // sums of 16 lanes that fit into registers
constexpr int kTileRows = kSums < 6 ? kSums : 6;    // rows of a tile
constexpr int kTileBlocks = kSums / kTileRows;      // keys or columns of a tile, in 16s
constexpr int kTaskRows = 16 * kTileRows;           // rows of a task, at most

// -------------------------------------------------------------------------------- keys and scores

// Packed keys: [dim][kKeys]; where pairs of bf16 are multiplied, [dim / 2][kKeys][2].
template <typename T, typename Stored>
inline void pack_keys(Factor<T>* packed, const Stored* keys, const int64_t* offsets, int64_t dim) {
    for (int k = 0; k < kKeys; k += kVectorLanes)
        for (int64_t d = 0; d < dim; d += kInVector<Stored>) {
            vword columns[kVectorLanes], wide[kWidened<T, Stored>];
            const int64_t bytes = (dim - d) * static_cast<int64_t>(sizeof(Stored));
            load_columns(columns, keys + d, offsets + k, bytes);
            UNROLL for (int i = 0; i < kVectorLanes; ++i) {
                widen_word<T, Stored>(columns[i], wide);
                UNROLL for (int w = 0; w < kWidened<T, Stored>; ++w) {
                    const int word = i * kWidened<T, Stored> + w;
                    Factor<T>* to = packed + (d + word * kInWord<T>)*kKeys;
                    if constexpr (kWidens<T>) {
                        store(to + k, wide[w] << 16);
                        store(to + kKeys + k, wide[w] & 0xffff0000u);
                    } else {
                        store(to + k * kInWord<T>, wide[w]);
                    }
                }
            }
        }
}

// sum + the products of a query's element, or pair of bf16, and those of 16 packed keys.
INLINED floats dot_keys(floats sum, const float* query, const float* packed) {
    return sum + *query * load<floats>(packed);
}
#ifdef TWOSTROKE_AVX512
INLINED floats dot_keys(floats sum, const bf16* query, const bf16* packed) {
    return dot_bf16(sum, broadcast_word(query), load<words>(packed));
}
#endif

// scores[i][..] = query row i . packed keys, for a tile's rows and BLOCKS times 16 keys.
template <typename T, int BLOCKS>
inline void score_tile(float (*scores)[kKeys], const Factor<T>* const* query,
                       const Factor<T>* packed, int64_t dim) {
    constexpr int kTogether = kWidens<T> ? 1 : kInWord<T>;
    floats sums[kTileRows][BLOCKS] = {};
    for (int64_t d = 0; d < dim; d += kTogether)
        UNROLL for (int i = 0; i < kTileRows; ++i)
            UNROLL for (int j = 0; j < BLOCKS; ++j) {
                const Factor<T>* keys = packed + d * kKeys + j * kLanes * kTogether;
                sums[i][j] = dot_keys(sums[i][j], query[i] + d, keys);
            }
    UNROLL for (int i = 0; i < kTileRows; ++i)
        UNROLL for (int j = 0; j < BLOCKS; ++j) store16(&scores[i][j * kLanes], sums[i][j]);
}

// Scores of the first `count` keys at least.
template <typename T>
inline void score_packed_keys(float (*scores)[kKeys], const Factor<T>* const* query,
                              const Factor<T>* packed, int count, int64_t dim) {
    if constexpr (kTileBlocks == 4) {
        if (count <= 2 * kLanes)
            score_tile<T, 2>(scores, query, packed, dim);
        else
            score_tile<T, 4>(scores, query, packed, dim);
    } else {
        static_assert(sizeof(Factor<T>) == sizeof(float));
        for (int k = 0; k < count; k += kLanes)
            score_tile<T, 1>((float (*)[kKeys])&scores[0][k], query, packed + k, dim);
    }
}

// ----------------------------------------------------------------------------------------- values

// sums[i][..] = corrections[i] * sums[i][..] + the weights of row i times values [count][dim], for
// a tile's rows and BLOCKS times 16 columns.
template <int BLOCKS>
inline void value_tile(float* sums, const float* corrections, const float (*weights)[kKeys],
                       const float* values, int count, int64_t dim) {
    floats partial[kTileRows][BLOCKS];
    UNROLL for (int i = 0; i < kTileRows; ++i)
        UNROLL for (int j = 0; j < BLOCKS; ++j)
            partial[i][j] = load<floats>(sums + i * dim + j * kLanes) * corrections[i];
    for (int k = 0; k < count; ++k)
        UNROLL for (int i = 0; i < kTileRows; ++i)
            UNROLL for (int j = 0; j < BLOCKS; ++j)
                partial[i][j] += load<floats>(values + k * dim + j * kLanes) * weights[i][k];
    UNROLL for (int i = 0; i < kTileRows; ++i)
        UNROLL for (int j = 0; j < BLOCKS; ++j)
            store16(sums + i * dim + j * kLanes, partial[i][j]);
}

inline void add_weighted_values(float* sums, const float* corrections,
                                const float (*weights)[kKeys], const float* values, int count,
                                int64_t dim) {
    int64_t d = 0;
    for (; d + kTileBlocks * kLanes <= dim; d += kTileBlocks * kLanes)
        value_tile<kTileBlocks>(sums + d, corrections, weights, values + d, count, dim);
    for (; d < dim; d += kLanes)
        value_tile<1>(sums + d, corrections, weights, values + d, count, dim);
}

// -------------------------------------------------------------------------------------- the task

// `count` query rows from `first_row` on.
template <typename T, typename Stored>
void attend_in_tiles(const AttentionCall& call, int64_t request, int64_t kv_head,
                     int64_t first_row, int count) {
    const QueryRows<T, Stored> rows(call, request, kv_head, first_row);
    const int64_t dim = call.head_dim, value_dim = call.value_dim;
    const int tiles = (count + kTileRows - 1) / kTileRows;
    alignas(64) float sums[kTaskRows * kMaxHeadDim], values[kKeys * kMaxHeadDim];
    alignas(64) float scores[kTileRows][kKeys], wide[kTileRows][kMaxHeadDim];
    alignas(64) Factor<T> packed[kKeys * kMaxHeadDim];
    const T* query_rows[kTaskRows];
    const Factor<T>* query[kTileRows];
    float corrections[kTileRows];
    Softmax softmax[kTaskRows];
    memset(sums, 0, static_cast<size_t>(tiles * kTileRows * value_dim) * sizeof(float));
    for (int r = 0; r < tiles * kTileRows; ++r) {
        const int row = r < count ? r : count - 1;  // The last row fills up the last tile.
        query_rows[r] = rows.query(row);
        if (call.sinks) softmax[r].start_with(call.sinks[rows.head_of(row)]);
    }
    KeyWalk<QueryRows<T, Stored>> walk(rows, rows.oldest(0), rows.end(count - 1), 1);
    for (; walk.count > 0; walk.advance()) {
        const TokenOffsets& offsets = walk.token_offsets();
        pack_keys<T>(packed, rows.keys, offsets.keys, dim);
        for (int k = 0; k < walk.count; ++k)
            for (int64_t d = 0; d < value_dim; d += kLanes)
                store16(values + k * value_dim + d, load16(rows.values + offsets.values[k] + d));
        for (int first = 0; first < tiles * kTileRows; first += kTileRows) {
            const int last = first + kTileRows < count ? first + kTileRows : count;
            const int64_t seen = rows.end(last - 1) - walk.position;
            if (seen <= 0) continue;  // All of these keys come after all of these rows.
            const int keys = walk.min_of(seen, walk.count);
            for (int r = 0; r < kTileRows; ++r)
                query[r] = to_factors(query_rows[first + r], wide[r], dim);
            score_packed_keys<T>(scores, query, packed, keys, dim);
            for (int r = 0; r < kTileRows; ++r) {
                const int row = first + r < count ? first + r : count - 1;
                softmax[first + r].scale_and_mask(scores[r], walk.position, rows.oldest(row),
                                                  rows.end(row), call);
            }
            for (int r = 0; r < kTileRows; ++r)
                corrections[r] = softmax[first + r].to_weights(scores[r]);
            add_weighted_values(sums + first * value_dim, corrections, scores, values, keys,
                                value_dim);
        }
    }
    for (int r = 0; r < count; ++r)
        write_row(rows.out(r), sums + r * value_dim, value_dim, softmax[r].total());
}

}  // namespace
}  // namespace twostroke
