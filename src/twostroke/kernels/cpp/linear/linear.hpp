// Linear layers over packed weights: the work cut into tasks for the pool of threads.
#pragma once

#include <cstdint>

#include "buffer.hpp"
#include "kernels.hpp"
#include "linear/rows.hpp"
#include "linear/tiles.hpp"
#include "thread_pool.hpp"

namespace twostroke {
namespace {

constexpr int64_t kPanelBytes = 256 << 10;

// Rows are cut into strips, and strips into panels, which are packed rows that fit into the second
// cache. A task is one panel times some blocks of weights.
struct LinearPlan {
    int64_t blocks, block_bytes;
    int64_t strips, panels;
    int64_t blocks_per_task, tasks_per_panel;
    bool weights_first;  // all panels use some blocks before any panel uses the next blocks
};

// A task takes 50 to 100 microseconds, and each thread gets some, so that all finish together.
inline int64_t choose_blocks_per_task(const LinearCall& call, const LinearPlan& plan) {
    const int64_t unit = plan.strips > 1 ? 2 : 4;  // blocks that a tile takes at once
    const int64_t by_memory = (512 << 10) / plan.block_bytes;
    const int64_t by_work = (12 << 20) / (call.rows / plan.panels * call.inputs * kLanes);
    const int64_t spread = plan.blocks * plan.panels / 8;
    int64_t count = plan.strips > 1 ? by_work : by_memory;
    count = count < spread ? count : spread;
    return count < unit ? unit : count / unit * unit;
}

inline LinearPlan plan_linear(const LinearCall& call) {
    LinearPlan plan;
    const bool in_groups = call.format == kInt4 || is_stored(call.format);
    const int64_t max_rows = in_groups ? (kMaxRows + 1) / 2 : kMaxRows;
    const int64_t narrowing = call.format == kBf16 ? 1 : call.format == kInt8 ? 2 : 4;
    plan.blocks = (call.outputs + kLanes - 1) / kLanes;
    plan.block_bytes = is_stored(call.format) ? stored_block_bytes(call)
                                              : call.inputs * kLanes * 2 / narrowing;
    // Strips are of equal size: 16 rows are 8 + 8, not 12 + 4.
    plan.strips = (call.rows + max_rows - 1) / max_rows;
    const int64_t panel_strips = kPanelBytes / (max_rows * call.inputs * input_bytes(call));
    const bool too_wide = panel_strips < 1;  // not even one strip fits
    plan.panels = too_wide ? plan.strips : (plan.strips + panel_strips - 1) / panel_strips;
    // Panels of so few rows would each bring the weights from memory again: weights come first.
    plan.weights_first = panel_strips < 3;
    plan.blocks_per_task = choose_blocks_per_task(call, plan);
    plan.tasks_per_panel = (plan.blocks + plan.blocks_per_task - 1) / plan.blocks_per_task;
    return plan;
}

// Computes strips [first_strip, end_strip) times blocks [first_block, end_block).
inline void compute_task(const LinearCall& call, const PackedRows& x, const LinearPlan& plan,
                         int64_t first_strip, int64_t end_strip, int64_t first_block,
                         int64_t end_block) {
    const int64_t strips = end_strip - first_strip;
    const int64_t width = plan.strips > 1 ? 2 : plan.blocks_per_task;
    const bool stored = is_stored(call.format) && call.format != kQ8_0;
    const bool unpack = (call.format == kInt4 || stored) && strips > 1;
    const Buffer<char> bytes(unpack ? width * call.inputs / 4 * kStepBytes : 0);
    for (int64_t block = first_block; block < end_block; block += width) {
        const int64_t blocks = end_block - block < width ? end_block - block : width;
        if (unpack && stored)
            unpack_in_format(call, block, blocks, bytes.data());
        else if (unpack)
            unpack_int4(call, block, blocks, bytes.data());
        for (int64_t strip = first_strip; strip < end_strip; ++strip) {
            const int64_t row = call.rows * strip / plan.strips;
            const int64_t end_row = call.rows * (strip + 1) / plan.strips;
            const Prefetch prefetch =
                plan_prefetch(strip - first_strip, strips, plan.block_bytes, block == first_block,
                              block + width >= end_block);
            compute_strip<kMaxRows>(call, x, prefetch, row, end_row - row, block, blocks,
                                    bytes.data());
        }
    }
}

inline int64_t count_tasks(const LinearPlan& plan) { return plan.panels * plan.tasks_per_panel; }

// Computes one of the tasks, which may run in any order.
inline void run_task(const LinearCall& call, const PackedRows& x, const LinearPlan& plan,
                     int64_t task) {
    const int64_t panel = plan.weights_first ? task % plan.panels : task / plan.tasks_per_panel;
    const int64_t part = plan.weights_first ? task / plan.panels : task % plan.tasks_per_panel;
    const int64_t block = part * plan.blocks_per_task, end = block + plan.blocks_per_task;
    compute_task(call, x, plan, plan.strips * panel / plan.panels,
                 plan.strips * (panel + 1) / plan.panels, block,
                 end < plan.blocks ? end : plan.blocks);
}

// A layer without parts.
inline void whole_linear(const LinearCall& call) {
    if (call.rows == 0) return;
    const LinearPlan plan = plan_linear(call);
    const PackedRows x(call, plan.strips);
    auto compute = [&](int64_t task) { run_task(call, x, plan, task); };
    parallel_for(count_tasks(plan), compute);
}

}  // namespace
}  // namespace twostroke
