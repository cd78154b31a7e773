// rwkv7, arwkv7: RWKV-7 (Peng et al. 2025), and models with RWKV-7's time mixing and Qwen2's feed-forward networks
// (ARWKV). A layer has no attention: every token mixes its input with that of the token before, and a matrix per
// head is the state.
#include "engine/model/rwkv.h"

#include <cmath>
#include <optional>

#include "engine/model/families.h"

namespace runnel::model {

using namespace kernels;

namespace {

class TimeMix7 : RwkvMixer {
  public:
    TimeMix7(Builder &builder, int32_t layer, const RwkvWeights &shared)
        : RwkvMixer(builder, layer, shared), first_(layer == 0) {}

    // all_parts: the gate and the norm of heads must exist; else a layer may lack them.
    void emit(const SubLayer &sublayer, bool all_parts) {
        const bool gated = all_parts || b_.has(name("time_mix_g1.weight")),
                   normed = all_parts || b_.has(name("time_mix_ln.weight"));
        // (Files without gates have 0.)
        if (b_.metadata().integer("attention.gate_lora_rank", 0, kMaxStateWidth).value_or(0) > 0 && !gated)
            b_.metadata().fail("attention.gate_lora_rank",
                               "is not 0, but there is no tensor " + name("time_mix_g1.weight"));
        const Slot r_in = wide("in r"), w_in = wide("in w"), k_in = wide("in k"), v_in = wide("in v"),
                   a_in = wide("in a"), g_in = gated ? wide("in g") : kNoSlot;
        std::vector<Slot> inputs = {r_in, w_in, k_in, v_in, a_in};
        if (gated) inputs.push_back(g_in);
        shift("time_mix_lerp_fused", sublayer.in, token_before(sublayer.in), inputs);

        const Slot r = wide("r"), w = wide("w"), k = wide("k"), a = wide("a");
        matrix("time_mix_receptance", r_in, r);
        decay(w_in, w);
        matrix("time_mix_key", k_in, k);
        const Slot v = value(v_in);
        low_rank("a", "attention.iclr_lora_rank", a_in, a, {}, vector("time_mix_a0"));
        b_.add(Activation{a, kNoSlot, a, Activation::Kind::Sigmoid});

        const Slot removed = wide("removed"), removal = wide("removal"), out = wide("out");
        removal_keys(k, a, removed, removal);
        replacement_keys(k, a);
        b_.add(LinearScan{.q = r,
                          .k = k,
                          .v = v,
                          .out = out,
                          .decay = w,
                          .erase_read = removed,
                          .erase_write = removal,
                          .heads = heads_,
                          .key_heads = heads_,
                          .dk = static_cast<int32_t>(head_),
                          .dv = static_cast<int32_t>(head_),
                          .state = b_.state_layer(width_.value * head_)});
        const Slot more = bonus(r, k, v, "time_mix_r_k");
        if (normed) norm_heads(out, more);
        const Slot all = normed ? out : sum_of(out, more);
        if (gated) {
            const Slot g = wide("g");
            low_rank("g", "attention.gate_lora_rank", g_in, g, Activation::Kind::Sigmoid, kNoWeight);
            multiply(g, all, all);
        }
        project("time_mix_output", width_, all, sublayer);
    }

  private:
    void matrix(const std::string &tensor, Slot in, Slot out) {
        b_.add(Linear{in, {part(tensor, width_, out)}});
    }
    // out = W2 act(W1 in) + bias, where W1 and W2 are time_mix_<letter>1 and 2.
    void low_rank(const std::string &letter, const char *rank_key, Slot in, Slot out,
                  std::optional<Activation::Kind> act, WeightId bias) {
        const Size rank = size(rank_key, 1, kMaxStateWidth);
        const std::string tensor = "time_mix_" + letter;
        const Slot low = b_.slot("rwkv low rank", rank.value);
        b_.add(Linear{in, {part(tensor + "1", rank, low)}});
        if (act) b_.add(Activation{low, kNoSlot, low, *act});
        b_.add(Linear{low, {{b_.matrix(name(tensor + "2.weight"), width_, rank), bias, out, kNoSlot}}});
    }
    // exp(-0.606531 / (1 + exp(-x))); the constant is about exp(-1/2).
    void decay(Slot in, Slot w) {
        low_rank("w", "attention.decay_lora_rank", in, w, Activation::Kind::Tanh, kNoWeight);
        b_.add(ScanGate{.in = w,
                        .decay = w,
                        .bias = vector("time_mix_w0"),
                        .rate = shared_.one,
                        .form = ScanGate::Form::Sigmoid,
                        .bound = -0.606531f});
    }
    // Later layers mix their values with those of the first layer, which needs no tensors for that.
    Slot value(Slot in) {
        const Slot first = wide("value of the first layer");
        if (first_) {
            matrix("time_mix_value", in, first);
            for (const char *tensor : {"time_mix_v0", "time_mix_v1", "time_mix_v2"})
                b_.ignore(name(std::string(tensor) + ".weight"));
            return first;
        }
        const Slot v = wide("value"), share = wide("share of the first value");
        matrix("time_mix_value", in, v);
        low_rank("v", "attention.value_residual_mix_lora_rank", in, share, {}, vector("time_mix_v0"));
        b_.add(Activation{share, kNoSlot, share, Activation::Kind::Sigmoid});
        b_.add(Lerp{.from = v, .to = first, .out = {v}, .coefficients = share});
        return v;
    }
    // removed = k * k_k, divided by its length in each head; removal = a * removed.
    // (The model divides by max(length, 1e-12), this by sqrt(length^2 + 1e-24).)
    void removal_keys(Slot k, Slot a, Slot removed, Slot removal) {
        const auto n = static_cast<double>(head_);
        b_.add(Lerp{.from = kNoSlot, .to = k, .out = {removed}, .weight = vector("time_mix_k_k")});
        b_.add(Norm{.in = removed,
                    .out = removed,
                    .weight = kNoWeight,
                    .eps = static_cast<float>(1e-24 / n),
                    .parts = heads_,
                    .scale = static_cast<float>(1 / std::sqrt(n))});
        multiply(a, removed, removal);
    }
    // k <- k + (a k - k) k_a
    void replacement_keys(Slot k, Slot a) {
        const Slot scaled = wide("scaled k");
        multiply(a, k, scaled);
        b_.add(Lerp{.from = k, .to = scaled, .out = {k}, .weight = vector("time_mix_k_a")});
    }

    bool first_;
};

class ChannelMix7 : RwkvMixer {
  public:
    using RwkvMixer::RwkvMixer;

    void emit(const SubLayer &sublayer) {
        const Size hidden{b_.hyper().feed_forward_length, "feed_forward_length"};
        if (hidden.value < 1) b_.metadata().fail("feed_forward_length", "is missing or 0");
        const Slot in = wide("channel in"), keys = b_.slot("channel keys", hidden.value);
        shift("channel_mix_lerp_k", sublayer.in, token_before(sublayer.in), {in});
        b_.add(Linear{in, {part("channel_mix_key", hidden, keys)}});
        b_.add(Activation{keys, kNoSlot, keys, Activation::Kind::ReluSquared});
        project("channel_mix_value", hidden, keys, sublayer);
    }
};

}  // namespace

void emit_rwkv7(Builder &b) {
    check_token_shifts(b, 2);
    const RwkvWeights shared(b);
    DecoderTraits traits{.norm = Norm::Kind::Layer, .norm_biases = true, .ffn_norm = "attn_norm_2"};
    traits.after_embeddings = norm_embeddings;
    traits.attention = [&](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        TimeMix7(builder, layer, shared).emit(sublayer, true);
    };
    traits.feed_forward = [&](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        ChannelMix7(builder, layer, shared).emit(sublayer);
    };
    emit_decoder(b, traits);
}

void emit_arwkv7(Builder &b) {
    check_token_shifts(b, 1);
    const RwkvWeights shared(b);
    DecoderTraits traits;
    traits.attention = [&](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        TimeMix7(builder, layer, shared).emit(sublayer, false);
    };
    emit_decoder(b, traits);
}

}  // namespace runnel::model
