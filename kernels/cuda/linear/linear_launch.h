// Which of the matrix kernels multiplies how many tokens. All give the same bits, so this is about time
// alone.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/runtime/launcher.h"

namespace runnel::kernels::cuda {

// Loads the kernels that launch_linear() may take for batches of up to `max_tokens`, or launch_experts().
void prepare_linear(TileFormat format, int32_t max_tokens);
void prepare_experts(TileFormat format, int32_t max_tokens);

// params.tokens of them, without groups.
void launch_linear(Launcher &launcher, const LinearParams &params, TileFormat format);

// params.heads matrices, each with params.tokens rows of its own; the kernels are those of prepare_experts().
void launch_heads(Launcher &launcher, const LinearParams &params, TileFormat format);

// The rows of a batch of `tokens` tokens by expert.
struct ExpertRows {
    int32_t tokens, experts, rows;
    const TokenGroup *few, *many;  // lists of groups (experts.h), and how long they are
    const int32_t *few_count, *many_count;
};
// `params` gets the groups that suit the format.
void launch_experts(Launcher &launcher, const LinearParams &params, TileFormat format,
                    const ExpertRows &rows);

}  // namespace runnel::kernels::cuda
