// The draft block of a file: one more layer that predicts the token after next from the model's hidden state
// and the next token (multi-token prediction, DeepSeek-V3 2024).
#pragma once

#include <cstdint>
#include <optional>

#include "gguf/file.h"
#include "kernels/program.h"

namespace runnel::model {

// The program of the block, as one part. For each token t at position p:
//   x = Weh [N e(t); N' h(p - 1)]     e: embedding
//   h'(p) = N'' layer(x)              logits = W h'(p) predict the token at p + 1
// The layer attends at position p, with keys and values of its own. h(p) is the model's state after output_norm,
// the input of its output matrix; for a drafted token, whose state the model has not computed yet, h'(p)
// takes its place; h(-1) = 0. The part's only `in` slot is h(p - 1); its only `out` slot is h'(p), for tokens
// whose logits are requested. Returns nullopt if the file has no such block or more than one, or if the block of
// its architecture is not known. Throws ModelError; the weights point into the mapped file.
std::optional<kernels::Program> draft_block(const gguf::File &file, int64_t context = 0);

}  // namespace runnel::model
