// The integers of queries, keys and values: rounding, products and widening. Products of integers
// are exact, so their order does not matter: few rows and tiles score alike.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/scaled/layout.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"
#include "vectors/products.hpp"

namespace twostroke {
namespace {

// Rounded to nearest, ties to even.
inline vint round_to_ints(vfloat x) {
#if defined(TWOSTROKE_AVX512)
    return (vint)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
    return (vint)_mm256_cvtps_epi32((__m256)x);
#else
    vint result;
    for (int i = 0; i < kVectorLanes; ++i) result[i] = static_cast<int32_t>(lrintf(x[i]));
    return result;
#endif
}
template <typename Part>
inline auto round_to_ints(const Pair<Part>& x) {
    return pair(round_to_ints(x.low), round_to_ints(x.high));
}

// a * b + c, rounded once where the processor can: left to itself, a compiler decides so in one
// loop and otherwise in another.
inline vfloat multiply_add(vfloat a, vfloat b, vfloat c) {
#if defined(TWOSTROKE_AVX512)
    return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    for (int i = 0; i < kVectorLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}
template <typename Part>
inline Pair<Part> multiply_add(const Pair<Part>& a, const Pair<Part>& b, const Pair<Part>& c) {
    return {multiply_add(a.low, b.low, c.low), multiply_add(a.high, b.high, c.high)};
}

// ---------------------------------------------------------------------------------------- queries

// A query row in steps of `scale`: 128 * high + low, 15 bits in two bytes each. Finer than bf16
// but for what is less than a 64th of the largest.
struct RoundedQuery {
    static constexpr int kLargest = 127 * 128 + 63;

    alignas(64) int8_t high[kMaxHeadDim], low[kMaxHeadDim];
    int32_t zeros[kMaxGroups];  // by group: what the keys' zero point adds to its products
    float scale;
};

// What is added to keys, so that they are unsigned where products want that.
template <int BITS>
constexpr int kZeroPoint = BITS == 4 ? 8 : kUnsignedActivations ? 128 : 0;

template <int BITS, typename T>
inline void round_query(const T* row, int64_t dim, RoundedQuery& to) {
    floats largest = {}, poison = {};
    for (int64_t d = 0; d < dim; d += kLanes) {
        const floats x = load16(row + d), size = choose(x < 0.0f, -x, x);
        largest = choose(size > largest, size, largest);
        poison += x * 0.0f;  // NaN of NaN and of infinity
    }
    to.scale = (max_lanes(largest) + sum_lanes(poison)) / RoundedQuery::kLargest;
    const float inverse = to.scale > 1e-35f ? 1.0f / to.scale : 0.0f;
    for (int64_t d = 0; d < dim; d += kLanes) {
        int32_t steps[kLanes];
        store(steps, round_to_ints(load16(row + d) * inverse));
        for (int i = 0; i < kLanes; ++i) {
            const int32_t low = ((steps[i] + 64) & 127) - 64;
            to.low[d + i] = static_cast<int8_t>(low);
            to.high[d + i] = static_cast<int8_t>((steps[i] - low) >> 7);
        }
    }
    const int64_t size = BITS == 4 ? kScaleGroup : dim;
    for (int64_t group = 0; group * size < dim; ++group) {
        int32_t sum = 0;
        for (int64_t d = group * size; d < (group + 1) * size; ++d)
            sum += to.high[d] * 128 + to.low[d];
        to.zeros[group] = kZeroPoint<BITS> * sum;
    }
}

template <int BITS>
inline void round_query(const RowRange& rows, int r, int64_t offset, RoundedQuery& to) {
    const int64_t at = rows.query_offset(r) + offset;
    if (rows.call.is_float)
        round_query<BITS>(static_cast<const float*>(rows.call.query) + at, rows.dim, to);
    else
        round_query<BITS>(static_cast<const bf16*>(rows.call.query) + at, rows.dim, to);
}

// ------------------------------------------------------------------------------------------- keys

// A word of four int8 keys as dot_keys takes it.
inline vword prepare_key(vword key) { return kUnsignedActivations ? key ^ 0x80808080u : key; }

// sum + the four products of a query's word and a key's: prepared, or nibbles in bytes.
template <int BITS>
inline vint dot_steps(vint sum, vword query, vword key) {
    if constexpr (BITS == 4) return dot_int4(sum, query, key);
#if defined(TWOSTROKE_AVX512) || defined(__AVXVNNI__)
    return dot_unsigned_signed(sum, key, query);
#else
    return dot_int8(sum, query, key);
#endif
}
template <int BITS, typename IntPart, typename WordPart>
inline Pair<IntPart> dot_steps(const Pair<IntPart>& sum, vword query, const Pair<WordPart>& key) {
    return {dot_steps<BITS>(sum.low, query, key.low), dot_steps<BITS>(sum.high, query, key.high)};
}

// ----------------------------------------------------------------------------------------- values

// 16 bytes as floats.
template <typename Vector>
struct Widened {  // one of the processor's vectors
    static Vector steps(const char* from) { return to_floats(sign_extended(from)); }
    static void nibbles(const char* from, Vector& low, Vector& high) {
#if defined(TWOSTROKE_AVX512)
        const __m512 steps = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        const __m512i bytes = _mm512_cvtepu8_epi32((__m128i)load<vbyte>(from));
        low = (vfloat)_mm512_permutexvar_ps(bytes, steps);  // looks at the lowest four bits
        high = (vfloat)_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), steps);
#else
#if defined(__AVX2__)
        int64_t eight;
        memcpy(&eight, from, 8);
        const vint bytes = (vint)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight));
#else
        const vint bytes = __builtin_convertvector(load<vbyte>(from), vint) & 255;
#endif
        low = to_floats((bytes & 15) - 8), high = to_floats((bytes >> 4) - 8);
#endif
    }
};
template <typename Part>
struct Widened<Pair<Part>> {
    static constexpr int kHalf = Pair<Part>::kLength;

    static Pair<Part> steps(const char* from) {
        return {Widened<Part>::steps(from), Widened<Part>::steps(from + kHalf)};
    }
    static void nibbles(const char* from, Pair<Part>& low, Pair<Part>& high) {
        Widened<Part>::nibbles(from, low.low, high.low);
        Widened<Part>::nibbles(from + kHalf, low.high, high.high);
    }
};

// `count` columns of a row of values, from a multiple of 32, as floats: 16, or 32 where two share
// a byte.
template <int BITS>
constexpr int kStride = BITS == 4 ? kScaleGroup : kLanes;

// Columns [column, column + kStride) of the row at `from`.
template <int BITS>
inline void widen_values(const char* from, int64_t column, floats* to) {
    if constexpr (BITS == 8)
        to[0] = Widened<floats>::steps(from + column);
    else
        Widened<floats>::nibbles(from + column / 2, to[0], to[1]);
}

}  // namespace
}  // namespace twostroke
