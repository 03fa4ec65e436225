// The order in which a recurrent layer takes the tokens of a pass.
#pragma once

#include <cstdint>

#include "kernels.hpp"
#include "thread_pool.hpp"

namespace twostroke {
namespace {

// Calls body(part, is_last) for what rows [first_row, end_row) have of each segment, in order;
// `is_last`: the segment ends with it. The state is kept in its slot from part to part.
template <typename Body>
inline void for_segments(const ConvolutionCall& call, int64_t first_row, int64_t end_row,
                         const Body& body) {
    for (int64_t i = 0; i < call.num_segments; ++i) {
        Segment part = call.segments[i];
        const bool is_last = part.end > first_row && part.end <= end_row;
        part.begin = part.begin > first_row ? part.begin : first_row;
        part.end = part.end < end_row ? part.end : end_row;
        if (part.begin < part.end) body(part, is_last);
    }
}

// Tasks of `work` multiplications together: on this thread if they are few.
template <typename Task>
inline void run_some(int64_t count, int64_t work, Task& task) {
    if (work >= 1 << 17) return parallel_for(count, task);
    for (int64_t i = 0; i < count; ++i) task(i);
}

}  // namespace
}  // namespace twostroke
