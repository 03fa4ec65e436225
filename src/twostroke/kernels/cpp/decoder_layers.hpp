// All decoder layers of one pass: only kernels run between the embedding and the last norm.
#pragma once

#include <cstdint>
#include <cstring>

#include "activations.hpp"
#include "attention/attention.hpp"
#include "attention/scaled/store.hpp"
#include "buffer.hpp"
#include "elementwise.hpp"
#include "experts/experts.hpp"
#include "kernels.hpp"
#include "linear/low_rank.hpp"
#include "linear/several.hpp"
#include "norms.hpp"
#include "thread_pool.hpp"
#include "vectors/fp8.hpp"

namespace twostroke {
namespace {

// Bytes of `count` bf16.
inline size_t bf16_bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(bf16); }

// Some tokens of a pass, and the seconds of each component while they are computed.
class TokenPart {
  public:
    TokenPart(const PassCall& pass_call, int64_t first_token, int64_t num_tokens)
        : pass(pass_call),
          first(first_token),
          count(num_tokens),
          last_time_(pass.seconds ? now() : 0.0) {}

    const PassCall& pass;
    const int64_t first, count;
    double seconds[kComponents] = {};

    bf16* x() const { return pass.x + first * pass.hidden; }
    bf16* normed() const { return pass.normed + first * pass.hidden; }

    // The time since the last call was spent on this component.
    void add_time(Component component) {
        if (!pass.seconds) return;
        const double time = now();
        seconds[component] += time - last_time_;
        last_time_ = time;
    }

  private:
    double last_time_;
};

// Norms queries and keys if the layer does: each head, or all heads of each together.
inline void norm_heads(const PassCall& pass, const AttentionBranchCall& branch, bf16* heads) {
    const AttentionCall& sizes = pass.attention;
    const int64_t dim = sizes.head_dim, queries = sizes.heads * dim;
    const int64_t elements = queries + sizes.kv_heads * dim;
    if (branch.whole_heads) {
        norm_row(branch.heads_norm, 0, heads, heads, queries, pass.eps);
        norm_row(branch.heads_norm, queries, heads + queries, heads + queries, elements - queries,
                 pass.eps);
        return;
    }
    for (int64_t first = 0; first < elements; first += dim)
        norm_row(branch.heads_norm, first, heads + first, heads + first, dim, pass.eps);
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

// Norms and rotates queries and keys, if the layer does, and writes the new keys and values to
// their slots in the cache.
inline void place_heads(const TokenPart& part, const LayerCall& layer) {
    const PassCall& pass = part.pass;
    const AttentionCall& sizes = pass.attention;
    const AttentionBranchCall& branch = layer.attention;
    const int64_t dim = sizes.head_dim, half = branch.rotated / 2, width = branch.qkv.outputs;
    const int64_t heads = sizes.heads + sizes.kv_heads;
    auto place_token = [&](int64_t index) {
        const int64_t token = part.first + index, slot = pass.slots[token];
        bf16* queries = pass.wide + token * width;
        if (branch.heads_norm.weight) norm_heads(pass, branch, queries);
        const int64_t angles = pass.positions[token] * half;
        if (half > 0)
            rotate_heads(queries, heads, dim, half, branch.cos + angles, branch.sin + angles);
        store_heads(sizes, layer.keys, slot, queries + sizes.heads * dim, dim, sizes.key_stride);
        store_heads(sizes, layer.values, slot, queries + heads * dim, sizes.value_dim,
                    sizes.value_stride);
    };
    for_rows(part.count, width, place_token);
}

inline void apply(const LinearCall& weights, int64_t rows, const bf16* x, bf16* out,
                  const bf16* residual) {
    LinearCall call = weights;
    call.x = x, call.x_stride = weights.inputs, call.rows = rows;
    call.out = out, call.residual = residual, call.float_out = 0;
    linear(call);
}

// Adds what adapters do to `rows` rows of a linear layer's outputs, from the part's row `row` on.
inline void adapt(TokenPart& part, const LayerCall& layer, AdaptedLinear which, int64_t row,
                  int64_t rows, const bf16* x, bf16* out) {
    const PassCall& pass = part.pass;
    if (!pass.additions) return;
    const int64_t place = (&layer - pass.layers) * kAdaptedLinears + which;
    add_low_rank(pass.additions + place * pass.num_adapters, pass.num_adapters,
                 pass.owners + part.first + row, rows, x, out);
}

// The rows that a branch reads: normed, in `room`, or as they are.
inline const bf16* read_rows(TokenPart& part, const NormCall& norm, bf16* room) {
    const PassCall& pass = part.pass;
    if (!norm.weight) return part.x();
    norm_rows(norm, 1, part.x(), room, part.count, pass.hidden, pass.eps);
    part.add_time(kNorm);
    return room;
}

// Adds what a branch ends with, `which` of the layer applied to `inner`, to `rows` rows of the
// part, from `row` on.
inline void add_branch(TokenPart& part, const LayerCall& layer, AdaptedLinear which, int64_t row,
                       int64_t rows, const bf16* inner) {
    const PassCall& pass = part.pass;
    const AdditionCall& addition = which == kDown ? layer.mlp.down : layer.attention.output;
    const NormCall& norm = addition.norm;
    bf16* const x = part.x() + row * pass.hidden;
    bf16* const room = part.normed() + row * pass.hidden;
    const bool is_plain = !norm.weight && addition.scale == 1.0f;
    apply(addition.linear, rows, inner, is_plain ? x : room, is_plain ? x : nullptr);
    adapt(part, layer, which, row, rows, inner, is_plain ? x : room);
    part.add_time(kGemm);
    if (is_plain) return;
    if (norm.weight) norm_rows(norm, 1, room, room, rows, pass.hidden, pass.eps);
    add_rows(x, room, rows, pass.hidden, addition.scale);
    part.add_time(kNorm);
}

inline void run_before_attention(TokenPart& part, const LayerCall& layer) {
    const PassCall& pass = part.pass;
    const LinearCall& qkv = layer.attention.qkv;
    const bf16* read = read_rows(part, layer.attention.norm, part.normed());
    bf16* const heads = pass.wide + part.first * qkv.outputs;
    apply(qkv, part.count, read, heads, nullptr);
    adapt(part, layer, kQkv, 0, part.count, read, heads);
    part.add_time(kGemm);
    place_heads(part, layer);
    part.add_time(kPlace);
}

// All tokens' way through experts, which all threads share. The tokens are normed already.
inline void run_experts(const PassCall& pass, int64_t tokens, const ExpertsCall& weights) {
    const double start = pass.seconds ? now() : 0.0;
    ExpertsCall call = weights;
    call.x = pass.normed, call.onto = call.out = pass.x, call.tokens = tokens;
    experts(call);
    if (pass.seconds) pass.seconds[kGemm] += now() - start;
}

// `read`: what the MLP reads of the part's tokens. `gates`, `activation`: room for gate_up's and
// for down's input, of min(mlp_tokens, part.count).
inline void run_mlp(TokenPart& part, const LayerCall& layer, const bf16* read, bf16* gates,
                    bf16* activation) {
    const PassCall& pass = part.pass;
    const MlpCall& mlp = layer.mlp;
    const int64_t turns = (part.count + pass.mlp_tokens - 1) / pass.mlp_tokens;
    for (int64_t turn = 0; turn < turns; ++turn) {
        const int64_t first = part.count * turn / turns;
        const int64_t count = part.count * (turn + 1) / turns - first;
        const bf16* const turn_read = read + first * pass.hidden;
        apply(mlp.gate_up, count, turn_read, gates, nullptr);
        adapt(part, layer, kGateUp, first, count, turn_read, gates);
        part.add_time(kGemm);
        gated_mul(gates, activation, count, mlp.down.linear.inputs, mlp.activation);
        part.add_time(kActivation);
        add_branch(part, layer, kDown, first, count, activation);
    }
}

inline void run_after_attention(TokenPart& part, const LayerCall& layer, bf16* gates,
                                bf16* activation) {
    const int64_t width = layer.attention.output.linear.inputs;
    const bf16* attended = part.pass.narrow + part.first * width;
    // Side by side with attention, the MLP reads what attention did, which then adds no norm.
    const bf16* read =
        layer.is_parallel ? read_rows(part, layer.mlp.norm, part.normed()) : nullptr;
    add_branch(part, layer, kOutput, 0, part.count, attended);
    if (!layer.is_parallel) read = read_rows(part, layer.mlp.norm, part.normed());
    if (!layer.mlp.experts) run_mlp(part, layer, read, gates, activation);
}

// Into how many parts tokens are cut. One thread takes a part from one attention to the next: what
// it touches stays in its cache, and no thread waits for others after each product. If there are
// fewer than two parts for each thread, all threads share each product.
inline int64_t count_token_parts(const PassCall& pass, int64_t tokens) {
    const int64_t turn_tokens = num_threads() * pass.part_tokens;
    const int64_t turns = (tokens + turn_tokens - 1) / turn_tokens;
    const int64_t parts = num_threads() * (turns < 2 ? 2 : turns);
    return num_threads() > 1 && 2 * tokens >= parts * pass.part_tokens ? parts : 1;
}

// The rest of `before` up to its experts, and the beginning of `after`. Either may be null.
inline void run_in_parts(const PassCall& pass, int64_t tokens, const LayerCall* before,
                                  const LayerCall* after) {
    const int64_t parts = count_token_parts(pass, tokens);
    const Buffer<double> seconds(parts * kComponents);
    auto run_part = [&](int64_t index) {
        const int64_t first = tokens * index / parts;
        TokenPart part(pass, first, tokens * (index + 1) / parts - first);
        if (before && parts == 1) {
            run_after_attention(part, *before, pass.wide, pass.narrow);
        } else if (before) {
            const MlpCall& mlp = before->mlp;
            const int64_t gates = part.count * mlp.gate_up.outputs;
            const Buffer<bf16> room(gates + part.count * mlp.down.linear.inputs);
            run_after_attention(part, *before, room.data(), room.data() + gates);
        }
        if (after) run_before_attention(part, *after);
        memcpy(seconds.data() + index * kComponents, part.seconds, sizeof(part.seconds));
    };
    parallel_for(parts, run_part);
    if (!pass.seconds) return;
    const double threads = parts > 1 ? num_threads() : 1;  // that run parts side by side
    for (int64_t i = 0; i < parts * kComponents; ++i)
        pass.seconds[i % kComponents] += seconds.data()[i] / threads;
}

// What lies between two layers' attention: the rest of `before`, and the beginning of `after`.
// Either may be null.
inline void run_between_attention(const PassCall& pass, int64_t tokens, const LayerCall* before,
                                  const LayerCall* after) {
    const ExpertsCall* const experts_call = before ? before->mlp.experts : nullptr;
    if (!experts_call) return run_in_parts(pass, tokens, before, after);
    run_in_parts(pass, tokens, before, nullptr);
    run_experts(pass, tokens, *experts_call);
    if (after) run_in_parts(pass, tokens, nullptr, after);
}

// Moves the kept tokens to the front, in the hidden states and in the attention's output, and whose
// adapters they have.
inline void move_kept_tokens(const PassCall& pass, int64_t output_size) {
    for (int64_t i = 0; i < pass.num_kept; ++i) {
        const int64_t token = pass.kept[i];  // never before i
        memmove(pass.x + i * pass.hidden, pass.x + token * pass.hidden, bf16_bytes(pass.hidden));
        memmove(pass.narrow + i * output_size, pass.narrow + token * output_size,
                bf16_bytes(output_size));
        if (pass.additions) pass.owners[i] = pass.owners[token];
    }
}

inline void decoder_layers(const PassCall& pass) {
    AttentionCall call = pass.attention;
    call.query = pass.wide, call.out = pass.narrow;
    for (int64_t i = 0; i < pass.num_layers; ++i) {
        const LayerCall& layer = pass.layers[i];
        run_between_attention(pass, pass.tokens, i > 0 ? &pass.layers[i - 1] : nullptr, &layer);
        const double start = pass.seconds ? now() : 0.0;
        call.keys = layer.keys, call.values = layer.values, call.window = layer.window;
        call.query_stride = layer.attention.qkv.outputs, call.sinks = layer.attention.sinks;
        attention(call);
        if (pass.seconds) pass.seconds[kAttention] += now() - start;
    }
    // After the last attention only the kept tokens go on: no later layer reads the others.
    const LayerCall& last = pass.layers[pass.num_layers - 1];
    if (pass.num_kept < pass.tokens) move_kept_tokens(pass, last.attention.output.linear.inputs);
    run_between_attention(pass, pass.num_kept, &last, nullptr);
}

}  // namespace
}  // namespace twostroke
