// phi3: Phi-3, 3.5 and 4 (mini, medium, 14B). Fused Q, K, V and gate, up matrices; LongRoPE factors in the
// models of long context; a window on all layers if the file gives one (Phi-3 mini and medium of 4k).
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_phi3(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves, .window = sliding_window(b, 0)});
}

// phimoe: Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE. Like phi3 with experts, layer norms, and biases of norms and
// matrices. The router (SparseMixer) gives each of the two chosen experts the weight 1, unless the logit of a worse one
// is within 2% of its own. (transformers' PhimoeModel. llama.cpp has RMS norms, and weights that add up to 1.)
void emit_phimoe(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .norm = kernels::Norm::Kind::Layer,
                         .norm_biases = true,
                         .biases = DecoderTraits::Biases::All,
                         .window = sliding_window(b, 0)};
    with_experts(traits, {.score = kernels::Routing::Score::SparseMixer, .normalize = false});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
