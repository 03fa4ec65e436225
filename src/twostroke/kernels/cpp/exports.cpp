// The C interface that kernels/library.py loads. It calls the best build that the processor runs.
#include <cstring>

#include "kernels.hpp"
#include "thread_pool.hpp"

using namespace twostroke;

namespace {

using Build = const Kernels* (*)();
constexpr Build kBestFirst[] = {avx512_kernels, avxvnni_kernels, avx2_kernels, generic_kernels};

// The first build that runs here and has this name; null: any name. Null if there is none.
const Kernels* find_build(const char* name) {
    for (const Build build : kBestFirst) {
        const Kernels* kernels = build();
        if (kernels && (!name || strcmp(kernels->name, name) == 0)) return kernels;
    }
    return nullptr;
}

const Kernels* selected = find_build(nullptr);

}  // namespace

#pragma GCC visibility push(default)

extern "C" {

// The size of the structures that both sides declare: a library from other sources differs.
int64_t twostroke_layout() {
    return sizeof(LinearCall) + sizeof(AttentionCall) + sizeof(LayerCall) + sizeof(PassCall) +
           sizeof(DraftCall);
}

// Selects "avx512", "avxvnni", "avx2" or "generic"; returns 0 if this processor cannot run it.
int twostroke_select(const char* name) {
    const Kernels* kernels = find_build(name);
    if (!kernels) return 0;
    selected = kernels;
    return 1;
}

const char* twostroke_selected() { return selected->name; }

void twostroke_set_num_threads(int count) { set_num_threads(count); }

void twostroke_linear(const LinearCall* call) { selected->linear(*call); }

void twostroke_attention(const AttentionCall* call) { selected->attention(*call); }

void twostroke_rms_norm(const bf16* x, const bf16* weight, bf16* out, int64_t rows, int64_t size,
                        float eps) {
    selected->rms_norm(x, weight, out, rows, size, eps);
}

void twostroke_rotate(bf16* qk, int64_t stride, int64_t tokens, int64_t heads, int64_t head_dim,
                      const int64_t* positions, const float* cos, const float* sin) {
    selected->rotate(qk, stride, tokens, heads, head_dim, positions, cos, sin);
}

void twostroke_silu_mul(const bf16* gate_up, bf16* out, int64_t rows, int64_t size) {
    selected->silu_mul(gate_up, out, rows, size);
}

void twostroke_peaks(const float* x, float* highest, int64_t* index, int64_t rows, int64_t size) {
    selected->peaks(x, highest, index, rows, size);
}

void twostroke_layers(const PassCall* call) { selected->layers(*call); }

void twostroke_draft(const DraftCall* call) { selected->draft(*call); }

}  // extern "C"

#pragma GCC visibility pop
