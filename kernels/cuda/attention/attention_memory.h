// The device memory that attention takes in addition to the cache, all allocated at load. Partial results have a
// bounded buffer; a batch whose splits do not fit is attended to in several launches.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/program.h"

namespace runnel::kernels::cuda {

// In batches of more than kLinearTokens tokens, the most query rows per sequence and K/V head for which
// attention_decode_kernel() is used.
inline constexpr int32_t kDecodeRows = 64;

// Whether the values are the first dimensions of the keys.
bool is_latent(const Program &program, const Attention &step);
// Whether several devices divide the cells of the step's cache layer (divided_attention.h, which has memory of its own).
bool is_divided(const Program &program, const Attention &step);
// Whether attention_wide_kernel() or attention_chosen_kernel() computes the step.
bool is_wide(const Program &program, const Attention &step);

// Sizes of the AttentionParams buffers for the program's largest layer and batches of up to `max_tokens` tokens.
int64_t attention_counters(const Program &program, int32_t max_tokens);
int64_t attention_totals(const Program &program, int32_t max_tokens);  // floats; as many as sm_75 needs

// Floats of AttentionParams::partial of layers that are not divided: enough for one token of every sequence that the cache can hold
// without sharing, and for launches that fill any device. Never more than a batch can use, and always
// enough for one tile and K/V head of a sequence as long as the context. Precondition: cache.blocks has all
// groups.
int64_t attention_partials(const Program &program, const CacheConfig &cache, int32_t max_tokens);

// How a batch is divided when its splits do not all fit in `partial`: the number of launches, and the units
// (AttentionParams::first_unit) of each. The bits are the same.
struct AttentionLaunches {
    int32_t count = 1, units = INT32_MAX;
    auto operator<=>(const AttentionLaunches &) const = default;
};
// Launches that suit all layers. partials: attention_partials().
AttentionLaunches attention_launches(const Program &program, std::span<const SequenceSpan> sequences,
                                     int32_t tokens, int64_t partials);

}  // namespace runnel::kernels::cuda
