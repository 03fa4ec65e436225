// Puts the blocks of GGUF files into the order in which linear/stored.hpp and the kernels of int4
// read them. Every number stays what it is; float16 factors become float32.
//
// The layouts of blocks are llama.cpp's (ggml-common.h):
//   q4_0:  float16 d, 16 bytes: elements i and i + 16 in the nibbles of byte i
//   q8_0:  float16 d, 32 signed bytes
//   q4_k:  float16 d and m, 12 bytes of scales, 128 bytes of nibbles: 32 bytes for each 64 elements
//   q5_k:  float16 d and m, 12 bytes of scales, 32 bytes of which bit g is the fifth one of an
//          element of run g, 128 bytes of nibbles
//   q6_k:  128 bytes of nibbles and 64 of pairs of bits, 16 signed scales, float16 d
//   mxfp4: an exponent, 16 bytes as q4_0 has them
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "linear/stored.hpp"
#include "thread_pool.hpp"

namespace twostroke {
namespace {

// Elements of a block of a file.
template <int FORMAT>
constexpr int unit_inputs() {
    return FORMAT == kQ4K || FORMAT == kQ5K || FORMAT == kQ6K ? kSuperInputs : 32;
}

template <int FORMAT>
constexpr int unit_bytes() {
    switch (FORMAT) {
        case kInt4: return 18;
        case kQ8_0: return 34;
        case kQ4K: return 144;
        case kQ5K: return 176;
        case kQ6K: return 210;
        default: return 17;
    }
}

// Bytes of the scales of 16 outputs for one such block.
template <int FORMAT>
constexpr int unit_scale_bytes() {
    switch (FORMAT) {
        case kInt4: case kQ8_0: return 4 * kLanes;
        case kQ4K: case kQ5K: return (8 + 16) * kLanes;
        case kQ6K: return (4 + 16) * kLanes;
        default: return kLanes;
    }
}

inline float half_to_float(const uint8_t* bytes) {
    const uint32_t half = static_cast<uint32_t>(bytes[0] | bytes[1] << 8);
    const uint32_t sign = (half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 31, mantissa = half & 0x3ff, bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | mantissa << 13;
    } else if (exponent != 0) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else if (mantissa == 0) {
        bits = sign;
    } else {  // below the least normal number, which float32 has room for
        exponent = 113;
        for (; !(mantissa & 0x400); mantissa <<= 1) --exponent;
        bits = sign | exponent << 23 | (mantissa & 0x3ff) << 13;
    }
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

inline void store_float(uint8_t* to, float value) { memcpy(to, &value, sizeof(value)); }

// Nibbles of `count` bytes: all low ones, then all high ones.
inline void split_nibbles(const uint8_t* from, uint8_t* codes, int count) {
    for (int i = 0; i < count; ++i) {
        codes[i] = from[i] & 15;
        codes[i + count] = static_cast<uint8_t>(from[i] >> 4);
    }
}

// The codes of one block of a file, a byte each.
template <int FORMAT>
void read_codes(const uint8_t* unit, uint8_t* codes) {
    if (FORMAT == kQ8_0) {
        memcpy(codes, unit + 2, 32);
    } else if (FORMAT == kInt4 || FORMAT == kMxfp4) {
        split_nibbles(unit + (FORMAT == kInt4 ? 2 : 1), codes, 16);
    } else if (FORMAT == kQ4K || FORMAT == kQ5K) {
        const uint8_t* nibbles = unit + (FORMAT == kQ4K ? 16 : 48);
        for (int run = 0; run < 4; ++run) split_nibbles(nibbles + 32 * run, codes + 64 * run, 32);
        if (FORMAT == kQ5K)
            for (int run = 0; run < 8; ++run)
                for (int i = 0; i < 32; ++i)
                    codes[32 * run + i] |= static_cast<uint8_t>((unit[16 + i] >> run & 1) << 4);
    } else {
        for (int half = 0; half < 2; ++half) {
            uint8_t* own = codes + 128 * half;
            split_nibbles(unit + 64 * half, own, 64);
            const uint8_t* high = unit + 128 + 32 * half;
            for (int run = 0; run < 4; ++run)
                for (int i = 0; i < 32; ++i)
                    own[32 * run + i] |= static_cast<uint8_t>((high[i] >> 2 * run & 3) << 4);
        }
    }
}

inline uint32_t four(const uint8_t* codes) {
    uint32_t word;
    memcpy(&word, codes, sizeof(word));
    return word;
}

// Codes of one group, of one output, to where it lies among 16.
template <int FORMAT>
void write_group(const uint8_t* codes, uint8_t* to) {
    constexpr int kSize = group_inputs<FORMAT>();
    auto put = [&](int step, uint32_t word) { memcpy(to + step * kStepBytes, &word, 4); };
    if (FORMAT == kQ8_0) {
        for (int step = 0; step < kSize / 4; ++step) put(step, four(codes + 4 * step));
        return;
    }
    for (int step = 0; step < kSize / 8; ++step) {
        const uint32_t low = four(codes + 8 * step), high = four(codes + 8 * step + 4);
        put(step, (low & 0x0f0f0f0f) | (high & 0x0f0f0f0f) << 4);
    }
    if (FORMAT != kQ5K && FORMAT != kQ6K) return;
    constexpr int kBits = FORMAT == kQ5K ? 1 : 2;
    uint32_t plane = 0;
    for (int step = 0; step < kSize / 4; ++step) {
        const uint32_t above = four(codes + 4 * step) >> 4 & 0x01010101u * ((1 << kBits) - 1);
        plane |= above << kBits * step;
    }
    put(kSize / 8, plane);
}

// Scale `index` of the eight of six bits, or, 4 bytes behind, minimum.
inline uint8_t six_bits(const uint8_t* packed, int index, bool is_minimum) {
    const uint8_t* own = packed + (is_minimum ? 4 : 0);
    if (index < 4) return own[index] & 63;
    const int mixed = packed[8 + index - 4];
    const int low = is_minimum ? mixed >> 4 : mixed & 15;
    return static_cast<uint8_t>(low | own[index - 4] >> 6 << 4);
}

template <int FORMAT>
void write_scales(const uint8_t* unit, uint8_t* to, int lane) {
    if (FORMAT == kInt4 || FORMAT == kQ8_0) {
        store_float(to + 4 * lane, half_to_float(unit));
    } else if (FORMAT == kMxfp4) {
        to[lane] = unit[0];
    } else if (FORMAT == kQ6K) {
        store_float(to + 4 * lane, half_to_float(unit + 208));
        for (int group = 0; group < 16; ++group)
            to[(4 + group) * kLanes + lane] = unit[192 + group];
    } else {
        store_float(to + 4 * lane, half_to_float(unit));
        store_float(to + 4 * (kLanes + lane), half_to_float(unit + 2));
        for (int group = 0; group < 8; ++group) {
            to[(8 + group) * kLanes + lane] = six_bits(unit + 4, group, false);
            to[(16 + group) * kLanes + lane] = six_bits(unit + 4, group, true);
        }
    }
}

template <int FORMAT>
void pack_blocks(const uint8_t* rows, int64_t outputs, int64_t inputs, uint8_t* data,
                 uint8_t* scales) {
    constexpr int kUnit = unit_inputs<FORMAT>(), kGroup = group_inputs<FORMAT>();
    constexpr int kUnitData = kUnit / kGroup * group_bytes<FORMAT>();
    const int64_t units = inputs / kUnit, row_bytes = units * unit_bytes<FORMAT>();
    auto pack = [&](int64_t block) {
        const int64_t first = block * kLanes;
        const int lanes = static_cast<int>(outputs - first < kLanes ? outputs - first : kLanes);
        for (int64_t u = 0; u < units; ++u) {
            uint8_t* own = data + (block * units + u) * kUnitData;
            uint8_t* own_scales = scales + (block * units + u) * unit_scale_bytes<FORMAT>();
            for (int lane = 0; lane < lanes; ++lane) {
                const uint8_t* unit = rows + (first + lane) * row_bytes + u * unit_bytes<FORMAT>();
                uint8_t codes[kUnit];
                read_codes<FORMAT>(unit, codes);
                for (int group = 0; group < kUnit / kGroup; ++group)
                    write_group<FORMAT>(codes + kGroup * group,
                                        own + group * group_bytes<FORMAT>() + 4 * lane);
                write_scales<FORMAT>(unit, own_scales, lane);
            }
        }
    };
    parallel_for((outputs + kLanes - 1) / kLanes, pack);
}

inline void pack_stored(int32_t format, const uint8_t* rows, int64_t outputs, int64_t inputs,
                        uint8_t* data, uint8_t* scales) {
    switch (format) {
        case kInt4: return pack_blocks<kInt4>(rows, outputs, inputs, data, scales);
        case kQ8_0: return pack_blocks<kQ8_0>(rows, outputs, inputs, data, scales);
        case kQ4K: return pack_blocks<kQ4K>(rows, outputs, inputs, data, scales);
        case kQ5K: return pack_blocks<kQ5K>(rows, outputs, inputs, data, scales);
        case kQ6K: return pack_blocks<kQ6K>(rows, outputs, inputs, data, scales);
        default: return pack_blocks<kMxfp4>(rows, outputs, inputs, data, scales);
    }
}

}  // namespace
}  // namespace twostroke
