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
        if (kernels && (!name || strcmp(kernels->build, name) == 0)) return kernels;
    }
    return nullptr;
}

const Kernels* selected = find_build(nullptr);

// Calls a kernel of the build that is selected at the time of the call.
template <auto kernel>
struct Selected;

template <typename... Arguments, void (*Kernels::*kernel)(Arguments...)>
struct Selected<kernel> {
    static void call(Arguments... arguments) { (selected->*kernel)(arguments...); }
};

}  // namespace

#pragma GCC visibility push(default)

extern "C" {

// The size of the structures that both sides declare, and how many formats there are: a library
// from other sources differs.
int64_t twostroke_layout() {
    return sizeof(LinearCall) + sizeof(AttentionCall) + sizeof(NormCall) + sizeof(AdditionCall) +
           sizeof(MixerCall) + sizeof(HeadsCall) + sizeof(MlpCall) + sizeof(LayerInputCall) +
           sizeof(LayerCall) + sizeof(GroupCall) + sizeof(PassCall) + sizeof(DraftCall) +
           sizeof(ExpertCall) + sizeof(RoutingCall) + sizeof(ExpertsCall) + sizeof(Segment) +
           sizeof(ConvolutionCall) + sizeof(MatrixCall) + sizeof(DeltaCall) + sizeof(Mamba2Call) +
           sizeof(LowRankCall) + sizeof(LatentCall) + sizeof(BesideCall) + kNumFormats;
}

// Selects "avx512", "avxvnni", "avx2" or "generic"; returns 0 if this processor cannot run it.
int twostroke_select(const char* name) {
    const Kernels* kernels = find_build(name);
    if (!kernels) return 0;
    selected = kernels;
    return 1;
}

const char* twostroke_selected() { return selected->build; }

void twostroke_set_num_threads(int count) { set_num_threads(count); }

// The function that calls the kernel of this name; null if there is none.
void* twostroke_kernel(const char* name) {
#define TWOSTROKE_FIND(kernel, ...) \
    if (strcmp(name, #kernel) == 0) \
        return reinterpret_cast<void*>(&Selected<&Kernels::kernel>::call);
    TWOSTROKE_KERNELS(TWOSTROKE_FIND)
#undef TWOSTROKE_FIND
    return nullptr;
}

}  // extern "C"

#pragma GCC visibility pop
