// ernie4_5-moe: ERNIE 4.5 with experts in some layers, chosen by softmax scores with a bias, and a shared
// expert.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_ernie4_5_moe(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Adjacent};
    with_experts(traits, {.normalize = true});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
