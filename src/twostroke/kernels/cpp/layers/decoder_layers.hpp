// All decoder layers of one pass: only kernels run between the embedding and the last norm.
#pragma once

#include <cstdint>
#include <cstring>

#include "buffer.hpp"
#include "kernels.hpp"
#include "layers/feed_forward.hpp"
#include "layers/layer_input.hpp"
#include "layers/mixer.hpp"
#include "layers/token_part.hpp"
#include "thread_pool.hpp"

namespace twostroke {
namespace {

// What tokens go through by themselves between two layers' mixing; what is null is left out.
struct Between {
    const LayerCall* mixed;  // whose mixer has run: its output and its MLP
    const LayerCall* ended;  // whose experts have run, if it has some: the rest
    const LayerCall* next;   // up to its mixer
};

// `gates`, `activation`: room for the MLP.
inline void run_halves(TokenPart& part, const LayerCall& layer, bf16* gates, bf16* activation) {
    const MlpCall& mlp = layer.mlp;
    // Side by side with the mixer, the MLP reads what that did, which then adds no norm.
    const bf16* read = layer.is_parallel ? read_rows(part, mlp.norm, part.normed()) : nullptr;
    run_after_mixing(part, layer);
    if (mlp.kind == kNoFeedForward) return;
    if (mlp.beside) return run_beside(part, layer, gates, activation);
    if (!layer.is_parallel) read = read_rows(part, mlp.norm, part.normed());
    if (mlp.kind == kMlp) run_mlp(part, layer, read, gates, activation);
}

inline void run_between(TokenPart& part, const Between& layers, bf16* gates, bf16* activation) {
    if (layers.mixed) run_halves(part, *layers.mixed, gates, activation);
    if (layers.ended && layers.ended->mlp.beside) add_beside(part, *layers.ended->mlp.beside);
    if (layers.ended && layers.ended->input)
        run_layer_input(part, *layers.ended->input, gates, activation);
    if (layers.next) run_before_mixing(part, *layers.next);
}

// Into how many parts tokens are cut. One thread takes a part from one mixer to the next: what
// it touches stays in its cache, and no thread waits for others after each product. If there are
// fewer than two parts for each thread, all threads share each product.
inline int64_t count_token_parts(const PassCall& pass, int64_t tokens) {
    const int64_t turn_tokens = num_threads() * pass.part_tokens;
    const int64_t turns = (tokens + turn_tokens - 1) / turn_tokens;
    const int64_t parts = num_threads() * (turns < 2 ? 2 : turns);
    return num_threads() > 1 && 2 * tokens >= parts * pass.part_tokens ? parts : 1;
}

inline void run_in_parts(const PassCall& pass, int64_t tokens, const Between& layers) {
    const int64_t parts = count_token_parts(pass, tokens);
    const Buffer<double> seconds(parts * kComponents);
    auto run_part = [&](int64_t index) {
        const int64_t first = tokens * index / parts;
        TokenPart part(pass, first, tokens * (index + 1) / parts - first);
        if (parts == 1) {
            run_between(part, layers, pass.wide, pass.narrow);
        } else {
            const int64_t gates = part.count * pass.mlp_wide;
            const Buffer<bf16> room(gates + part.count * pass.mlp_narrow);
            run_between(part, layers, room.data(), room.data() + gates);
        }
        memcpy(seconds.data() + index * kComponents, part.seconds, sizeof(part.seconds));
    };
    parallel_for(parts, run_part);
    if (!pass.seconds) return;
    const double threads = parts > 1 ? num_threads() : 1;  // that run parts side by side
    for (int64_t i = 0; i < parts * kComponents; ++i)
        pass.seconds[i % kComponents] += seconds.data()[i] / threads;
}

// What lies between two layers' mixing: the rest of `before`, and the beginning of `after`. Either
// may be null.
inline void run_between_mixing(const PassCall& pass, int64_t tokens, const LayerCall* before,
                               const LayerCall* after) {
    if (!before || before->mlp.kind != kExperts)
        return run_in_parts(pass, tokens, {before, before, after});
    run_in_parts(pass, tokens, {before, nullptr, nullptr});
    run_experts(pass, tokens, before->mlp);
    run_in_parts(pass, tokens, {nullptr, before, after});
}

// Moves a pass's kept rows of `size` elements to the front.
inline void move_kept_rows(const PassCall& pass, bf16* rows, int64_t size) {
    for (int64_t i = 0; i < pass.num_kept; ++i)  // never to a place behind its own
        memmove(rows + i * size, rows + pass.kept[i] * size, bf16_bytes(size));
}

// Moves the kept tokens to the front, in the hidden states, in what was mixed and in what layers
// read besides, and whose adapters they have.
inline void move_kept_tokens(const PassCall& pass, const LayerCall& mixed) {
    move_kept_rows(pass, pass.x, pass.hidden);
    move_kept_rows(pass, pass.narrow, mixed.mixer.narrow);
    if (mixed.other)
        move_kept_rows(pass, pass.narrow + pass.tokens * mixed.mixer.narrow, mixed.other->narrow);
    if (pass.layer_inputs) move_kept_rows(pass, pass.layer_inputs, pass.layer_inputs_size);
    for (int64_t i = 0; pass.additions && i < pass.num_kept; ++i)
        pass.owners[i] = pass.owners[pass.kept[i]];
}

inline void decoder_layers(const PassCall& pass) {
    int64_t last = pass.num_layers - 1, tokens = pass.tokens;
    while (last > 0 && pass.layers[last].mixer.kind == kNoMixer) --last;
    const LayerCall* before = nullptr;
    for (int64_t i = 0; i < pass.num_layers; ++i) {
        const LayerCall& layer = pass.layers[i];
        run_between_mixing(pass, tokens, before, &layer);
        mix_tokens(pass, layer);
        // Then only the kept tokens go on: no later layer reads the others.
        if (i == last && pass.num_kept < tokens) {
            move_kept_tokens(pass, layer);
            tokens = pass.num_kept;
        }
        before = &layer;
    }
    run_between_mixing(pass, tokens, before, nullptr);
}

}  // namespace
}  // namespace twostroke
