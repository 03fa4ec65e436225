// The query rows of a task, the walk over their keys and values in the paged cache, and the
// prefetching of what the walk reads next.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace twostroke {
namespace {

constexpr int kKeys = 64;  // Keys whose scores are computed before their values are added.

// A query row is a token's head, of the heads that share a KV head (a group). Row r of a task is
// row `first_row` + r of one request and one KV head: token after token, head after head.
struct RowRange {
    const AttentionCall& call;
    const int64_t first_row, group, dim, value_dim, head, start, length, context;
    const int32_t* const table;

    RowRange(const AttentionCall& attention_call, int64_t request, int64_t kv_head, int64_t first)
        : call(attention_call),
          first_row(first),
          group(call.heads / call.kv_heads),
          dim(call.head_dim),
          value_dim(call.value_dim),
          head(kv_head * group),
          start(call.query_start[request]),
          length(call.query_start[request + 1] - start),
          context(call.context_lens[request]),
          table(call.block_table + request * call.table_stride) {}

    int64_t token(int r) const { return (first_row + r) / group; }
    int64_t head_of(int r) const { return head + (first_row + r) % group; }
    // Where row r begins, in elements of `query` and of `out`.
    int64_t query_offset(int r) const {
        return (start + token(r)) * call.query_stride + head_of(r) * dim;
    }
    int64_t out_offset(int r) const {
        return ((start + token(r)) * call.heads + head_of(r)) * value_dim;
    }

    // Row r sees the keys [oldest(r), end(r)).
    int64_t end(int r) const { return context - length + token(r) + 1; }
    int64_t oldest(int r) const {
        if (call.window == 0 || end(r) <= call.window) return 0;
        return call.chunked ? (end(r) - 1) / call.window * call.window : end(r) - call.window;
    }
};

// Where some tokens lie.
struct TokenOffsets {
    int64_t keys[kKeys], values[kKeys];

    // Those from `count` on are as the last one before.
    void fill_up(int count) {
        for (int k = count; k < kKeys; ++k)
            keys[k] = keys[count - 1], values[k] = values[count - 1];
    }
};

// The same, with a cache of plain numbers. T: the queries' type; Stored: of the cache's elements,
// T or fp8.
template <typename T, typename Stored>
struct QueryRows : RowRange {
    const int64_t token_size, value_token_size;
    const Stored *const keys, *const values;

    QueryRows(const AttentionCall& attention_call, int64_t request, int64_t kv_head, int64_t first)
        : RowRange(attention_call, request, kv_head, first),
          token_size(call.kv_heads * dim),
          value_token_size(call.kv_heads * call.value_width),
          keys(static_cast<const Stored*>(call.keys) + kv_head * dim),
          values(static_cast<const Stored*>(call.values) + kv_head * call.value_width) {}

    const T* query(int r) const { return static_cast<const T*>(call.query) + query_offset(r); }
    T* out(int r) const { return static_cast<T*>(call.out) + out_offset(r); }

    // Where `count` tokens from `position` on lie, in elements from `keys` and from `values`.
    void locate(int64_t position, int count, TokenOffsets& offsets) const {
        int64_t block = position / call.block_size, inside = position % call.block_size;
        for (int k = 0; k < count; ++k) {
            offsets.keys[k] = table[block] * call.key_stride + inside * token_size;
            offsets.values[k] = table[block] * call.value_stride + inside * value_token_size;
            if (++inside == call.block_size) inside = 0, ++block;
        }
    }
    // How far apart two heads of a token are, and two of its values.
    int64_t key_step() const { return dim; }
    int64_t value_step() const { return call.value_width; }
};

// A walk over the keys from `oldest` to `end`, kKeys at a time from a multiple of kKeys on: sums
// are cut at the same keys for all rows. It also knows where the keys after those lie, since the
// processor cannot guess the next block.
template <typename Rows>
struct KeyWalk {
    const Rows& rows;
    int64_t position;
    const int64_t end;
    const int64_t sizes[2];  // elements of a token's keys, and of its values, that are read
    int count, next_count, turn = 0;
    TokenOffsets offsets[2];  // of these keys, offsets[turn], and of the next ones

    // Reads `heads` KV heads.
    KeyWalk(const Rows& query_rows, int64_t oldest, int64_t end_key, int64_t heads)
        : rows(query_rows),
          position(oldest / kKeys * kKeys),
          end(end_key),
          sizes{heads * rows.key_step(), heads * rows.value_step()},
          count(min_of(end - position, kKeys)) {
        rows.locate(position, count, offsets[0]);
        locate_next();
    }

    static int min_of(int64_t left, int64_t right) {
        return static_cast<int>(left < right ? left : right);
    }

    const TokenOffsets& token_offsets() const { return offsets[turn]; }

    void locate_next() {
        next_count = min_of(end - position - count, kKeys);
        rows.locate(position + count, next_count, offsets[turn ^ 1]);
        offsets[turn].fill_up(count);
    }

    void advance() {
        position += count, count = next_count, turn ^= 1;
        if (count > 0) locate_next();
    }
};

// Prefetches a walk's tokens in the order in which they are read: some keys, their values, the next
// keys. One line is prefetched whenever one is read, since the processor keeps few requests at once
// and waits when there are more. The distance is constant: far enough for memory to answer, and
// near enough that the line is still in the first cache when it is used.
template <typename Rows>
class TokenPrefetcher {
  public:
    static constexpr int64_t kLine = 64, kLinesAhead = 16384 / kLine;

    explicit TokenPrefetcher(const KeyWalk<Rows>& key_walk) : walk(key_walk) {
        next_token();
        for (int64_t i = 0; i < kLinesAhead; ++i) prefetch_line();
    }

    void prefetch_line() {
        __builtin_prefetch(line);
        if ((line += kLine) >= end) next_token();
    }

  private:
    // Goes as far behind the beginning of the next token as the line is behind the end of this one:
    // tokens need not be whole lines. If the next token is not known yet, goes back one line.
    void next_token() {
        if (token >= (turn == walk.turn ? walk.count : walk.next_count)) {
            if (in_values && (turn != walk.turn || walk.next_count == 0)) {
                line -= kLine;
                return;
            }
            turn ^= in_values, in_values = !in_values, token = 0;
        }
        const int64_t behind = line - end;
        const auto* base = in_values ? walk.rows.values : walk.rows.keys;
        const TokenOffsets& offsets = walk.offsets[turn];
        line = reinterpret_cast<const char*>(
            base + (in_values ? offsets.values : offsets.keys)[token++]);
        end = line + walk.sizes[in_values] * static_cast<int64_t>(sizeof(*base));
        line += behind;
    }

    const KeyWalk<Rows>& walk;
    const char *line = nullptr, *end = nullptr;
    int token = 0, turn = 0;
    bool in_values = false;
};

}  // namespace
}  // namespace twostroke
