// The experts of a layer: separate matrices, or stacked ones, become one tensor per kind of matrix.
#pragma once

#include <cstdint>

#include "engine/convert/decoder.h"

namespace runnel::convert {

struct ExpertSizes {
    int64_t count = 0;
    int64_t width = 0;  // rows of an expert's gate and up matrices
};

// Adds expert_count, expert_used_count and expert_feed_forward_length.
ExpertSizes add_expert_sizes(Decoder &decoder);

// mlp.experts.N.{gate,up,down}_proj.weight, or stacked: mlp.experts.gate_up_proj (gate rows first) and down_proj.
void add_gated_experts(Decoder &decoder, int64_t layer, const ExpertSizes &sizes);

// mlp.experts.{gate_up,down}_proj_{blocks,scales,bias} of gpt-oss: MXFP4 with the rows of gate and up in turns.
void add_mxfp4_experts(Decoder &decoder, int64_t layer, const ExpertSizes &sizes);

}  // namespace runnel::convert
