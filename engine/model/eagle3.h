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

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "gguf/file.h"
#include "kernels/program.h"

namespace runnel::model {

inline constexpr const char *kEagle3 = "eagle3";  // general.architecture

bool is_eagle3(const gguf::File &file);

// What a file says about the target.
struct Eagle3Target {
    // Layers, counted from 0, as often as they are computed. The number of the target's layers means its last state: the one
    // after the output norm, but before it in gpt-oss, mimo2 and step35 (as in llama.cpp).
    std::array<int64_t, 3> layers;
    int64_t width;       // of its hidden states
    int64_t draft_rows;  // tokens that the head can draft; 0: all of the target's
};
// Throws ModelError for a file that is no valid head.
Eagle3Target eagle3_target(const gguf::File &file);

struct Eagle3 {
    // One part, as in draft_block.h: `in` is g, `out` is y, of tokens whose logits are requested. The target's program
    // has a slot with the name and width of y, which holds g.
    kernels::Program program;
    std::vector<int32_t> tokens;     // of the target, by row of the logits; empty: row i is token i
    std::vector<std::string> notes;  // for the user, one line each
};

// Adds the steps that compute g to the program of `target`, before its logits, which keep their bits. Throws ModelError
// for a file that is no valid head or does not fit the target, and if the target's layers do not pass a single residual
// stream from one to the next. The weights point into the two mapped files. context: as in model::build().
Eagle3 add_eagle3(Model &target, const gguf::File &target_file, const gguf::File &head, int64_t context = 0);

}  // namespace runnel::model
