// llama: Llama 1-3, Mistral, TinyLlama, SmolLM, Yi, CodeLlama, ... Converters permute Q and K rows so that
// rotated pairs are adjacent. Llama 3.1's RoPE scaling comes as `rope_freqs.weight`.
#include "engine/model/families.h"

namespace runnel::model {

void emit_llama(Builder &builder) {
    const Metadata &metadata = builder.metadata();
    if (metadata.integer("expert_count", 0, 65536).value_or(0) > 0)
        metadata.fail("expert_count", "mixture-of-experts models are not supported yet");
    if (builder.hyper().rope_dimensions != builder.hyper().key_length)
        metadata.fail("rope.dimension_count", "must equal the head size for this architecture");
    emit_decoder(builder, {.pairs = kernels::RopeTable::Pairs::Adjacent});
}

}  // namespace runnel::model
