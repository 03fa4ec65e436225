// What Python hands to the kernels, and the table of functions that each build fills.
// All tensors are row-major. kernels/calls.py and pass_calls.py declare the same structures.
#pragma once

#include <cstdint>

namespace twostroke {

using bf16 = uint16_t;

constexpr int kLanes = 16;  // Outputs in a block of packed weights.
constexpr int kGroup = 32;  // Inputs that share a scale in 4-bit weights.
constexpr int kMaxHeadDim = 576;

// Of a cache: numbers as the model computes with, integers with scales (attention/scaled/), or
// e4m3 (vectors/fp8.hpp).
enum CacheFormat : int32_t { kPlain = 0, kScaled8 = 1, kScaled4 = 2, kFp8 = 3 };
enum WeightFormat : int32_t {
    kBf16 = 0,
    kInt8 = 1,
    kInt4 = 2,
    // As files store them, see linear/stored.hpp.
    kQ8_0 = 3,
    kQ4K = 4,
    kQ5K = 5,
    kQ6K = 6,
    kMxfp4 = 7,
};

// y = x W^T + bias, over packed weights: linear/tiles.hpp describes their layout.
struct LinearCall {
    const bf16* x;  // [rows, inputs], rows `x_stride` elements apart
    int64_t x_stride;
    const void* weight;      // packed, [blocks of 16 outputs][...]
    const void* scales;  // floats; int8: [outputs]; int4: [blocks][groups][16]; bf16: null
    const int32_t* offsets;  // int8: [outputs], -128 times the sum of an output's weights, or null
    const bf16* bias;        // [outputs], or null
    const bf16* residual;    // [rows, outputs], added after rounding, or null
    void* out;               // [rows, outputs], bf16 or float
    int64_t rows, inputs, outputs;
    int32_t format;     // a WeightFormat
    int32_t float_out;  // 1: float output, not rounded
    // Where weights of several formats are one layer, these are its parts, which say only what
    // weight, scales, offsets, bias, inputs, outputs and format they have.
    const LinearCall* parts;
    int64_t num_parts;
    int64_t out_stride;  // of a part: elements from a row of out to the next; else 0, for outputs
};

// Attention of each request's new tokens. The paged cache holds their keys and values already.
struct AttentionCall {
    const void* query;  // [tokens, heads, head_dim], tokens `query_stride` elements apart
    int64_t query_stride;
    const void* keys;            // [blocks, block_size, kv_heads, head_dim]
    const void* values;          // [blocks, block_size, kv_heads, value_width]
    const int32_t* block_table;  // [num_requests, table_stride]
    int64_t table_stride;
    const int64_t* query_start;   // [num_requests + 1]
    const int64_t* context_lens;  // [num_requests]
    void* out;                    // [tokens, heads, value_dim]
    const float* sinks;           // [heads]: scores without a value, or null
    int64_t num_requests, heads, kv_heads, head_dim, block_size;
    int64_t value_dim;    // elements of a row of values,
    int64_t value_width;  // the first of this many: latents are keys and values in one
    // Elements (bytes, of a cache with scales) from a block's keys to the next one's, and from its
    // values: layers of several shapes take turns in the same blocks, and leave gaps.
    int64_t key_stride, value_stride;
    int64_t window;       // how many of the latest tokens a token sees; 0: all
    int64_t chunked;      // 1: of those, only the ones since the last multiple of `window`
    float scale;
    float soft_cap;        // the bound of scores, cap * tanh(score / cap); 0: none
    int32_t is_float;      // 1: query, plain cache and output are float32; 0: bf16
    int32_t cache_format;  // a CacheFormat
};

// x / sqrt(mean(x^2) + eps), rounded, times bf16 weights; the same times float32 weights, rounded
// once; or that of x - mean(x).
enum NormKind : int32_t { kRmsNorm = 0, kWideNorm = 1, kCenteredNorm = 2 };

struct NormCall {
    const void* weight;  // bf16 or float32 as the kind says; null: there is no norm
    int32_t kind;        // a NormKind
};

// The activation of an MLP: of its gates, which then multiply what lies behind them, or, squared
// ReLU, of all there is. Experts alone have the clamped one.
enum Activation : int32_t { kSilu = 0, kGelu = 1, kTanhGelu = 2, kClamped = 3, kSquaredRelu = 4 };

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

// An MLP: down(activation(gate_up(x))); weights only.
struct ExpertCall {
    LinearCall gate_up, down;
};

// How experts are chosen and weighed: RoutingSpec in model_spec/routing.py.
struct RoutingCall {
    const float* correction;  // [experts], added to what experts are chosen by, or null
    const float* factors;     // [experts], of the weights of those chosen, or null
    int64_t experts, per_token, groups, chosen_groups;
    float scale;
    int32_t sigmoid;  // 1: scores are sigmoids; 0: their softmax
    int32_t best_two, normalized;
    int32_t scales_inputs;  // 1: weights are those of what experts read, not of what they give
};

// out = onto + scale * (the weighed sum of each token's experts, and the shared ones, of x).
struct ExpertsCall {
    const bf16* x;       // [tokens, hidden]
    const bf16* routed;  // [tokens, hidden]: what the router reads, or null: x
    const bf16* onto;    // [tokens, hidden], or null: nothing
    bf16* out;           // [tokens, hidden]; may be `onto` or `routed`
    int64_t tokens, hidden;
    const ExpertCall* experts;        // [routing.experts], all of one shape
    const ExpertCall* shared;        // of every token, or null
    const LinearCall* shared_gate;  // one output: its sigmoid weighs the shared experts; or null
    const LinearCall* narrow_down;  // to what experts read, and back from what they give; or null
    const LinearCall* narrow_up;
    LinearCall router;  // weights only
    RoutingCall routing;
    float scale;
    int32_t activation;  // an Activation
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

// What an adapter of low rank adds to a linear layer: up(scales * down(x)), with weights only.
// Nothing where it has no outputs.
struct LowRankCall {
    LinearCall down, up;
    const float* scales;  // [rank]
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
    bf16* wide;                // scratch, [tokens, mixer.wide] and [mlp_tokens, mlp_wide]
    bf16* narrow;              // scratch, [tokens, mixer.narrow] and [mlp_tokens, mlp_narrow]
    float* rates;              // scratch, [tokens, rates outputs]
    bf16* beside;              // scratch, [tokens, hidden]: of MLPs beside experts
    bf16* routed;              // scratch, [tokens, hidden]: read by their routers, then given
    const int64_t* positions;  // [tokens]
    const int64_t* kept;       // [num_kept]: the tokens, in order, whose hidden states are wanted
    double* seconds;           // [kComponents], added to, or null
    bf16* layer_inputs;        // [tokens, layer_inputs_size], changed in place, or null
    int64_t layer_inputs_size;
    const GroupCall* groups;   // of the layers that attend
    const struct Segment* segments;  // of the layers that are recurrent, see ConvolutionCall
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

// Tokens of one request, one after the other, and the slots of its state.
struct Segment {
    int64_t begin, end;  // rows of the pass
    int64_t slot;        // holds the state before them, and then the state after them
    int64_t copy;        // gets the state after them too; -1: none
};

// A causal convolution of each channel by itself, and the states of a recurrent layer. Segments are
// taken in order, since several may be of one request.
struct ConvolutionCall {
    const Segment* segments;
    int64_t num_segments;
    bf16* x;  // [tokens, channels], tokens `x_stride` elements apart
    int64_t x_stride;
    const float* taps;  // [kernel, channels]
    const float* bias;  // [channels], or null
    bf16* before;       // [slots, kernel - 1, channels]: the latest inputs
    bf16* out;          // of a layer that is no more than the convolution: [tokens, channels]
    int64_t channels, kernel;
};

// What layers with a matrix [rows, columns] a head as their state share.
struct MatrixCall {
    ConvolutionCall convolution;
    void* states;       // [slots, heads, rows, columns], float32 or bf16
    const bf16* gate;   // [tokens, heads * columns], tokens `gate_stride` elements apart
    int64_t gate_stride;
    const float* rates;  // [heads]: exp of what checkpoints hold
    const float* bias;   // [heads], of the decays' inputs
    const float* norm;   // of the output, or null: [columns], or of all heads
    bf16* out;           // [tokens, heads * columns]
    int64_t heads, groups, rows, columns;  // heads of a group share keys and queries
    float eps;
    int32_t bf16_states;
};

// The gated delta rule: layers/gated_delta.py. Channels are queries, keys and values.
struct DeltaCall {
    MatrixCall matrix;
    const float* gates;  // [tokens, 2 * heads]: inputs of the rates, then of the decays
};

// The recurrence of Mamba-2: layers/selective_state.py. Channels are values, keys and queries.
struct Mamba2Call {
    MatrixCall matrix;
    const bf16* steps;  // [tokens, heads], tokens `steps_stride` elements apart
    int64_t steps_stride;
    const float* skip;    // [heads]
    int64_t norm_groups;  // parts that the norm of the output divides by their own sizes
    float least_step;
};

// All kernels: the name of a function that each build defines, then what it takes. Python finds a
// kernel by its name (kernels/library.py); a new one needs no other line in C++.
#define TWOSTROKE_KERNELS(kernel)                                                                \
    kernel(linear, const LinearCall& call)                                                       \
    /* Products of parts of each row: call i takes what lies i * x_step behind x, and writes     */\
    /* i * out_step behind out. */                                                               \
    kernel(part_linears, const LinearCall* calls, int64_t count, const bf16* x,                  \
           int64_t x_stride, int64_t x_step, int64_t rows, bf16* out, int64_t out_stride,        \
           int64_t out_step)                                                                     \
    kernel(attention, const AttentionCall& call)                                                 \
    /* x, out: [rows, size]; row r has the weights of row r % weights */                         \
    kernel(norm_rows, const NormCall& call, int64_t weights, const bf16* x, bf16* out,           \
           int64_t rows, int64_t size, float eps)                                                \
    /* qk: [tokens, heads, head_dim], changed in place, tokens `stride` elements apart. */       \
    /* cos, sin: [positions, head_dim / 2] */                                                    \
    kernel(rotate, bf16* qk, int64_t stride, int64_t tokens, int64_t heads, int64_t head_dim,    \
           const int64_t* positions, const float* cos, const float* sin)                         \
    /* queries: [tokens, size], `stride` elements apart, multiplied in place with */             \
    /* scale * log(1 + floor((position + 1) / every)) + 1 */                                     \
    kernel(grow, bf16* queries, int64_t stride, int64_t tokens, int64_t size,                    \
           const int64_t* positions, float every, float scale)                                   \
    /* x: [rows, 2 * size], or [rows, size] if nothing is gated; out: [rows, size] */            \
    kernel(activate, const bf16* x, bf16* out, int64_t rows, int64_t size, int32_t activation)   \
    /* gates: rows `stride` elements apart; x: [rows, size], changed in place */                 \
    kernel(sigmoid_mul, const bf16* gates, int64_t stride, bf16* x, int64_t rows, int64_t size)  \
    /* x: [rows, size]; highest: [rows], NaN if a row has one; index: [rows], its first place */ \
    kernel(peaks, const float* x, float* highest, int64_t* index, int64_t rows, int64_t size)    \
    kernel(decoder_layers, const PassCall& call)                                                 \
    kernel(draft, const DraftCall& call)                                                         \
    kernel(experts, const ExpertsCall& call)                                                     \
    kernel(gated_convolution, const ConvolutionCall& call)                                       \
    kernel(gated_delta, const DeltaCall& call)                                                   \
    kernel(mamba2, const Mamba2Call& call)

// One build's kernels.
struct Kernels {
    const char* build;
#define TWOSTROKE_FIELD(kernel, ...) void (*kernel)(__VA_ARGS__);
    TWOSTROKE_KERNELS(TWOSTROKE_FIELD)
#undef TWOSTROKE_FIELD
};

// Each returns null if the build was left out or the processor lacks an instruction.
const Kernels* avx512_kernels();   // AVX-512 with bf16 and VNNI
const Kernels* avxvnni_kernels();  // AVX2 with VNNI
const Kernels* avx2_kernels();
const Kernels* generic_kernels();  // never null

}  // namespace twostroke
