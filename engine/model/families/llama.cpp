// llama: Llama 1-3, Mistral, TinyLlama, SmolLM, Yi, CodeLlama, ... Converters permute Q and K rows so that
// rotated pairs are adjacent. Llama 3.1's RoPE scaling comes as `rope_freqs.weight`. A sliding window in a
// file is not applied: Mistral 7B 0.1 is the only such model, and llama.cpp, which made its files popular,
// never did.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_llama(Builder &b) {
    if (b.hyper().rope_dimensions != b.hyper().key_length)
        b.metadata().fail("rope.dimension_count", "must equal attention.key_length for this architecture");
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Adjacent};
    if (has_experts(b)) with_experts(traits, {.normalize = true});  // Mixtral and its like
    emit_decoder(b, traits);
}

}  // namespace runnel::model
