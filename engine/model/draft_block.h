// The draft block of a file: one more layer that predicts the token after next from the model's hidden state
// and the next token (multi-token prediction, DeepSeek-V3 2024).
#pragma once

#include <cstdint>
#include <optional>

#include "gguf/file.h"
#include "kernels/program.h"

namespace runnel::model {

// A program of the model's layers, without its output matrix, and the block. For each token t at position p:
//   x = Weh [N e(t); N' h(p - 1)]     e: embedding; h: the model's state after output_norm, h(-1) = 0
//   logits = W N'' layer(x)           which predict the token at p + 1
// The layer attends at position p, with keys and values of its own. h(p - 1) is the state of a convolution, so
// it follows the sequence through chunks, forks and roll-backs as the state of a recurrent layer does.
// None: the file has no such block, more than one, or an architecture whose block is not known. Throws
// ModelError; the weights point into the mapped file.
std::optional<kernels::Program> draft_block(const gguf::File &file, int64_t context = 0);

}  // namespace runnel::model
