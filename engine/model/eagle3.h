// EAGLE-3 heads (Li et al. 2025): files of the architecture "eagle3", whose one layer drafts tokens for another model, the
// head's target, from the inputs of three of the target's layers.
//
// For each token t at position p > 0 of a text, a head computes
//   g = F [a; b; c]               a, b, c: the target's state at p - 1 before layers target_layers[0, 1, 2]
//   x = [N e(t); N' g]            e: embedding
//   h = r + Wo attention(x)       r = g, or N' g with norm_before_residual; at position p - 1
//   y = h + Wdown (silu(Wgate N'' h) * Wup N'' h)
//   logits = W N''' y             predict the token at p + 1
// With norm_before_fc, g = F N'''' [a; b; c]. For a drafted token, whose g the target has not computed yet, the y of the
// token before it, from which it was drafted, takes the place of g. Keys and values are those of the head alone.
//
// A file may lack token_embd.weight and output.weight; those of the target take their place. With the tensor d2t, W has
// rows for some of the target's tokens only.
#pragma once

#include <cstdint>

#include "engine/model/draft_head.h"

namespace runnel::model {

inline constexpr const char *kEagle3 = "eagle3";  // general.architecture

// As head_target().
HeadTarget eagle3_target(const gguf::File &file);

// As add_head(): the target gets the steps that compute g. The part's `in` is g, its `out` y, of tokens whose logits are
// requested. Throws ModelError also if the target's layers do not pass a single residual stream from one to the next.
DraftHead add_eagle3(Model &target, const gguf::File &target_file, const gguf::File &head,
                     int64_t context = 0);

}  // namespace runnel::model
