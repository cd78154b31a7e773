// Draft heads that read the inputs of some of the target's layers: copies of these states, and the matrix that joins them,
// become steps of the target's program, whose logits keep their bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/draft_head.h"
#include "engine/model/metadata.h"
#include "kernels/program.h"

namespace runnel::model {

// The key `target_layers`: from `least` to `most` layers, counted from 0, which count as often as they are computed. The
// number of the target's layers means its last state: the one after the output norm, but before it in gpt-oss, mimo2 and
// step35 (as in llama.cpp). Throws ModelError.
std::vector<int64_t> tapped_layers(const Metadata &head, size_t least, size_t most);
// Throws ModelError if the target has fewer layers.
void check_taps(const Metadata &head, std::span<const int64_t> layers, const Model &target);

// fused = after * norm(W (before * norm([states]))), where a norm without a weight is left out.
struct Fusion {
    std::string slot;  // a new one of the target's program, of `width` floats
    int64_t width;
    kernels::Weight matrix;
    const kernels::Weight *before = nullptr, *after = nullptr;
    float eps = 0;
};
// Adds the steps before the target's logits. Throws ModelError if the target's layers do not pass a single residual stream
// from one to the next. Precondition: check_taps().
void fuse_taps(Model &target, HeadKind kind, const gguf::File &head, std::span<const int64_t> layers,
               const Fusion &fusion);

}  // namespace runnel::model
