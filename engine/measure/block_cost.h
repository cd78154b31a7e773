// What drafts of the file's own draft block (model/draft_block.h) or of a draft head (model/draft_head.h) cost, and what they
// can gain at most.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/stop_request.h"

namespace runnel::measure {

inline constexpr int32_t kBlockRows = 4;

// All costs in plain steps of the model, which read and compute one token.
struct BlockCost {
    std::array<double, kBlockRows> passes;  // of the model, of 1, 2, 3 ... tokens with logits of each
    double step;                            // of the block: one drafted token; at_once: any number of them
    // Of the block, before a draft: keys and values of 1, 2, 3 ... tokens that the model has just computed.
    std::array<double, kBlockRows> catch_up;
    double step_seconds, plain_seconds;  // medians
    bool at_once = false;                // StateDrafter::at_once()
};

// The gain over plain steps of drafts of `length` tokens, each right with this probability if those before it
// are. Without the time to choose tokens, and with the cost of catching up for as many tokens as are accepted on
// average. Preconditions: 1 <= length < kBlockRows, 0 <= acceptance <= 1.
double block_gain(const BlockCost &cost, double acceptance, int32_t length);

// Takes turns: passes of every size and steps of the block, `repetitions` times, at the end of a text that grows
// from `prompt`. Each turn's times are divided by its own plain step. Throws base::Interrupted, BackendError and
// DecodeError. Preconditions: the engine has a draft block, its batch size is at least kBlockRows, and its context
// holds the prompt and 10 * repetitions tokens.
BlockCost measure_block(decode::Engine &engine, const std::vector<decode::TokenId> &prompt,
                        int32_t repetitions, const decode::StopRequest &stop);

}  // namespace runnel::measure
