// All decoder layers of one pass: only kernels run between the embedding and the last norm.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/attention.hpp"
#include "attention/scaled/store.hpp"
#include "buffer.hpp"
#include "elementwise.hpp"
#include "kernels.hpp"
#include "linear/linear.hpp"
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

// Norms queries and keys by head if the model does, rotates them, and writes the new keys and
// values to their slots in the cache.
inline void place_heads(const TokenPart& part, const LayerCall& layer) {
    const PassCall& pass = part.pass;
    const AttentionCall& sizes = pass.attention;
    const int64_t rotated = sizes.heads + sizes.kv_heads, width = rotated + sizes.kv_heads;
    const int64_t dim = sizes.head_dim, token_size = sizes.kv_heads * dim;
    auto place_token = [&](int64_t index) {
        const int64_t token = part.first + index;
        bf16* heads = pass.wide + token * width * dim;
        if (layer.qk_norm)
            for (int64_t offset = 0; offset < rotated * dim; offset += dim) {
                bf16* head = heads + offset;
                norm_row(head, layer.qk_norm + offset, head, dim, pass.eps);
            }
        const int64_t angles = pass.positions[token] * (dim / 2);
        rotate_heads(heads, rotated, dim / 2, pass.cos + angles, pass.sin + angles);
        const bf16 *key = heads + sizes.heads * dim, *value = heads + rotated * dim;
        const int64_t slot = pass.slots[token] * token_size;
        if (sizes.cache_format == kFp8) {
            store_fp8(static_cast<fp8*>(layer.keys) + slot, key, token_size);
            store_fp8(static_cast<fp8*>(layer.values) + slot, value, token_size);
            return;
        }
        if (sizes.cache_format != kPlain) {
            store_scaled(sizes, dim, layer.keys, pass.slots[token], key);
            store_scaled(sizes, dim, layer.values, pass.slots[token], value);
            return;
        }
        memcpy(static_cast<bf16*>(layer.keys) + slot, key, bf16_bytes(token_size));
        memcpy(static_cast<bf16*>(layer.values) + slot, value, bf16_bytes(token_size));
    };
    for_rows(part.count, width * dim, place_token);
}

inline void apply(const LinearCall& weights, int64_t rows, const bf16* x, bf16* out,
                  const bf16* residual) {
    LinearCall call = weights;
    call.x = x, call.x_stride = weights.inputs, call.rows = rows;
    call.out = out, call.residual = residual, call.float_out = 0;
    linear(call);
}

inline void run_before_attention(TokenPart& part, const LayerCall& layer) {
    const PassCall& pass = part.pass;
    rms_norm(part.x(), layer.input_norm, part.normed(), part.count, pass.hidden, pass.eps);
    part.add_time(kNorm);
    bf16* heads = pass.wide + part.first * layer.qkv.outputs;
    apply(layer.qkv, part.count, part.normed(), heads, nullptr);
    part.add_time(kGemm);
    place_heads(part, layer);
    part.add_time(kPlace);
}

// `gates`, `activation`: room for gate_up's and for down's input, of min(mlp_tokens, part.count).
inline void run_after_attention(TokenPart& part, const LayerCall& layer, bf16* gates,
                                bf16* activation) {
    const PassCall& pass = part.pass;
    bf16 *x = part.x(), *normed = part.normed();
    apply(layer.output, part.count, pass.narrow + part.first * layer.output.inputs, x, x);
    part.add_time(kGemm);
    rms_norm(x, layer.mlp_norm, normed, part.count, pass.hidden, pass.eps);
    part.add_time(kNorm);
    const int64_t turns = (part.count + pass.mlp_tokens - 1) / pass.mlp_tokens;
    for (int64_t turn = 0; turn < turns; ++turn) {
        const int64_t first = part.count * turn / turns;
        const int64_t count = part.count * (turn + 1) / turns - first;
        bf16* out = x + first * pass.hidden;
        apply(layer.gate_up, count, normed + first * pass.hidden, gates, nullptr);
        part.add_time(kGemm);
        silu_mul(gates, activation, count, layer.down.inputs);
        part.add_time(kActivation);
        apply(layer.down, count, activation, out, out);
        part.add_time(kGemm);
    }
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

// What lies between two layers' attention: the rest of `before`, and the beginning of `after`.
// Either may be null.
inline void run_between_attention(const PassCall& pass, int64_t tokens, const LayerCall* before,
                                  const LayerCall* after) {
    const int64_t parts = count_token_parts(pass, tokens);
    const Buffer<double> seconds(parts * kComponents);
    auto run_part = [&](int64_t index) {
        const int64_t first = tokens * index / parts;
        TokenPart part(pass, first, tokens * (index + 1) / parts - first);
        if (before && parts == 1) {
            run_after_attention(part, *before, pass.wide, pass.narrow);
        } else if (before) {
            const int64_t gates = part.count * before->gate_up.outputs;
            const Buffer<bf16> room(gates + part.count * before->down.inputs);
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

// Moves the kept tokens to the front, in the hidden states and in the attention's output.
inline void move_kept_tokens(const PassCall& pass, int64_t output_size) {
    for (int64_t i = 0; i < pass.num_kept; ++i) {
        const int64_t token = pass.kept[i];  // never before i
        memmove(pass.x + i * pass.hidden, pass.x + token * pass.hidden, bf16_bytes(pass.hidden));
        memmove(pass.narrow + i * output_size, pass.narrow + token * output_size,
                bf16_bytes(output_size));
    }
}

inline void decoder_layers(const PassCall& pass) {
    AttentionCall call = pass.attention;
    call.query = pass.wide, call.out = pass.narrow;
    call.query_stride = (call.heads + 2 * call.kv_heads) * call.head_dim;
    for (int64_t i = 0; i < pass.num_layers; ++i) {
        const LayerCall& layer = pass.layers[i];
        run_between_attention(pass, pass.tokens, i > 0 ? &pass.layers[i - 1] : nullptr, &layer);
        const double start = pass.seconds ? now() : 0.0;
        call.keys = layer.keys, call.values = layer.values, call.window = layer.window;
        attention(call);
        if (pass.seconds) pass.seconds[kAttention] += now() - start;
    }
    // After the last attention only the kept tokens go on: no later layer reads the others.
    const LayerCall& last = pass.layers[pass.num_layers - 1];
    if (pass.num_kept < pass.tokens) move_kept_tokens(pass, last.output.inputs);
    run_between_attention(pass, pass.num_kept, &last, nullptr);
}

}  // namespace
}  // namespace twostroke
