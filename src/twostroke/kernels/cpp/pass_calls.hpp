// What Python hands to a pass through all layers. kernels/pass_calls.py declares the same
// structures, field by field.
#pragma once

#include <cstdint>

#include "calls.hpp"

namespace twostroke {

// How a branch ends: x + scale * norm(product).
struct AdditionCall {
    LinearCall linear;  // weights only, as all of a pass; that sets x, out and rows
    NormCall norm;      // [hidden]
    float scale;
};

// What a layer mixes tokens with, which says what MixerCall::own is.
enum Mixer : int32_t {
    kNoMixer = 0,      // null: the layer is an MLP or experts alone
    kHeads = 1,        // HeadsCall
    kGatedDelta = 2,   // DeltaCall
    kMamba2 = 3,       // Mamba2Call
    kConvolution = 4,  // ConvolutionCall
    kLatents = 5,      // LatentCall
};

// A layer's first half: output(mix(input(norm(x)))). What mixes the tokens reads the input's
// outputs in the pass's `wide` and writes to its `narrow`.
struct MixerCall {
    NormCall norm;  // [hidden]
    LinearCall input;
    AdditionCall output;
    const LinearCall* rates;  // the delta rule's second product; or null
    const void* own;          // what lies between the products, as the kind says
    int64_t wide, narrow;     // elements of a token there
    int32_t kind;             // a Mixer
};

// Attention. The outputs of the input are the query heads, the keys, the values and, for each
// query head, gates; without the values where keys are, and without both where the cache is shared.
struct HeadsCall {
    NormCall norm;           // [heads + kv_heads, head_dim]
    NormCall value_norm;     // [kv_heads, value_dim]
    const float* sinks;      // as in AttentionCall
    const float* cos;        // [positions, rotated / 2]
    const float* sin;        // as cos
    int64_t rotated;         // how many elements of a head, the first ones, are rotated
    float growth;            // of queries, see `grow`
    float growth_every;
    int32_t whole_heads;     // 1: norm is of all queries together, and of all keys; 0: by head
    int32_t is_gated;        // 1: the result is multiplied with the sigmoids of the gates
    int32_t keys_as_values;  // 1: values are what keys are before their norm and rotation
    int32_t shares_cache;    // 1: it reads what another layer has written
};

// Latent attention. The outputs of the input are a token's latents and its key's
// rotated part; `wide` has the queries that attention takes, `narrow` the latents that it gives.
struct LatentCall {
    NormCall latent_norm;      // [latent]
    NormCall query_norm;       // [query_down outputs]
    LinearCall query_down;     // no outputs: queries are made of what the input is made of
    LinearCall query;          // its outputs are [heads, plain + rotated]
    const LinearCall* keys;    // [heads], from a query's plain part to latents
    const LinearCall* values;  // [heads], from latents to values
    const float* cos;          // as in HeadsCall
    const float* sin;
    int64_t rotated;
    float eps;  // of both norms
};

// What a layer's second half is.
enum FeedForward : int32_t { kNoFeedForward = 0, kMlp = 1, kExperts = 2 };

// Experts beside an MLP: x + added_norm(mlp_norm(the MLP's) + experts_norm(the experts')).
struct BesideCall {
    NormCall norm;         // before the experts
    NormCall router_norm;  // before their router
    NormCall mlp_norm, experts_norm, added_norm;
};

struct MlpCall {
    NormCall norm;  // [hidden]
    LinearCall gate_up;
    AdditionCall down;
    const ExpertsCall* experts;  // in place of these products; the pass sets its tokens
    const BesideCall* beside;    // experts and these products, or null
    int32_t activation;          // an Activation
    int32_t kind;                // a FeedForward
};

// What a layer may do at last, with what an embedding of its own says of each token:
// scale * (x + output(activation(gate(x)) * input)).
struct LayerInputCall {
    LinearCall gate;      // no outputs: nothing is added
    AdditionCall output;
    int64_t first;        // of the layer's part of a token's row of PassCall::layer_inputs
    float scale;
    int32_t activation;   // an Activation
};

// One decoder layer's weights and, where it attends, its cache.
struct LayerCall {
    MixerCall mixer;
    MlpCall mlp;
    const MixerCall* other;       // reads what the mixer reads and is added before it; or null
    const LayerInputCall* input;  // or null
    void* keys;  // as in AttentionCall
    void* values;
    int64_t window;
    int64_t group;        // index of its GroupCall
    int32_t is_parallel;  // 1: the MLP reads what the mixer reads
};

// Layers that attend over the same block table to heads of the same shape.
struct GroupCall {
    AttentionCall attention;  // the step's tables; the pass sets cache, query and output
    const int64_t* slots;     // [tokens]: where their keys and values go
};

// The linear layers of a decoder layer, in the order of their additions.
enum AdaptedLinear : int32_t { kInput = 0, kOutput = 1, kGateUp = 2, kDown = 3 };
constexpr int kAdaptedLinears = 4;

// What the seconds of a pass are spent on.
enum Component : int32_t { kNorm = 0, kGemm = 1, kPlace = 2, kAttention = 3, kActivation = 4 };
constexpr int kComponents = 5;

// One pass of `tokens` tokens through all layers.
struct PassCall {
    const LayerCall* layers;
    int64_t num_layers, tokens, num_kept, hidden;
    int64_t part_tokens;       // the size of a part, which one thread takes from layer to layer
    int64_t mlp_tokens;        // the most tokens that go through an MLP at once
    int64_t mlp_wide;          // the most elements of a token between an MLP's products, gates
    int64_t mlp_narrow;        // included, and without them; of a LayerInputCall too
    bf16* x;                   // [tokens, hidden], changed in place
    bf16* normed;              // scratch, [tokens, hidden]
    // Scratch: [tokens, mixer.wide] and behind it [tokens, other.wide], or [mlp_tokens, mlp_wide];
    // and [tokens, mixer.narrow] and behind it [tokens, other.narrow], or [mlp_tokens, mlp_narrow].
    bf16* wide;
    bf16* narrow;
    float* rates;              // scratch, [tokens, rates outputs]
    bf16* beside;              // scratch, [tokens, hidden]: of MLPs beside experts
    bf16* routed;              // scratch, [tokens, hidden]: read by their routers, then given
    const int64_t* positions;  // [tokens]
    const int64_t* kept;       // [num_kept]: the tokens, in order, whose hidden states are wanted
    double* seconds;           // [kComponents], added to, or null
    bf16* layer_inputs;        // [tokens, layer_inputs_size], changed in place, or null
    int64_t layer_inputs_size;
    const GroupCall* groups;   // of the layers that attend
    const Segment* segments;  // of the layers that are recurrent, see ConvolutionCall
    int64_t num_segments;
    const LowRankCall* additions;  // [num_layers, kAdaptedLinears, num_adapters], or null
    int64_t num_adapters;
    int32_t* owners;  // [tokens]: whose adapter each token has, or -1; changed in place
    float eps;
};

// Several requests' likeliest next tokens, one after the other. The first pass takes the tokens
// that each request lacks, the others what was drafted last.
struct DraftCall {
    PassCall pass;           // of the first pass; its kept tokens are the last of each request
    LinearCall head;         // weights only, as in MixerCall
    const bf16* norm;        // [hidden], before the head
    const bf16* embedding;   // [vocabulary, hidden], or packed as the head's weight
    const int64_t* tokens;   // [pass.tokens]
    const int64_t* lengths;  // [num_requests], falling: how many drafts each gets, 1 or more
    int64_t num_requests;
    int64_t* drafts;   // [lengths[0], num_requests]; beyond a request's length nothing is written
    int64_t* scratch;  // [4 * num_requests + 1]
    float* logits;     // [num_requests, vocabulary]
    float* highest;    // [num_requests]
    int32_t is_packed;
};

}  // namespace twostroke
