// Rounds a token's keys, or values, and puts them into a cache of integers, bit for bit as
// layers/scaled_rows.py does.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/scaled/integers.hpp"
#include "attention/scaled/layout.hpp"
#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// A scale of at least this size, rounded up to bf16.
inline float scale_up(float size) {
    if (size != size) return size;
    uint32_t bits;
    memcpy(&bits, &size, 4);
    bits = (bits + 0xffffu) & 0xffff0000u;
    memcpy(&size, &bits, 4);
    constexpr float kSmallest = 0x1p-100f;  // its reciprocal is finite
    return size > kSmallest ? size : kSmallest;
}

inline void store_steps(const bf16* from, float inverse, int64_t count, char* to) {
    for (int64_t d = 0; d < count; d += kLanes) {
        int32_t steps[kLanes];
        store(steps, round_to_ints(load16(from + d) * inverse));
        for (int i = 0; i < kLanes; ++i) to[d + i] = static_cast<char>(steps[i]);
    }
}

// A group of 32 elements to 16 bytes.
inline void store_nibbles(const bf16* from, float inverse, char* to) {
    int32_t steps[kScaleGroup];
    for (int d = 0; d < kScaleGroup; d += kLanes)
        store(steps + d, round_to_ints(load16(from + d) * inverse));
    for (int i = 0; i < kLanes; ++i) {
        const int32_t low = steps[i] < 7 ? steps[i] : 7;
        const int32_t high = steps[kLanes + i] < 7 ? steps[kLanes + i] : 7;
        to[i] = static_cast<char>(((low + 8) & 15) | ((high + 8) & 15) << 4);
    }
}

template <int BITS>
void store_token(const AttentionCall& call, int64_t width, int64_t stride, char* cache,
                 int64_t slot, const bf16* rows) {
    const ScaledSizes<BITS> sizes(call, width, stride);
    const int64_t block = slot / sizes.block_size, inside = slot % sizes.block_size;
    const int64_t size = BITS == 4 ? kScaleGroup : width;
    char* to = cache + block * sizes.block + inside * sizes.token;
    for (int64_t head = 0; head < sizes.kv_heads; ++head)
        for (int64_t group = 0; group < sizes.groups; ++group) {
            const bf16* from = rows + head * width + group * size;
            floats largest = load16(from), least = largest, poison = largest * 0.0f;
            for (int64_t d = kLanes; d < size; d += kLanes) {
                const floats x = load16(from + d);
                largest = choose(x > largest, x, largest), least = choose(x < least, x, least);
                poison += x * 0.0f;  // NaN of NaN and of infinity
            }
            const float highest = max_lanes(largest), lowest = -max_lanes(-least);
            const float bound = highest > -lowest ? highest : -lowest;
            const float up = scale_up(bound / (BITS == 8 ? 127 : 8) + sum_lanes(poison));
            const float scale = BITS == 8 || -lowest >= highest ? up : -up;
            const float inverse = 1.0f / scale;
            const bf16 kept = to_bf16(scale);  // exact
            memcpy(sizes.scales(cache, block, head, group) + inside * 2, &kept, 2);
            if constexpr (BITS == 8)
                store_steps(from, inverse, size, to + head * sizes.row);
            else
                store_nibbles(from, inverse, to + head * sizes.row + group * kLanes);
        }
}

// `rows`: [kv_heads, width]; `stride`: bytes from a block of the cache to the next one.
inline void store_scaled(const AttentionCall& call, int64_t width, int64_t stride, void* cache,
                         int64_t slot, const bf16* rows) {
    if (call.cache_format == kScaled8)
        store_token<8>(call, width, stride, static_cast<char*>(cache), slot, rows);
    else
        store_token<4>(call, width, stride, static_cast<char*>(cache), slot, rows);
}

}  // namespace
}  // namespace twostroke
