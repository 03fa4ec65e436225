// What adapters of low rank (LoRA) add to the outputs of a linear layer, each to its own rows.
#pragma once

#include <cstdint>
#include <cstring>

#include "buffer.hpp"
#include "kernels.hpp"
#include "linear/several.hpp"
#include "vectors/arithmetic.hpp"

namespace twostroke {
namespace {

// The rows of one adapter, in rising order. Where they lie one after the other, none is copied.
struct AdapterRows {
    const LowRankCall* call;
    const int64_t* rows;
    int64_t count;
    bool is_run;
};

// Those of the adapters with any rows, at `found`, and their row numbers at `order`; how many.
inline int64_t find_adapter_rows(const LowRankCall* adapters, int64_t num_adapters,
                                 const int32_t* owners, int64_t rows, AdapterRows* found,
                                 int64_t* order) {
    int64_t groups = 0;
    for (int64_t adapter = 0; adapter < num_adapters; ++adapter) {
        if (!adapters[adapter].up.outputs) continue;
        int64_t count = 0;
        for (int64_t row = 0; row < rows; ++row)
            if (owners[row] == adapter) order[count++] = row;
        if (!count) continue;
        const bool is_run = order[count - 1] - order[0] + 1 == count;
        found[groups++] = {adapters + adapter, order, count, is_run};
        order += count;
    }
    return groups;
}

inline void copy_rows(const bf16* from, const AdapterRows& own, int64_t size, bf16* to) {
    for (int64_t i = 0; i < own.count; ++i)
        memcpy(to + i * size, from + own.rows[i] * size, static_cast<size_t>(size) * sizeof(bf16));
}

// Adds up(scales * down(x)) to the rows of `out` that an adapter owns. All adapters' products are
// one loop each: a few rows of a small matrix are not worth one of their own.
//
// adapters: [num_adapters], of one layer; those without outputs add nothing. owners: [rows], the
// index of each row's adapter, or -1. x: [rows, inputs]. out: [rows, outputs].
inline void add_low_rank(const LowRankCall* adapters, int64_t num_adapters, const int32_t* owners,
                         int64_t rows, const bf16* x, bf16* out) {
    const Buffer<AdapterRows> found(num_adapters);
    const Buffer<int64_t> order(rows);
    const int64_t groups =
        find_adapter_rows(adapters, num_adapters, owners, rows, found.data(), order.data());
    if (!groups) return;
    const LowRankCall& sizes = *found.data()[0].call;
    const int64_t inputs = sizes.down.inputs, outputs = sizes.up.outputs;
    int64_t copied = 0, inner = 0;
    for (int64_t i = 0; i < groups; ++i) {
        const AdapterRows& own = found.data()[i];
        if (!own.is_run) copied += own.count;
        inner += own.count * own.call->down.outputs;
    }
    const Buffer<bf16> read(copied * inputs), sums(copied * outputs), narrow(inner);
    const Buffer<float> wide(inner);
    const Buffer<LinearCall> downs(groups), ups(groups);
    copied = inner = 0;
    for (int64_t i = 0; i < groups; ++i) {
        const AdapterRows& own = found.data()[i];
        const int64_t rank = own.call->down.outputs;
        const bf16* own_x = x + own.rows[0] * inputs;
        bf16* own_out = out + own.rows[0] * outputs;
        if (!own.is_run) {
            bf16* const room = read.data() + copied * inputs;
            copy_rows(x, own, inputs, room);
            own_x = room, own_out = sums.data() + copied * outputs;
            copy_rows(out, own, outputs, own_out);
            copied += own.count;
        }
        LinearCall& down = downs.data()[i] = own.call->down;
        down.x = own_x, down.x_stride = inputs, down.rows = own.count;
        down.out = wide.data() + inner, down.float_out = 1, down.residual = nullptr;
        LinearCall& up = ups.data()[i] = own.call->up;
        up.x = narrow.data() + inner, up.x_stride = rank, up.rows = own.count;
        up.out = own_out, up.float_out = 0, up.residual = own_out;
        inner += own.count * rank;
    }
    linears(downs.data(), groups);
    for (int64_t i = 0; i < groups; ++i) {
        const LinearCall& down = downs.data()[i];
        const float* from = static_cast<const float*>(down.out);
        bf16* to = narrow.data() + (from - wide.data());
        for (int64_t row = 0; row < down.rows; ++row)
            for (int64_t j = 0; j < down.outputs; ++j)
                *to++ = to_bf16(*from++ * found.data()[i].call->scales[j]);
    }
    linears(ups.data(), groups);
    for (int64_t i = 0; i < groups; ++i) {
        const AdapterRows& own = found.data()[i];
        if (own.is_run) continue;
        const bf16* from = static_cast<const bf16*>(ups.data()[i].out);
        for (int64_t row = 0; row < own.count; ++row)
            memcpy(out + own.rows[row] * outputs, from + row * outputs,
                   static_cast<size_t>(outputs) * sizeof(bf16));
    }
}

}  // namespace
}  // namespace twostroke
