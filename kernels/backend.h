// The interface of a device: it holds a Program's weights and KV cache, and runs batches of tokens.
//
// A Backend runs one program. It is not thread-safe: one caller at a time. The logits of a token do not
// depend on the rest of the batch: they are bit-equal for any batch composition, prefill chunking, number of
// threads and paging order (cpu/README.md states the contract).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cache_type.h"
#include "kernels/exp_sum.h"
#include "kernels/program.h"

namespace runnel::kernels {

// The device failed or does not support the request; what() is one line and tells the user what to do.
class BackendError : public std::runtime_error {
  public:
    // NoKernel: the device works, but has no kernel for a step of this program.
    enum class Kind { Failed, OutOfMemory, Cancelled, NoKernel };
    BackendError(Kind error_kind, const std::string &what) : std::runtime_error(what), kind(error_kind) {}
    Kind kind;
};

// --- cache -----------------------------------------------------------------------------------------------
// K and V live in blocks of kBlockTokens consecutive cells of one sequence. A block id names one K page and
// one V page for every layer of its group. engine/cache allocates the ids; the device only stores the bytes.

inline constexpr int kBlockTokens = 32;
using BlockId = int32_t;

// Attention sums over this many cells at a time on CPUs (cpu/attention.h). Several devices divide a cache by such ranges.
inline constexpr int32_t kRangeCells = 512;

// The type of a layer's keys in a cache with keys of type k.
constexpr CacheType key_type(const CacheLayer &layer, CacheType k) {
    return layer.f16_keys ? CacheType::F16 : k;
}

// The state of all recurrent layers of a sequence at one position lives in a state slot of fixed size
// (state_bytes()). A batch reads one slot and writes others; a slot that is not written keeps its content, so
// checkpoints and forks need no copies.
using StateId = int32_t;
inline constexpr StateId kNoState = -1;

// The memory of a device's cache: the pools of its groups, in a form of its own.
struct CachePools {
    virtual ~CachePools() = default;
};

struct CacheConfig {
    std::vector<int32_t> blocks;  // per group: number of blocks in the pool, or in this device's part of it
    CacheType k = CacheType::F16, v = CacheType::F16;
    int32_t context = 0;  // most cells of a sequence; 0: as many as the pool holds
    int32_t states = 0;   // state slots in the pool
    // Backend::cache_pools() of a backend on the same device, in place of memory of its own. The program then has the
    // cache layers of that backend's, and the rest of the configuration is the same. Null: none.
    std::shared_ptr<const CachePools> pools = {};
    // How many devices hold a group's blocks: each an equal range of the ids, in the order of the ranks. Only with
    // CacheLayer::divided; empty: 1 each.
    std::vector<int32_t> shares = {};
    // Per group: the first of the blocks that this device holds; empty: 0.
    std::vector<BlockId> first = {};
};

// What the rank's device holds of a cache with `shares`.
CacheConfig share_of(const CacheConfig &cache, size_t rank);

struct BlockCopy {
    BlockId from, to;
};

// --- batch -----------------------------------------------------------------------------------------------

// Stores the state after the first `tokens` tokens of a span in `slot`.
struct StateWrite {
    int32_t tokens;
    StateId slot;
};

// The tokens of one sequence in this batch: cells [past, past + count) of the sequence.
struct SequenceSpan {
    int32_t first;  // index of its first token in Batch::tokens
    int32_t count;
    int32_t past;  // cells of the sequence before these tokens, all in the cache except the shared ones
    // Per cache group: block ids of the sequence for at least past + count cells; cell c is in block c / 32.
    // Blocks outside every token's window (Attention::window) may be -1.
    std::vector<std::span<const BlockId>> tables;
    // For a branch of a draft tree: cells [past - shared, past) get the keys and values of the batch's tokens
    // [shared_from, shared_from + shared). These tokens belong to another sequence, have the same positions
    // and are computed only once.
    int32_t shared = 0, shared_from = 0;
    // For recurrent layers, and only if shared == 0. state: the slot with the state after the `past` cells, or
    // kNoState if past is 0. state_writes: the states to store, with ascending `tokens`, the last one equal to
    // `count`. A written slot must not be read or written by another span of the batch.
    StateId state = kNoState;
    std::vector<StateWrite> state_writes = {};
    // Block attention: every token attends to the cells up to the span's end, not only to those up to its own. (Of a
    // window: a token in cell t sees the cells > t - window and all later ones of the span.) For block drafters; any
    // count, also one, which has the bits of an ordinary span. Preconditions: shared == 0, sees_both_ways(program).
    bool both_ways = false;
};

// Tokens that may be selected: token t is bit t % 64 of word t / 64, in ceil(vocab / 64) words; bits beyond the
// vocabulary are 0. Empty: all tokens.
using TokenMask = std::span<const uint64_t>;

struct Batch {
    std::span<const int32_t> tokens;
    std::span<const int32_t> positions;         // RoPE position of each token
    std::span<const SequenceSpan> sequences;    // cover `tokens` in order, without gaps
    std::span<const int32_t> logit_rows;        // ascending indices into `tokens`: whose logits to compute
    const std::atomic<bool> *cancel = nullptr;  // checked between steps
    // Index into Program::parts. They run in order, on the same batch, with no other batch in between.
    int32_t part = 0;
    // [logit_rows], or empty if no row has a mask. Only execute() with candidates reads them.
    std::span<const TokenMask> masks = {};
};

// One of the largest logits of a row.
struct TopLogit {
    int32_t token;
    float logit;
};

// An activation slot in host memory: [tokens][stride].
struct SlotRows {
    float *data;
    int64_t stride;
};

// Called during load() with the bytes of weights loaded so far and their total. Returning false makes load()
// throw BackendError{Cancelled}.
using LoadProgress = std::function<bool(size_t done, size_t all)>;

struct DeviceInfo {
    std::string name;  // "CPU (AMD EPYC, 2 threads, AVX-512 VNNI)"
    std::string kind;  // "cpu", "cuda"
    size_t memory_total = 0, memory_free = 0;
    double bandwidth = 0;  // peak bytes per second of its memory; 0: unknown
};

// How many experts batches chose, each counted once per batch and mixture, and how many of them had to be fetched from host
// memory (Program::resident_experts).
struct ExpertTraffic {
    uint64_t chosen = 0, fetched = 0;
    uint64_t fetched_bytes = 0;

    ExpertTraffic &operator+=(const ExpertTraffic &more) {
        chosen += more.chosen, fetched += more.fetched, fetched_bytes += more.fetched_bytes;
        return *this;
    }
};

class Communicator;
class DeviceGathers;

class Backend {
  public:
    virtual ~Backend() = default;
    virtual DeviceInfo info() const = 0;

    // Takes the program and allocates memory for batches of up to `max_tokens` tokens and for the cache.
    // Weight bytes must stay mapped for the backend's life. Throws BackendError{OutOfMemory}.
    virtual void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) = 0;

    // Sets the progress callback of later load() calls. It runs on the loading thread.
    virtual void on_load(LoadProgress) {}

    // Sets the ranks that hold the other cells of divided layers (CacheLayer::divided): attention exchanges keys, values
    // and sums with them, on the thread that calls execute(). Without such layers it does nothing. Throws BackendError if
    // the device cannot divide a layer.
    virtual void connect(Communicator &ranks);

    // Runs the batch. logits: [logit_rows.size()][vocab], row-major, in the order of logit_rows. Returns
    // false when *cancel became true: the cells of this batch are then undefined, earlier ones are intact.
    // Preconditions: 0 < tokens.size() <= max_tokens; token ids < rows of the embedding table.
    virtual bool execute(const Batch &batch, std::span<float> logits) = 0;

    // The largest k of the device's own top-k selection; 0: only full rows are available.
    virtual int32_t most_candidates() const { return 0; }
    // execute(), but only the top `count` logits of every row come back. candidates: [logit_rows][count], in
    // descending order, the lower token first among equals. If any logit of the row is not finite, the first
    // candidate is the first such token, with the logit NaN, and what else is returned of the row is undefined.
    // sums: [logit_rows], the sum of exp(logit) over the whole row; not written when count is 1. Tokens outside
    // the row's mask come last, with the logit -infinity, and are not part of the sum, but a logit that is not
    // finite is reported all the same. Precondition: 1 <= count <= most_candidates(), count <= vocab.
    virtual bool execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
                         std::span<ExpSum> sums);
    // Reads the full logits of one row of the last executed batch. `row`: index in its logit_rows.
    // logits: [vocab].
    virtual void read_logits(int32_t row, std::span<float> logits);

    // Host memory of a slot that crosses devices, for up to max_tokens tokens: write it before executing the
    // part that takes it as `in`, read it after the part that has it in `out`.
    virtual SlotRows exchange(Slot slot);
    // Whether copy_slot() can copy from this backend, without a detour through host memory. May be called before
    // load(). Throws BackendError.
    virtual bool can_copy_from(const Backend &) const { return false; }
    // Copies the first `tokens` rows of a slot from the device memory of `writer`, whose part that wrote them has
    // been executed. Precondition: can_copy_from(writer).
    virtual void copy_slot(Slot slot, const Backend &writer, int32_t tokens);
    // Waits until copy_slot() has copied, so that the writer may write the slot again. (execute() waits for that, too.)
    virtual void wait_for_copies() {}

    // The device's end of gathers between device memories (device_gathers.h). Null: it has none.
    virtual DeviceGathers *gathers() { return nullptr; }
    // What moves the gathers of a tensor split, in words: "gathers by NCCL 2.28.9", "gathers through host memory (...)".
    // Empty for other backends, and before load().
    virtual std::string gather_note() const { return ""; }

    // Copies whole blocks of a group (K and V of all its layers), in the given order, before the next
    // execute(): copy-on-write of shared blocks.
    virtual void copy_blocks(int32_t group, std::span<const BlockCopy> copies) = 0;

    // Reads or writes the cache_block_bytes() bytes of a block, in the device's own layout: they are saved to
    // files and restored.
    virtual void read_block(int32_t group, BlockId block, std::span<std::byte> bytes) = 0;
    virtual void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) = 0;
    // Where write_block() would copy to, if that is memory of this process; empty otherwise. Several threads may write
    // different blocks there.
    virtual std::span<std::byte> block_memory(int32_t /*group*/, BlockId /*block*/) { return {}; }

    // The cache, for a second program that reads it (CacheConfig::pools). Null if this backend has no single one.
    virtual std::shared_ptr<const CachePools> cache_pools() const { return nullptr; }

    // Reads or writes the state_bytes() bytes of a state slot, likewise.
    virtual void read_state(StateId slot, std::span<std::byte> bytes);
    virtual void write_state(StateId slot, std::span<const std::byte> bytes);

    // Number of kernels launched since the backend was made, counting those of a replayed graph each time; 0
    // on devices without kernels.
    virtual int64_t launches() const { return 0; }

    // Since load(); zeros if all experts are resident.
    virtual ExpertTraffic expert_traffic() { return {}; }
};

// Whether spans of the program may be `both_ways`: its attention has sliding windows or none, and no sink cells, biases
// by distance or chosen cells; no step is recurrent.
bool sees_both_ways(const Program &program);
// The same for a batch: false if a span breaks the preconditions of `both_ways`. Devices assert it.
bool sees_both_ways(const Program &program, const Batch &batch);

// Bytes of a state slot over all recurrent layers; 0 if there are none.
size_t state_bytes(const Program &program);

// Bytes of cache memory per block of `group`, over all its layers.
size_t cache_block_bytes(const Program &program, int32_t group, CacheType k = CacheType::F16,
                         CacheType v = CacheType::F16);

}  // namespace runnel::kernels
