// What attention takes of a device's memory beside the cache, all of it at load: room for partial results
// that is bounded, and batches whose splits do not fit it, which are attended to in several launches.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/program.h"

namespace runnel::kernels::cuda {

// Query rows of a sequence and K/V head up to which batches of more than kLinearTokens tokens use
// attention_decode_kernel().
inline constexpr int32_t kDecodeRows = 64;

// Whether the values are the first dimensions of the keys.
bool is_latent(const Program &program, const Attention &step);
// Whether attention_wide_kernel() computes it.
bool is_wide(const Program &program, const Attention &step);

// Of AttentionParams, for the largest layer of the program and batches of up to `max_tokens` tokens.
int64_t attention_counters(const Program &program, int32_t max_tokens);
int64_t attention_totals(const Program &program, int32_t max_tokens);  // floats; as much as sm_75 needs

// Floats of AttentionParams::partial: enough for one token of every sequence that the cache can hold, where
// they share nothing, and for launches that fill any device; never more than batches can ask for, and always
// enough for one tile and K/V head of a sequence as long as the context. Precondition: cache.blocks has all
// groups.
int64_t attention_partials(const Program &program, const CacheConfig &cache, int32_t max_tokens);

// How a batch is cut where `partial` has no room for all splits at once: so many launches of so many units
// (AttentionParams::first_unit) each. The bits are the same.
struct AttentionLaunches {
    int32_t count = 1, units = INT32_MAX;
    auto operator<=>(const AttentionLaunches &) const = default;
};
// What suits all layers. partials: attention_partials().
AttentionLaunches attention_launches(const Program &program, std::span<const SequenceSpan> sequences,
                                     int32_t tokens, int64_t partials);

}  // namespace runnel::kernels::cuda
