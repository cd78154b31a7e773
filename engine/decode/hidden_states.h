// The hidden state behind every cached token, for the file's draft blocks (model/draft_block.h) or a draft head
// (model/draft_head.h).
//
// A model's pass gives the state: for a draft block, the one after the last norm or before it; for a head, that of
// state_of(its program). A
// draft is made from the state of the token before. States are kept by place in the paged cache (block and cell of the layers
// without a window), and are thus shared, forked, copied on write and rolled back with the keys and values. They are F16,
// 2 * width bytes for each cell. Prompt files do not hold them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/decode/cache_plan.h"
#include "engine/model/draft_block.h"
#include "kernels/backend.h"

namespace runnel::decode {

class HiddenStates {
  public:
    enum class Pairs {
        WithBefore,  // a draft block computes cell c from its token and the state of cell c - 1
        WithNext,    // an EAGLE-3 head computes cell c from its state and the token of cell c + 1
        Alone,       // a DFlash drafter computes cell c from its state
    };
    explicit HiddenStates(Pairs pairs = Pairs::WithBefore) : pairs_(pairs) {}
    Pairs pairs() const { return pairs_; }

    // For a pool of `blocks` blocks of the cache's group `group`; memory is taken when a block is first written.
    void resize(size_t blocks, int64_t width, size_t group = 0);
    int64_t width() const { return width_; }
    size_t group() const { return group_; }
    size_t blocks() const { return blocks_.size(); }

    // Of cell `cell` of the sequence with this block table; a device may have computed it anew.
    void put(std::span<const kernels::BlockId> table, int32_t cell, std::span<const float> state);
    // Zeros for the cell before the first, and for one whose state is not known.
    void get(std::span<const kernels::BlockId> table, int32_t cell, std::span<float> state) const;
    void copy(kernels::BlockId from, kernels::BlockId to);
    // The block gets cells from elsewhere, whose states are not known.
    void forget(kernels::BlockId block);

    // Cells whose keys and values draft block `block` has computed, for the sequence with this table and these tokens,
    // which only WithNext needs. put() and copy() unmark cells.
    bool is_marked(std::span<const kernels::BlockId> table, int32_t cell, size_t block,
                   std::span<const int32_t> tokens = {}) const;
    void mark(std::span<const kernels::BlockId> table, int32_t cell, size_t block,
              std::span<const int32_t> tokens = {});
    // The first unmarked cell from `cell` on; `length` if there is none below it.
    int32_t next_unmarked(std::span<const kernels::BlockId> table, int32_t cell, int32_t length, size_t block,
                          std::span<const int32_t> tokens = {}) const;

  private:
    struct Block {
        std::vector<uint16_t> states;                            // [kBlockTokens][width], or empty
        uint32_t known = 0;                                      // bits by cell
        std::array<uint32_t, model::kMostDraftBlocks> marked{};  // the same
        int32_t next = -1;  // WithNext: the token after the block for which its last cell was computed
    };
    static_assert(kernels::kBlockTokens == 32);

    bool ends_block_for_other(const Block &block, int32_t cell, std::span<const int32_t> tokens) const;

    Pairs pairs_;
    int64_t width_ = 0;
    size_t group_ = 0;
    std::vector<Block> blocks_;
};

// The first group of cache layers without a window, whose blocks hold all cells of a sequence. nullopt: none.
std::optional<size_t> whole_group(const kernels::Program &program);

// The cache of a draft block or head beside a model's cache of `shape`: all cells, also if the block has a window, and on
// one device, also if several divide those of the model; no blocks if it only reads the model's cache.
kernels::CacheConfig draft_block_cache(const kernels::Program &block, const CacheShape &shape);
// Bytes of memory beside a model whose cache has `shape`: the caches of its draft blocks, and the hidden states.
size_t draft_block_bytes(std::span<const kernels::Program> blocks, const CacheShape &shape);

// The program in two parts. The first one ends where the slot with the name and width of `state` has been written for the
// last time, and gives that slot; the second one ends with the logits. Precondition: the program has no parts, and ends
// with its output matrix.
kernels::Program with_state_part(const kernels::Program &program, const kernels::SlotInfo &state);

// A backend whose passes leave the hidden states of all their tokens in `states`. It loads with_state_part(program, state)
// in `backend`, which may split it (kernels/split_backend.h, tensor_backend.h, group_backend.h); followers of a group must
// have that program. The logits have the same bits as without. The program must have a whole_group().
std::unique_ptr<kernels::Backend> keep_hidden_states(std::unique_ptr<kernels::Backend> backend,
                                                     std::shared_ptr<HiddenStates> states,
                                                     const kernels::SlotInfo &state);

}  // namespace runnel::decode
