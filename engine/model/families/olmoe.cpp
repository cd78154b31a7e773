// olmoe: OLMoE. Norms over all query and all key heads; the weights of the experts are not normalized.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_olmoe(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .head_norm = DecoderTraits::HeadNorm::WholeRow};
    with_experts(traits, {.normalize = false});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
