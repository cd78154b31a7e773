// Gemma 4's assistants: files of the architecture "gemma4-assistant", whose layers draft for a Gemma 4 model, their target.
// They have no keys and values: each layer attends to the cells that the target's last layer of its kind (with a window or
// without) has cached.
//
// For a token t at position p that the target has not computed yet, with h the state of the token before:
//   x = Wpre [sqrt(E) e(t); h]      e: the target's embedding; E: the target's width
//   y = the layers of gemma4.cpp with x, reading the target's cells of the positions before p
//   logits = W N y                  W: the assistant's own token_embd; they predict the token at p + 1. (With
//                                   final_logit_softcapping, they are capped; llama.cpp leaves that out.)
//   h' = Wpost N y
// h is the target's state after its output norm. The next drafted token is computed with h' in place of h, but at the same
// position p and with the same cells. (Hugging Face's Gemma4AssistantForCausalLM; tensors as llama.cpp's converter names
// them. The centroids that some files have for choosing among the tokens are not used, as in llama.cpp: all are scored.)
#pragma once

#include <cstdint>

#include "engine/model/draft_head.h"

namespace runnel::model {

inline constexpr const char *kAssistant = "gemma4-assistant";  // general.architecture

// As head_target().
HeadTarget assistant_target(const gguf::File &file);

// As add_head(); the target's program stays as it is. The head's program has the cache layers of the target's, with the
// same indices and groups, and appends to none. The part's `in` is h, its `out` is h'.
DraftHead make_assistant(const Model &target, const gguf::File &target_file, const gguf::File &head,
                         int64_t context = 0);

}  // namespace runnel::model
