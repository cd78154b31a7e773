// DFlash drafters: files of the architecture "dflash", whose layers guess a block of tokens of their target in one pass.
//
// The text: for each token at position p,
//   g = N F [a; b; ...]     a, b, ...: the target's state at p before layers target_layers[0, 1, ...]
//   of every layer: k(p) = RoPE(norm(Wk g)),  v(p) = Wv g, or without attn_v the RMS norm, without weights, of Wk g
// A block: the token t at position p, which the target has not computed yet, and mask tokens at p + 1, p + 2, ... :
//   x = embedding_scale * e(token), then decoder layers with SwiGLU (or GeGLU), whose tokens attend to k and v of the text
//   before p and to those of the whole block, not only of the earlier tokens (unless attention.causal)
//   logits = softcap(logit_scale * W N' y) of the mask at position q predict the token at q.
// Keys and values are those of the drafter alone. A file may lack token_embd.weight and output.weight; those of the target
// take their place. With the tensor d2t, W has rows for some of the target's tokens only. (Tensors as llama.cpp's
// converter names them; its DSpark and DFlash2 variants have further ones and are refused.)
#pragma once

#include <cstdint>

#include "engine/model/draft_head.h"

namespace runnel::model {

inline constexpr const char *kDFlash = "dflash";  // general.architecture

// As head_target().
HeadTarget dflash_target(const gguf::File &file);

// As add_head(): the target gets the steps that compute g.
DraftHead add_dflash(Model &target, const gguf::File &target_file, const gguf::File &head,
                     int64_t context = 0);

}  // namespace runnel::model
