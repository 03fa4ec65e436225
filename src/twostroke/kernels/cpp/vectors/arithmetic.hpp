// bfloat16, reductions and the exponential, on 16 lanes; and the transposition of a square.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// --------------------------------------------------------------------------------------- bfloat16

INLINED float to_float(bf16 value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}

// Rounds to nearest, ties to even; NaN stays NaN.
INLINED bf16 to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<bf16>((bits >> 16) | 64);
    return static_cast<bf16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The same rounding, with each bf16 in the low half of its lane.
template <typename Floats>
INLINED auto bf16_lanes(const Floats& values) {
    const auto bits = word_bits(values);
    const auto nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = (bits >> 16) | 64u;
    return choose(values != values, quiet, nearest);
}

INLINED floats widen(halves values) {
#ifdef TWOSTROKE_AVX512  // Compilers make six instructions of it.
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)values), 16);
#else
    return float_bits(to_words(values) << 16);
#endif
}

INLINED halves narrow(floats values) {
#ifdef TWOSTROKE_AVX512
    return (halves)_mm512_cvtneps_pbh((__m512)values);
#else
    return to_halves(bf16_lanes(values));
#endif
}

INLINED floats rounded(floats values) { return widen(narrow(values)); }

INLINED floats load16(const bf16* from) { return widen(load<halves>(from)); }
INLINED floats load16(const float* from) { return load<floats>(from); }
INLINED void store16(bf16* to, floats values) { store(to, narrow(values)); }
INLINED void store16(float* to, floats values) { store(to, values); }

// The same of the first `count` lanes, or of all 16 if there are as many; other lanes read 0.
template <typename Number>
INLINED floats load_first(const Number* from, int64_t count) {
    if (count >= kLanes) return load16(from);
    Number lanes[kLanes] = {};
    memcpy(lanes, from, static_cast<size_t>(count) * sizeof(Number));
    return load16(lanes);
}
template <typename Number>
INLINED void store_first(Number* to, const floats& values, int64_t count) {
    if (count >= kLanes) return store16(to, values);
    Number lanes[kLanes];
    store16(lanes, values);
    memcpy(to, lanes, static_cast<size_t>(count) * sizeof(Number));
}

// One vector of bf16 as floats.
INLINED vfloat load_vector(const bf16* from) {
#ifdef TWOSTROKE_AVX512
    return load16(from);
#else
    return (vfloat)(to_words(load<vhalf>(from)) << 16);
#endif
}

// ------------------------------------------------------------------------------------- reductions

// The upper half is added to the lower until one lane is left: one order of sums in all builds.
INLINED float sum_lanes(const vfloat& x) {
#ifdef TWOSTROKE_AVX512
    return _mm512_reduce_add_ps((__m512)x);
#else
    float lanes[kVectorLanes];
    memcpy(lanes, &x, sizeof(lanes));
    UNROLL for (int width = kVectorLanes / 2; width > 0; width /= 2)
        UNROLL for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
#endif
}
template <typename Part>
INLINED float sum_lanes(const Pair<Part>& x) {
    return sum_lanes(x.low + x.high);
}

INLINED float max_lanes(const vfloat& x) {
#ifdef TWOSTROKE_AVX512
    return _mm512_reduce_max_ps((__m512)x);
#else
    float lanes[kVectorLanes];
    memcpy(lanes, &x, sizeof(lanes));
    UNROLL for (int width = kVectorLanes / 2; width > 0; width /= 2)
        UNROLL for (int i = 0; i < width; ++i)
            lanes[i] = lanes[i + width] > lanes[i] ? lanes[i + width] : lanes[i];
    return lanes[0];
#endif
}
template <typename Part>
INLINED float max_lanes(const Pair<Part>& x) {
    return max_lanes(choose(x.high > x.low, x.high, x.low));
}

// ------------------------------------------------------------------------------------ exponential

// 2^n times a Taylor series of degree 6 of the rest: relative error below 2e-7; 0 below -87.
INLINED floats exp16(floats x) {
    const auto series = [](floats r) {
        floats p = splat(1.0f / 720);
        p = p * r + 1.0f / 120, p = p * r + 1.0f / 24, p = p * r + 1.0f / 6;
        return ((p * r + 0.5f) * r + 1.0f) * r + 1.0f;
    };
    constexpr float kLog2OfE = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = 2.12194440e-4f;
#ifdef TWOSTROKE_AVX512
    const floats bounded = (floats)_mm512_min_ps((__m512)splat(88.0f), (__m512)x);  // keeps NaN
    const floats n = (floats)_mm512_roundscale_ps(
        (__m512)(bounded * kLog2OfE), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const floats power = series(bounded - n * kLn2High + n * kLn2Low);
    const __mmask16 not_below =
        _mm512_cmp_ps_mask((__m512)x, (__m512)splat(-87.0f), _CMP_NLT_UQ);
    return (floats)_mm512_maskz_scalef_ps(not_below, (__m512)power, (__m512)n);
#else
    const floats bounded = choose(x > 88.0f, splat(88.0f), choose(x < -87.0f, splat(-87.0f), x));
    const floats scaled = bounded * kLog2OfE;
    const ints whole = to_ints(scaled + choose(scaled < 0.0f, splat(-0.5f), splat(0.5f)));
    const floats n = to_floats(whole);
    const floats power = series(bounded - n * kLn2High + n * kLn2Low);
    return choose(x < -87.0f, floats{}, power * float_bits((whole + 127) << 23));
#endif
}

// ---------------------------------------------------------------------------------- transposition

// Lane j of row i goes to lane i of row j; there are as many rows as a vector has lanes.
inline void transpose(vword* rows) {
#if defined(TWOSTROKE_AVX512)
    __m512i *r = (__m512i*)rows, pairs[kVectorLanes];
    for (int i = 0; i < kVectorLanes; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < kVectorLanes; i += 4) {
        r[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    // Lane l of r[4 i + j] now holds column 4 l + j of rows 4 i .. 4 i + 3.
    constexpr int kEven = 0x88, kOdd = 0xdd;
    for (int j = 0; j < 4; ++j) {
        const __m512i a = _mm512_shuffle_i32x4(r[j], r[4 + j], kEven);
        const __m512i b = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], kEven);
        const __m512i c = _mm512_shuffle_i32x4(r[j], r[4 + j], kOdd);
        const __m512i d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], kOdd);
        r[j] = _mm512_shuffle_i32x4(a, b, kEven);
        r[8 + j] = _mm512_shuffle_i32x4(a, b, kOdd);
        r[4 + j] = _mm512_shuffle_i32x4(c, d, kEven);
        r[12 + j] = _mm512_shuffle_i32x4(c, d, kOdd);
    }
#elif defined(__AVX2__)
    __m256 *r = (__m256*)rows, pairs[kVectorLanes], quads[kVectorLanes];
    UNROLL for (int i = 0; i < kVectorLanes; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < kVectorLanes; i += 4)
        UNROLL for (int j = 0; j < 2; ++j) {
            quads[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
            quads[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
        }
    // Lane l of the first half of quads[j] holds column j of row l, its second half column j + 4.
    UNROLL for (int j = 0; j < 4; ++j) {
        r[j] = _mm256_permute2f128_ps(quads[j], quads[j + 4], 0x20);
        r[j + 4] = _mm256_permute2f128_ps(quads[j], quads[j + 4], 0x31);
    }
#else
    vword columns[kVectorLanes];
    UNROLL for (int i = 0; i < kVectorLanes; ++i)
        UNROLL for (int j = 0; j < kVectorLanes; ++j) columns[i][j] = rows[j][i];
    memcpy(rows, columns, sizeof(columns));
#endif
}

}  // namespace
}  // namespace twostroke
