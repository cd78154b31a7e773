// llama4: the text part of Llama 4 Scout and Maverick. Three layers rotate and see the tokens of their own
// chunk of 8192, then one sees everything without positions, with queries that grow with the logarithm of the
// number of chunks. Heads of layers that rotate are normed after RoPE, without weights, but in Maverick (128
// experts). One expert per token, chosen by the largest logit, reads the token times the sigmoid of that
// logit, and a shared one reads the token itself; Maverick has experts on every other layer. A window of 0
// in a file means one layer like the other: all rotate and see everything. (Meta's reference code and
// transformers' Llama4TextModel; the lengths, which no file holds, as there.)
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
