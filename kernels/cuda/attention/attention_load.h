// Loads K and V from the cache into shared memory, as rows of 16-bit numbers. For kernels.
//
// 16-bit types are copied there directly by cp.async. For packed types the bytes go to a raw tile and the scales, least
// values and fifth bits to registers; when the tile has arrived and is needed, it is unpacked, so the products are the same
// code for every cache type. sm_75 has no cp.async and no space for raw tiles: all types are unpacked directly from the
// cache.
#pragma once

#include "kernels/cuda/attention/attention_tile.h"

namespace runnel::kernels::cuda {

// Copies cells [64 step, 64 step + 64) into rows of shared memory by cp.async. Called by all threads.
template <int kDim, int kThreads = kAttentionThreads>
DEVICE void load_cells(const AttentionParams &p, const CacheHead &head, const CachePages &pages,
                       const ValueRange &values, int step, const CellRange &cells, unsigned char *to) {
    constexpr int kChunks = kDim / 8;  // per row
    constexpr int kRowsAtOnce = kThreads / kChunks;
    const int chunk = thread_index() % kChunks;
    if (8 * chunk >= values.padded) return;
#pragma unroll 4
    for (int row = thread_index() / kChunks; row < kAttentionStep; row += kRowsAtOnce) {
        const int cell = step * kAttentionStep + row;
        if (cells.is_made(cell)) continue;
        const bool valid = cells.cached(cell) && 8 * chunk < values.count;
        const unsigned char *from = pages.bytes;
        if (valid)
            from = page_of(pages, p.kv_heads, head.table, head.kv_head, cell) +
                   cell % kPageCells * pages.row_bytes + 2 * values.first + 16 * chunk;
        cp_async16(to + RowsLayout<kDim>::offset(row, chunk), from, valid);
    }
}

// What one thread loads of the tile's 32-value blocks thread, thread + 128, ...: BlockParts::scales, and the fifth bits
// if there are registers for them; else unpack() reads those from the cache.
template <int kDim>
struct Scales {
    static constexpr int kCount = kAttentionStep * (kDim / 32) / kAttentionThreads;
    static constexpr bool kFifthBits = kDim <= 128;
    uint32_t of[kCount], fifth_bits[kFifthBits ? kCount : 1];
};

// Bytes per row of a raw tile.
template <int kDim>
constexpr int raw_row_bytes(CacheType type) {
    return 2 * kDim >> halvings(type);
}

// Copies cells [64 step, 64 step + 64) into a raw tile by cp.async and loads the scales. Called by all threads.
template <int kDim>
DEVICE void load_raw(const AttentionParams &p, const CacheHead &head, const CachePages &pages,
                     const ValueRange &values, int step, const CellRange &cells, unsigned char *to,
                     Scales<kDim> &scales) {
    const int halved = halvings(pages.type), row_bytes = raw_row_bytes<kDim>(pages.type);
    const int chunks = row_bytes / 16, chunk = thread_index() & (chunks - 1);
    const int first_byte = 2 * values.first >> halved;
    const int wanted = pages.row_bytes - first_byte < row_bytes ? pages.row_bytes - first_byte : row_bytes;
#pragma unroll 1
    for (int row = thread_index() / chunks; row < kAttentionStep; row += kAttentionThreads / chunks) {
        const int cell = step * kAttentionStep + row;
        if (!cells.cached(cell) || 16 * chunk >= wanted) continue;
        const unsigned char *page = page_of(pages, p.kv_heads, head.table, head.kv_head, cell);
        cp_async16(to + row * row_bytes + 16 * chunk,
                   page + cell % kPageCells * pages.row_bytes + first_byte + 16 * chunk);
    }
    if (!has_scales(pages.type)) return;
#pragma unroll
    for (int i = 0; i < Scales<kDim>::kCount; ++i) {
        const int unit = thread_index() + i * kAttentionThreads, block = unit % (kDim / 32);
        const int cell = step * kAttentionStep + unit / (kDim / 32);
        scales.of[i] = 0;
        if (!cells.cached(cell) || 32 * block >= values.count) continue;
        unsigned char *page = page_of(pages, p.kv_heads, head.table, head.kv_head, cell);
        const BlockParts parts =
            block_parts(pages.type, cell_bytes(pages, page, cell), values.first / 32 + block);
        scales.of[i] = parts.scales;
        if constexpr (Scales<kDim>::kFifthBits) scales.fifth_bits[i] = parts.fifth_bits;
    }
}

// Does the work of load_cells(), or of load_raw() and unpack(), with plain loads instead of cp.async.
template <int kDim, bool kPacked, int kThreads = kAttentionThreads>
DEVICE void unpack_cells(const AttentionParams &p, const CacheHead &head, const CachePages &pages,
                         const ValueRange &values, int step, const CellRange &cells, unsigned char *to) {
    constexpr int kChunks = kDim / 8;  // per row
    constexpr int kRowsAtOnce = kThreads / kChunks, kLoads = 512 / kThreads;
    const int chunk = thread_index() % kChunks, first = values.first + 8 * chunk;
    if (8 * chunk >= values.padded) return;
    const auto load = [&](int cell) -> uint4 {
        if (!cells.cached(cell) || 8 * chunk >= values.count) return {0, 0, 0, 0};
        unsigned char *page = page_of(pages, p.kv_heads, head.table, head.kv_head, cell);
        const CellBytes from = cell_bytes(pages, page, cell);
        if (!kPacked) return ld128(from.values + 2 * first);
        return load_chunk(pages.type, from.values, first / 8, block_parts(pages.type, from, first / 32));
    };
#pragma unroll 1
    for (int row = thread_index() / kChunks; row < kAttentionStep; row += kLoads * kRowsAtOnce) {
        uint4 eight[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) eight[i] = load(step * kAttentionStep + row + i * kRowsAtOnce);
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
            if (!cells.is_made(step * kAttentionStep + row + i * kRowsAtOnce))
                st128(to + RowsLayout<kDim>::offset(row + i * kRowsAtOnce, chunk), eight[i]);
    }
}

// Unpacks a raw tile that has arrived for all threads: rows of cells from the cache are unpacked, rows that
// make() writes (attention_decode.cu) are left alone, other rows become zeros. All threads of the block.
template <int kDim>
DEVICE void unpack(const AttentionParams &p, const CacheHead &head, const CachePages &pages,
                   const ValueRange &values, int step, const CellRange &cells, const unsigned char *raw,
                   const Scales<kDim> &scales, unsigned char *to) {
    const int row_bytes = raw_row_bytes<kDim>(pages.type);
#pragma unroll
    for (int i = 0; i < Scales<kDim>::kCount; ++i) {
        const int unit = thread_index() + i * kAttentionThreads, block = unit % (kDim / 32);
        const int row = unit / (kDim / 32), cell = step * kAttentionStep + row;
        if (cells.is_made(cell)) continue;
        const bool valid = cells.cached(cell) && 32 * block < values.count;
        BlockParts parts = {scales.of[i], 0};
        if constexpr (Scales<kDim>::kFifthBits)
            parts.fifth_bits = scales.fifth_bits[i];
        else if (has_fifth_bit(pages.type) && valid)
            parts.fifth_bits =
                cell_bytes(pages, page_of(pages, p.kv_heads, head.table, head.kv_head, cell), cell)
                    .fifth_bits[values.first / 32 + block];
#pragma unroll 1
        for (int chunk = 4 * block; chunk < 4 * block + 4; ++chunk) {
            if (8 * chunk >= values.padded) break;
            uint4 eight = {0, 0, 0, 0};
            if (valid && 8 * chunk < values.count)
                eight = load_chunk(pages.type, raw + row * row_bytes, chunk, parts);
            st128(to + RowsLayout<kDim>::offset(row, chunk), eight);
        }
    }
}

}  // namespace runnel::kernels::cuda
