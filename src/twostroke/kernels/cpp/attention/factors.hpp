// The factors of scores: elements of queries and keys as they are multiplied. T: the cache's type.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"
#include "vectors/products.hpp"

namespace twostroke {
namespace {

// Elements in a word, and in a vector: a word is two bf16 or a float.
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

// Loads one vector, or if not `whole` half a vector, of as many keys as a vector has lanes. Vector
// i of `columns` then holds word i of each key. Heads are multiples of 16 elements.
template <typename T>
inline void load_columns(vword* columns, const T* keys, const int64_t* offsets, bool whole) {
    UNROLL for (int i = 0; i < kVectorLanes; ++i) {
        if (whole) {
            columns[i] = load<vword>(keys + offsets[i]);
        } else {
            columns[i] = vword{};
            memcpy(&columns[i], keys + offsets[i], kVectorBytes / 2);
        }
    }
    transpose(columns);
}

}  // namespace
}  // namespace twostroke
