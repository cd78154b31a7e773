// talkie: Talkie 13B. No norm has weights; each query head has a gain. The normed embedding is added to the
// stream after every layer, with the layer's factor.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

using namespace kernels;

static Slot embedding(Builder &b) {
    return b.slot("embedding", b.hyper().embedding_length);
}

void emit_talkie(Builder &b) {
    DecoderTraits traits{.pairs = RopeTable::Pairs::Halves,
                         .norm_weights = false,
                         .head_norm = DecoderTraits::HeadNorm::PlainWithGain,
                         .logit_scale = b.metadata().required_real("logit_scale", 0)};
    traits.after_embeddings = [](Builder &builder, Slot x) {
        const HyperParameters &h = builder.hyper();
        builder.add(
            Copy{.in = x, .out = embedding(builder), .from = {}, .to = {}, .width = h.embedding_length});
        builder.add(Norm{x, x, kNoWeight, h.norm_epsilon});
    };
    // A norm whose weights all equal the factor.
    traits.after_layer = [](Builder &builder, int32_t layer, Slot x) {
        const HyperParameters &h = builder.hyper();
        const std::string name = "blk." + std::to_string(layer) + ".layer_output_scale.weight";
        const float factor = builder.values(name, {1, "one"}, {1, "one"}).front();
        std::vector<float> factors(static_cast<size_t>(h.embedding_length), factor);
        builder.add(Norm{.in = embedding(builder),
                         .out = x,
                         .weight = builder.constant(name, std::move(factors), 1, 1, h.embedding_length),
                         .eps = h.norm_epsilon,
                         .add = x});
    };
    emit_decoder(b, traits);
}

}  // namespace runnel::model
