// gpt-oss: every other layer has a window, all have attention sinks; experts in MXFP4 with biases and a
// clamped activation, weighted by the softmax over the chosen logits.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_gpt_oss(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .biases = DecoderTraits::Biases::All,
                         .ffn_norm = "post_attention_norm"};
    traits.window = sliding_window(b, 128);
    traits.full = full_layers(b, 2);
    with_experts(traits, {.score = ExpertTraits::Score::SelectedSoftmax,
                          .normalize = false,
                          .act = kernels::Activation::Kind::SiluClamped});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
