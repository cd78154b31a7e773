// Splits a product (rows, tokens, format) into tiles of kRows rows and blocks of kTokens tokens.
//
// An instruction set provides two engines, Engine32<Format> and Engine256<Format>, which turn blocks of
// kRows rows into partial sums:
//   Record                                               the packed activations that it reads
//   Tile                                                 256 columns of kRows rows, unpacked
//   kGroupBytes, kGroupCols                              bytes and columns of one block of the format
//   unpack(rows, groups, tile, next)                     unpacks 256 columns (the last ones: `groups` blocks)
//   add(tile, groups, block, a, count, sums)             multiplies them with the records of `count` tokens
//   add_fused<count>(rows, groups, block, a, sums, next) both at once, without a tile, for a few tokens
// unpack() and add_fused() also prefetch a share of the next tile's bytes, which begins at `next`: block by block in the order
// of addresses, a stream that the hardware prefetcher recognizes although sixteen rows are read side by side.
//
// Up to kFewTokens tokens, unpacked registers go directly into the product. With more, groups of row tiles are unpacked
// into `scratch` (a part of L2) and multiplied by blocks of kTokens tokens, whose partial sums stay in L1.
#pragma once

#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_pack_simd.h"
#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_plain_simd.h"
#include "kernels/cpu/linear_tile.h"

namespace runnel::kernels::cpu {
namespace {

constexpr int kTokens = 16;      // tokens whose partial sums stay in L1
constexpr int kFusedTokens = 8;  // tokens whose totals stay in registers while weights are unpacked
constexpr int kFewTokens = 12;   // up to this many tokens, unpacking per kFusedTokens is faster than a tile

template <typename Format>
constexpr bool kHasMinimum = Format::kOffset == 0;

// Groups of 32 weights in a block of Engine32's formats, and whether each half group of 16 has its own scale.
template <typename Format>
constexpr int kGroups = 1;
template <typename Format>
requires requires {
    Format::kGroups;
}
constexpr int kGroups<Format> = Format::kGroups;
template <typename Format>
constexpr bool kHalves = requires {
    Format::kHalves;
};

// A group of 32 columns of kRows rows.
struct Group32 {
    Ints w[8];
    Floats d;
    Floats m;  // minimums, or with kHalves the scales of the second 16 columns
};

// Unpacks group j of those that begin at `rows`.
template <typename Format>
[[gnu::always_inline]] inline void unpack_group32(Rows rows, int j, Group32 &g) {
    if constexpr (kHalves<Format>) {
        const Rows block = rows + j / kGroups<Format> * Format::kBlockBytes;
        Format::weights(block, j % kGroups<Format>, g.w);
        Format::scales(block, j % kGroups<Format>, g.d, g.m);
    } else {
        Format::weights(rows + j * Format::kBlockBytes, g.w);
        g.d = Format::scale(rows + j * Format::kBlockBytes);
        if constexpr (kHasMinimum<Format>) g.m = Format::minimum(rows + j * Format::kBlockBytes);
    }
}

// The contract's partial sums: [number][token], lanes are rows.
struct alignas(64) Partials {
    Floats p[8][kTokens];
};

// Sets vectors to zero. (GCC makes a `rep stos` of a plain loop, which takes several times as long.)
template <typename Vector>
[[gnu::always_inline]] inline void clear(Vector *vectors, int count) {
    Vector zero{};
    asm("" : "+v"(zero));
    for (int i = 0; i < count; ++i) vectors[i] = zero;
}

// Sets the partial sums to zero that a row's first blocks do not write: those from Engine::sums_begun() on. An engine without this
// function adds to all of them.
template <typename Engine>
[[gnu::always_inline]] inline void clear(Partials &sums, int count, int64_t cols) {
    int64_t begun = 0;
    if constexpr (requires { Engine::sums_begun(cols); }) begun = Engine::sums_begun(cols);
    for (; begun < 8; ++begun) clear(sums.p[begun], count);
}

// Folds and stores the first `rows` lanes.
[[gnu::always_inline]] inline void store_folded(const Partials &sums, int count, int rows, float *out,
                                                int64_t out_stride) {
    for (int t = 0; t < count; ++t) {
        const auto p = [&](int i) { return sums.p[i][t]; };
        const Floats y = ((p(0) + p(4)) + (p(2) + p(6))) + ((p(1) + p(5)) + (p(3) + p(7)));
        float *to = out + t * out_stride;
        if (rows == kRows) {
            store_floats(to, y);
        } else {
            float lanes[kRows];
            store_floats(lanes, y);
            for (int r = 0; r < rows; ++r) to[r] = lanes[r];
        }
    }
}

// The operands of a tile of rows, and its output.
struct Task {
    int64_t cols;
    const void *packed;
    int32_t tokens;
    float *out;  // of the tile's first row
    int64_t out_stride;
    int rows;  // rows of the tile that are stored
    void *scratch;
    const std::byte *next;  // where the bytes of the next tile begin, or null
};

// Number of the format's groups in the 256 columns of `block`: fewer in the last block.
template <typename Engine>
[[gnu::always_inline]] inline int groups_in(int64_t cols, int64_t block) {
    constexpr int64_t full = kRecordCols / Engine::kGroupCols;
    const int64_t left = (cols - block * kRecordCols) / Engine::kGroupCols;
    return static_cast<int>(left < full ? left : full);
}

// Bytes of 256 columns of one row.
template <typename Engine>
constexpr int64_t kBlockBytes = int64_t{kRecordCols} / Engine::kGroupCols *Engine::kGroupBytes;

// Prefetches what is read next, in equal shares per group j of 32 columns: a burst of requests would delay
// the loads after it. From memory, prefetches the share of the next tile that belongs to this block, at
// `next`; from L2 into L1, the next 256 columns of the current rows.
template <typename Engine>
[[gnu::always_inline]] inline void prefetch_share(Rows rows, int64_t j, const std::byte *next) {
    constexpr int row_bytes = static_cast<int>(kBlockBytes<Engine>), share_bytes = kRows * row_bytes / 8;
#pragma GCC unroll 16
    for (int i = 0; i < share_bytes; i += 64)
        _mm_prefetch(reinterpret_cast<const char *>(next + j * share_bytes + i), _MM_HINT_T1);
#pragma GCC unroll 2
    for (int r = 0; r < kRows / 8; ++r)
#pragma GCC unroll 5
        for (int i = 0; i < row_bytes; i += 64)
            _mm_prefetch(reinterpret_cast<const char *>(rows[kRows / 8 * j + r] + row_bytes + i),
                         _MM_HINT_T0);
}

// Calls f(j, group) for the groups of 32 columns of `blocks` blocks, and prefetches their shares (prefetch_share()).
template <typename Engine, typename Format, typename Function>
[[gnu::always_inline]] inline void for_groups32(Rows rows, int blocks, const std::byte *next, Function f) {
    Group32 g;
    if constexpr (kGroups < Format >> 1 && !kHalves<Format>) {
        for (int b = 0; b < blocks; ++b) {
            const Rows block = rows + b * Format::kBlockBytes;
            Ints v[Format::kWords];
            g.d = Format::load(block, v);
#pragma GCC unroll 4
            for (int i = 0; i < kGroups<Format>; ++i) {
                prefetch_share<Engine>(rows, b * kGroups<Format> + i, next);
                Format::weights(v, i, g.w);
                f(b * kGroups<Format> + i, g);
            }
        }
    } else {
        for (int j = 0; j < blocks * kGroups<Format>; ++j) {
            prefetch_share<Engine>(rows, j, next);
            unpack_group32<Format>(rows, j, g);
            f(j, g);
        }
    }
}

// The address of block b's share of the next tile; without a next tile, an address that is already
// cached.
template <typename Engine>
[[gnu::always_inline]] inline const std::byte *share(const Task &task, Rows rows, int64_t b) {
    return task.next == nullptr ? rows.base : task.next + b * kRows * kBlockBytes<Engine>;
}

// Up to this many tokens, an engine multiplies one row after the other (Engine::multiply_rows<tokens>()); 0: never.
template <typename Engine>
constexpr int kRowTokens = 0;
template <typename Engine>
requires requires {
    Engine::kRowTokens;
}
constexpr int kRowTokens<Engine> = Engine::kRowTokens;
// Rows with fewer columns are side by side all the same.
template <typename Engine>
constexpr int64_t kRowCols = 0;
template <typename Engine>
requires requires {
    Engine::kRowCols;
}
constexpr int64_t kRowCols<Engine> = Engine::kRowCols;

// Calls f<count>(), for a count known only at run time. Precondition: 1 <= count <= most.
template <int most, typename Function>
[[gnu::always_inline]] inline void with_count(int count, Function f) {
    if constexpr (most > 1)
        if (count < most) return with_count<most - 1>(count, f);
    f.template operator()<most>();
}

// Rows that follow each other. next: the bytes that are read after them, or null.
struct RowRange {
    const std::byte *begin;
    int64_t stride, count;
    const std::byte *next;
    [[gnu::always_inline]] const std::byte *operator[](int64_t row) const { return begin + row * stride; }
};

// Multiplies tokens [t0, t0 + count). Not inlined: GCC allocates registers far better
// for one token count at a time.
template <typename Engine, int count>
[[gnu::noinline]] void multiply_tile_fused(Rows rows, const Task &task, int32_t t0) {
    const typename Engine::Record *records = static_cast<const typename Engine::Record *>(task.packed) + t0;
    const int64_t blocks = record_count(task.cols);
    Partials sums;
    clear<Engine>(sums, count, task.cols);
    for (int64_t b = 0; b < blocks; ++b)
        Engine::template add_fused<count>(rows + b * kBlockBytes<Engine>, groups_in<Engine>(task.cols, b), b,
                                          records + b * task.tokens, sums, share<Engine>(task, rows, b));
    store_folded(sums, count, task.rows, task.out + t0 * task.out_stride, task.out_stride);
}

// With the sanitizers an instance for every token count would take minutes to compile, so there are only two.
#ifdef __SANITIZE_ADDRESS__
template <typename Engine>
void multiply_tile_fused(Rows rows, const Task &task, int32_t t0, int count) {
    for (; count >= 4; count -= 4, t0 += 4) multiply_tile_fused<Engine, 4>(rows, task, t0);
    for (; count > 0; --count, ++t0) multiply_tile_fused<Engine, 1>(rows, task, t0);
}
#else
template <typename Engine>
void multiply_tile_fused(Rows rows, const Task &task, int32_t t0, int count) {
    with_count<kFusedTokens>(
        count, [&]<int tokens>() __attribute__((always_inline)) {
            // (Several passes have four tokens or more each, so fewer only come here where rows are side by side.)
            if constexpr (tokens >= 4 || tokens > kRowTokens<Engine> || kRowCols < Engine >> 0)
                multiply_tile_fused<Engine, tokens>(rows, task, t0);
        });
}
#endif

template <typename Engine>
void multiply_tile_fused(Rows rows, Task task) {
    const int passes = (task.tokens + kFusedTokens - 1) / kFusedTokens;
    for (int i = 0; i < passes; ++i) {
        const int32_t t0 = task.tokens * i / passes, t1 = task.tokens * (i + 1) / passes;
        multiply_tile_fused<Engine>(rows, task, t0, t1 - t0);
        task.next = nullptr;  // prefetched by the first pass
    }
}

// Rows [row0, row1) of a matrix in tiles of kRows. The last tile may overlap the one before. Fewer rows than kRows are one
// tile, padded with copies of the last row.
struct RowTiles {
    const std::byte *row_zero;
    int64_t stride, row0, row1;
    int64_t count() const { return (row1 - row0 + kRows - 1) / kRows; }
    bool padded() const { return row1 - row0 < kRows; }
    int rows() const { return padded() ? static_cast<int>(row1 - row0) : kRows; }  // that a tile stores
    int64_t first_row(int64_t tile) const {
        const int64_t row = row0 + tile * kRows;
        return padded() || row + kRows <= row1 ? row : row1 - kRows;
    }
    const std::byte *address(int64_t tile) const { return row_zero + first_row(tile) * stride; }
    // The bytes to prefetch while `tile` is multiplied. next: the bytes that are read after the last tile, or null.
    const std::byte *after(int64_t tile, const std::byte *next) const {
        if (tile + 1 < count()) return address(tile + 1);
        return padded() ? nullptr : next;
    }
};

// Room for copies of kRows rows of the widest format (Q8_0), per 256 columns.
constexpr int64_t kCopyBytes = int64_t{kRows} * 8 * FormatQ8_0::kBlockBytes;

template <typename Engine>
RowTiles row_tiles(const std::byte *weights, int64_t row0, int64_t row1, int64_t cols, std::byte *copies) {
    const int64_t stride = cols / Engine::kGroupCols * Engine::kGroupBytes;
    if (row1 - row0 >= kRows) return {weights, stride, row0, row1};
    for (int64_t r = 0; r < kRows; ++r) {
        const int64_t from = row0 + r < row1 ? row0 + r : row1 - 1;
        __builtin_memcpy(copies + r * stride, weights + from * stride, static_cast<size_t>(stride));
    }
    return {copies - row0 * stride, stride, row0, row1};
}

// Upper bound on the unpacked bytes of a group of row tiles (one tile may exceed it): a part of the L2 cache, whose rest
// holds activations. Each group reads the activations once, possibly from beyond the L2 cache.
constexpr int64_t kUnpackedBytes = kRows == 16 ? 512 << 10 : 256 << 10;
constexpr int kMaxTiles = 16;  // in a group

// Calls f(unpacked, tile, tiles) for groups of `tiles` row tiles from `tile` on, unpacked as [tile][block of 256 columns].
template <typename Engine, typename Function>
void for_unpacked_groups(const RowTiles &rows, Task task, int64_t bytes, std::byte *memory,
                         const std::byte *next, Function f) {
    using Tile = typename Engine::Tile;
    Tile *unpacked = reinterpret_cast<Tile *>(memory);
    const int64_t blocks = record_count(task.cols),
                  fit = bytes / (blocks * static_cast<int64_t>(sizeof(Tile)));
    const int64_t most = fit < 1 ? 1 : fit > kMaxTiles ? kMaxTiles : fit;
    for (int64_t first = 0; first < rows.count(); first += most) {
        const int tiles = static_cast<int>(rows.count() - first < most ? rows.count() - first : most);
        for (int r = 0; r < tiles; ++r) {
            const Rows from{rows.address(first + r), rows.stride};
            task.next = rows.after(first + r, next);
            for (int64_t b = 0; b < blocks; ++b)
                Engine::unpack(from + b * kBlockBytes<Engine>, groups_in<Engine>(task.cols, b),
                               unpacked[r * blocks + b], share<Engine>(task, from, b));
        }
        f(unpacked, first, tiles);
    }
}

template <typename Engine>
void multiply_unpacked(const RowTiles &rows, const Task &task, std::byte *memory, const std::byte *next) {
    const int64_t blocks = record_count(task.cols);
    for_unpacked_groups<Engine>(
        rows, task, kUnpackedBytes, memory, next,
        [&](const typename Engine::Tile *unpacked, int64_t first, int tiles) {
            Partials sums;
            for (int32_t t0 = 0; t0 < task.tokens; t0 += kTokens) {
                const int count = task.tokens - t0 < kTokens ? task.tokens - t0 : kTokens;
                const auto *records = static_cast<const typename Engine::Record *>(task.packed) + t0;
                for (int r = 0; r < tiles; ++r) {
                    clear<Engine>(sums, count, task.cols);
                    for (int64_t b = 0; b < blocks; ++b)
                        Engine::add(unpacked[r * blocks + b], groups_in<Engine>(task.cols, b), b,
                                    records + b * task.tokens, count, sums);
                    float *out = task.out + t0 * task.out_stride + rows.first_row(first + r);
                    store_folded(sums, count, task.rows, out, task.out_stride);
                }
            }
        });
}

// One row after the other. task.out: of the first row.
template <typename Engine>
void multiply_row_range(const RowRange &rows, const Task &task) {
    with_count<kRowTokens<Engine>>(
        task.tokens, [&]<int tokens>() __attribute__((always_inline)) {
            Engine::template multiply_rows<tokens>(rows, task);
        });
}

// Scratch: copies of rows, then unpacked tiles; or what Engine::multiply_rows() makes of the activations.
template <typename Engine>
void multiply_rows(const std::byte *weights, int64_t row0, int64_t row1, Task task, const std::byte *next) {
    if constexpr (kRowTokens < Engine >> 0)
        if (task.tokens <= kRowTokens<Engine> && task.cols >= kRowCols<Engine>) {
            const int64_t stride = task.cols / Engine::kGroupCols * Engine::kGroupBytes;
            task.out += row0;
            return multiply_row_range<Engine>({weights + row0 * stride, stride, row1 - row0, next}, task);
        }
    std::byte *copies = static_cast<std::byte *>(task.scratch);
    const RowTiles rows = row_tiles<Engine>(weights, row0, row1, task.cols, copies);
    task.rows = rows.rows();
    if (task.tokens > kFewTokens)
        return multiply_unpacked<Engine>(rows, task, copies + record_count(task.cols) * kCopyBytes, next);
    float *out = task.out;
    for (int64_t tile = 0; tile < rows.count(); ++tile) {
        task.out = out + rows.first_row(tile);
        task.next = rows.after(tile, next);
        multiply_tile_fused<Engine>({rows.address(tile), rows.stride}, task);
    }
}

// Calls f with a value of the type's engine; of plain formats and others, does nothing.
template <template <typename> class Engine32, template <typename> class Engine256, typename Function>
void with_engine(gguf::Type type, Function f) {
    using gguf::Type;
    switch (type) {
        case Type::Q4_0:
            return f(Engine32<FormatQ4_0>{});
        case Type::Q4_1:
            return f(Engine32<FormatQ4_1>{});
        case Type::Q5_0:
            return f(Engine32<FormatQ5_0>{});
        case Type::Q5_1:
            return f(Engine32<FormatQ5_1>{});
        case Type::Q8_0:
            return f(Engine32<FormatQ8_0>{});
        case Type::IQ4_NL:
            return f(Engine32<FormatIQ4_NL>{});
        case Type::MXFP4:
            return f(Engine32<FormatMXFP4>{});
        case Type::NVFP4:
            return f(Engine32<FormatNVFP4>{});
        case Type::Q1_0:
            return f(Engine32<FormatQ1_0>{});
        case Type::Q2_0:
            return f(Engine32<FormatQ2_0>{});
        case Type::PQ2_0:
            return f(Engine32<FormatPQ2_0>{});
        case Type::PTQ1_0:
            return f(Engine32<FormatPTQ1_0>{});
        case Type::Q2_K:
            return f(Engine256<FormatQ2_K>{});
        case Type::Q3_K:
            return f(Engine256<FormatQ3_K>{});
        case Type::Q4_K:
            return f(Engine256<FormatQ4_K>{});
        case Type::Q5_K:
            return f(Engine256<FormatQ5_K>{});
        case Type::Q6_K:
            return f(Engine256<FormatQ6_K>{});
        case Type::IQ4_XS:
            return f(Engine256<FormatIQ4_XS>{});
        case Type::TQ1_0:
            return f(Engine256<FormatTQ1_0>{});
        case Type::TQ2_0:
            return f(Engine256<FormatTQ2_0>{});
        case Type::IQ2_XXS:
            return f(Engine256<FormatGrid<gguf::BlockIQ2_XXS>>{});
        case Type::IQ2_XS:
            return f(Engine256<FormatGrid<gguf::BlockIQ2_XS>>{});
        case Type::IQ2_S:
            return f(Engine256<FormatGrid<gguf::BlockIQ2_S>>{});
        case Type::IQ3_XXS:
            return f(Engine256<FormatGrid<gguf::BlockIQ3_XXS>>{});
        case Type::IQ3_S:
            return f(Engine256<FormatGrid<gguf::BlockIQ3_S>>{});
        case Type::IQ1_S:
            return f(Engine256<FormatGrid<gguf::BlockIQ1_S>>{});
        case Type::IQ1_M:
            return f(Engine256<FormatGrid<gguf::BlockIQ1_M>>{});
        default:
            return;
    }
}

template <template <typename> class Engine32, template <typename> class Engine256>
void multiply(gguf::Type type, const std::byte *weights, int64_t cols, int64_t row0, int64_t row1,
              const void *packed, int32_t tokens, float *out, int64_t out_stride, void *scratch,
              const std::byte *next) {
    using gguf::Type;
    if (row0 >= row1) return;
    switch (type) {
        case Type::F32:
            return multiply_plain<PlainF32>(weights, cols, row0, row1, packed, tokens, out, out_stride);
        case Type::F16:
            return multiply_plain<PlainF16>(weights, cols, row0, row1, packed, tokens, out, out_stride);
        case Type::BF16:
            return multiply_plain<PlainBF16>(weights, cols, row0, row1, packed, tokens, out, out_stride);
        default:
            break;
    }
    const Task task{cols, packed, tokens, out, out_stride, kRows, scratch, nullptr};
    with_engine<Engine32, Engine256>(
        type, [&](auto engine) { multiply_rows<decltype(engine)>(weights, row0, row1, task, next); });
}

// One tile or `unpacked` bytes of them, and copies of rows.
template <template <typename> class Engine256>
size_t scratch_bytes(int64_t cols, int64_t unpacked) {
    constexpr int64_t kTileBytes = sizeof(typename Engine256<FormatQ4_K>::Tile);  // no other is larger
    const int64_t blocks = record_count(cols), tile = blocks * kTileBytes;
    return static_cast<size_t>(blocks * kCopyBytes + (tile > unpacked ? tile : unpacked));
}

template <template <typename> class Engine256>
size_t scratch_bytes(int64_t cols) {
    return scratch_bytes<Engine256>(cols, kUnpackedBytes);
}

inline void dequantize(gguf::Type type, const std::byte *row, int64_t cols, float *out) {
    kLinearScalar.dequantize(type, row, cols, out);
}

}  // namespace
}  // namespace runnel::kernels::cpu
