// The draft blocks of a file: layers after the model's own that predict further tokens from the model's hidden
// state and the next token (multi-token prediction, DeepSeek-V3 2024).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gguf/file.h"
#include "kernels/program.h"

namespace runnel::model {

// The programs of the blocks, each as one part. For each token t at position p, a block computes
//   x = Weh [N e(t); N' h(p - 1)]     e: embedding
//   y = layer(x)                      logits = W N'' y predict the token at p + 1
// The layer attends at position p, with keys and values of its own. h(p) is the model's state: the slot with the name of
// state_of(block), after output_norm or, in some families, before it; h(-1) = 0. The block's own state is N'' y, or y in
// those families. For a drafted token, whose h the model has not computed yet, the state of the block at the token before
// it, from which it was drafted, takes the place of h. A single block drafts any number of tokens; of several blocks, the
// k-th drafts the k-th token.
//
// The part's only `in` slot is h(p - 1); its only `out` slot is the block's state, of tokens whose logits are requested.
// Empty if the file has no block, or if blocks of its architecture are not known; at most kMostDraftBlocks. Throws
// ModelError; the weights point into the mapped file.
inline constexpr int32_t kMostDraftBlocks = 8;
std::vector<kernels::Program> draft_blocks(const gguf::File &file, int64_t context = 0);

// The slot of a block's state.
const kernels::SlotInfo &state_of(const kernels::Program &block);

// The steps of a program up to the last one that writes `state`.
size_t steps_to(const kernels::Program &program, kernels::Slot state);

}  // namespace runnel::model
