// A causal convolution of each channel by itself, over the latest few tokens of a request.
#pragma once

#include <cstdint>
#include <cstring>

#include "elementwise.hpp"
#include "kernels.hpp"
#include "recurrent/segments.hpp"
#include "thread_pool.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

constexpr int kMaxKernel = 8;
constexpr int64_t kChannelBlock = 256;  // that one thread takes

// Rows of inputs that end with a segment's token, `kernel` of them; `before` those of the state.
struct Inputs {
    Inputs(const ConvolutionCall& call, const bf16* before, int64_t begin, int64_t token) {
        for (int64_t tap = 0; tap < call.kernel; ++tap) {
            const int64_t row = token + tap - (call.kernel - 1);
            rows[tap] = row < begin ? before + (row - begin + call.kernel - 1) * call.channels
                                    : call.x + row * call.x_stride;
        }
    }
    const bf16* rows[kMaxKernel];
};

// Some channels of one token; `store` gets the first channel of 16 and their sums.
template <typename Store>
inline void convolve_token(const ConvolutionCall& call, const Inputs& inputs, int64_t first,
                           int64_t end, const Store& store) {
    for (int64_t channel = first; channel < end; channel += kLanes) {
        const int64_t left = end - channel;
        floats sum = load_first(inputs.rows[0] + channel, left) *
                     load_first(call.taps + channel, left);
        for (int64_t tap = 1; tap < call.kernel; ++tap)
            sum += load_first(inputs.rows[tap] + channel, left) *
                   load_first(call.taps + tap * call.channels + channel, left);
        if (call.bias) sum += load_first(call.bias + channel, left);
        store(channel, sum);
    }
}

// Rows [first_row, end_row) of a pass; `store` gets a row, a channel and 16 sums. States change.
template <typename Store>
inline void convolve(const ConvolutionCall& call, int64_t first_row, int64_t end_row,
                     const Store& store) {
    const int64_t state_size = (call.kernel - 1) * call.channels;
    auto run = [&](int64_t block) {
        const int64_t first = block * kChannelBlock, after = first + kChannelBlock;
        const int64_t end = after < call.channels ? after : call.channels;
        const size_t bytes = static_cast<size_t>(end - first) * sizeof(bf16);
        for_segments(call, first_row, end_row, [&](const Segment& part, bool is_last) {
            bf16* before = call.before + part.slot * state_size;
            for (int64_t row = part.begin; row < part.end; ++row)
                convolve_token(call, Inputs(call, before, part.begin, row), first, end,
                               [&](int64_t channel, const floats& sum) {
                                   store(row, channel, end - channel, sum);
                               });
            const Inputs last(call, before, part.begin, part.end);  // its last is not read
            for (int64_t tap = 0; tap + 1 < call.kernel; ++tap)
                memmove(before + tap * call.channels + first, last.rows[tap] + first, bytes);
            if (!is_last || part.copy < 0) return;
            bf16* copy = call.before + part.copy * state_size;
            for (int64_t tap = 0; tap + 1 < call.kernel; ++tap)
                memcpy(copy + tap * call.channels + first, before + tap * call.channels + first,
                       bytes);
        });
    };
    const int64_t blocks = (call.channels + kChannelBlock - 1) / kChannelBlock;
    run_some(blocks, (end_row - first_row) * call.channels * call.kernel, run);
}

// second * convolution(first * third) of three parts of each row of x, which is changed.
inline void gated_convolution(const ConvolutionCall& call) {
    if (call.num_segments == 0) return;
    const int64_t channels = call.channels, begin = call.segments[0].begin;
    const int64_t end = call.segments[call.num_segments - 1].end;
    auto multiply = [&](int64_t index) {
        bf16* const first = call.x + (begin + index) * call.x_stride;
        const bf16* const third = first + 2 * channels;
        for (int64_t i = 0; i < channels; i += kLanes) {
            const int64_t left = channels - i;
            store_first(first + i, load_first(first + i, left) * load_first(third + i, left), left);
        }
    };
    for_rows(end - begin, 2 * channels, multiply);
    convolve(call, begin, end, [&](int64_t row, int64_t channel, int64_t left, const floats& sum) {
        const bf16* const second = call.x + row * call.x_stride + channels + channel;
        const floats gated = rounded(sum) * load_first(second, left);
        store_first(call.out + row * channels + channel, gated, left);
    });
}

}  // namespace
}  // namespace twostroke
