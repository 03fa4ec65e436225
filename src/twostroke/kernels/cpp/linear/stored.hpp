// Tiles of weights that stay as files store them: GGUF's blocks, MXFP4, 4 bits with zero points.
//
// The formats are llama.cpp's (ggml-common.h) and the Open Compute Project's (Microscaling Formats
// 1.0); AWQ has the last, and so has GPTQ without symmetry. Only the order differs: in a block of
// 16 outputs, those inputs that share a scale, a group, lie together, and words hold four inputs of
// one output as everywhere (linear/tiles.hpp).
//   q8_0:  groups of 32, [8][16][4] signed bytes
//   q4_k:  groups of 32, [4][16][4] bytes, nibbles as int4 has them
//   q5_k:  the same, then [16] words: bit s + 8 b is the fifth one of input 4 s + b
//   q6_k:  groups of 16, [2][16][4] bytes of nibbles, then [16] words: the two bits from 2 s + 8 b
//          on are those above the nibble of input 4 s + b
//   mxfp4: groups of 32, [4][16][4] bytes of nibbles, each a float of 4 bits
//   uint4: as q4_k
// Scales:
//   q8_0:  [groups][16] floats
//   q4_k, q5_k: for each 256 inputs [16] floats d, [16] floats m, [8][16] bytes s and [8][16]
//          bytes t: a weight is d s q - m t
//   q6_k:  for each 256 inputs [16] floats d, [16][16] signed bytes s: a weight is d s (q - 32)
//   mxfp4: [groups][16] bytes: exponents
//   uint4: for each group [16] floats s and [16] bytes z: a weight is s (q - z)
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "linear/results.hpp"
#include "linear/rows.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"
#include "vectors/products.hpp"

namespace twostroke {
namespace {

constexpr int kSuperInputs = 256;        // of a record of scales
constexpr int kZeroRecord = 5 * kLanes;  // bytes of scales and zero points

template <int FORMAT>
constexpr int group_inputs() {
    return FORMAT == kQ6K ? 16 : 32;
}

// Bytes of the nibbles of a group, before further bits.
template <int FORMAT>
constexpr int nibble_bytes() {
    return group_inputs<FORMAT>() / 8 * kStepBytes;
}

template <int FORMAT>
constexpr int group_bytes() {
    if (FORMAT == kQ8_0) return 2 * nibble_bytes<FORMAT>();
    return nibble_bytes<FORMAT>() + (FORMAT == kQ5K || FORMAT == kQ6K ? kStepBytes : 0);
}

inline bool is_stored(int32_t format) { return format >= kQ8_0; }

// Bytes of a block of 16 outputs.
inline int64_t stored_block_bytes(const LinearCall& call) {
    switch (call.format) {
        case kQ8_0: return call.inputs / group_inputs<kQ8_0>() * group_bytes<kQ8_0>();
        case kQ5K: return call.inputs / group_inputs<kQ5K>() * group_bytes<kQ5K>();
        case kQ6K: return call.inputs / group_inputs<kQ6K>() * group_bytes<kQ6K>();
        default: return call.inputs / group_inputs<kQ4K>() * group_bytes<kQ4K>();
    }
}

// Twice the floats that MXFP4's nibbles are, plus 12.
INLINED vword mxfp4_bytes(vword nibbles) {
#if defined(TWOSTROKE_AVX512)
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return (vword)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)nibbles);
#elif defined(__AVX2__)
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return (vword)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)nibbles);
#else
    static const uint8_t table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    uint8_t bytes[kVectorBytes];
    memcpy(bytes, &nibbles, sizeof(bytes));
    for (uint8_t& byte : bytes) byte = table[byte];
    vword result;
    memcpy(&result, bytes, sizeof(bytes));
    return result;
#endif
}

// Words of steps `step` and `step + 1` of a group at `group`, of the outputs from byte `part` on.
template <int FORMAT>
INLINED void load_steps(const char* group, int step, int part, vword& low, vword& high) {
    if constexpr (FORMAT == kQ8_0) {
        // Where a product takes one side without signs, that is the weights, 128 larger.
        const uint32_t flip = kUnsignedActivations ? 0x80808080u : 0;
        low = load<vword>(group + step * kStepBytes + part) ^ flip;
        high = load<vword>(group + (step + 1) * kStepBytes + part) ^ flip;
        return;
    }
    const vword both = load<vword>(group + step / 2 * kStepBytes + part);
    low = both & 0x0f0f0f0fu, high = (both >> 4) & 0x0f0f0f0fu;
    if constexpr (FORMAT == kMxfp4) low = mxfp4_bytes(low), high = mxfp4_bytes(high);
    if constexpr (FORMAT == kQ5K) {
        const vword bits = load<vword>(group + nibble_bytes<FORMAT>() + part);
        low |= ((bits >> step) & 0x01010101u) << 4;
        high |= ((bits >> (step + 1)) & 0x01010101u) << 4;
    }
    if constexpr (FORMAT == kQ6K) {
        const vword bits = load<vword>(group + nibble_bytes<FORMAT>() + part);
        low |= ((bits >> (2 * step)) & 0x03030303u) << 4;
        high |= ((bits >> (2 * step + 2)) & 0x03030303u) << 4;
    }
}

// A group's scales, of the outputs from lane `lane` on, and in `minimum` what is taken off for each
// input; of uint4 before it is scaled.
template <int FORMAT>
INLINED vfloat load_scales(const char* scales, int64_t group, int lane, vfloat& minimum) {
    if constexpr (FORMAT == kQ8_0) return load<vfloat>(scales + group * kStepBytes + 4 * lane);
    if constexpr (FORMAT == kMxfp4) {
        const vint exponents = sign_extended(scales + group * kLanes + lane) & 0xff;
        return (vfloat)(exponents << 23) * 0.5f;
    }
    if constexpr (FORMAT == kUint4) {
        const char* record = scales + group * kZeroRecord;
        minimum = to_floats(sign_extended(record + kStepBytes + lane));
        return load<vfloat>(record + 4 * lane);
    }
    constexpr int groups = kSuperInputs / group_inputs<FORMAT>();
    constexpr int num_factors = FORMAT == kQ6K ? 1 : 2, bytes = groups * kLanes;
    const char* record = scales + group / groups * (num_factors * kStepBytes + num_factors * bytes);
    const char* factors = record + num_factors * kStepBytes + group % groups * kLanes + lane;
    if constexpr (num_factors == 2)
        minimum = load<vfloat>(record + kStepBytes + 4 * lane) *
                  to_floats(sign_extended(factors + bytes));
    return load<vfloat>(record + 4 * lane) * to_floats(sign_extended(factors));
}

// Bytes of the scales of a block.
template <int FORMAT>
inline int64_t scale_bytes(int64_t inputs) {
    if (FORMAT == kQ8_0) return inputs / 32 * kStepBytes;
    if (FORMAT == kMxfp4) return inputs / 32 * kLanes;
    if (FORMAT == kUint4) return inputs / 32 * kZeroRecord;
    const int64_t record = FORMAT == kQ6K ? kStepBytes + 16 * kLanes : 2 * kStepBytes + 16 * kLanes;
    return inputs / kSuperInputs * record;
}

template <int FORMAT>
INLINED vint dot_stored(vint sum, vword x, vword weight) {
    if constexpr (FORMAT == kQ8_0 && !kUnsignedActivations) return dot_int8(sum, x, weight);
    return dot_int4(sum, x, weight);
}

// `bytes`: these blocks' words, [blocks][steps][16][4], if UNPACKED, else null.
template <int FORMAT, int ROWS, int BLOCKS, bool UNPACKED>
void tile_stored(const LinearCall& call, const PackedRows& x, int64_t row, int64_t block,
                 const char* bytes) {
    constexpr int N = BLOCKS * kSplit, kSteps = group_inputs<FORMAT>() / 4;
    constexpr bool has_minimum = FORMAT == kQ4K || FORMAT == kQ5K, has_zero = FORMAT == kUint4;
    const int64_t groups = call.inputs / group_inputs<FORMAT>(), steps = call.inputs / 4;
    const int64_t block_scales = scale_bytes<FORMAT>(call.inputs);
    const char* weight = static_cast<const char*>(call.weight);
    const char* scales = static_cast<const char*>(call.scales) + block * block_scales;
    const char* row_words = reinterpret_cast<const char*>(x.words.data() + row * steps);
    const int32_t* offsets = x.offsets.data() + row * groups;
    vfloat sums[ROWS][N] = {};
    for (int64_t g = 0; g < groups; ++g) {
        vint part[ROWS][N];
        UNROLL for (int i = 0; i < ROWS; ++i)
            UNROLL for (int j = 0; j < N; ++j)
                part[i][j] = (has_minimum || has_zero ? 0 : offsets[g * ROWS + i]) - vint{};
        const auto add_step = [&](const vword* w, int64_t step) {
            UNROLL for (int i = 0; i < ROWS; ++i) {
                const vword inputs = broadcast_word(row_words + (step * ROWS + i) * 4);
                UNROLL for (int j = 0; j < N; ++j)
                    part[i][j] = dot_stored<FORMAT>(part[i][j], inputs, w[j]);
            }
        };
        for (int k = 0; k < kSteps; k += 2) {
            vword low[N], high[N];
            UNROLL for (int j = 0; j < N; ++j) {
                const int vector = j % kSplit * kVectorBytes;
                if (UNPACKED) {
                    const char* from =
                        bytes + (j / kSplit * steps + g * kSteps + k) * kStepBytes + vector;
                    low[j] = load<vword>(from), high[j] = load<vword>(from + kStepBytes);
                } else {
                    const char* group = weight + ((block + j / kSplit) * groups + g) *
                                                     group_bytes<FORMAT>();
                    load_steps<FORMAT>(group, k, vector, low[j], high[j]);
                }
            }
            add_step(low, g * kSteps + k), add_step(high, g * kSteps + k + 1);
        }
        UNROLL for (int j = 0; j < N; ++j) {
            vfloat minimum = {};
            const vfloat scale = load_scales<FORMAT>(scales + j / kSplit * block_scales, g,
                                                     j % kSplit * kVectorLanes, minimum);
            UNROLL for (int i = 0; i < ROWS; ++i) {
                vfloat products = __builtin_convertvector(part[i][j], vfloat);
                const float total = static_cast<float>(offsets[g * ROWS + i]);
                if (has_zero) products -= minimum * total;  // exact: both are integers
                sums[i][j] += products * scale;
                if (has_minimum) sums[i][j] -= minimum * total;
            }
        }
    }
    vfloat results[ROWS][N];
    UNROLL for (int i = 0; i < ROWS; ++i)
        UNROLL for (int j = 0; j < N; ++j) results[i][j] = sums[i][j] * x.scales.data()[row + i];
    write_tile(call, row, ROWS, block, BLOCKS, reinterpret_cast<const float*>(results));
}

// Writes some blocks' words to `bytes`, [blocks][steps][16][4].
template <int FORMAT>
void unpack_stored(const LinearCall& call, int64_t block, int64_t blocks, char* bytes) {
    constexpr int kSteps = group_inputs<FORMAT>() / 4;
    const int64_t groups = call.inputs / group_inputs<FORMAT>();
    const char* group =
        static_cast<const char*>(call.weight) + block * groups * group_bytes<FORMAT>();
    for (int64_t g = 0; g < blocks * groups; ++g, group += group_bytes<FORMAT>())
        for (int k = 0; k < kSteps; k += 2, bytes += 2 * kStepBytes)
            UNROLL for (int part = 0; part < kVectorBytes * kSplit; part += kVectorBytes) {
                vword low, high;
                load_steps<FORMAT>(group, k, part, low, high);
                store(bytes + part, low), store(bytes + kStepBytes + part, high);
            }
}

template <int ROWS, int BLOCKS, bool UNPACKED>
void tile_in_format(const LinearCall& call, const PackedRows& x, int64_t row, int64_t block,
                    const char* bytes) {
    switch (call.format) {
        case kQ8_0: return tile_stored<kQ8_0, ROWS, BLOCKS, UNPACKED>(call, x, row, block, bytes);
        case kQ4K: return tile_stored<kQ4K, ROWS, BLOCKS, UNPACKED>(call, x, row, block, bytes);
        case kQ5K: return tile_stored<kQ5K, ROWS, BLOCKS, UNPACKED>(call, x, row, block, bytes);
        case kQ6K: return tile_stored<kQ6K, ROWS, BLOCKS, UNPACKED>(call, x, row, block, bytes);
        case kUint4: return tile_stored<kUint4, ROWS, BLOCKS, UNPACKED>(call, x, row, block, bytes);
        default: return tile_stored<kMxfp4, ROWS, BLOCKS, UNPACKED>(call, x, row, block, bytes);
    }
}

inline void unpack_in_format(const LinearCall& call, int64_t block, int64_t blocks, char* bytes) {
    switch (call.format) {
        case kQ8_0: return unpack_stored<kQ8_0>(call, block, blocks, bytes);
        case kQ4K: return unpack_stored<kQ4K>(call, block, blocks, bytes);
        case kQ5K: return unpack_stored<kQ5K>(call, block, blocks, bytes);
        case kQ6K: return unpack_stored<kQ6K>(call, block, blocks, bytes);
        case kUint4: return unpack_stored<kUint4>(call, block, blocks, bytes);
        default: return unpack_stored<kMxfp4>(call, block, blocks, bytes);
    }
}

}  // namespace
}  // namespace twostroke
