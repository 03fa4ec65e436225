// A cache of integers with scales: where rows and scales lie, and the query rows of a task over it.
// layers/scaled_rows.py has the plain form, layers/kv_layout.py the layout of a block.
#pragma once

#include <cstdint>

#include "attention/softmax.hpp"
#include "attention/walk.hpp"
#include "kernels.hpp"
#include "vectors/arithmetic.hpp"
#include "vectors/lanes.hpp"

namespace twostroke {
namespace {

constexpr int kScaleGroup = 32;                        // elements that share a scale in 4 bits
constexpr int kMaxGroups = kMaxHeadDim / kScaleGroup;  // scales of a row, at most

// A block: [block_size][kv_heads][row] bytes of integers, then [kv_heads][groups][block_size]
// scales. Of keys, or of values.
template <int BITS>
struct ScaledSizes {
    const int64_t kv_heads, block_size;
    const int64_t groups;       // scales of a row
    const int64_t row;          // bytes of a row: one KV head of a token
    const int64_t token, data;  // bytes of a token, and of all of a block's tokens
    const int64_t block;        // bytes from a block to the next one

    // `width`: elements of a row; `stride`: bytes from a block to the next one.
    ScaledSizes(const AttentionCall& call, int64_t width, int64_t stride)
        : kv_heads(call.kv_heads),
          block_size(call.block_size),
          groups(BITS == 8 ? 1 : width / kScaleGroup),
          row(width * BITS / 8),
          token(kv_heads * row),
          data(block_size * token),
          block(stride) {}

    // The first of a KV head's scales of a group, that of the block's first token.
    template <typename Byte>
    auto scales(Byte* cache, int64_t block_index, int64_t kv_head, int64_t group_index) const {
        Byte* from = cache + block_index * block + data;
        const int64_t before = (kv_head * groups + group_index) * block_size;
        return from + before * static_cast<int64_t>(sizeof(bf16));
    }
};

// See RowRange. `keys` and `values` point to the rows of the first token of the first block.
template <int BITS>
struct ScaledRows : RowRange {
    const ScaledSizes<BITS> sizes, value_sizes;
    const int64_t kv_head;
    const char *const keys, *const values;

    ScaledRows(const AttentionCall& attention_call, int64_t request, int64_t first_kv_head,
               int64_t first)
        : RowRange(attention_call, request, first_kv_head, first),
          sizes(attention_call, dim, call.key_stride),
          value_sizes(attention_call, call.value_width, call.value_stride),
          kv_head(first_kv_head),
          keys(static_cast<const char*>(call.keys) + kv_head * sizes.row),
          values(static_cast<const char*>(call.values) + kv_head * value_sizes.row) {}

    // Where `count` tokens from `position` on lie, in bytes from `keys` and from `values`.
    void locate(int64_t position, int count, TokenOffsets& offsets) const {
        int64_t block = position / sizes.block_size, inside = position % sizes.block_size;
        for (int k = 0; k < count; ++k) {
            offsets.keys[k] = table[block] * sizes.block + inside * sizes.token;
            offsets.values[k] = table[block] * value_sizes.block + inside * value_sizes.token;
            if (++inside == sizes.block_size) inside = 0, ++block;
        }
    }
    int64_t key_step() const { return sizes.row; }
    int64_t value_step() const { return value_sizes.row; }

    void write(int r, int64_t offset, const float* sums, float total) const {
        const int64_t at = out_offset(r) + offset;
        if (call.is_float)
            write_row(static_cast<float*>(call.out) + at, sums, value_dim, total);
        else
            write_row(static_cast<bf16*>(call.out) + at, sums, value_dim, total);
    }
};

// Scales of some keys or values as floats: those of group g of the h-th KV head of a task are
// row(h * groups + g), zeros outside the tokens that a row sees. What lies there may be numbers of
// another layer, which are infinite as scales.
struct TokenScales {
    alignas(64) float rows[8 * kMaxGroups][kKeys];

    // Of `count` tokens from `position` on, in keys or values of these sizes, of which the first
    // row sees those from `oldest` on; `heads` KV heads, at most 8. Fetches the next ones.
    template <int BITS>
    void load_all(const ScaledRows<BITS>& from, const ScaledSizes<BITS>& sizes, const void* tensor,
                  int64_t position, int64_t oldest, int count, int next_count, int heads) {
        const char* cache = static_cast<const char*>(tensor);
        const int64_t num_rows = heads * sizes.groups, size = sizes.block_size;
        int64_t block = position / size, inside = position % size;
        for (int k = 0; k < count; ++block, inside = 0) {
            const int left = count - k;
            const int run = size - inside < left ? static_cast<int>(size - inside) : left;
            const char* scales = sizes.scales(cache, from.table[block], from.kv_head, 0);
            for (int64_t i = 0; i < num_rows; ++i) {
                const bf16* source = reinterpret_cast<const bf16*>(scales) + i * size + inside;
                int j = 0;
                for (; j + kLanes <= run; j += kLanes) store16(rows[i] + k + j, load16(source + j));
                for (; j < run; ++j) rows[i][k + j] = to_float(source[j]);
            }
            k += run;
        }
        for (int64_t i = 0; i < num_rows; ++i) {
            for (int k = 0; k < oldest - position; ++k) rows[i][k] = 0.0f;
            for (int k = count; k < kKeys; ++k) rows[i][k] = 0.0f;
        }
        const int64_t end = position + count + next_count, bytes = num_rows * size * 2;
        for (int64_t next = position + count; next < end; next += size) {
            const char* scales = sizes.scales(cache, from.table[next / size], from.kv_head, 0);
            for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(scales + byte);
        }
    }
};

}  // namespace
}  // namespace twostroke
