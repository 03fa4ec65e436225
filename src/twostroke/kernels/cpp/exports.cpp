// The C interface that Python loads, see library.py. It calls the best kernels that this processor can run.

#include <cstring>
#include <initializer_list>

#include "kernels.h"
#include "pool.h"

namespace {

const twostroke::Kernels* best() {
    if (const auto* found = twostroke::avx512_kernels()) return found;
    if (const auto* found = twostroke::avxvnni_kernels()) return found;
    if (const auto* found = twostroke::avx2_kernels()) return found;
    return twostroke::generic_kernels();
}

const twostroke::Kernels* chosen = best();

}  // namespace

#pragma GCC visibility push(default)

extern "C" {

// The size of what both sides declare: a library from other sources is told from its own.
int64_t twostroke_layout() {
    using namespace twostroke;
    return sizeof(Linear) + sizeof(Attention) + sizeof(Layer) + sizeof(Pass);
}

// Chooses "avx512", "avxvnni", "avx2" or "generic"; 0 if this processor cannot run it.
int twostroke_select(const char* name) {
    for (const auto* found : {twostroke::avx512_kernels(), twostroke::avxvnni_kernels(), twostroke::avx2_kernels(),
                              twostroke::generic_kernels()})
        if (found && strcmp(found->name, name) == 0) return chosen = found, 1;
    return 0;
}

const char* twostroke_selected() { return chosen->name; }

void twostroke_set_num_threads(int count) { twostroke::set_num_threads(count); }

void twostroke_linear(const twostroke::Linear* a) { chosen->linear(*a); }

void twostroke_attention(const twostroke::Attention* a) { chosen->attention(*a); }

void twostroke_rms_norm(const twostroke::bf16* x, const twostroke::bf16* weight, twostroke::bf16* out, int64_t rows,
                        int64_t size, float eps) {
    chosen->rms_norm(x, weight, out, rows, size, eps);
}

void twostroke_rotate(twostroke::bf16* qk, int64_t stride, int64_t tokens, int64_t heads, int64_t head_dim,
                      const int64_t* positions, const float* cos, const float* sin) {
    chosen->rotate(qk, stride, tokens, heads, head_dim, positions, cos, sin);
}

void twostroke_silu_mul(const twostroke::bf16* gate_up, twostroke::bf16* out, int64_t rows, int64_t size) {
    chosen->silu_mul(gate_up, out, rows, size);
}

void twostroke_peaks(const float* x, float* highest, int64_t* index, int64_t rows, int64_t size) {
    chosen->peaks(x, highest, index, rows, size);
}

void twostroke_layers(const twostroke::Pass* pass) { chosen->layers(*pass); }

}  // extern "C"

#pragma GCC visibility pop
