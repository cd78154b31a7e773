// llama: Llama 1-3, Mistral, TinyLlama, SmolLM, Yi, CodeLlama, ... Converters permute Q and K rows so that
// rotated pairs are adjacent. Llama 3.1's RoPE scaling comes as `rope_freqs.weight`. A sliding window in a
// file is not applied: Mistral 7B 0.1 is the only such model, and llama.cpp, which made its files popular,
// never did.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_llama(Builder &b) {
    const Metadata &metadata = b.metadata();
    if (metadata.integer("expert_count", 0, 65536).value_or(0) > 0)
        metadata.fail("expert_count", "mixture-of-experts models are not supported yet");
    if (b.hyper().rope_dimensions != b.hyper().key_length)
        metadata.fail("rope.dimension_count", "must equal the head size for this architecture");
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Adjacent});
}

}  // namespace runnel::model
