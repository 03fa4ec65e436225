// The instructions of AVX-512 and AVX-VNNI that the kernels use, done lane by lane, so that those
// builds run wherever AVX2 does. Included before everything else. Slow. To be checked against the
// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.

#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

#define __builtin_cpu_supports(NAME) 1
#ifdef IN_SOFTWARE_AVXVNNI
#define __AVXVNNI__ 1
#endif
// Not inlined: kernels unroll their loops, and would take a minute more to compile.
#define NOT_INLINED static __attribute__((noinline, unused))

namespace in_software {

template <typename Lane, typename Vector>
struct Lanes {
    static constexpr int kCount = sizeof(Vector) / sizeof(Lane);
    Lane lane[kCount];

    Lanes() = default;
    explicit Lanes(Vector vector) { memcpy(lane, &vector, sizeof(Vector)); }
    operator Vector() const {
        Vector vector;
        memcpy(&vector, lane, sizeof(Vector));
        return vector;
    }
    Lane& operator[](int i) { return lane[i]; }
    Lane operator[](int i) const { return lane[i]; }
};

using Floats = Lanes<float, __m512>;
using Words = Lanes<uint32_t, __m512i>;
using Longs = Lanes<uint64_t, __m512i>;
using Halves = Lanes<uint16_t, __m512i>;
using Bytes = Lanes<uint8_t, __m512i>;
using HalfOfHalves = Lanes<uint16_t, __m256i>;

template <typename Result, typename Function>
static inline Result for_each_lane(Function compute) {
    Result result;
    for (int i = 0; i < Result::kCount; ++i) result[i] = compute(i);
    return result;
}

static inline float from_bf16(uint16_t half) {
    const uint32_t word = uint32_t(half) << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

// Instructions for bf16 have no subnormal numbers, whatever the processor is set to.
static inline float flush(float value) {
    return fabsf(value) < FLT_MIN ? copysignf(0.0f, value) : value;
}

static inline uint16_t to_bf16(float value) {
    value = flush(value);
    uint32_t word;
    memcpy(&word, &value, 4);
    const uint32_t rounded = word + 0x7fff + (word >> 16 & 1);
    return static_cast<uint16_t>(std::isnan(value) ? word >> 16 | 64 : rounded >> 16);
}

// ---------------------------------------------------------------------------------------- products

NOT_INLINED __m512 dpbf16(__m512 sum, __m512i left, __m512i right) {
    const Floats before(sum);
    const Halves a(left), b(right);
    const auto product = [&](int i, float onto) {
        return flush(fmaf(flush(from_bf16(a[i])), flush(from_bf16(b[i])), flush(onto)));
    };
    return for_each_lane<Floats>(
        [&](int i) { return product(2 * i, product(2 * i + 1, before[i])); });
}

template <typename Vector>
NOT_INLINED Vector dpbusd(Vector sum, Vector left, Vector right) {
    const Lanes<int32_t, Vector> before(sum);
    const Lanes<uint8_t, Vector> a(left);
    const Lanes<int8_t, Vector> b(right);
    return for_each_lane<Lanes<int32_t, Vector>>([&](int i) {
        int32_t result = before[i];
        for (int j = 4 * i; j < 4 * i + 4; ++j) result += a[j] * b[j];
        return result;
    });
}

// -------------------------------------------------------------------------- conversions and memory

NOT_INLINED __m256i cvtneps_pbh(__m512 x) {
    const Floats from(x);
    return for_each_lane<HalfOfHalves>([&](int i) { return to_bf16(from[i]); });
}

NOT_INLINED __m512i cvtepu16_epi32(__m256i x) {
    const HalfOfHalves from(x);
    return for_each_lane<Words>([&](int i) { return from[i]; });
}

NOT_INLINED __m512i slli_epi32(__m512i x, int count) {
    const Words from(x);
    return for_each_lane<Words>([&](int i) { return from[i] << count; });
}

NOT_INLINED __m512i srli_epi32(__m512i x, int count) {
    const Words from(x);
    return for_each_lane<Words>([&](int i) { return from[i] >> count; });
}

// `Byte`: uint8_t, or int8_t to keep the sign.
template <typename Byte>
NOT_INLINED __m512i widen_bytes(__m128i x) {
    const Lanes<Byte, __m128i> from(x);
    return for_each_lane<Words>([&](int i) { return static_cast<uint32_t>(int32_t(from[i])); });
}

NOT_INLINED __m512 cvtepi32_ps(__m512i x) {
    const Lanes<int32_t, __m512i> from(x);
    return for_each_lane<Floats>([&](int i) { return static_cast<float>(from[i]); });
}

NOT_INLINED __m512i cvtps_epi32(__m512 x) {  // out of range and NaN: the smallest integer
    const Floats from(x);
    return for_each_lane<Words>([&](int i) {
        const float nearest = nearbyintf(from[i]);
        const bool fits = nearest >= -2147483648.0f && nearest < 2147483648.0f;
        return fits ? static_cast<uint32_t>(static_cast<int32_t>(nearest)) : 0x80000000u;
    });
}

NOT_INLINED __m512 fmadd_ps(__m512 x, __m512 y, __m512 z) {
    const Floats a(x), b(y), c(z);
    return for_each_lane<Floats>([&](int i) { return fmaf(a[i], b[i], c[i]); });
}

template <typename... Numbers>
NOT_INLINED __m512 setr_ps(Numbers... numbers) {
    const float lanes[] = {static_cast<float>(numbers)...};
    return for_each_lane<Floats>([&](int i) { return lanes[i]; });
}

NOT_INLINED __m512 permutexvar_ps(__m512i which, __m512 x) {
    const Words index(which);
    const Floats from(x);
    return for_each_lane<Floats>([&](int i) { return from[index[i] & 15]; });
}

NOT_INLINED __m512i permutex2var_epi16(__m512i first, __m512i which, __m512i second) {
    const Halves index(which), low(first), high(second);
    return for_each_lane<Halves>(
        [&](int i) { return (index[i] & 32 ? high : low)[index[i] & 31]; });
}

NOT_INLINED __mmask32 test_epi16_mask(__m512i x, __m512i bits) {
    const Halves a(x), b(bits);
    __mmask32 mask = 0;
    for (int i = 0; i < 32; ++i) mask |= __mmask32{(a[i] & b[i]) != 0} << i;
    return mask;
}

NOT_INLINED __m512i mask_blend_epi16(__mmask32 mask, __m512i x, __m512i y) {
    const Halves a(x), b(y);
    return for_each_lane<Halves>([&](int i) { return mask >> i & 1 ? b[i] : a[i]; });
}

NOT_INLINED void mask_storeu_epi32(void* to, __mmask16 mask, __m512i x) {
    const Words from(x);
    for (int i = 0; i < 16; ++i)
        if (mask >> i & 1) memcpy(static_cast<char*>(to) + 4 * i, &from.lane[i], 4);
}

// ------------------------------------------------------------------------- exponentials and maxima

NOT_INLINED __m512 min_ps(__m512 x, __m512 y) {  // if one is a NaN: y
    const Floats a(x), b(y);
    return for_each_lane<Floats>([&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
}

template <int HOW>
NOT_INLINED __mmask16 cmp_mask(__m512 x, __m512 y) {
    static_assert(HOW == _CMP_NLT_UQ, "only this comparison is done here");
    const Floats a(x), b(y);
    int mask = 0;
    for (int i = 0; i < 16; ++i) mask |= !(a[i] < b[i]) << i;
    return static_cast<__mmask16>(mask);
}

template <int HOW>
NOT_INLINED __m512 roundscale(__m512 x) {
    static_assert(HOW == (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                  "only this rounding is done here");
    const Floats from(x);
    return for_each_lane<Floats>([&](int i) { return nearbyintf(from[i]); });
}

NOT_INLINED __m512 maskz_scalef_ps(__mmask16 mask, __m512 x, __m512 power) {
    const Floats a(x), n(power);
    return for_each_lane<Floats>([&](int i) {
        if (!(mask >> i & 1)) return 0.0f;
        return std::isnan(n[i]) ? n[i] : ldexpf(a[i], int(floorf(n[i])));
    });
}

template <typename Combine>
static inline float reduce(__m512 x, Combine combine) {
    Floats lanes(x);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] = combine(lanes[i], lanes[i + half]);
    return lanes[0];
}

NOT_INLINED float reduce_add_ps(__m512 x) {
    return reduce(x, [](float a, float b) { return a + b; });
}

NOT_INLINED float reduce_max_ps(__m512 x) {
    return reduce(x, [](float a, float b) { return b > a ? b : a; });
}

// ----------------------------------------------------------------------------------- transposition

template <typename Vector>
NOT_INLINED __m512i unpack(__m512i x, __m512i y, bool high) {
    const Vector a(x), b(y);
    constexpr int width = Vector::kCount / 4;  // elements in 16 bytes
    return for_each_lane<Vector>([&](int i) {
        const int from = i / width * width + (high ? width / 2 : 0) + i % width / 2;
        return i % 2 ? b[from] : a[from];
    });
}

NOT_INLINED __m512i shuffle_i32x4(__m512i x, __m512i y, int which) {
    const Longs a(x), b(y);
    return for_each_lane<Longs>([&](int i) {
        const int from = 2 * (which >> i / 2 * 2 & 3) + i % 2;
        return i < 4 ? a[from] : b[from];
    });
}

NOT_INLINED __m512i shuffle_epi8(__m512i x, __m512i which) {
    const Bytes a(x), index(which);
    return for_each_lane<Bytes>([&](int i) {
        return index[i] & 0x80 ? uint8_t{0} : a[i / 16 * 16 + (index[i] & 15)];
    });
}

NOT_INLINED __m512i broadcast_i32x4(__m128i x) {
    const Lanes<uint8_t, __m128i> a(x);
    return for_each_lane<Bytes>([&](int i) { return a[i % 16]; });
}

}  // namespace in_software

#define _mm256_dpbusd_avx_epi32 in_software::dpbusd
#define _mm512_dpbusd_epi32 in_software::dpbusd
#define _mm512_dpbf16_ps(SUM, A, B) in_software::dpbf16(SUM, (__m512i)(A), (__m512i)(B))
#define _mm512_cvtneps_pbh in_software::cvtneps_pbh
#define _mm512_cvtepu16_epi32 in_software::cvtepu16_epi32
#define _mm512_slli_epi32 in_software::slli_epi32
#undef _mm512_setr_ps
#define _mm512_setr_ps in_software::setr_ps
#define _mm512_srli_epi32 in_software::srli_epi32
#define _mm512_cvtepi8_epi32 in_software::widen_bytes<int8_t>
#define _mm512_cvtepu8_epi32 in_software::widen_bytes<uint8_t>
#define _mm512_cvtepi32_ps in_software::cvtepi32_ps
#define _mm512_cvtps_epi32 in_software::cvtps_epi32
#define _mm512_fmadd_ps in_software::fmadd_ps
#define _mm512_permutexvar_ps in_software::permutexvar_ps
#define _mm512_permutex2var_epi16 in_software::permutex2var_epi16
#define _mm512_test_epi16_mask in_software::test_epi16_mask
#define _mm512_mask_blend_epi16 in_software::mask_blend_epi16
#define _mm512_mask_storeu_epi32 in_software::mask_storeu_epi32
#define _mm512_min_ps in_software::min_ps
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(A, B, HOW) in_software::cmp_mask<(HOW)>(A, B)
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(X, HOW) in_software::roundscale<(HOW)>(X)
#define _mm512_maskz_scalef_ps in_software::maskz_scalef_ps
#define _mm512_reduce_add_ps in_software::reduce_add_ps
#define _mm512_reduce_max_ps in_software::reduce_max_ps
#define _mm512_unpacklo_epi32(A, B) in_software::unpack<in_software::Words>(A, B, false)
#define _mm512_unpackhi_epi32(A, B) in_software::unpack<in_software::Words>(A, B, true)
#define _mm512_unpacklo_epi64(A, B) in_software::unpack<in_software::Longs>(A, B, false)
#define _mm512_unpackhi_epi64(A, B) in_software::unpack<in_software::Longs>(A, B, true)
#define _mm512_shuffle_epi8 in_software::shuffle_epi8
#define _mm512_broadcast_i32x4 in_software::broadcast_i32x4
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4 in_software::shuffle_i32x4
