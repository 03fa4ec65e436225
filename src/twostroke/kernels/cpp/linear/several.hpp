// Several linear layers, each with its own rows, as one loop over the tasks of all.
#pragma once

#include <cstdint>

#include "buffer.hpp"
#include "kernels.hpp"
#include "linear/linear.hpp"
#include "linear/rows.hpp"
#include "thread_pool.hpp"

namespace twostroke {
namespace {

// One of several layers, ready to run.
struct PreparedLinear {
    explicit PreparedLinear(const LinearCall& linear_call)
        : call(linear_call), plan(plan_linear(call)), x(call, plan.strips) {}

    // In memory that is there. Not the standard library's: kernel_table.hpp says why.
    static void* operator new(size_t, PreparedLinear* place) { return place; }
    static void operator delete(void*, PreparedLinear*) {}

    const LinearCall call;
    const LinearPlan plan;
    const PackedRows x;
};

// Each call has at least one row. The same numbers as `linear` gives of each.
inline void linears(const LinearCall* calls, int64_t count) {
    const Buffer<char> room(count * static_cast<int64_t>(sizeof(PreparedLinear)));
    const Buffer<int64_t> ends(count);  // of each one's tasks
    PreparedLinear* const prepared = reinterpret_cast<PreparedLinear*>(room.data());
    auto prepare = [&](int64_t i) { new (prepared + i) PreparedLinear(calls[i]); };
    int64_t rows = 0, tasks = 0;
    for (int64_t i = 0; i < count; ++i) rows += calls[i].rows;
    if (rows == count) {  // nothing to pack that takes longer than waking a thread
        for (int64_t i = 0; i < count; ++i) prepare(i);
    } else {
        parallel_for(count, prepare);
    }
    for (int64_t i = 0; i < count; ++i) ends.data()[i] = tasks += count_tasks(prepared[i].plan);
    auto run = [&](int64_t task) {
        int64_t i = 0, after = count - 1;  // the first whose tasks end after this one
        while (i < after) {
            const int64_t middle = (i + after) / 2;
            if (ends.data()[middle] > task)
                after = middle;
            else
                i = middle + 1;
        }
        const PreparedLinear& own = prepared[i];
        run_task(own.call, own.x, own.plan, task - (i > 0 ? ends.data()[i - 1] : 0));
    };
    parallel_for(tasks, run);
    for (int64_t i = 0; i < count; ++i) prepared[i].~PreparedLinear();
}

inline void part_linears(const LinearCall* calls, int64_t count, const bf16* x, int64_t x_stride,
                         int64_t x_step, int64_t rows, bf16* out, int64_t out_stride,
                         int64_t out_step) {
    if (rows == 0) return;
    const Buffer<LinearCall> own(count);
    for (int64_t i = 0; i < count; ++i) {
        LinearCall& call = own.data()[i];
        call = calls[i];
        call.x = x + i * x_step, call.x_stride = x_stride, call.rows = rows;
        call.out = out + i * out_step, call.out_stride = out_stride;
        call.residual = nullptr, call.float_out = 0;
    }
    linears(own.data(), count);
}

inline void linear(const LinearCall& call) {
    if (call.num_parts == 0) return whole_linear(call);
    if (call.rows == 0) return;
    const Buffer<LinearCall> parts(call.num_parts);
    int64_t column = 0;
    for (int64_t i = 0; i < call.num_parts; ++i) {
        LinearCall& part = parts.data()[i];
        part = call.parts[i];
        part.x = call.x, part.x_stride = call.x_stride, part.rows = call.rows;
        part.float_out = call.float_out, part.out_stride = call.outputs;
        part.out = static_cast<char*>(call.out) + column * (call.float_out ? 4 : 2);
        part.residual = call.residual ? call.residual + column : nullptr;
        column += part.outputs;
    }
    linears(parts.data(), call.num_parts);
}

}  // namespace
}  // namespace twostroke
