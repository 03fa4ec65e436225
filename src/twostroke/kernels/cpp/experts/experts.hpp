// A mixture of experts: rows are grouped by expert, and only experts that have rows are read.
//
// All products of one kind, of all experts and of the shared ones, are one loop: at a single token
// each thread reads a share of each of its experts, and threads wait for each other twice.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "activations.hpp"
#include "buffer.hpp"
#include "elementwise.hpp"
#include "experts/routing.hpp"
#include "kernels.hpp"
#include "linear/several.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

// So many tokens at a time: what lies between the products stays small, and experts are read once
// for enough rows.
constexpr int64_t kTurnTokens = 1024;

inline LinearCall applied(const LinearCall& weights, const bf16* x, void* out, int64_t rows,
                          bool float_out) {
    LinearCall call = weights;
    call.x = x, call.x_stride = weights.inputs, call.rows = rows;
    call.out = out, call.residual = nullptr, call.float_out = float_out;
    return call;
}

// Which experts some tokens go to. A pair is a token and one of its experts.
class Grouping {
  public:
    // `x`: what the router reads.
    Grouping(const ExpertsCall& call, const bf16* x, int64_t tokens)
        : weights(tokens * call.routing.per_token),
          places(tokens * call.routing.per_token),
          starts(call.routing.experts + 1) {
        const RoutingCall& routing = call.routing;
        const int64_t pairs = tokens * routing.per_token;
        const Buffer<float> scores(tokens * routing.experts);
        const Buffer<int64_t> chosen(pairs), next(routing.experts);
        linear(applied(call.router, x, scores.data(), tokens, true));
        auto route = [&](int64_t token) {
            const int64_t first = token * routing.per_token;
            route_row(routing, scores.data() + token * routing.experts, chosen.data() + first,
                      weights.data() + first);
        };
        for_rows(tokens, 16 * routing.experts, route);
        memset(next.data(), 0, static_cast<size_t>(routing.experts) * sizeof(int64_t));
        for (int64_t pair = 0; pair < pairs; ++pair) ++next.data()[chosen.data()[pair]];
        int64_t start = 0;
        for (int64_t expert = 0; expert < routing.experts; ++expert) {
            const int64_t rows = next.data()[expert];
            next.data()[expert] = starts.data()[expert] = start;
            start += rows;
        }
        starts.data()[routing.experts] = start;
        for (int64_t pair = 0; pair < pairs; ++pair)
            places.data()[pair] = next.data()[chosen.data()[pair]]++;
    }

    const Buffer<float> weights;   // [tokens, per_token]
    const Buffer<int64_t> places;  // [tokens, per_token]: rows of pairs, which lie by expert
    const Buffer<int64_t> starts;  // [experts + 1]: of each one's rows
};

// Some tokens' way through their experts.
class ExpertsTurn {
  public:
    ExpertsTurn(const ExpertsCall& experts_call, int64_t first, int64_t num_tokens)
        : call(experts_call),
          offset(first * call.hidden),
          tokens(num_tokens),
          pairs(tokens * call.routing.per_token),
          width(call.narrow_down ? call.narrow_down->outputs : call.hidden),
          groups(call, (call.routed ? call.routed : call.x) + offset, tokens),
          outs(pairs * width),
          mixed(call.narrow_up ? tokens * call.hidden : 0),
          shared_outs(call.shared ? tokens * call.hidden : 0),
          shared_gates(call.shared_gate ? tokens : 0) {}

    void run() {
        const ExpertCall* const shared = call.shared;
        const int64_t size = call.experts->down.inputs, outputs = call.experts->gate_up.outputs;
        const Buffer<bf16> rows(pairs * width), gates(pairs * outputs), inner(pairs * size);
        const Buffer<bf16> wide(shared ? tokens * shared->gate_up.outputs : 0);
        const Buffer<bf16> narrow(shared ? tokens * shared->down.inputs : 0);
        gather(rows.data());
        const Buffer<LinearCall> calls(call.routing.experts + 2);
        int64_t count = list(calls.data(), &ExpertCall::gate_up, rows.data(), gates.data());
        const bf16* x = call.x + offset;
        if (shared) calls.data()[count++] = applied(shared->gate_up, x, wide.data(), tokens, false);
        if (call.shared_gate)
            calls.data()[count++] =
                applied(*call.shared_gate, x, shared_gates.data(), tokens, true);
        linears(calls.data(), count);
        activate(gates.data(), inner.data(), pairs, size, call.activation);
        count = list(calls.data(), &ExpertCall::down, inner.data(), outs.data());
        if (shared) {
            activate(wide.data(), narrow.data(), tokens, shared->down.inputs, call.activation);
            calls.data()[count++] =
                applied(shared->down, narrow.data(), shared_outs.data(), tokens, false);
        }
        linears(calls.data(), count);
        if (call.narrow_up) widen_outs();
        auto add = [&](int64_t token) { add_up(token); };
        for_rows(tokens, call.hidden * call.routing.per_token, add);
    }

  private:
    // The rows that experts read: a token's, or its narrow copy, once for each of its experts.
    void gather(bf16* rows) const {
        const Buffer<bf16> copies(call.narrow_down ? tokens * width : 0);
        if (copies)
            linear(applied(*call.narrow_down, call.x + offset, copies.data(), tokens, false));
        const bf16* const from = copies ? copies.data() : call.x + offset;
        auto copy = [&](int64_t pair) {
            bf16* const row = rows + groups.places.data()[pair] * width;
            memcpy(row, from + pair / call.routing.per_token * width,
                   static_cast<size_t>(width) * sizeof(bf16));
            if (call.routing.scales_inputs)
                multiply_row(row, width, to_float(to_bf16(groups.weights.data()[pair])));
        };
        for_rows(pairs, width, copy);
    }

    // What a token's experts give together, in the order of choice.
    floats weighed(int64_t token, int64_t i) const {
        const int64_t first = token * call.routing.per_token;
        floats sum = {};
        for (int64_t pair = first; pair < first + call.routing.per_token; ++pair) {
            const bf16* out = outs.data() + groups.places.data()[pair] * width + i;
            const float weight =
                call.routing.scales_inputs ? 1.0f : groups.weights.data()[pair];
            sum += load_first(out, width - i) * weight;
        }
        return sum;
    }

    // Back from what experts of narrow copies give.
    void widen_outs() const {
        const Buffer<bf16> sums(tokens * width);
        auto add = [&](int64_t token) {
            for (int64_t i = 0; i < width; i += kLanes)
                store_first(sums.data() + token * width + i, weighed(token, i), width - i);
        };
        for_rows(tokens, width * call.routing.per_token, add);
        linear(applied(*call.narrow_up, sums.data(), mixed.data(), tokens, false));
    }

    // One product of each expert that has rows; returns how many do.
    int64_t list(LinearCall* calls, LinearCall ExpertCall::*product, const bf16* x,
                 bf16* out) const {
        int64_t count = 0;
        for (int64_t expert = 0; expert < call.routing.experts; ++expert) {
            const int64_t start = groups.starts.data()[expert];
            const int64_t num_rows = groups.starts.data()[expert + 1] - start;
            if (num_rows == 0) continue;
            const LinearCall& weights = call.experts[expert].*product;
            calls[count++] = applied(weights, x + start * weights.inputs,
                                     out + start * weights.outputs, num_rows, false);
        }
        return count;
    }

    // The experts, then the shared ones. Rounded where PyTorch's layers round.
    void add_up(int64_t token) const {
        const int64_t at = token * call.hidden;
        const float gate =
            shared_gates ? 1.0f / (1.0f + expf(-shared_gates.data()[token])) : 1.0f;
        for (int64_t i = 0; i < call.hidden; i += kLanes) {
            const int64_t left = call.hidden - i;
            floats sum = mixed ? load_first(mixed.data() + at + i, left) : weighed(token, i);
            if (shared_outs) sum += load_first(shared_outs.data() + at + i, left) * gate;
            sum = rounded(sum);
            if (call.scale != 1.0f) sum = rounded(sum * call.scale);
            if (call.onto) sum += load_first(call.onto + offset + at + i, left);
            store_first(call.out + offset + at + i, sum, left);
        }
    }

    const ExpertsCall& call;
    const int64_t offset, tokens, pairs;
    const int64_t width;  // of what an expert reads and gives
    const Grouping groups;
    const Buffer<bf16> outs;         // [pairs, width]
    const Buffer<bf16> mixed;        // [tokens, hidden], of experts of narrow copies
    const Buffer<bf16> shared_outs;  // [tokens, hidden]
    const Buffer<float> shared_gates;
};

inline void experts(const ExpertsCall& call) {
    for (int64_t first = 0; first < call.tokens; first += kTurnTokens) {
        const int64_t left = call.tokens - first;
        ExpertsTurn(call, first, left < kTurnTokens ? left : kTurnTokens).run();
    }
}

}  // namespace
}  // namespace twostroke
