// What Python hands to single kernels. All tensors are row-major. kernels/calls.py declares the
// same structures, field by field.
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
    kUint4 = 8,
    kNumFormats
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
    const float* factors;  // [outputs]: results are multiplied with them, then rounded; or null
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
    float factor;        // what is normed is multiplied with it, and rounded; 0: with none
};

// The activation of an MLP: of its gates, which then multiply what lies behind them, or, squared
// ReLU, of all there is. Experts alone have the clamped one.
enum Activation : int32_t {
    kSilu = 0,
    kGelu = 1,
    kTanhGelu = 2,
    kClamped = 3,
    kSquaredRelu = 4,
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

// What an adapter of low rank adds to a linear layer: up(scales * down(x)), with weights only.
// Nothing where it has no outputs.
struct LowRankCall {
    LinearCall down, up;
    const float* scales;  // [rank]
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

}  // namespace twostroke
