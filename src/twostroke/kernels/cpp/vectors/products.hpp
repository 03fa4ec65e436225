// Products of vectors as wide as the processor's own: pairs of bfloat16, and four bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// The word at `from`, in every lane.
INLINED vword broadcast_word(const void* from) {
    uint32_t word;
    memcpy(&word, from, 4);
    return word - vword{};
}

// --------------------------------------------------------------------------------------- bfloat16

// 32-bit words that two bf16 inputs take in packed rows: one where an instruction multiplies
// pairs of bf16, else two floats, which tiles can use as they are.
#ifdef TWOSTROKE_AVX512
constexpr int kPairWords = 1;
#else
constexpr int kPairWords = 2;
#endif

// sum + the products of two floats and the two bf16 weights of a word.
INLINED vfloat add_products(vfloat sum, vfloat first, vfloat second, vword weight) {
    sum += first * (vfloat)(weight << 16);
    return sum + second * (vfloat)(weight & 0xffff0000u);
}

// sum + the products of a word's two bf16 inputs and a word's two bf16 weights.
INLINED vfloat dot_bf16(vfloat sum, vword x, vword weight) {
#ifdef TWOSTROKE_AVX512
    return (vfloat)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)weight);
#else
    return add_products(sum, (vfloat)(x << 16), (vfloat)(x & 0xffff0000u), weight);
#endif
}

// The same, with two inputs as packed rows hold them.
INLINED vfloat dot_packed(vfloat sum, const char* x, vword weight) {
    if constexpr (kPairWords == 1) {
        return dot_bf16(sum, broadcast_word(x), weight);
    } else {
        const vfloat first = (vfloat)broadcast_word(x), second = (vfloat)broadcast_word(x + 4);
        return add_products(sum, first, second, weight);
    }
}

// ------------------------------------------------------------------------------------------ bytes

// With VNNI, int8 activations are kept as q + 128. That adds 128 times an output's weights, which
// LinearCall::offsets takes off before.
#if defined(TWOSTROKE_AVX512) || defined(__AVXVNNI__)
constexpr bool kUnsignedActivations = true;
#else
constexpr bool kUnsignedActivations = false;
#endif

#if defined(TWOSTROKE_AVX512)
INLINED vint dot_unsigned_signed(vint sum, vword left, vword right) {
    return (vint)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)left, (__m512i)right);
}
#elif defined(__AVXVNNI__)
INLINED vint dot_unsigned_signed(vint sum, vword left, vword right) {
    return (vint)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)left, (__m256i)right);
}
#endif

// sum + four products each of int8 activations and int8 weights in -127 .. 127.
INLINED vint dot_int8(vint sum, vword x, vword weight) {
#if defined(TWOSTROKE_AVX512) || defined(__AVXVNNI__)
    return dot_unsigned_signed(sum, x, weight);
#elif defined(__AVX2__)
    // |w| times x with w's sign: two products of 127 * 127 fit into 16 bits, so none saturates.
    const __m256i w = (__m256i)weight;
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8((__m256i)x, w));
    return sum + (vint)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    UNROLL for (int byte = 0; byte < 4; ++byte) {
        const int up = 24 - 8 * byte;
        sum += ((vint)(x << up) >> 24) * ((vint)(weight << up) >> 24);
    }
    return sum;
#endif
}

// sum + four products each of int8 activations and nibbles, 0 .. 15, in bytes.
INLINED vint dot_int4(vint sum, vword x, vword nibbles) {
#if defined(TWOSTROKE_AVX512) || defined(__AVXVNNI__)
    return dot_unsigned_signed(sum, nibbles, x);
#elif defined(__AVX2__)
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)nibbles, (__m256i)x);
    return sum + (vint)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    return dot_int8(sum, x, nibbles);
#endif
}

}  // namespace
}  // namespace twostroke
