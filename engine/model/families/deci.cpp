// deci: Nemotron 49B, 51B and 253B (Puzzle). Like llama, but heads, K/V heads and hidden units differ by layer. A
// layer may have no attention (0 heads), one matrix instead of it (heads, but 0 K/V heads), or neither attention
// nor a feed-forward network.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_deci(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Adjacent,
                         .heads = by_layer(b, "attention.head_count", 0, 4096, b.hyper().head_count),
                         .kv_heads = by_layer(b, "attention.head_count_kv", 0, 4096, b.hyper().head_count_kv),
                         .hidden = by_layer(b, "feed_forward_length", 0, 1 << 20, 0)};
    for (size_t i = 0; i < traits.hidden.size(); ++i)
        if (traits.hidden[i] == 0 && traits.heads[i] > 0)
            b.metadata().fail("feed_forward_length", "0 in layer " + std::to_string(i) +
                                                         ", which has attention: this is not supported");
    const DecoderTraits plain = traits;
    traits.attention = [plain](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        if (plain.kv_heads[static_cast<size_t>(layer)] > 0)
            return emit_attention(builder, plain, layer, sublayer, 0);
        const Size width{builder.hyper().embedding_length, "embedding_length"};
        builder.add(kernels::Linear{
            sublayer.in,
            {{builder.matrix("blk." + std::to_string(layer) + ".attn_output.weight", width, width),
              kernels::kNoWeight, sublayer.out, sublayer.add, sublayer.scale}}});
    };
    emit_decoder(b, traits);
}

// openelm: OpenELM. Heads and hidden units differ by layer; query and key heads are normed.
void emit_openelm(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .head_norm = DecoderTraits::HeadNorm::PerHead,
                     .heads = by_layer(b, "attention.head_count", 1, 4096, b.hyper().head_count),
                     .kv_heads = by_layer(b, "attention.head_count_kv", 1, 4096, b.hyper().head_count_kv),
                     .hidden = by_layer(b, "feed_forward_length", 1, 1 << 20, 0)});
}

}  // namespace runnel::model
