// llama4: the text part of Llama 4 Scout and Maverick. Three layers with RoPE attend within their own chunk
// of 8192 tokens; then one layer without positions attends to everything, and its queries grow with the
// logarithm of the number of chunks. Layers with RoPE norm their heads after it, without weights, except in
// Maverick (128 experts). One expert per token, chosen by the largest logit, reads the token times the
// sigmoid of that logit; a shared one reads the token itself. Maverick has experts on every other layer. With
// a window of 0 in the file, all layers have RoPE and attend to everything. (Sources: Meta's reference code
// and transformers' Llama4TextModel, also for the lengths, which are not in files.)
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_llama4(Builder &b) {
    constexpr int64_t kChunk = 8192;
    const HyperParameters &h = b.hyper();
    if (h.rope_dimensions != h.key_length)
        b.metadata().fail("rope.dimension_count", "must equal attention.key_length for this architecture");
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Adjacent};
    if (b.metadata().required_integer("expert_count", 1, 65536) != 128)
        traits.head_norm = DecoderTraits::HeadNorm::PlainAfterRope;
    traits.window = sliding_window(b, kChunk);
    if (traits.window > 0) {
        traits.window_kind = kernels::Attention::Window::Chunked;
        traits.full = full_layers(b, 4);
        traits.rope_on_full = false;
        traits.temperature = {.beta = 0.1f, .length = kChunk, .offset = 1};
    }
    with_experts(traits,
                 {.score = ExpertTraits::Score::Sigmoid, .normalize = false, .weights_on_input = true});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
