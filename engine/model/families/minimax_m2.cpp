// minimax-m2: MiniMax M2. Half of each head is rotated, norms are over all heads together; experts are chosen
// by sigmoid scores with a bias.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_minimax_m2(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .head_norm = DecoderTraits::HeadNorm::WholeRow};
    with_experts(traits, {.score = ExpertTraits::Score::Sigmoid, .normalize = true});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
