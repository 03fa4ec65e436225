// Tiles of a linear layer: some rows times some blocks of weights, whose sums stay in registers.
//
// Packed weights are blocks of 16 outputs. In a block, the inputs of a step (linear/rows.hpp) lie
// together for all 16 outputs. So a vector holds outputs, no sum crosses lanes, and memory is read
// in order.
//   bf16: [inputs / 2][16][2]    int8: [inputs / 4][16][4]
//   int4: [inputs / 32][4][16][4] bytes. In the p-th of the four, low nibbles are the group's
//         inputs 8 p .. 8 p + 3, and high nibbles 8 p + 4 .. 8 p + 7.
//   others: linear/stored.hpp
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "linear/results.hpp"
#include "linear/rows.hpp"
#include "linear/stored.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"
#include "vectors/products.hpp"

namespace twostroke {
namespace {

// Rows of a strip, at most. int4 and what files store need two vectors for a
// sum.
constexpr int kMaxRows = kSplit == 1 ? kSumRegisters / 2 : kSumRegisters / kSplit;
constexpr int kGroupSteps = kGroup / 4;

// ----------------------------------------------------------------------------------- prefetching

// Which weights a tile prefetches: the bytes from the first one it reads, and more with each step.
struct Prefetch {
    int64_t offset, stride;
};

// Tiles of many rows compute so long on a line of weights that the processor does not see the next
// ones in time. Tiles of few rows do without: they have as many lines under way as it can follow.
//
// Of several strips over the same two blocks, each prefetches a share of the lines, so that memory
// is never idle: the first strip the last share of these blocks, the others those of the next two.
inline Prefetch plan_prefetch(int64_t strip, int64_t strips, int64_t block_bytes,
                              bool first_blocks, bool last_blocks) {
    const int64_t stride = (kStepBytes + strips - 1) / strips;
    const int64_t share = block_bytes * stride / kStepBytes, near = 4096 / strips;
    if (strip == 0 && first_blocks) return {4096, kStepBytes};  // No tile before fetched any.
    if (strip == 0) return {near + (strips - 1) * share, stride};
    if (last_blocks) return {0, 0};
    return {near + (strip - 1) * share + 2 * block_bytes, stride};
}

template <int BLOCKS>
inline void prefetch_step(const char* weight, int64_t block_bytes) {
    if constexpr (BLOCKS == 2)
        UNROLL for (int j = 0; j < BLOCKS; ++j) __builtin_prefetch(weight + j * block_bytes);
}

// ------------------------------------------------------------------------------------------ tiles

template <int ROWS, int BLOCKS, bool PACKED>
void tile_bf16(const LinearCall& call, const PackedRows& x, Prefetch prefetch, int64_t row,
               int64_t block) {
    constexpr int N = BLOCKS * kSplit;
    const int64_t steps = call.inputs / 2;
    const char* weight = static_cast<const char*>(call.weight) + block * steps * kStepBytes;
    const uint32_t* packed = PACKED ? x.words.data() + row * steps * kPairWords : nullptr;
    const char* row_words = reinterpret_cast<const char*>(packed);
    const char* rows = reinterpret_cast<const char*>(call.x + row * call.x_stride);
    vfloat sums[ROWS][N] = {};
    for (int64_t k = 0; k < steps; ++k) {
        vword w[N];
        UNROLL for (int j = 0; j < N; ++j) {
            const int64_t step = j / kSplit * steps + k;
            w[j] = load<vword>(weight + step * kStepBytes + j % kSplit * kVectorBytes);
        }
        prefetch_step<BLOCKS>(weight + prefetch.offset + k * prefetch.stride, steps * kStepBytes);
        UNROLL for (int i = 0; i < ROWS; ++i)
            UNROLL for (int j = 0; j < N; ++j) {
                if constexpr (PACKED) {
                    const char* word = row_words + (k * ROWS + i) * 4 * kPairWords;
                    sums[i][j] = dot_packed(sums[i][j], word, w[j]);
                } else {
                    const char* word = rows + (i * call.x_stride + 2 * k) * 2;
                    sums[i][j] = dot_bf16(sums[i][j], broadcast_word(word), w[j]);
                }
            }
    }
    vfloat results[ROWS][N];
    memcpy(results, sums, sizeof(results));
    write_tile(call, row, ROWS, block, BLOCKS, reinterpret_cast<const float*>(results));
}

template <int ROWS, int BLOCKS>
void tile_int8(const LinearCall& call, const PackedRows& x, Prefetch prefetch, int64_t row,
               int64_t block) {
    constexpr int N = BLOCKS * kSplit;
    const int64_t steps = call.inputs / 4;
    const char* weight = static_cast<const char*>(call.weight) + block * steps * kStepBytes;
    const char* row_words = reinterpret_cast<const char*>(x.words.data() + row * steps);
    vint sums[ROWS][N];
    UNROLL for (int j = 0; j < N; ++j) {
        const int32_t* offsets = call.offsets + block * kLanes + j * kVectorLanes;
        const vint start = kUnsignedActivations ? load<vint>(offsets) : vint{};
        UNROLL for (int i = 0; i < ROWS; ++i) sums[i][j] = start;
    }
    for (int64_t k = 0; k < steps; ++k) {
        vword w[N];
        UNROLL for (int j = 0; j < N; ++j) {
            const int64_t step = j / kSplit * steps + k;
            w[j] = load<vword>(weight + step * kStepBytes + j % kSplit * kVectorBytes);
        }
        prefetch_step<BLOCKS>(weight + prefetch.offset + k * prefetch.stride, steps * kStepBytes);
        UNROLL for (int i = 0; i < ROWS; ++i) {
            const vword inputs = broadcast_word(row_words + (k * ROWS + i) * 4);
            UNROLL for (int j = 0; j < N; ++j) sums[i][j] = dot_int8(sums[i][j], inputs, w[j]);
        }
    }
    const float* all_scales = static_cast<const float*>(call.scales);
    vfloat results[ROWS][N];
    UNROLL for (int j = 0; j < N; ++j) {
        const vfloat scale = load<vfloat>(all_scales + block * kLanes + j * kVectorLanes);
        UNROLL for (int i = 0; i < ROWS; ++i) {
            const vfloat sum = __builtin_convertvector(sums[i][j], vfloat);
            results[i][j] = sum * scale * x.scales.data()[row + i];
        }
    }
    write_tile(call, row, ROWS, block, BLOCKS, reinterpret_cast<const float*>(results));
}

// `bytes`: these blocks' nibbles as bytes, [blocks][steps][16][4], if UNPACKED, else null.
template <int ROWS, int BLOCKS, bool UNPACKED>
void tile_int4(const LinearCall& call, const PackedRows& x, int64_t row, int64_t block,
               const char* bytes) {
    constexpr int N = BLOCKS * kSplit;
    const int64_t groups = call.inputs / kGroup, steps = call.inputs / 4;
    const char* weight = static_cast<const char*>(call.weight) + block * steps / 2 * kStepBytes;
    const char* row_words = reinterpret_cast<const char*>(x.words.data() + row * steps);
    const int32_t* offsets = x.offsets.data() + row * groups;
    const float* all_scales = static_cast<const float*>(call.scales);
    vfloat sums[ROWS][N] = {};
    for (int64_t g = 0; g < groups; ++g) {
        vint part[ROWS][N];
        UNROLL for (int i = 0; i < ROWS; ++i)
            UNROLL for (int j = 0; j < N; ++j) part[i][j] = offsets[g * ROWS + i] - vint{};
        const auto add_step = [&](const vword* w, int64_t step) {
            UNROLL for (int i = 0; i < ROWS; ++i) {
                const vword inputs = broadcast_word(row_words + (step * ROWS + i) * 4);
                UNROLL for (int j = 0; j < N; ++j) part[i][j] = dot_int4(part[i][j], inputs, w[j]);
            }
        };
        for (int64_t k = g * kGroupSteps; k < (g + 1) * kGroupSteps; k += 2) {
            vword low[N], high[N];
            UNROLL for (int j = 0; j < N; ++j) {
                const int64_t step = j / kSplit * steps + k, vector = j % kSplit * kVectorBytes;
                if (UNPACKED) {
                    const char* from = bytes + step * kStepBytes + vector;
                    low[j] = load<vword>(from), high[j] = load<vword>(from + kStepBytes);
                } else {
                    const vword both = load<vword>(weight + step / 2 * kStepBytes + vector);
                    low[j] = both & 0x0f0f0f0fu, high[j] = (both >> 4) & 0x0f0f0f0fu;
                }
            }
            add_step(low, k), add_step(high, k + 1);
        }
        UNROLL for (int j = 0; j < N; ++j) {
            const int64_t scales = ((block + j / kSplit) * groups + g) * kLanes;
            const vfloat scale = load<vfloat>(all_scales + scales + j % kSplit * kVectorLanes);
            UNROLL for (int i = 0; i < ROWS; ++i)
                sums[i][j] += __builtin_convertvector(part[i][j], vfloat) * scale;
        }
    }
    vfloat results[ROWS][N];
    UNROLL for (int i = 0; i < ROWS; ++i)
        UNROLL for (int j = 0; j < N; ++j) results[i][j] = sums[i][j] * x.scales.data()[row + i];
    write_tile(call, row, ROWS, block, BLOCKS, reinterpret_cast<const float*>(results));
}

// Writes some blocks' nibbles to `bytes`, [blocks][steps][16][4].
inline void unpack_int4(const LinearCall& call, int64_t block, int64_t blocks, char* bytes) {
    const int64_t block_pairs = call.inputs / 8, pairs = blocks * block_pairs;  // of steps
    const char* from = static_cast<const char*>(call.weight) + block * block_pairs * kStepBytes;
    for (int64_t pair = 0; pair < pairs; ++pair)
        UNROLL for (int part = 0; part < kSplit; ++part) {
            const vword both = load<vword>(from + pair * kStepBytes + part * kVectorBytes);
            char* to = bytes + 2 * pair * kStepBytes + part * kVectorBytes;
            store(to, both & 0x0f0f0f0fu);
            store(to + kStepBytes, (both >> 4) & 0x0f0f0f0fu);
        }
}

// ----------------------------------------------------------------------------- the choice of tiles

// Computes one tile at `block`, as wide as the registers and the remaining `blocks` allow, and
// returns how many blocks that was.
template <int ROWS, int BLOCKS>
int64_t compute_tile(const LinearCall& call, const PackedRows& x, Prefetch prefetch, int64_t row,
                     int64_t block, int64_t blocks, const char* bytes) {
    constexpr int kVectors = ROWS * BLOCKS * kSplit;
    const bool int4 = call.format == kInt4, stored = is_stored(call.format);
    const bool two = int4 || stored;  // vectors for a sum
    if constexpr (BLOCKS > 1)
        if (kVectors > kSumRegisters || blocks < BLOCKS || (two && 2 * kVectors > kSumRegisters))
            return compute_tile<ROWS, BLOCKS / 2>(call, x, prefetch, row, block, blocks, bytes);
    if constexpr (kVectors <= kSumRegisters) {
        if (call.format == kInt8)
            tile_int8<ROWS, BLOCKS>(call, x, prefetch, row, block);
        else if (call.format == kBf16 && x.words)
            tile_bf16<ROWS, BLOCKS, true>(call, x, prefetch, row, block);
        else if (call.format == kBf16)
            tile_bf16<ROWS, BLOCKS, false>(call, x, prefetch, row, block);
    }
    if constexpr (2 * kVectors <= kSumRegisters || BLOCKS == 1) {
        if (int4 && bytes)
            tile_int4<ROWS, BLOCKS, true>(call, x, row, block, bytes);
        else if (int4)
            tile_int4<ROWS, BLOCKS, false>(call, x, row, block, nullptr);
        else if (stored && bytes)
            tile_in_format<ROWS, BLOCKS, true>(call, x, row, block, bytes);
        else if (stored)
            tile_in_format<ROWS, BLOCKS, false>(call, x, row, block, nullptr);
    }
    return BLOCKS;
}

// Computes `count` rows times `blocks` blocks, ROWS being the most rows that there can be. Few rows
// take more blocks at once, since memory is faster with several streams.
template <int ROWS>
void compute_strip(const LinearCall& call, const PackedRows& x, Prefetch prefetch, int64_t row,
                   int64_t count, int64_t block, int64_t blocks, const char* bytes) {
    if constexpr (ROWS > 1)
        if (count < ROWS)
            return compute_strip<ROWS - 1>(call, x, prefetch, row, count, block, blocks, bytes);
    while (blocks > 0) {
        const int64_t done = compute_tile<ROWS, 4>(call, x, prefetch, row, block, blocks, bytes);
        block += done, blocks -= done;
        if (bytes) bytes += done * call.inputs / 4 * kStepBytes;
    }
}

}  // namespace
}  // namespace twostroke
