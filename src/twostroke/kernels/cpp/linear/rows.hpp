// The rows of a linear layer's input, in the order in which tiles read them.
//
// The rows that a tile takes at once are a strip. A step is the inputs that one instruction
// multiplies: two bf16 or four bytes, which fill a word. Rows are packed strip by strip, the words
// of a step together, if several strips read the same weights, or if that spares tiles from
// widening the same bf16 again and again.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "buffer.hpp"
#include "kernels.hpp"
#include "thread_pool.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"
#include "vectors/products.hpp"

namespace twostroke {
namespace {

constexpr int kStepBytes = 4 * kLanes;  // of a step of a block's weights, where they take a byte

// Inputs whose products with weights become floats together, where rows are bytes.
inline int64_t group_of_rows(const LinearCall& call) { return call.format == kQ6K ? 16 : kGroup; }

// What is added to a group's sum of products: a multiple of the sum of its inputs. Bytes of weights
// are too large by the opposite. Where weights have a minimum, it multiplies the sum itself.
inline int32_t offset_factor(const LinearCall& call) {
    switch (call.format) {
        case kInt4: return -8;
        case kQ8_0: return kUnsignedActivations ? -128 : 0;
        case kQ6K: return -32;
        case kMxfp4: return -12;
        default: return 1;
    }
}

// Bytes of one packed input.
inline int64_t input_bytes(const LinearCall& call) {
    return call.format == kBf16 ? 2 * kPairWords : 1;
}

class PackedRows {
  public:
    PackedRows(const LinearCall& call, int64_t strips)
        : words(count_words(call, strips)),
          scales(call.format == kBf16 ? 0 : call.rows),
          offsets(call.format == kBf16 ? 0 : call.rows * (call.inputs / group_of_rows(call))) {
        if (!words) return;
        auto pack = [&](int64_t strip) {
            const int64_t first = call.rows * strip / strips;
            pack_strip(call, first, call.rows * (strip + 1) / strips - first);
        };
        if (call.rows * call.inputs < 1 << 15) {
            for (int64_t strip = 0; strip < strips; ++strip) pack(strip);
        } else {
            parallel_for(strips, pack);
        }
    }

    // [strips][steps][rows of the strip][kPairWords, bytes: 1]; null: bf16 rows stay as they are
    const Buffer<uint32_t> words;
    // [rows]: x = scale * q, with q in -127 .. 127
    const Buffer<float> scales;
    // [strips][groups][rows of the strip]: `offset_factor` times a group's sum of q
    const Buffer<int32_t> offsets;

  private:
    static int64_t count_words(const LinearCall& call, int64_t strips) {
        const bool read_once = strips == 1 && (kPairWords == 1 || call.rows == 1);
        if (call.format == kBf16 && read_once) return 0;
        return call.rows * call.inputs * input_bytes(call) / 4;
    }

    // One thread packs all of a strip, since its rows' words share cache lines.
    void pack_strip(const LinearCall& call, int64_t first, int64_t count) const {
        if (call.format == kBf16) {
            uint32_t* to = words.data() + first * call.inputs * input_bytes(call) / 4;
            pack_bf16(call, call.x + first * call.x_stride, count, to);
            return;
        }
        for (int64_t row = first; row < first + count; ++row) quantize(call, row, first, count);
    }

    // Writes `count` rows, from `x` on, to `to`.
    static void pack_bf16(const LinearCall& call, const bf16* x, int64_t count, uint32_t* to) {
        const int64_t steps = call.inputs / 2;
        int64_t k = 0;
#ifdef TWOSTROKE_AVX512
        for (; k + kLanes <= steps; k += kLanes)
            for (int64_t first = 0; first < count; first += kLanes) {
                const int64_t rows = count - first < kLanes ? count - first : kLanes;
                vword square[kLanes] = {};
                for (int64_t i = 0; i < rows; ++i)
                    square[i] = load<vword>(x + (first + i) * call.x_stride + 2 * k);
                transpose(square);
                const __mmask16 mask = static_cast<__mmask16>((1u << rows) - 1);
                for (int j = 0; j < kLanes; ++j)
                    _mm512_mask_storeu_epi32(to + (k + j) * count + first, mask,
                                             (__m512i)square[j]);
            }
#endif
        for (; k < steps; ++k)
            for (int64_t i = 0; i < count; ++i) {
                const bf16* from = x + i * call.x_stride + 2 * k;
                uint32_t* word = to + kPairWords * (k * count + i);
                if constexpr (kPairWords == 1) {
                    memcpy(word, from, 4);
                } else {
                    word[0] = uint32_t{from[0]} << 16;
                    word[1] = uint32_t{from[1]} << 16;
                }
            }
    }

    // Rounds a row to bytes, of the strip of `count` rows from `first` on.
    void quantize(const LinearCall& call, int64_t row, int64_t first, int64_t count) const {
        const bf16* x = call.x + row * call.x_stride;
        const float largest = scale_of_row(call, x, scales.data() + row);
        const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
        uint32_t* word = words.data() + first * (call.inputs / 4) + (row - first);
        const int64_t size = group_of_rows(call);
        const int32_t factor = offset_factor(call);
        int32_t* offset = offsets.data() + first * (call.inputs / size) + (row - first);
        const uint32_t flip = kUnsignedActivations && call.format == kInt8 ? 0x80808080u : 0;
        for (int64_t group = 0; group < call.inputs; group += size, offset += count) {
            vint total = {};
            for (int64_t i = group; i < group + size; i += kVectorLanes) {
                const vfloat scaled = load_vector(x + i) * inverse;
                const vfloat half = scaled < 0.0f ? vfloat{} - 0.5f : vfloat{} + 0.5f;
                const vint q = __builtin_convertvector(scaled + half, vint);
                total += q;
                const vbyte bytes = __builtin_convertvector(q, vbyte);
                uint32_t steps[kVectorLanes / 4];
                memcpy(steps, &bytes, sizeof(steps));
                for (int j = 0; j < kVectorLanes / 4; ++j, word += count) *word = steps[j] ^ flip;
            }
            if (call.format != kInt8) *offset = factor * sum_integers(total);
        }
    }

    // The largest size of an element, and in `scale` that of q = 1. NaN and infinity make the scale
    // NaN: it must come out again, since the engine recognizes broken weights by it.
    static float scale_of_row(const LinearCall& call, const bf16* x, float* scale) {
        vfloat largest_lanes = {}, zero_lanes = {};
        for (int64_t i = 0; i < call.inputs; i += kVectorLanes) {
            const vfloat part = load_vector(x + i);
            const vfloat size = (vfloat)((vword)part & 0x7fffffffu);
            largest_lanes = size > largest_lanes ? size : largest_lanes;
            zero_lanes += part * 0.0f;
        }
        float largest = 0.0f, zero = 0.0f;
        for (int lane = 0; lane < kVectorLanes; ++lane) {
            largest = largest_lanes[lane] > largest ? largest_lanes[lane] : largest;
            zero += zero_lanes[lane];
        }
        *scale = zero == 0.0f ? largest / 127.0f : NAN;
        return largest;
    }

    static int32_t sum_integers(const vint& x) {
        int32_t lanes[kVectorLanes];
        memcpy(lanes, &x, sizeof(lanes));
        for (int width = kVectorLanes / 2; width > 0; width /= 2)
            for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
        return lanes[0];
    }
};

}  // namespace
}  // namespace twostroke
