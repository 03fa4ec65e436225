// Attention over heads: what it does between its two products.
#pragma once

#include <cstdint>
#include <cstring>

#include "activations.hpp"
#include "attention/attention.hpp"
#include "attention/scaled/store.hpp"
#include "buffer.hpp"
#include "elementwise.hpp"
#include "kernels.hpp"
#include "layers/token_part.hpp"
#include "norms.hpp"
#include "vectors/fp8.hpp"

namespace twostroke {
namespace {

// Norms queries and `kv_heads` keys if the layer does: each head, or all heads of each together.
inline void norm_heads(const AttentionCall& sizes, const HeadsCall& own, int64_t kv_heads,
                       float eps, bf16* heads) {
    const int64_t dim = sizes.head_dim, queries = sizes.heads * dim, keys = kv_heads * dim;
    if (own.whole_heads) {
        norm_row(own.norm, 0, heads, heads, queries, eps);
        norm_row(own.norm, queries, heads + queries, heads + queries, keys, eps);
        return;
    }
    for (int64_t first = 0; first < queries + keys; first += dim)
        norm_row(own.norm, first, heads + first, heads + first, dim, eps);
}

// Writes a token's keys, or its values, [kv_heads, dim], to its slot in the cache, whose blocks are
// `stride` elements apart.
inline void store_heads(const AttentionCall& sizes, void* cache, int64_t slot, const bf16* heads,
                        int64_t dim, int64_t stride) {
    const int64_t size = sizes.kv_heads * dim;
    const int64_t first = slot / sizes.block_size * stride + slot % sizes.block_size * size;
    if (sizes.cache_format == kFp8)
        store_fp8(static_cast<fp8*>(cache) + first, heads, size);
    else if (sizes.cache_format == kPlain)
        memcpy(static_cast<bf16*>(cache) + first, heads, bf16_bytes(size));
    else
        store_scaled(sizes, dim, stride, cache, slot, heads);
}

// Norms a token's values, if the layer does, and writes them to their slot.
inline void place_values(const AttentionCall& sizes, const LayerCall& layer, float eps,
                         int64_t slot, const bf16* values) {
    const NormCall& norm = static_cast<const HeadsCall*>(layer.mixer.own)->value_norm;
    const int64_t dim = sizes.value_dim, size = sizes.kv_heads * dim;
    const Buffer<bf16> normed(norm.weight ? size : 0);
    for (int64_t first = 0; norm.weight && first < size; first += dim)
        norm_row(norm, first, values + first, normed.data() + first, dim, eps);
    store_heads(sizes, layer.values, slot, normed ? normed.data() : values, dim,
                sizes.value_stride);
}

// Norms and rotates queries and keys, or makes queries grow, if the layer does, and writes the new
// keys and values to their slots in the cache.
inline void place_heads(const TokenPart& part, const LayerCall& layer) {
    const PassCall& pass = part.pass;
    const GroupCall& group = pass.groups[layer.group];
    const AttentionCall& sizes = group.attention;
    const HeadsCall& own = *static_cast<const HeadsCall*>(layer.mixer.own);
    const int64_t dim = sizes.head_dim, half = own.rotated / 2, width = layer.mixer.wide;
    const int64_t kv_heads = own.shares_cache ? 0 : sizes.kv_heads;
    auto place_token = [&](int64_t index) {
        const int64_t token = part.first + index, position = pass.positions[token];
        bf16* const queries = pass.wide + token * width;
        bf16* const keys = queries + sizes.heads * dim;
        if (kv_heads > 0)  // before the keys change
            place_values(sizes, layer, pass.eps, group.slots[token],
                         own.keys_as_values ? keys : keys + kv_heads * dim);
        if (own.norm.weight) norm_heads(sizes, own, kv_heads, pass.eps, queries);
        const float *cos = own.cos + position * half, *sin = own.sin + position * half;
        if (half > 0) rotate_heads(queries, sizes.heads + kv_heads, dim, half, cos, sin);
        if (own.growth != 0.0f)
            multiply_row(queries, sizes.heads * dim,
                         growth_at(position, own.growth_every, own.growth));
        if (kv_heads > 0)
            store_heads(sizes, layer.keys, group.slots[token], keys, dim, sizes.key_stride);
    };
    for_rows(part.count, width, place_token);
}

// Attention of all tokens, whose keys and values are in the cache.
inline void mix_heads(const PassCall& pass, const LayerCall& layer) {
    const HeadsCall& own = *static_cast<const HeadsCall*>(layer.mixer.own);
    const int64_t width = layer.mixer.wide;
    AttentionCall call = pass.groups[layer.group].attention;
    call.query = pass.wide, call.query_stride = width, call.out = pass.narrow;
    call.keys = layer.keys, call.values = layer.values, call.window = layer.window;
    call.sinks = own.sinks;
    attention(call);
    const int64_t size = call.heads * call.value_dim;
    if (own.is_gated)
        sigmoid_mul(pass.wide + width - size, width, pass.narrow, pass.tokens, size);
}

}  // namespace
}  // namespace twostroke
