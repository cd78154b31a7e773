// phi3: Phi-3, 3.5 and 4 (mini, medium, 14B). Fused Q, K, V and gate, up matrices; LongRoPE factors in the
// models of long context; a window on all layers if the file gives one (Phi-3 mini and medium of 4k).
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_phi3(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves, .window = sliding_window(b, 0)});
}

// phimoe: Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE. Like phi3 with experts, and with biases of norms and matrices.
//
// This is what llama.cpp computes for these files. Microsoft's definition differs in two ways: its norms are layer
// norms, which subtract the mean, and its router (SparseMixer, arXiv:2409.12136) weights each of the two chosen
// experts by a softmax over those experts alone whose logits are within 2% of its own. If there are no others, both
// weights are 1; here they add up to 1.
void emit_phimoe(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .norm_biases = true,
                         .biases = DecoderTraits::Biases::All,
                         .window = sliding_window(b, 0)};
    with_experts(traits, {.normalize = true});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
