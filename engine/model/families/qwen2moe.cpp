// qwen2moe: Qwen1.5-MoE and Qwen2-57B. Many experts whose weights are not normalized, and a shared
// expert that is weighted by a gate of its own.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_qwen2moe(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves, .biases = DecoderTraits::Biases::Qkv};
    with_experts(traits, {.normalize = false});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
