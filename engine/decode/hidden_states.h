// The hidden state behind every cached token, for the file's draft block (model/draft_block.h).
//
// A model's pass gives the state after its last norm, from which the logits are computed. The draft block reads
// the state of the token before. States are kept by place in the paged cache (block and cell), and are thus
// shared, forked, copied on write and rolled back with the keys and values. They are F16, 2 * width bytes for
// each cell. Prompt files do not hold them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/decode/cache_plan.h"
#include "kernels/backend.h"

namespace runnel::decode {

class HiddenStates {
  public:
    // For a pool of `blocks` blocks; memory is taken when a block is first written.
    void resize(size_t blocks, int64_t width);
    int64_t width() const { return width_; }
    size_t blocks() const { return blocks_.size(); }

    // Of cell `cell` of the sequence with this block table; a device may have computed it anew.
    void put(std::span<const kernels::BlockId> table, int32_t cell, std::span<const float> state);
    // Zeros for the cell before the first, and for one whose state is not known.
    void get(std::span<const kernels::BlockId> table, int32_t cell, std::span<float> state) const;
    void copy(kernels::BlockId from, kernels::BlockId to);
    // The block gets cells from elsewhere, whose states are not known.
    void forget(kernels::BlockId block);

    // Cells whose keys and values the draft block has computed. put() and copy() unmark cells.
    bool is_marked(std::span<const kernels::BlockId> table, int32_t cell) const;
    void mark(std::span<const kernels::BlockId> table, int32_t cell);
    // The first unmarked cell from `cell` on; `length` if there is none below it.
    int32_t next_unmarked(std::span<const kernels::BlockId> table, int32_t cell, int32_t length) const;

  private:
    struct Block {
        std::vector<uint16_t> states;    // [kBlockTokens][width], or empty
        uint32_t known = 0, marked = 0;  // bits by cell
    };
    static_assert(kernels::kBlockTokens == 32);

    int64_t width_ = 0;
    std::vector<Block> blocks_;
};

// Bytes of memory beside a model whose cache has `shape`: the cache of its draft block, and the hidden states.
size_t draft_block_bytes(const kernels::Program &block, const CacheShape &shape);

// A backend whose passes leave the hidden states of all their tokens in `states`. The logits have the same bits as
// those of `backend`. The program must end with its output matrix and have one group of cache layers, without a
// window. `backend` may split it (kernels/split_backend.h).
std::unique_ptr<kernels::Backend> keep_hidden_states(std::unique_ptr<kernels::Backend> backend,
                                                     std::shared_ptr<HiddenStates> states);

}  // namespace runnel::decode
