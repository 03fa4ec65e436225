// e4m3: a sign, four bits of exponent (bias 7) and three of mantissa; no infinity, and 0x7f is NaN.
// All of its numbers are exact in bf16, those below 2^-6 (subnormal here) included.
#pragma once

#include <cstdint>

#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// An element of a cache: one byte, told from integers by its type.
struct fp8 {
    uint8_t bits;
};

constexpr int kFp8Nan = 0x7f;
constexpr int kFp8Normal = 8;      // the least byte of a number that is not subnormal
constexpr int kFp8Bias = 127 - 7;  // what the exponents of float and bf16 are larger by

// ---------------------------------------------------------------------------------------- reading

// Bytes, one in each lane with its sign extended, as floats. Subnormal
// numbers are multiples of 2^-9.
INLINED vfloat fp8_floats(vint bytes) {
    const vint size = bytes & 127;
    const vfloat normal = float_bits((size << 20) + (kFp8Bias << 23));
    const vfloat subnormal = to_floats(size) * 0x1p-9f;
    const vint value = (vint)choose(size < kFp8Normal, subnormal, normal);
    return float_bits(value | (size == kFp8Nan) | (bytes & INT32_MIN));
}

// As many bytes as a type has lanes, as floats.
template <typename Vector>
struct Fp8Floats {  // one of the processor's vectors
    static Vector load(const fp8* from) {
        return fp8_floats(sign_extended(reinterpret_cast<const char*>(from)));
    }
};
template <typename Part>
struct Fp8Floats<Pair<Part>> {
    static Pair<Part> load(const fp8* from) {
        return {Fp8Floats<Part>::load(from), Fp8Floats<Part>::load(from + Pair<Part>::kLength)};
    }
};

INLINED floats load16(const fp8* from) { return Fp8Floats<floats>::load(from); }

// Words of four bytes to four floats each: to[i] gets element i.
INLINED void widen_fp8(vword bytes, float, vword* to) {
    UNROLL for (int i = 0; i < 4; ++i)
        to[i] = word_bits(fp8_floats((vint)(bytes << (24 - 8 * i)) >> 24));
}

#ifdef TWOSTROKE_AVX512

// The bf16 of each byte without its sign.
struct Fp8Table {
    alignas(64) bf16 entries[128];

    constexpr Fp8Table() : entries() {
        for (int size = 0; size < 128; ++size) {
            int exponent = size >> 3, mantissa = size & 7;
            if (exponent == 0 && mantissa > 0)  // normal in bf16: its first bit is not stored
                for (exponent = 1; mantissa < 8; mantissa *= 2) --exponent;
            const int bits = (exponent + kFp8Bias) << 7 | (mantissa & 7) << 4;
            entries[size] = static_cast<bf16>(size == kFp8Nan ? 0x7fc0 : size == 0 ? 0 : bits);
        }
    }
};
constexpr Fp8Table kFp8Table;

// Bytes, one in each half of a word, as bf16.
INLINED vword fp8_pairs(vword bytes) {
    const char* table = reinterpret_cast<const char*>(kFp8Table.entries);
    const auto look_up = [&](const char* from) __attribute__((always_inline)) {
        const vword first = load<vword>(from), second = load<vword>(from + kVectorBytes);
        // Looks at the lowest six bits.
        return _mm512_permutex2var_epi16((__m512i)first, (__m512i)bytes, (__m512i)second);
    };
    const vword highest = 0x00400040u - vword{};
    const __m512i below = look_up(table), above = look_up(table + 2 * kVectorBytes);
    const __mmask32 is_above = _mm512_test_epi16_mask((__m512i)bytes, (__m512i)highest);
    const vword size = (vword)_mm512_mask_blend_epi16(is_above, below, above);
    return size | ((bytes << 8) & 0x80008000u);
}

// Words of four bytes to two words of bf16 each: to[0] gets elements 0 and 1, to[1] the others.
INLINED void widen_fp8(vword bytes, bf16, vword* to) {
    const vword even = fp8_pairs(bytes & 0x00ff00ffu), odd = fp8_pairs((bytes >> 8) & 0x00ff00ffu);
    to[0] = (even & 0xffffu) | (odd << 16);
    to[1] = (even >> 16) | (odd & 0xffff0000u);
}

#else

INLINED void widen_fp8(vword bytes, bf16, vword* to) {
    vword wide[4];
    widen_fp8(bytes, float{}, wide);
    UNROLL for (int i = 0; i < 2; ++i) to[i] = (wide[2 * i] >> 16) | wide[2 * i + 1];
}

#endif

// ---------------------------------------------------------------------------------------- writing

// To nearest, ties to even. What is too large becomes the largest number, infinity becomes NaN, as
// in layers/kv_layout.py. Without branches, so that compilers make vectors of it.
INLINED fp8 to_fp8(bf16 value) {
    constexpr int kLeast = (kFp8Bias + 1) << 7, kMost = 0x43e0;  // of normal numbers: 2^-6, 448
    const int size = value & 0x7fff, bounded = size < kMost ? size : kMost;
    const int normal = ((bounded + 7 + (bounded >> 4 & 1)) >> 4) - (kFp8Bias << 3);
    // 1.mantissa is shifted to multiples of 2^-9; by nine bits nothing is left of it.
    const int mantissa = 128 | (size & 127), to_units = kFp8Bias + 5 - (size >> 7);
    const int shift = size >= kLeast ? 5 : to_units < 9 ? to_units : 9;
    const int half = (1 << (shift - 1)) - 1;
    const int subnormal = (mantissa + half + (mantissa >> shift & 1)) >> shift;
    const int finite = (size < kLeast ? subnormal : normal) | (value >> 8 & 128);
    return {static_cast<uint8_t>(size < 0x7f80 ? finite : kFp8Nan)};
}

inline void store_fp8(fp8* to, const bf16* from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = to_fp8(from[i]);
}

}  // namespace
}  // namespace twostroke
