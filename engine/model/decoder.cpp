// The pre-norm decoder block that llama, qwen2 and qwen3 share.
#include <cmath>

#include "engine/model/builder.h"

namespace runnel::model {

using namespace kernels;

namespace {

struct Slots {
    Slot x;       // residual stream
    Slot normed;  // input of the matrices
    Slot q, k, v, attended;
    Slot gate, up;
};

void emit_attention(Builder &b, const DecoderTraits &traits, const Slots &s, int32_t rope, int32_t layer) {
    const HyperParameters &h = b.hyper();
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    const int64_t d = h.embedding_length;
    const int64_t q_width = int64_t{h.head_count} * h.key_length;
    const int64_t k_width = int64_t{h.head_count_kv} * h.key_length;
    const int64_t v_width = int64_t{h.head_count_kv} * h.value_length;
    const int64_t out_width = int64_t{h.head_count} * h.value_length;
    const auto part = [&](const std::string &name, int64_t rows, int64_t cols, Slot out, Slot add) {
        const std::string bias = prefix + name + ".bias";
        const bool required = traits.biases_required && name != "attn_output";
        return Linear::Part{b.matrix(prefix + name + ".weight", rows, cols),
                            required ? b.vector(bias, rows) : b.optional_vector(bias, rows), out, add};
    };

    b.add(Norm{s.x, s.normed, b.vector(prefix + "attn_norm.weight", d), h.norm_rms_epsilon});
    b.add(Linear{s.normed,
                 {part("attn_q", q_width, d, s.q, kNoSlot), part("attn_k", k_width, d, s.k, kNoSlot),
                  part("attn_v", v_width, d, s.v, kNoSlot)}});
    const double scale = b.metadata().real("attention.scale", 0).value_or(0);
    Attention attention{.q = s.q,
                        .k = s.k,
                        .v = s.v,
                        .out = s.attended,
                        .layer = layer,
                        .heads = h.head_count,
                        .kv_heads = h.head_count_kv,
                        .head_dim_k = h.key_length,
                        .head_dim_v = h.value_length,
                        .scale = static_cast<float>(scale != 0 ? scale : 1 / std::sqrt(double(h.key_length))),
                        .window = h.sliding_window,
                        .rope = rope,
                        .norm_eps = h.norm_rms_epsilon};
    if (traits.head_norm) {
        attention.q_norm = b.vector(prefix + "attn_q_norm.weight", h.key_length);
        attention.k_norm = b.vector(prefix + "attn_k_norm.weight", h.key_length);
    }
    b.program().cache_layers.push_back({h.head_count_kv, h.key_length, h.value_length});
    b.add(attention);
    b.add(Linear{s.attended, {part("attn_output", d, out_width, s.x, s.x)}});
}

void emit_feed_forward(Builder &b, const Slots &s, int32_t layer) {
    const HyperParameters &h = b.hyper();
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    const int64_t d = h.embedding_length, ff = h.feed_forward_length;
    const auto part = [&](const std::string &name, int64_t rows, int64_t cols, Slot out, Slot add) {
        return Linear::Part{b.matrix(prefix + name + ".weight", rows, cols),
                            b.optional_vector(prefix + name + ".bias", rows), out, add};
    };
    b.add(Norm{s.x, s.normed, b.vector(prefix + "ffn_norm.weight", d), h.norm_rms_epsilon});
    b.add(Linear{s.normed, {part("ffn_gate", ff, d, s.gate, kNoSlot), part("ffn_up", ff, d, s.up, kNoSlot)}});
    b.add(Gate{s.gate, s.up, s.gate});
    b.add(Linear{s.gate, {part("ffn_down", d, ff, s.x, s.x)}});
}

}  // namespace

void emit_decoder(Builder &b, const DecoderTraits &traits) {
    const HyperParameters &h = b.hyper();
    const int64_t d = h.embedding_length;
    const Slots s{.x = b.slot("residual", d),
                  .normed = b.slot("normed", d),
                  .q = b.slot("q", int64_t{h.head_count} * h.key_length),
                  .k = b.slot("k", int64_t{h.head_count_kv} * h.key_length),
                  .v = b.slot("v", int64_t{h.head_count_kv} * h.value_length),
                  .attended = b.slot("attended", int64_t{h.head_count} * h.value_length),
                  .gate = b.slot("gate", h.feed_forward_length),
                  .up = b.slot("up", h.feed_forward_length)};
    const WeightId embedding = b.matrix("token_embd.weight", h.vocab, d);
    const int32_t rope = b.rope(traits.pairs);
    b.add(Embed{embedding, s.x});
    for (int32_t layer = 0; layer < h.block_count; ++layer) {
        emit_attention(b, traits, s, rope, layer);
        emit_feed_forward(b, s, layer);
    }
    b.add(Norm{s.x, s.normed, b.vector("output_norm.weight", d), h.norm_rms_epsilon});
    b.add(Logits{s.normed, b.has("output.weight") ? b.matrix("output.weight", h.vocab, d) : embedding});
}

}  // namespace runnel::model
