// minimax-m2: MiniMax M2. Half of each head is rotated, norms are over all heads together; experts are chosen
// by sigmoid scores with a bias.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_minimax_m2(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .head_norm = DecoderTraits::HeadNorm::WholeRow};
    with_experts(traits, {.score = ExpertTraits::Score::Sigmoid, .normalize = true});
    emit_decoder(b, traits);
}

// minimax-m3: MiniMax M3. The norms of heads are those of each head; dense layers, then experts and a shared one,
// all with gpt-oss's clamped activation. In layers with experts, an indexer chooses the top_k blocks of block_size
// keys that a token attends to. With at most top_k blocks that is all of them: up to so many tokens, attention is
// dense, and longer contexts are refused.
void emit_minimax_m3(Builder &b) {
    const Metadata &m = b.metadata();
    const char *top_k = "attention.indexer.top_k";
    const int64_t tokens = m.required_integer(top_k, 1, 1 << 15) *
                           m.required_integer("attention.indexer.block_size", 1, 1 << 15);
    if (b.chosen_context() > tokens)
        m.fail(top_k,
               "a context of " + std::to_string(b.chosen_context()) +
                   " tokens needs block-sparse attention, which is not supported: choose one of at most " +
                   std::to_string(tokens) + " (-c)");
    b.limit_context(tokens);
    for (const char *unused : {"head_count", "key_length", "local_blocks"})
        (void)m.find(std::string("attention.indexer.") + unused);
    for (int32_t i = 0; i < b.hyper().block_count; ++i)
        for (const char *unused : {"q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight"})
            b.ignore(layer_prefix(i) + "indexer." + unused);
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .head_norm = DecoderTraits::HeadNorm::PerHead,
                         .act = kernels::Activation::Kind::SiluClamped};
    with_experts(traits,
                 {.score = ExpertTraits::Score::Sigmoid, .act = kernels::Activation::Kind::SiluClamped});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
