// granite, granitemoe: Granite 3, and Granite 4 models without state-space layers. As llama with four scales;
// logits are divided by logit_scale. Without RoPE if the file has rope.scaling.finetuned = false.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

DecoderTraits granite_scales(const Builder &b) {
    const Metadata &m = b.metadata();
    // Absent or 0: no scale.
    const auto scale = [&](const char *key) {
        const double value = m.real(key, 0).value_or(1);
        return value == 0 ? 1 : value;
    };
    return {.attention_scale = m.real("attention.scale", 0).value_or(0),
            .embedding_scale = scale("embedding_scale"),
            .residual_scale = scale("residual_scale"),
            .logit_scale = 1 / scale("logit_scale")};
}

void emit_granite(Builder &b) {
    DecoderTraits traits = granite_scales(b);
    if (b.metadata().boolean("rope.scaling.finetuned").value_or(true))
        traits.pairs = kernels::RopeTable::Pairs::Adjacent;
    if (has_experts(b)) with_experts(traits, {.normalize = true});  // granitemoe
    emit_decoder(b, traits);
}

}  // namespace runnel::model
