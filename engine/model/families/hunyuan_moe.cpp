// hunyuan-moe: Hunyuan-A13B. As hunyuan-dense, with experts and a shared one in every layer.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_hunyuan_moe(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .head_norm = DecoderTraits::HeadNorm::PerHeadAfterRope};
    with_experts(traits, {.normalize = true});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
