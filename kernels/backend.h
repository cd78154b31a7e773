// What a device must offer: hold a Program's weights and a K/V cache, and run batches of tokens through them.
//
// A Backend runs one program. It is not thread-safe: one caller at a time. Results do not depend on what is
// computed beside a token: the logits of a token are bit-equal for any batch composition, prefill chunking,
// number of threads and paging order (see cpu/README.md for the contract that makes it so).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/program.h"

namespace runnel::kernels {

// The device failed or cannot do what was asked; what() is one line and says what the user can do.
class BackendError : public std::runtime_error {
  public:
    enum class Kind { Failed, OutOfMemory };
    BackendError(Kind error_kind, const std::string &what) : std::runtime_error(what), kind(error_kind) {}
    Kind kind;
};

// --- cache -----------------------------------------------------------------------------------------------
// K and V live in blocks of kBlockTokens consecutive cells of one sequence. A block id names, for every layer
// of its group, one K page and one V page; engine/cache hands the ids out, the device only stores bytes.

inline constexpr int kBlockTokens = 32;
using BlockId = int32_t;

struct CacheConfig {
    std::vector<int32_t> blocks;  // per group: number of blocks in the pool
};

struct BlockCopy {
    BlockId from, to;
};

// --- batch -----------------------------------------------------------------------------------------------

// The tokens of one sequence in this batch: cells [past, past + count) of the sequence.
struct SequenceSpan {
    int32_t first;  // index of its first token in Batch::tokens
    int32_t count;
    int32_t past;  // cells of the sequence already in the cache
    // Per cache group: block ids of the sequence, enough for past + count cells: cell c is in block c / 32.
    // Blocks that no token of the batch sees (Attention::window) may be -1.
    std::vector<std::span<const BlockId>> tables;
};

struct Batch {
    std::span<const int32_t> tokens;
    std::span<const int32_t> positions;         // RoPE position of each token
    std::span<const SequenceSpan> sequences;    // cover `tokens` in order, without gaps
    std::span<const int32_t> logit_rows;        // ascending indices into `tokens`: whose logits are wanted
    const std::atomic<bool> *cancel = nullptr;  // checked between steps
};

struct DeviceInfo {
    std::string name;  // "CPU (AMD EPYC, 2 threads, AVX-512 VNNI)"
    std::string kind;  // "cpu", "cuda"
    size_t memory_total = 0, memory_free = 0;
};

class Backend {
  public:
    virtual ~Backend() = default;
    virtual DeviceInfo info() const = 0;

    // Takes the program and makes room for batches of up to `max_tokens` tokens and for the cache.
    // Weight bytes must stay mapped for the backend's life. Throws BackendError{OutOfMemory}.
    virtual void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) = 0;

    // Runs the batch. logits: [logit_rows.size()][vocab], row-major, written in the order of logit_rows.
    // Returns false when *cancel became true: the cells of this batch are then undefined, earlier ones
    // intact. Preconditions: 0 < tokens.size() <= max_tokens; token ids < rows of the embedding table.
    virtual bool execute(const Batch &batch, std::span<float> logits) = 0;

    // Copies whole blocks of a group, K and V of all its layers, in the given order, before what is executed
    // next (a sequence is about to write into a block that others read).
    virtual void copy_blocks(int32_t group, std::span<const BlockCopy> copies) = 0;
};

// Bytes of cache memory per block of `group`, over all its layers, in the f16 cache.
size_t cache_block_bytes(const Program &program, int32_t group);

}  // namespace runnel::kernels
