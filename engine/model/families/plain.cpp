// Dense families with few differences from llama.
#include <algorithm>

#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

using Act = kernels::Activation::Kind;
using Block = DecoderTraits::Block;
using Pairs = kernels::RopeTable::Pairs;
using Norms = kernels::Norm::Kind;

// xverse, chatglm (GLM-3 and GLM-4-9B: fused matrices, half of each head is rotated).
void emit_adjacent(Builder &b) {
    emit_decoder(b, {.pairs = Pairs::Adjacent});
}

// pangu-embedded; the text parts of paddleocr, which has position axes (M-RoPE), and of cogvlm, which has experts
// for images.
void emit_halves(Builder &b) {
    emit_decoder(b, {.pairs = Pairs::Halves});
}

// arcee: AFM-4.5B. Squared ReLU without a gate.
void emit_arcee(Builder &b) {
    emit_decoder(b, {.pairs = Pairs::Adjacent, .act = Act::ReluSquared, .gated = false});
}

// baichuan: Baichuan 7B has RoPE, 13B has ALiBi; only the number of layers tells them apart.
void emit_baichuan(Builder &b) {
    if (b.hyper().block_count == 40) return emit_decoder(b, {.largest_alibi_bias = 8});
    emit_decoder(b, {.pairs = Pairs::Adjacent});
}

// bitnet: BitNet b1.58. Norms before the output matrices of both halves.
void emit_bitnet(Builder &b) {
    const std::string_view act = b.metadata().text("hidden_activation").value_or("silu");
    if (act != "silu" && act != "relu2") b.metadata().fail("hidden_activation", "is neither silu nor relu2");
    emit_decoder(
        b,
        {.pairs = Pairs::Halves, .act = act == "silu" ? Act::Silu : Act::ReluSquared, .inner_norms = true});
}

// orion: layer norms with biases.
void emit_orion(Builder &b) {
    emit_decoder(b, {.pairs = Pairs::Halves, .norm = Norms::Layer, .norm_biases = true});
}

// qwen: Qwen 1. Its files count gate and up together as feed_forward_length.
void emit_qwen(Builder &b) {
    DecoderTraits traits{.pairs = Pairs::Halves, .biases = DecoderTraits::Biases::Qkv};
    if (b.hyper().feed_forward_length % 2 != 0)
        b.metadata().fail("feed_forward_length", "is odd, but must be even: it counts gate and up together");
    traits.hidden.assign(static_cast<size_t>(b.hyper().block_count), b.hyper().feed_forward_length / 2);
    emit_decoder(b, traits);
}

// plamo: PLaMo 13B. Both halves of a layer read the same norm.
void emit_plamo(Builder &b) {
    emit_decoder(b, {.pairs = Pairs::Halves, .block = Block::Parallel, .ffn_norm = ""});
}

// nanbeige: Nanbeige 4.2. The layers are computed `num_loops` times.
void emit_nanbeige(Builder &b) {
    const Metadata &m = b.metadata();
    const int64_t most = 1024 / b.hyper().block_count;
    const bool skips_norm = m.boolean("skip_loop_final_norm").value_or(false);
    emit_decoder(
        b, {.pairs = Pairs::Adjacent,
            .passes = static_cast<int32_t>(m.integer("num_loops", 1, std::max<int64_t>(most, 1)).value_or(1)),
            .norm_between_passes = !skips_norm});
}

// maincoder: query and key heads are normed after RoPE.
void emit_maincoder(Builder &b) {
    emit_decoder(b, {.pairs = Pairs::Adjacent, .head_norm = DecoderTraits::HeadNorm::PerHeadAfterRope});
}

}  // namespace runnel::model
