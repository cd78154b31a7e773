// qwen3moe: Qwen3 with experts in every layer (30B-A3B, 235B-A22B, Coder).
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_qwen3moe(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .head_norm = DecoderTraits::HeadNorm::PerHead};
    with_experts(traits, {.normalize = true});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
