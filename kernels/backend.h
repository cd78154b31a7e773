// What a device must offer: hold a Program's weights and a K/V cache, and run batches of tokens through them.
//
// A Backend runs one program. It is not thread-safe: one caller at a time. Results do not depend on what is
// computed beside a token: the logits of a token are bit-equal for any batch composition, prefill chunking,
// number of threads and paging order (see cpu/README.md for the contract that makes it so).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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
    // NoKernel: the device is sound, but this program cannot run on it.
    enum class Kind { Failed, OutOfMemory, Cancelled, NoKernel };
    BackendError(Kind error_kind, const std::string &what) : std::runtime_error(what), kind(error_kind) {}
    Kind kind;
};

// --- cache -----------------------------------------------------------------------------------------------
// K and V live in blocks of kBlockTokens consecutive cells of one sequence. A block id names, for every layer
// of its group, one K page and one V page; engine/cache hands the ids out, the device only stores bytes.

inline constexpr int kBlockTokens = 32;
using BlockId = int32_t;

// What K or V is kept in. Q8_0 and Q4_0: gguf/block.h, 32 dimensions of a cell share a scale. FP8: OCP e4m3,
// without a scale.
enum class CacheType { F16, BF16, Q8_0, Q4_0, FP8 };

// Bytes of `dims` values of one cell. All but F16 are filled up to 32 dimensions.
constexpr size_t cache_row_bytes(CacheType type, int32_t dims) {
    const auto n = static_cast<size_t>(dims), blocks = (n + 31) / 32;
    switch (type) {
        case CacheType::F16:
            return n * 2;
        case CacheType::BF16:
            return blocks * 64;
        case CacheType::Q8_0:
            return blocks * 34;
        case CacheType::Q4_0:
            return blocks * 18;
        case CacheType::FP8:
            return blocks * 32;
    }
    return 0;
}

// Of which types keys, or values, are rotated before they are rounded: each head times the Hadamard matrix of
// the largest power of two that divides its size (over its root), which spreads an outlier over all
// dimensions. Queries are rotated with the keys, what comes out is rotated back: H is its own inverse. In
// Q8_0 keys gain, which have outliers, and values do not.
constexpr bool rotates_keys(CacheType type) {
    return type == CacheType::Q8_0 || type == CacheType::Q4_0;
}
constexpr bool rotates_values(CacheType type) {
    return type == CacheType::Q4_0;
}

// The state of all recurrent layers of a sequence at one position lives in a state slot of fixed size
// (state_bytes()). A batch reads one slot and writes others, so a slot that is not written stays as it is:
// checkpoints and forks need no copies.
using StateId = int32_t;
inline constexpr StateId kNoState = -1;

struct CacheConfig {
    std::vector<int32_t> blocks;  // per group: number of blocks in the pool
    CacheType k = CacheType::F16, v = CacheType::F16;
    int32_t context = 0;  // most cells of a sequence; 0: as many as the blocks hold
    int32_t states = 0;   // state slots in the pool
};

struct BlockCopy {
    BlockId from, to;
};

// --- batch -----------------------------------------------------------------------------------------------

// The state behind the first `tokens` tokens of a span goes to `slot`.
struct StateWrite {
    int32_t tokens;
    StateId slot;
};

// The tokens of one sequence in this batch: cells [past, past + count) of the sequence.
struct SequenceSpan {
    int32_t first;  // index of its first token in Batch::tokens
    int32_t count;
    int32_t past;  // cells of the sequence in front of its tokens: in the cache, all but the shared ones
    // Per cache group: block ids of the sequence, enough for past + count cells: cell c is in block c / 32.
    // Blocks that no token of the batch sees (Attention::window) may be -1.
    std::vector<std::span<const BlockId>> tables;
    // A branch of a tree of guesses has cells of its own for what it has in common with another sequence of
    // the batch: cells [past - shared, past) get the keys and values of the tokens [shared_from, shared_from
    // + shared) of the batch, which stand at the same positions there and are computed only once.
    int32_t shared = 0, shared_from = 0;
    // Of programs with recurrent layers, which share nothing: the state behind the `past` cells, kNoState where
    // past is 0; and what to keep of the states behind the tokens: `tokens` ascending, the last one `count`.
    // No slot is written that another span of the batch reads or writes.
    StateId state = kNoState;
    std::vector<StateWrite> state_writes = {};
};

struct Batch {
    std::span<const int32_t> tokens;
    std::span<const int32_t> positions;         // RoPE position of each token
    std::span<const SequenceSpan> sequences;    // cover `tokens` in order, without gaps
    std::span<const int32_t> logit_rows;        // ascending indices into `tokens`: whose logits are wanted
    const std::atomic<bool> *cancel = nullptr;  // checked between steps
    // Of Program::parts. The parts of a batch are executed in order, nothing else between them.
    int32_t part = 0;
};

// One of the largest logits of a row.
struct Candidate {
    int32_t token;
    float logit;
};

// An activation in the host's memory: [tokens][stride].
struct SlotRows {
    float *data;
    int64_t stride;
};

// Told how many bytes of weights are where they belong, of how many. False: load() is to end with
// BackendError{Cancelled}.
using LoadProgress = std::function<bool(size_t done, size_t all)>;

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

    // From the next load() on, where that takes time. The function is called by the thread that loads.
    virtual void on_load(LoadProgress) {}

    // Runs the batch. logits: [logit_rows.size()][vocab], row-major, written in the order of logit_rows.
    // Returns false when *cancel became true: the cells of this batch are then undefined, earlier ones
    // intact. Preconditions: 0 < tokens.size() <= max_tokens; token ids < rows of the embedding table.
    virtual bool execute(const Batch &batch, std::span<float> logits) = 0;

    // How many of the largest logits of a row the device finds by itself; 0: it hands out whole rows only.
    virtual int32_t most_candidates() const { return 0; }
    // execute(), but of every row only the `count` largest logits come back: candidates: [logit_rows][count],
    // larger ones first, of equals the lower token. Where a logit of the row is not finite, the first
    // candidate's is not either, and the others mean nothing. sums: [logit_rows], of exp(logit - the largest)
    // over the whole row, in float32; of a single candidate there is none, and they stay as they are.
    // Precondition: 1 <= count <= most_candidates(), count <= vocab.
    virtual bool execute(const Batch &batch, int32_t count, std::span<Candidate> candidates,
                         std::span<float> sums);
    // Row `row` of the batch that was executed last, to somebody to whom candidates are not enough:
    // logits: [vocab].
    virtual void read_logits(int32_t row, std::span<float> logits);

    // A slot that a part of the program hands over, with room for all tokens: written before the part that it
    // comes with is executed, or read after the one it goes out of.
    virtual SlotRows exchange(Slot slot);

    // Copies whole blocks of a group, K and V of all its layers, in the given order, before what is executed
    // next (a sequence is about to write into a block that others read).
    virtual void copy_blocks(int32_t group, std::span<const BlockCopy> copies) = 0;

    // A block's bytes, cache_block_bytes() of them, in a layout that is the device's own: to be kept in a
    // file.
    virtual void read_block(int32_t group, BlockId block, std::span<std::byte> bytes) = 0;
    virtual void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) = 0;

    // A state slot's bytes, state_bytes() of them, likewise.
    virtual void read_state(StateId slot, std::span<std::byte> bytes);
    virtual void write_state(StateId slot, std::span<const std::byte> bytes);

    // How many kernels a device was given to run since the backend was made, those of recorded graphs each
    // time that they are replayed; 0 where there are none.
    virtual int64_t launches() const { return 0; }
};

// Bytes of a state slot, over all recurrent layers; 0 without any.
size_t state_bytes(const Program &program);

// Bytes of cache memory per block of `group`, over all its layers.
size_t cache_block_bytes(const Program &program, int32_t group, CacheType k = CacheType::F16,
                         CacheType v = CacheType::F16);

}  // namespace runnel::kernels
