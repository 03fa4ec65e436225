// The table of functions that each build fills.
#pragma once

#include <cstdint>

#include "calls.hpp"
#include "pass_calls.hpp"

namespace twostroke {

// All kernels: the name of a function that each build defines, then what it takes. Python finds a
// kernel by its name (kernels/library.py); a new one needs no other line in C++.
#define TWOSTROKE_KERNELS(kernel)                                                                \
    kernel(linear, const LinearCall& call)                                                       \
    /* Products of parts of each row: call i takes what lies i * x_step behind x, and writes */  \
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
    /* x: [tokens, 3 * channels], changed in place; out: [tokens, channels] */                   \
    kernel(gated_convolution, const ConvolutionCall& call)                                       \
    kernel(gated_delta, const DeltaCall& call)                                                   \
    kernel(mamba2, const Mamba2Call& call)                                                       \
    /* rows: [outputs, blocks of a file's format]; data, scales: as linear/stored.hpp has them */ \
    kernel(pack_stored, int32_t format, const uint8_t* rows, int64_t outputs, int64_t inputs,    \
           uint8_t* data, uint8_t* scales)

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
