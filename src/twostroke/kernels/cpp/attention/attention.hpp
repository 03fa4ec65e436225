// Attention over the paged cache: the work cut into tasks for the pool of threads.
//
// A task is some query rows (a token's heads of one group) of one request. Up to four rows of a KV
// head wait for memory (attention/few_rows.hpp), more wait for arithmetic (attention/tiles.hpp).
// Sums and weights are float32, and both ways add in one order, key after key and along the head:
// no bit of a token's numbers depends on how its prompt was cut into chunks.
#pragma once

#include <cstdint>

#include "attention/few_rows.hpp"
#include "attention/scaled/few_rows.hpp"
#include "attention/scaled/tiles.hpp"
#include "attention/tiles.hpp"
#include "buffer.hpp"
#include "kernels.hpp"
#include "thread_pool.hpp"

namespace twostroke {
namespace {

// Query rows of a KV head.
inline int64_t count_rows(const AttentionCall& call, int64_t request) {
    const int64_t tokens = call.query_start[request + 1] - call.query_start[request];
    return tokens * (call.heads / call.kv_heads);
}

// Into how many tasks the KV heads are cut, for few rows: two tasks a thread where there are heads
// enough, so that a thread that gets no core delays little.
inline int64_t count_spans(const AttentionCall& call) {
    const int64_t heads = call.num_requests * call.kv_heads / (2 * num_threads());
    const int64_t span = heads < 1 ? 1 : heads < kMaxSpan ? heads : kMaxSpan;
    return (call.kv_heads + span - 1) / span;
}

inline int64_t count_parts(int64_t rows) { return (rows + kTaskRows - 1) / kTaskRows; }

inline int64_t count_tasks(const AttentionCall& call, int64_t rows, int64_t spans) {
    if (rows == 0) return 0;
    return rows <= kFewRows ? spans : call.kv_heads * count_parts(rows);
}

// The request whose tasks, from first_task[request] on, include `task`.
inline int64_t find_request(const int64_t* first_task, int64_t requests, int64_t task) {
    int64_t low = 0, high = requests;  // first_task[low] <= task < first_task[high]
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        (first_task[middle] <= task ? low : high) = middle;
    }
    return low;
}

// Task `index` of a request's tasks.
template <typename T, typename Stored>
void attend(const AttentionCall& call, int64_t request, int64_t index, int64_t spans) {
    const int64_t rows = count_rows(call, request);
    if (rows > kFewRows) {
        const int64_t kv_head = index % call.kv_heads, part = index / call.kv_heads;
        const int64_t parts = count_parts(rows);
        const int64_t first = rows * part / parts, end = rows * (part + 1) / parts;
        attend_in_tiles<T, Stored>(call, request, kv_head, first, static_cast<int>(end - first));
        return;
    }
    const int64_t kv_head = call.kv_heads * index / spans;
    const int heads = static_cast<int>(call.kv_heads * (index + 1) / spans - kv_head);
    const int64_t dim = call.value_dim == call.head_dim ? call.head_dim : 0;
    if (dim == 64)
        attend_few_rows<T, Stored, 64>(call, request, kv_head, heads, rows);
    else if (dim == 128)
        attend_few_rows<T, Stored, 128>(call, request, kv_head, heads, rows);
    else
        attend_few_rows<T, Stored, 0>(call, request, kv_head, heads, rows);
}

// The same over a cache of integers of BITS bits.
template <int BITS>
void attend_scaled(const AttentionCall& call, int64_t request, int64_t index, int64_t spans) {
    const int64_t rows = count_rows(call, request);
    if (rows > kFewRows) {
        const int64_t kv_head = index % call.kv_heads, part = index / call.kv_heads;
        const int64_t parts = count_parts(rows);
        const int64_t first = rows * part / parts, end = rows * (part + 1) / parts;
        attend_in_scaled_tiles<BITS>(call, request, kv_head, first, static_cast<int>(end - first));
        return;
    }
    const int64_t kv_head = call.kv_heads * index / spans;
    const int heads = static_cast<int>(call.kv_heads * (index + 1) / spans - kv_head);
    const int64_t dim = call.value_dim == call.head_dim ? call.head_dim : 0;
    if (dim == 64)
        attend_few_scaled_rows<BITS, 64>(call, request, kv_head, heads, rows);
    else if (dim == 128)
        attend_few_scaled_rows<BITS, 128>(call, request, kv_head, heads, rows);
    else
        attend_few_scaled_rows<BITS, 0>(call, request, kv_head, heads, rows);
}

// Task is a function as attend().
template <typename Task>
void attend_all(const AttentionCall& call, Task attend_task) {
    const int64_t requests = call.num_requests, spans = count_spans(call);
    const Buffer<int64_t> buffer(requests + 1);
    int64_t* first_task = buffer.data();
    first_task[0] = 0;
    for (int64_t i = 0; i < requests; ++i)
        first_task[i + 1] = first_task[i] + count_tasks(call, count_rows(call, i), spans);
    auto compute = [&](int64_t task) {
        const int64_t request = find_request(first_task, requests, task);
        attend_task(call, request, task - first_task[request], spans);
    };
    parallel_for(first_task[requests], compute);
}

inline void attention(const AttentionCall& call) {
    if (call.cache_format == kScaled8)
        attend_all(call, attend_scaled<8>);
    else if (call.cache_format == kScaled4)
        attend_all(call, attend_scaled<4>);
    else if (call.cache_format == kFp8)
        call.is_float ? attend_all(call, attend<float, fp8>) : attend_all(call, attend<bf16, fp8>);
    else if (call.is_float)
        attend_all(call, attend<float, float>);
    else
        attend_all(call, attend<bf16, bf16>);
}

}  // namespace
}  // namespace twostroke
