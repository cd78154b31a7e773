// rwkv6, rwkv6qwen2: RWKV-6 (Finch; Peng et al. 2024), and models with its time mixing and Qwen2's feed-forward
// networks (QRWKV6). As in rwkv7, a layer has no attention; how much of the input of the token before is mixed in
// depends on the token itself.
#include <cmath>

#include "engine/model/families.h"
#include "engine/model/rwkv.h"

namespace runnel::model {

using namespace kernels;

namespace {

class TimeMix6 : RwkvMixer {
  public:
    using RwkvMixer::RwkvMixer;

    // qwen2: the model has no bonus and no norm of heads, fewer key heads, and another gate.
    void emit(const SubLayer &sublayer, bool qwen2) {
        const Slot w_in = wide("in w"), k_in = wide("in k"), v_in = wide("in v"), r_in = wide("in r"),
                   g_in = wide("in g");
        shift_by_token(sublayer.in, {w_in, k_in, v_in, r_in, g_in});
        const Size key_rows =
            qwen2 ? Size{heads_of_keys() * head_, "attention.head_count_kv * wkv.head_size"} : width_;
        const Slot w = wide("w"), g = wide("g"), r = wide("r"), out = wide("out");
        matrix("time_mix_receptance", width_, r_in, r);
        decay(w_in, w);
        const Slot k = keys("time_mix_key", "k", k_in, key_rows),
                   v = keys("time_mix_value", "value", v_in, key_rows);
        // k <- (1 - w) k
        if (qwen2) b_.add(Lerp{.from = k, .to = kNoSlot, .out = {k}, .coefficients = w});
        b_.add(LinearScan{.q = r,
                          .k = k,
                          .v = v,
                          .out = out,
                          .decay = w,
                          .heads = heads_,
                          .key_heads = heads_,
                          .dk = static_cast<int32_t>(head_),
                          .dv = static_cast<int32_t>(head_),
                          .reads_before = !qwen2,
                          .state = b_.state_layer(width_.value * head_)});
        Slot all = out;
        if (!qwen2) {
            all = sum_of(out, bonus(r, k, v, "time_mix_first"));
            norm_heads(all, kNoSlot);
        }
        matrix("time_mix_gate", width_, g_in, g);
        b_.add(Activation{g, all, all, qwen2 ? Activation::Kind::Sigmoid : Activation::Kind::Silu});
        SubLayer scaled = sublayer;
        if (qwen2) scaled.scale *= static_cast<float>(1 / std::sqrt(static_cast<double>(head_)));
        project("time_mix_output", width_, all, scaled);
    }

  private:
    int32_t heads_of_keys() const {
        const int64_t n = b_.metadata().integer("attention.head_count_kv", 0, heads_).value_or(0);
        if (n > 0 && heads_ % n != 0)
            b_.metadata().fail("attention.head_count_kv", "does not divide the number of heads");
        return n > 0 ? static_cast<int32_t>(n) : heads_;
    }
    void matrix(const std::string &tensor, Size rows, Slot in, Slot out) {
        b_.add(Linear{in,
                      {{b_.matrix(name(tensor + ".weight"), rows, width_),
                        b_.optional_vector(name(tensor + ".bias"), rows), out, kNoSlot}}});
    }
    // A matrix with a slice per key head; each slice is repeated for the heads that use it.
    Slot keys(const std::string &tensor, const std::string &what, Slot in, Size rows) {
        const Slot all = wide(what);
        const auto key_heads = static_cast<int32_t>(rows.value / head_);
        const Slot own = key_heads == heads_ ? all : b_.slot("rwkv own " + what, rows.value);
        matrix(tensor, rows, in, own);
        if (own == all) return all;
        const int64_t shared = heads_ / key_heads;
        for (int64_t i = 0; i < shared; ++i)
            b_.add(Copy{own, all, {0, head_}, {i * head_, shared * head_}, key_heads, head_});
        return all;
    }
    // out[i] = x + (c_i + W2_i tanh(W1_i y)) * (before - x), with y = x + c * (before - x)
    void shift_by_token(Slot x, std::vector<Slot> out) {
        const auto n = static_cast<int64_t>(out.size());
        const Size one = size("time_mix_extra_dim", 1, kMaxStateWidth),
                   all{n * one.value, "5 * time_mix_extra_dim"};
        const Slot before = token_before(x), mixed = wide("mixed"), low = b_.slot("rwkv low rank", all.value),
                   more = b_.slot("rwkv coefficients", n * width_.value);
        shift("time_mix_lerp_x", x, before, {mixed});
        b_.add(Linear{mixed, {part("time_mix_w1", all, low)}});
        b_.add(Activation{low, kNoSlot, low, Activation::Kind::Tanh});
        b_.add(HeadLinear{low,
                          more,
                          {0, one.value},
                          {0, width_.value},
                          b_.matrices(name("time_mix_w2.weight"), {n, "five"}, width_, one)});
        b_.add(Lerp{.from = x,
                    .to = before,
                    .out = std::move(out),
                    .weight = fixed_coefficients(n),
                    .coefficients = more});
    }
    // One tensor, or (older files) one for each of w, k, v, r and g.
    WeightId fixed_coefficients(int64_t n) {
        const std::string tensor = name("time_mix_lerp_");
        if (b_.has(tensor + "fused.weight"))
            return b_.flat_vector(tensor + "fused.weight", {n, "five"}, width_);
        std::vector<float> all;
        for (const char *letter : {"w", "k", "v", "r", "g"}) {
            const std::vector<float> values = b_.values(tensor + letter + ".weight", {1, "a vector"}, width_);
            all.insert(all.end(), values.begin(), values.end());
        }
        return b_.constant(tensor, std::move(all), 1, n, width_.value);
    }
    // exp(-exp(x))
    void decay(Slot in, Slot w) {
        const Size rank = size("time_decay_extra_dim", 1, kMaxStateWidth);
        const Slot low = b_.slot("rwkv low rank", rank.value);
        b_.add(Linear{in, {part("time_mix_decay_w1", rank, low)}});
        b_.add(Activation{low, kNoSlot, low, Activation::Kind::Tanh});
        b_.add(Linear{low,
                      {{b_.matrix(name("time_mix_decay_w2.weight"), width_, rank), kNoWeight, w, kNoSlot}}});
        b_.add(ScanGate{
            .in = w, .decay = w, .bias = vector("time_mix_decay"), .form = ScanGate::Form::Exponential});
    }
};

class ChannelMix6 : RwkvMixer {
  public:
    using RwkvMixer::RwkvMixer;

    // scale: of the residual stream after this half
    void emit(const SubLayer &sublayer, float scale) {
        const Size hidden{b_.hyper().feed_forward_length, "feed_forward_length"};
        if (hidden.value < 1) b_.metadata().fail("feed_forward_length", "is missing or 0");
        const Slot before = token_before(sublayer.in), k_in = wide("channel in"), r_in = wide("channel in r"),
                   keys = b_.slot("channel keys", hidden.value), r = wide("channel r"),
                   out = wide("channel out"), sum = wide("channel sum");
        shift("channel_mix_lerp_k", sublayer.in, before, {k_in});
        shift("channel_mix_lerp_r", sublayer.in, before, {r_in});
        b_.add(Linear{k_in, {part("channel_mix_key", hidden, keys)}});
        b_.add(Activation{keys, kNoSlot, keys, Activation::Kind::ReluSquared});
        b_.add(Linear{r_in, {part("channel_mix_receptance", width_, r)}});
        project("channel_mix_value", hidden, keys, {keys, out, kNoSlot});
        b_.add(Activation{r, out, out, Activation::Kind::Sigmoid});
        b_.add(Mix{.in = {out, sublayer.add}, .out = {sum}, .width = width_.value, .scale = scale});
        b_.add(Copy{sum, sublayer.out, {}, {}, 1, width_.value});
    }
};

}  // namespace

void emit_rwkv6(Builder &b) {
    check_token_shifts(b, 2);
    const RwkvWeights shared(b);
    // (The converter divides the output matrices of later layers accordingly.)
    const int64_t halved = b.metadata().integer("rescale_every_n_layers", 0, INT32_MAX).value_or(0);
    DecoderTraits traits{.norm = Norm::Kind::Layer, .norm_biases = true, .ffn_norm = "attn_norm_2"};
    traits.after_embeddings = norm_embeddings;
    traits.attention = [&](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        TimeMix6(builder, layer, shared).emit(sublayer, false);
    };
    traits.feed_forward = [&](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        ChannelMix6(builder, layer, shared)
            .emit(sublayer, halved > 0 && (layer + 1) % halved == 0 ? 0.5f : 1.0f);
    };
    emit_decoder(b, traits);
}

void emit_rwkv6qwen2(Builder &b) {
    check_token_shifts(b, 1);
    const RwkvWeights shared(b);
    if (b.metadata().integer("rescale_every_n_layers", 0, INT32_MAX).value_or(0) != 0)
        b.metadata().fail("rescale_every_n_layers", "is not supported for this architecture");
    DecoderTraits traits;
    // (attention.head_count_kv counts heads of wkv.head_size; attention.head_count is 0.)
    traits.kv_heads.assign(static_cast<size_t>(b.hyper().block_count), 1);
    traits.attention = [&](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        TimeMix6(builder, layer, shared).emit(sublayer, true);
    };
    emit_decoder(b, traits);
}

}  // namespace runnel::model
