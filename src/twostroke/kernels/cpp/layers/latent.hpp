// Latent attention: what it does around its scores. What makes keys and values of latents is moved
// to the queries and to the output, so that all heads read the same rows.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/attention.hpp"
#include "buffer.hpp"
#include "elementwise.hpp"
#include "kernels.hpp"
#include "layers/heads.hpp"
#include "layers/token_part.hpp"
#include "linear/several.hpp"
#include "norms.hpp"

namespace twostroke {
namespace {

inline const LatentCall& latent_of(const LayerCall& layer) {
    return *static_cast<const LatentCall*>(layer.mixer.own);
}

// The queries of `rows` rows, [heads, plain + rotated] each.
inline void make_queries(const LatentCall& own, int64_t rows, const bf16* read, bf16* queries) {
    const LinearCall& down = own.query_down;
    const Buffer<bf16> inner(rows * down.outputs);
    if (inner) {
        apply(down, rows, read, inner.data(), nullptr);
        norm_rows(own.query_norm, 1, inner.data(), inner.data(), rows, down.outputs, own.eps);
    }
    apply(own.query, rows, inner ? inner.data() : read, queries, nullptr);
}

// Norms and rotates a token's latents, writes them to the cache, and rotates its queries.
inline void place_latents(const PassCall& pass, const LayerCall& layer, int64_t token,
                          bf16* latents, bf16* queries) {
    const LatentCall& own = latent_of(layer);
    const GroupCall& group = pass.groups[layer.group];
    const AttentionCall& sizes = group.attention;
    const int64_t latent = sizes.value_dim, half = own.rotated / 2;
    const int64_t key_dim = own.query.outputs / sizes.heads, plain = key_dim - own.rotated;
    const float* const cos = own.cos + pass.positions[token] * half;
    const float* const sin = own.sin + pass.positions[token] * half;
    norm_row(own.latent_norm, 0, latents, latents, latent, own.eps);
    rotate_heads(latents + latent, 1, own.rotated, half, cos, sin);
    store_heads(sizes, layer.keys, group.slots[token], latents, sizes.head_dim, sizes.key_stride);
    bf16* const wide = pass.wide + token * layer.mixer.wide;
    for (int64_t head = 0; head < sizes.heads; ++head) {
        bf16* const rotated = queries + head * key_dim + plain;
        rotate_heads(rotated, 1, own.rotated, half, cos, sin);
        memcpy(wide + head * sizes.head_dim + latent, rotated, bf16_bytes(own.rotated));
    }
}

// Rows [row, row + rows) of a part, of which `read` is what the layer reads.
inline void prepare_latents(TokenPart& part, const LayerCall& layer, int64_t row, int64_t rows,
                            const bf16* read) {
    const PassCall& pass = part.pass;
    const LatentCall& own = latent_of(layer);
    const AttentionCall& sizes = pass.groups[layer.group].attention;
    const int64_t size = own.query.outputs, cached = layer.mixer.input.outputs;
    const int64_t first = part.first + row;
    const Buffer<bf16> queries(rows * size), latents(rows * cached);
    apply(layer.mixer.input, rows, read, latents.data(), nullptr);
    make_queries(own, rows, read, queries.data());
    part.add_time(kGemm);
    auto place = [&](int64_t i) {
        place_latents(pass, layer, first + i, latents.data() + i * cached,
                      queries.data() + i * size);
    };
    for_rows(rows, size, place);
    part.add_time(kPlace);
    part_linears(own.keys, sizes.heads, queries.data(), size, size / sizes.heads, rows,
                 pass.wide + first * layer.mixer.wide, layer.mixer.wide, sizes.head_dim);
    part.add_time(kGemm);
}

inline void run_before_latents(TokenPart& part, const LayerCall& layer, const bf16* read) {
    for_mlp_turns(part, [&](int64_t row, int64_t rows) {
        prepare_latents(part, layer, row, rows, read + row * part.pass.hidden);
    });
}

// Adds what the values of the latents in `narrow` give.
inline void run_after_latents(TokenPart& part, const LayerCall& layer) {
    const PassCall& pass = part.pass;
    const LatentCall& own = latent_of(layer);
    const AttentionCall& sizes = pass.groups[layer.group].attention;
    const int64_t width = layer.mixer.narrow, size = layer.mixer.output.linear.inputs;
    for_mlp_turns(part, [&](int64_t row, int64_t rows) {
        const Buffer<bf16> mixed(rows * size);
        part_linears(own.values, sizes.heads, pass.narrow + (part.first + row) * width, width,
                     sizes.value_dim, rows, mixed.data(), size, own.values->outputs);
        add_half(part, layer, kOutput, row, rows, mixed.data());
    });
}

// Attention of all tokens, whose latents are in the cache.
inline void mix_latents(const PassCall& pass, const LayerCall& layer) {
    AttentionCall call = pass.groups[layer.group].attention;
    call.query = pass.wide, call.query_stride = layer.mixer.wide, call.out = pass.narrow;
    call.keys = layer.keys, call.values = layer.values, call.window = layer.window;
    call.sinks = nullptr;
    attention(call);
}

}  // namespace
}  // namespace twostroke
