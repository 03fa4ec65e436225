// What each instruction set's build of kernels.inc offers, as one table of functions. Row-major everywhere.
#pragma once

#include <cstdint>

namespace twostroke {

using bf16 = uint16_t;

constexpr int kLanes = 16;      // Output columns of a block of packed weights.
constexpr int kGroup = 32;      // Input columns that share a scale in 4-bit weights.

enum WeightFormat : int32_t { kBf16 = 0, kInt8 = 1, kInt4 = 2 };

// y = x W^T + bias, over packed weights (see linear.inc and layers/packing.py).
struct Linear {
    const bf16* x;          // [rows, inputs], rows `x_stride` apart
    int64_t x_stride;
    const void* weight;     // packed, [blocks of 16 outputs][...]
    const float* scales;    // int8: [outputs]; int4: [blocks][groups][16]; else null
    const int32_t* offsets;  // int8: [outputs], -128 times the sum of an output's weights; else null
    const bf16* bias;       // [outputs] or null
    const bf16* residual;   // [rows, outputs], added after rounding, or null
    void* out;              // [rows, outputs], bf16 or float
    int64_t rows, inputs, outputs;
    int32_t format;
    int32_t float_out;      // 1: float, not rounded
};

// Attention of each request's new tokens over the paged cache, which holds their own keys and values already.
struct Attention {
    const void* query;            // [tokens, heads, head_dim], tokens `query_stride` elements apart
    int64_t query_stride;
    const void* keys;             // [blocks, block_size, kv_heads, head_dim]
    const void* values;
    const int32_t* block_table;   // [requests, table_stride]
    int64_t table_stride;
    const int64_t* query_start;   // [requests + 1]
    const int64_t* context_lens;  // [requests]
    const int64_t* requests;      // [num_requests]: which of them to compute
    void* out;                    // [tokens, heads, head_dim]
    int64_t num_requests, heads, kv_heads, head_dim, block_size;
    int64_t window;               // how many of the latest tokens a token sees, 0: all
    float scale;
    int32_t is_float;             // 1: float32 queries, cache and output, else bf16
};

// What one decoder layer owns.
struct Layer {
    const bf16* input_norm;  // [hidden]
    const bf16* mlp_norm;
    const bf16* qk_norm;     // [heads + kv_heads, head_dim], or null
    void* keys;              // The layer's cache, see Attention.
    void* values;
    int64_t window;
    Linear qkv, output, gate_up, down;  // Weights only: what they are applied to is set here.
};

// Where the seconds of a pass go, if they are asked for.
enum Component : int32_t { kNorm = 0, kGemm = 1, kPlace = 2, kAttention = 3, kActivation = 4 };
constexpr int kComponents = 5;

// One pass of `tokens` tokens through all layers.
struct Pass {
    const Layer* layers;
    int64_t num_layers, tokens, num_kept, hidden;
    int64_t part_tokens;       // Many go in parts of about so many, each on one thread from one attention to the next.
    int64_t mlp_tokens;        // Of fewer, or of such a part, how many go through the MLP at once, at most.
    bf16* x;                   // [tokens, hidden], changed in place
    bf16* normed;              // Room for [tokens, hidden] ...
    bf16* wide;                // ... [tokens, queries, keys and values], and for [mlp_tokens, gates and ups] ...
    bf16* narrow;              // ... [tokens, the attention's output], and for [mlp_tokens, the activation].
    const int64_t* positions;  // [tokens]
    const int64_t* slots;      // [tokens]: where their keys and values go
    const int64_t* kept;       // [num_kept]: tokens, in order, that are asked about after the last layer, if not all are
    const float* cos;          // [positions, head_dim / 2]
    const float* sin;
    double* seconds;           // Added to by component, or null.
    Attention attention;       // The step's tables; cache, query and output are set here.
    float eps;
};

struct Kernels {
    const char* name;
    void (*linear)(const Linear&);
    void (*attention)(const Attention&);
    void (*rms_norm)(const bf16* x, const bf16* weight, bf16* out, int64_t rows, int64_t size, float eps);
    // qk: [tokens, heads, head_dim] in place, tokens `stride` elements apart; tables: [positions, head_dim / 2].
    void (*rotate)(bf16* qk, int64_t stride, int64_t tokens, int64_t heads, int64_t head_dim, const int64_t* positions,
                   const float* cos, const float* sin);
    // gate_up: [rows, 2 * size] -> out [rows, size]
    void (*silu_mul)(const bf16* gate_up, bf16* out, int64_t rows, int64_t size);
    // x: [rows, size] -> highest [rows], NaN where there is one, and the first index at which it is [rows]
    void (*peaks)(const float* x, float* highest, int64_t* index, int64_t rows, int64_t size);
    void (*layers)(const Pass&);
};

const Kernels* generic_kernels();
// Null where not built, or where the processor lacks something.
const Kernels* avx2_kernels();
const Kernels* avxvnni_kernels();  // AVX2, and its own form of the instruction for products of bytes
const Kernels* avx512_kernels();   // with avx512_bf16 and avx512_vnni

}  // namespace twostroke
