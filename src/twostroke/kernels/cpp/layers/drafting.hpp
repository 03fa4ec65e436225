// Drafts of a model, token after token, without a way through Python between them.
#pragma once

#include <cstdint>
#include <cstring>

#include "elementwise.hpp"
#include "kernels.hpp"
#include "layers/decoder_layers.hpp"
#include "linear/several.hpp"

namespace twostroke {
namespace {

// Writes a token's hidden state before the first layer. linear/tiles.hpp describes packed weights.
inline void embed_token(const DraftCall& call, int64_t token, bf16* to) {
    const int64_t hidden = call.pass.hidden;
    if (!call.is_packed) {
        memcpy(to, call.embedding + token * hidden, bf16_bytes(hidden));
        return;
    }
    const bf16* row = call.embedding + token / kLanes * kLanes * hidden + token % kLanes * 2;
    for (int64_t i = 0; i < hidden; i += 2) memcpy(to + i, row + i * kLanes, bf16_bytes(2));
}

// Runs one pass and writes the likeliest token behind each kept one.
inline void run_draft_pass(const DraftCall& call, const PassCall& pass, const int64_t* tokens,
                           int64_t* likeliest) {
    for (int64_t i = 0; i < pass.tokens; ++i)
        embed_token(call, tokens[i], pass.x + i * pass.hidden);
    decoder_layers(pass);
    rms_norm(pass.x, call.norm, pass.normed, pass.num_kept, pass.hidden, pass.eps);
    LinearCall head = call.head;
    head.x = pass.normed, head.x_stride = pass.hidden, head.rows = pass.num_kept;
    head.out = call.logits, head.residual = nullptr, head.float_out = 1;
    linear(head);
    peaks(call.logits, call.highest, likeliest, pass.num_kept, head.outputs);
}

inline void draft(const DraftCall& call) {
    run_draft_pass(call, call.pass, call.tokens, call.drafts);
    const int64_t requests = call.num_requests;
    const AttentionCall& first = call.pass.groups[0].attention;  // there is no other
    int64_t *positions = call.scratch, *slots = positions + requests;
    int64_t *ends = slots + requests, *query_start = ends + requests;
    for (int64_t i = 0; i <= requests; ++i) query_start[i] = i;
    GroupCall group = {first, slots};
    group.attention.query_start = query_start, group.attention.context_lens = ends;
    PassCall pass = call.pass;
    pass.positions = positions, pass.kept = nullptr, pass.groups = &group;
    for (int64_t round = 1; round < call.lengths[0]; ++round) {
        int64_t active = 0;
        for (; active < requests && call.lengths[active] > round; ++active) {
            const int64_t position = first.context_lens[active] + round - 1;
            const int64_t block = position / first.block_size;
            positions[active] = position, ends[active] = position + 1;
            slots[active] = first.block_table[active * first.table_stride + block] *
                                first.block_size + position % first.block_size;
        }
        pass.tokens = pass.num_kept = group.attention.num_requests = active;
        int64_t* drafts = call.drafts + round * requests;
        run_draft_pass(call, pass, drafts - requests, drafts);
    }
}

}  // namespace
}  // namespace twostroke
