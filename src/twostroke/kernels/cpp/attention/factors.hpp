// The factors of scores: elements of queries and keys as they are multiplied. T: the queries' type.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/fp8.hpp"
#include "vectors/lanes.hpp"
#include "vectors/products.hpp"

namespace twostroke {
namespace {

// Elements in a word, and in a vector: a word is two bf16, a float, or four of a cache in fp8.
template <typename T>
constexpr int kInWord = 4 / sizeof(T);
template <typename T>
constexpr int kInVector = kVectorLanes * kInWord<T>;

// bf16 stays so only where an instruction multiplies pairs of bf16; else it becomes float.
#ifdef TWOSTROKE_AVX512
template <typename T>
using Factor = T;
#else
template <typename T>
using Factor = float;
#endif
template <typename T>
constexpr bool kWidens = sizeof(T) < sizeof(Factor<T>);

// sum + the products of a query's elements and those of a key's word, in order.
template <typename T>
inline vfloat dot_word(vfloat sum, const Factor<T>* query, vword key) {
    if constexpr (kWidens<T>)
        return add_products(sum, query[0] - vfloat{}, query[1] - vfloat{}, key);
    else if constexpr (sizeof(T) == 2)
        return dot_bf16(sum, broadcast_word(query), key);
    else
        return sum + *query * (vfloat)key;
}

// Words of T that hold what a word of the cache does.
template <typename T, typename Stored>
constexpr int kWidened = sizeof(T) / sizeof(Stored);

template <typename T, typename Stored>
inline void widen_word(vword key, vword* to) {
    if constexpr (sizeof(Stored) == 1)
        widen_fp8(key, T{}, to);
    else
        to[0] = key;
}

// A query row as factors: itself, or a copy in `wide` if it has to be widened.
template <typename T>
inline const Factor<T>* to_factors(const T* row, float* wide, int64_t dim) {
    if constexpr (kWidens<T>) {
        for (int64_t d = 0; d < dim; d += kLanes) store16(wide + d, load16(row + d));
        return wide;
    } else {
        return row;
    }
}

// Loads words of as many keys as a vector has lanes. Vector i of `columns` then holds word i of
// each key; where fewer than a vector's bytes are left of a row, zeros follow.
template <typename Stored>
inline void load_columns(vword* columns, const Stored* keys, const int64_t* offsets,
                         int64_t bytes) {
    UNROLL for (int i = 0; i < kVectorLanes; ++i) {
        if (bytes >= kVectorBytes) {
            columns[i] = load<vword>(keys + offsets[i]);
        } else {
            columns[i] = vword{};
            if (2 * bytes == kVectorBytes)
                memcpy(&columns[i], keys + offsets[i], kVectorBytes / 2);
            else
                memcpy(&columns[i], keys + offsets[i], static_cast<size_t>(bytes));
        }
    }
    transpose(columns);
}

}  // namespace
}  // namespace twostroke
