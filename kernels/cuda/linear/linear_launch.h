// Chooses the matrix kernel for a number of tokens. All give the same bits; they differ in speed
// only.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/runtime/launcher.h"

namespace runnel::kernels::cuda {

// Loads the kernels that launch_linear(), launch_experts() and launch_heads() may use for batches of up to `max_tokens`
// tokens.
void prepare_linear(const DeviceProperties &device, TileFormat format, int32_t max_tokens);
void prepare_experts(const DeviceProperties &device, TileFormat format, int32_t max_tokens);
void prepare_heads(TileFormat format, int32_t max_tokens);

// Multiplies params.tokens tokens, without groups.
void launch_linear(Launcher &launcher, const LinearParams &params, TileFormat format);

// Whether that launch has its input in shared memory, so that it can prepare it itself (LinearParams::prepare_input).
bool stages(const Launcher &launcher, TileFormat format, int64_t cols, int32_t tokens);
// Whether it can prepare outputs whose quantization needs whole rows (LinearParams::prepare).
bool prepares_rows(const Launcher &launcher, TileFormat format, int64_t cols, int32_t tokens);

// Multiplies params.heads matrices, each with params.tokens rows; the kernels are those of prepare_heads().
void launch_heads(Launcher &launcher, const LinearParams &params, TileFormat format);

// The rows of a batch of `tokens` tokens, sorted by expert.
struct ExpertRows {
    int32_t tokens, experts, rows;
    int32_t few_rows;              // most rows of a group in `few`
    const TokenGroup *few, *many;  // lists of groups (experts.h), and their lengths
    const int32_t *few_count, *many_count;
};
// Chooses the kernel; params.groups and params.group_count are set from `rows` accordingly. With params.x_rows, the
// input may be copied into shared memory.
void launch_experts(Launcher &launcher, const LinearParams &params, TileFormat format,
                    const ExpertRows &rows);

}  // namespace runnel::kernels::cuda
