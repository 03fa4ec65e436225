// Which experts a token goes to, and with which weights: `route` in layers/routing.py.
#pragma once

#include <cmath>
#include <cstdint>

#include "buffer.hpp"
#include "kernels.hpp"

namespace twostroke {
namespace {

// Router's outputs to scores, in place.
inline void score_row(const RoutingCall& call, float* row) {
    if (call.sigmoid) {
        for (int64_t i = 0; i < call.experts; ++i) row[i] = 1.0f / (1.0f + expf(-row[i]));
        return;
    }
    float highest = row[0], sum = 0.0f;
    for (int64_t i = 1; i < call.experts; ++i) highest = row[i] > highest ? row[i] : highest;
    for (int64_t i = 0; i < call.experts; ++i) sum += row[i] = expf(row[i] - highest);
    for (int64_t i = 0; i < call.experts; ++i) row[i] /= sum;
}

// The first of the largest; NaN is never larger.
inline int64_t find_largest(const float* from, int64_t count) {
    int64_t largest = 0;
    for (int64_t i = 1; i < count; ++i) largest = from[i] > from[largest] ? i : largest;
    return largest;
}

// Experts outside of the best groups can no longer be chosen. `ranks`: room for a group each.
inline void keep_best_groups(const RoutingCall& call, float* choice, float* ranks) {
    const int64_t size = call.experts / call.groups;
    for (int64_t group = 0; group < call.groups; ++group) {
        const float* own = choice + group * size;
        const int64_t first = find_largest(own, size);
        float second = -INFINITY;
        for (int64_t i = 0; i < size; ++i)
            if (i != first && own[i] > second) second = own[i];
        ranks[group] = call.best_two && size > 1 ? own[first] + second : own[first];
    }
    for (int64_t i = 0; i < call.chosen_groups; ++i)
        ranks[find_largest(ranks, call.groups)] = -INFINITY;
    for (int64_t i = 0; i < call.experts; ++i)
        if (ranks[i / size] != -INFINITY) choice[i] = -INFINITY;
}

// What experts are chosen by: scores with a correction, or, since sigmoids near 1 may be equal
// where what they come from is not, what sigmoids without one come from.
inline void score_choice(const RoutingCall& call, float* row, float* choice) {
    const bool by_outputs = call.sigmoid && !call.correction;
    for (int64_t i = 0; by_outputs && i < call.experts; ++i) choice[i] = row[i];
    score_row(call, row);
    for (int64_t i = 0; !by_outputs && i < call.experts; ++i)
        choice[i] = call.correction ? row[i] + call.correction[i] : row[i];
}

// `row`: the router's outputs, overwritten; `chosen`, `weights`: [per_token], the best first.
inline void route_row(const RoutingCall& call, float* row, int64_t* chosen, float* weights) {
    const Buffer<float> choice(call.experts), ranks(call.groups);
    score_choice(call, row, choice.data());
    if (call.groups > 1) keep_best_groups(call, choice.data(), ranks.data());
    float sum = 0.0f;
    for (int64_t i = 0; i < call.per_token; ++i) {
        chosen[i] = find_largest(choice.data(), call.experts);
        choice.data()[chosen[i]] = -INFINITY;
        sum += weights[i] = row[chosen[i]];
    }
    for (int64_t i = 0; i < call.per_token; ++i) {
        weights[i] = (call.normalized ? weights[i] / sum : weights[i]) * call.scale;
        if (call.factors) weights[i] *= call.factors[chosen[i]];
    }
}

}  // namespace
}  // namespace twostroke
