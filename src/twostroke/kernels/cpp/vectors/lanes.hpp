// Vectors of 16 lanes, whatever the processor's own vectors are.
//
// Where those are narrower, 16 lanes are a pair of vectors half as wide, or a pair of pairs. A
// compiler that is asked for wider vectors than the processor has would keep them in memory.
// The build for AVX-512 defines TWOSTROKE_AVX512; the others go by what the compiler defines.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

// A macro, since a pragma cannot come from a function: unrolls the loop that follows.
#define UNROLL _Pragma("GCC unroll 16")

// Of all functions on vectors. With `inline` alone, a compiler calls some of them once the kernels
// are many, and vectors go through memory: GCC 12 made norms and activations four times slower.
#define INLINED inline __attribute__((always_inline))

namespace twostroke {
namespace {

// Bytes of a vector, and how many of the vector registers may hold sums.
#if defined(TWOSTROKE_AVX512)
constexpr int kVectorBytes = 64, kSumRegisters = 24;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kSumRegisters = 12;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kSumRegisters = 24;
#else
constexpr int kVectorBytes = 16, kSumRegisters = 12;
#endif
constexpr int kVectorLanes = kVectorBytes / 4;
constexpr int kSplit = kLanes / kVectorLanes;  // vectors in 16 lanes

// The processor's vectors. A cast from one to another keeps the bits.
typedef float vfloat __attribute__((vector_size(kVectorBytes)));
typedef int32_t vint __attribute__((vector_size(kVectorBytes)));
typedef uint32_t vword __attribute__((vector_size(kVectorBytes)));
typedef uint16_t vhalf __attribute__((vector_size(kVectorBytes / 2)));
typedef int8_t vbyte __attribute__((vector_size(kVectorBytes / 4)));

// ------------------------------------------------------------------------------------------ pairs

template <typename Part>
struct Pair {
    Part low, high;

    INLINED auto operator[](int lane) const {
        return lane < kLength ? low[lane] : high[lane - kLength];
    }
    INLINED Pair operator-() const { return {-low, -high}; }
    template <typename Other>
    INLINED Pair& operator+=(const Other& other) {
        return *this = *this + other;
    }
    template <typename Other>
    INLINED Pair& operator|=(const Other& other) {
        return *this = *this | other;
    }

    static constexpr int kLength = sizeof(Part) / sizeof(Part{}[0]);
};

// PARTS vectors as one type.
template <int PARTS, typename Vector>
struct Joined {
    using Part = typename Joined<PARTS / 2, Vector>::Type;
    using Type = Pair<Part>;
};
template <typename Vector>
struct Joined<1, Vector> {
    using Type = Vector;
};

using floats = Joined<kSplit, vfloat>::Type;
using ints = Joined<kSplit, vint>::Type;
using words = Joined<kSplit, vword>::Type;
using halves = Joined<kSplit, vhalf>::Type;

template <typename Part>
INLINED Pair<Part> pair(const Part& low, const Part& high) {
    return {low, high};
}

// Operators work lane by lane, on two pairs or on a pair and a number for all lanes; comparisons
// give -1 where they hold. A macro, since no template can stand for an operator.
#define LANE_BY_LANE(OP)                                                                    \
    template <typename Part>                                                                \
    INLINED auto operator OP(const Pair<Part>& a, const Pair<Part>& b) {                    \
        return pair(a.low OP b.low, a.high OP b.high);                                      \
    }                                                                                       \
    template <typename Part>                                                                \
    INLINED auto operator OP(const Pair<Part>& a, decltype(Pair<Part>{}[0]) number) {       \
        return pair(a.low OP number, a.high OP number);                                     \
    }                                                                                       \
    template <typename Part>                                                                \
    INLINED auto operator OP(decltype(Pair<Part>{}[0]) number, const Pair<Part>& b) {       \
        return pair(number OP b.low, number OP b.high);                                     \
    }
LANE_BY_LANE(+)
LANE_BY_LANE(-)
LANE_BY_LANE(*)
LANE_BY_LANE(/)
LANE_BY_LANE(&)
LANE_BY_LANE(|)
LANE_BY_LANE(<)
LANE_BY_LANE(>)
LANE_BY_LANE(>=)
LANE_BY_LANE(!=)
#undef LANE_BY_LANE

template <typename Part>
INLINED Pair<Part> operator<<(const Pair<Part>& a, int count) {
    return {a.low << count, a.high << count};
}
template <typename Part>
INLINED Pair<Part> operator>>(const Pair<Part>& a, int count) {
    return {a.low >> count, a.high >> count};
}

// `yes` where the mask is set, else `no`.
template <typename Mask, typename Vector>
INLINED Vector choose(const Mask& mask, const Vector& yes, const Vector& no) {
    return mask ? yes : no;
}
template <typename MaskPart, typename Part>
INLINED Pair<Part> choose(const Pair<MaskPart>& mask, const Pair<Part>& yes, const Pair<Part>& no) {
    return {choose(mask.low, yes.low, no.low), choose(mask.high, yes.high, no.high)};
}

// ------------------------------------------------------------------------------------ conversions

// The same bits as another type.
INLINED vfloat float_bits(vword x) { return (vfloat)x; }
INLINED vfloat float_bits(vint x) { return (vfloat)x; }
INLINED vword word_bits(vfloat x) { return (vword)x; }

// The same numbers as another type. Words that become halves are below 2^16.
INLINED vint to_ints(vfloat x) { return __builtin_convertvector(x, vint); }
INLINED vfloat to_floats(vint x) { return __builtin_convertvector(x, vfloat); }
#if defined(__AVX2__) && !defined(TWOSTROKE_AVX512)  // Compilers make five instructions of each.
INLINED vword to_words(vhalf x) { return (vword)_mm256_cvtepu16_epi32((__m128i)x); }
INLINED vhalf to_halves(vword x) {
    const __m128i low = _mm256_castsi256_si128((__m256i)x);
    return (vhalf)_mm_packus_epi32(low, _mm256_extracti128_si256((__m256i)x, 1));
}
#else
INLINED vword to_words(vhalf x) { return __builtin_convertvector(x, vword); }
INLINED vhalf to_halves(vword x) { return __builtin_convertvector(x, vhalf); }
#endif

template <typename Part>
INLINED auto float_bits(const Pair<Part>& x) {
    return pair(float_bits(x.low), float_bits(x.high));
}
template <typename Part>
INLINED auto word_bits(const Pair<Part>& x) {
    return pair(word_bits(x.low), word_bits(x.high));
}
template <typename Part>
INLINED auto to_ints(const Pair<Part>& x) {
    return pair(to_ints(x.low), to_ints(x.high));
}
template <typename Part>
INLINED auto to_floats(const Pair<Part>& x) {
    return pair(to_floats(x.low), to_floats(x.high));
}
template <typename Part>
INLINED auto to_words(const Pair<Part>& x) {
    return pair(to_words(x.low), to_words(x.high));
}
template <typename Part>
INLINED auto to_halves(const Pair<Part>& x) {
    return pair(to_halves(x.low), to_halves(x.high));
}

// ----------------------------------------------------------------------------------------- memory

template <typename Vector>
struct Memory {
    INLINED static Vector load(const char* from) {
        Vector result;
        memcpy(&result, from, sizeof(Vector));
        return result;
    }
    INLINED static void store(char* to, const Vector& x) { memcpy(to, &x, sizeof(Vector)); }
    template <typename Number>
    INLINED static Vector splat(Number number) {
        return number - Vector{};
    }
};
template <typename Part>
struct Memory<Pair<Part>> {
    INLINED static Pair<Part> load(const char* from) {
        return {Memory<Part>::load(from), Memory<Part>::load(from + sizeof(Part))};
    }
    INLINED static void store(char* to, const Pair<Part>& x) {
        Memory<Part>::store(to, x.low);
        Memory<Part>::store(to + sizeof(Part), x.high);
    }
    template <typename Number>
    INLINED static Pair<Part> splat(Number number) {
        return {Memory<Part>::splat(number), Memory<Part>::splat(number)};
    }
};

// As many bytes as a vector has lanes, each with its sign.
INLINED vint sign_extended(const char* from) {
#if defined(TWOSTROKE_AVX512)
    return (vint)_mm512_cvtepi8_epi32((__m128i)Memory<vbyte>::load(from));
#elif defined(__AVX2__)
    int64_t bytes;
    memcpy(&bytes, from, 8);
    return (vint)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes));
#else
    return __builtin_convertvector(Memory<vbyte>::load(from), vint);
#endif
}

// Addresses need no alignment.
template <typename Vector>
INLINED Vector load(const void* from) {
    return Memory<Vector>::load(static_cast<const char*>(from));
}
template <typename Vector>
INLINED void store(void* to, const Vector& x) {
    Memory<Vector>::store(static_cast<char*>(to), x);
}

INLINED floats splat(float value) { return Memory<floats>::splat(value); }
INLINED ints splat(int32_t value) { return Memory<ints>::splat(value); }

}  // namespace
}  // namespace twostroke
