// deepseek2: DeepSeek V2, V3, R1, V3.1, Kimi K2, Moonlight, GLM-4.7-Flash, GigaChat 3: multi-head latent
// attention (latent.h), and experts after some dense layers.
#include <cmath>
#include <optional>

#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/latent.h"

namespace runnel::model {

using namespace kernels;

namespace {

// GLM-4.7-Flash files may lack the key; the vocabulary distinguishes them from DeepSeek V2.
ExpertTraits::Score default_score(const HyperParameters &h) {
    const bool flash = (h.block_count == 47 || h.block_count == 48) && h.vocab == 154880;
    return flash ? ExpertTraits::Score::Sigmoid : ExpertTraits::Score::Softmax;
}

// Latent attention in every layer, with ropes[rope].
DecoderTraits latent_attention(int32_t rope, const Indexers *indexers = nullptr) {
    return {.attention = [rope, indexers](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        emit_latent_attention(builder, layer, sublayer, rope, {.indexers = indexers});
    }};
}

void emit(Builder &b, ExpertTraits::Score default_of_file, const Indexers *indexers = nullptr) {
    const int32_t rope = latent_rope(b, RopeTable::Pairs::Adjacent);
    b.program().ropes[static_cast<size_t>(rope)].magnitude = 1;
    DecoderTraits traits = latent_attention(rope, indexers);
    with_experts(traits, {.score = default_of_file});
    emit_decoder(b, traits);
}

}  // namespace

// deepseek2 and mistral4 (Mistral Small 4).
void emit_deepseek2(Builder &b) {
    emit(b, default_score(b.hyper()));
}

// deepseek32 (DeepSeek V3.2) and glm-dsa (GLM-5). A token attends to the top_k keys that an indexer chooses. With
// at most top_k tokens that is all of them: without a longer context, the program has no indexer.
void emit_sparse_deepseek2(Builder &b) {
    const int64_t top_k = b.metadata().required_integer(kIndexerTopK, 1, INT32_MAX);
    std::optional<Indexers> indexers;
    if (b.chosen_context() <= top_k)
        b.limit_context(top_k);
    else if (!b.draft_block())
        indexers = read_indexers(b, static_cast<int32_t>(top_k));
    ignore_indexers(b, indexers ? &*indexers : nullptr);
    emit(b, ExpertTraits::Score::Sigmoid, indexers ? &*indexers : nullptr);
}

// minicpm3: MiniCPM 3 4B. Dense. Files lack its scales of embeddings, residual branches and logits.
void emit_minicpm3(Builder &b) {
    const HyperParameters &h = b.hyper();
    DecoderTraits traits = latent_attention(latent_rope(b, RopeTable::Pairs::Halves));
    traits.embedding_scale = 12;
    traits.residual_scale = 1.4 / std::sqrt(double(h.block_count));
    traits.logit_scale = 256 / double(h.embedding_length);
    emit_decoder(b, traits);
}

// plm: PLM 1.8B. Dense, squared ReLU without a gate.
void emit_plm(Builder &b) {
    DecoderTraits traits = latent_attention(latent_rope(b, RopeTable::Pairs::Adjacent));
    traits.act = Activation::Kind::ReluSquared;
    traits.gated = false;
    emit_decoder(b, traits);
}

}  // namespace runnel::model
