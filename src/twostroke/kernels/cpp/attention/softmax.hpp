// Softmax over keys that come some at a time, with the running maximum of online softmax
// (Milakov and Gimelshein 2018).
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/walk.hpp"
#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// The numbers 0 .. COUNT - 1.
template <int COUNT>
struct Numbers {
    int32_t number[COUNT] = {};

    constexpr Numbers() {
        for (int i = 0; i < COUNT; ++i) number[i] = i;
    }
};

// One query row's maximum and sum of weights. All rows of a task take the first step on some keys
// before any takes the second: while one row waits for a result, the others compute.
class Softmax {
  public:
    // Takes in a score without a value, before all keys.
    void start_with(float sink) {
        alignas(64) float first[kLanes] = {1.0f};
        max_ = sink, totals_ = load<floats>(first);
    }

    // First step: scales the scores of the keys from `position` on, and bounds them if the call
    // does; sets those outside [oldest, end) to -infinity, and updates the maximum.
    void scale_and_mask(float* scores, int64_t position, int64_t oldest, int64_t end,
                        const AttentionCall& call) {
        const bool is_bounded = call.soft_cap > 0.0f;
        if (is_bounded) bound(scores, call.scale, call.soft_cap);
        const float scale = is_bounded ? 1.0f : call.scale;
        // In memory: registers with them would be missing for other loops' sums.
        static constexpr Numbers<kKeys> kNumbers;
        const ints first = splat(static_cast<int32_t>(oldest - position));
        const ints last = splat(static_cast<int32_t>(end - position));
        const bool all_seen = oldest <= position && position + kKeys <= end;
        floats largest = splat(max_);
        for (int k = 0; k < kKeys; k += kLanes) {
            const ints key = load<ints>(kNumbers.number + k);
            floats x = load<floats>(scores + k) * scale;
            if (!all_seen) x = choose((key < first) | (key >= last), splat(-INFINITY), x);
            largest = choose(x > largest, x, largest);
            store16(scores + k, x);
        }
        previous_max_ = max_, max_ = max_lanes(largest);
    }

    // Second step: turns the scores into weights, exactly 0 for masked keys, and returns the factor
    // for the sums so far. It is computed even where it is 1: a branch would be mispredicted.
    float to_weights(float* scores) {
        const float base = max_ == -INFINITY ? 0.0f : max_;  // -infinity: no key seen so far
        floats sum = {};
        for (int k = 0; k < kKeys; k += kLanes) {
            const floats weight = exp16(load<floats>(scores + k) - base);
            store16(scores + k, weight);
            sum += weight;
        }
        const floats correction = exp16(splat(previous_max_ - base));
        totals_ = totals_ * correction + sum;
        return correction[0];
    }

    float total() const { return sum_lanes(totals_); }

  private:
    // cap * tanh(scale * score / cap), for some keys.
    static void bound(float* scores, float scale, float cap) {
        const float twice = 2.0f * scale / cap;
        for (int k = 0; k < kKeys; k += kLanes) {
            const floats power = exp16(load<floats>(scores + k) * twice);
            store16(scores + k, (1.0f - 2.0f / (power + 1.0f)) * cap);
        }
    }

    float max_ = -INFINITY, previous_max_ = -INFINITY;
    floats totals_ = {};  // by lane, so that lanes are added up only once
};

// Writes a row's weighted values, divided by the total weight.
template <typename T>
inline void write_row(T* out, const float* sums, int64_t dim, float total) {
    for (int64_t d = 0; d < dim; d += kLanes) store16(out + d, load<floats>(sums + d) / total);
}

}  // namespace
}  // namespace twostroke
