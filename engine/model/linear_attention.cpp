// Linear attention with a matrix per head as its state: Kimi delta attention and lightning attention.
#include <algorithm>
#include <cmath>

#include "engine/model/mixer.h"
#include "engine/model/recurrent.h"

namespace runnel::model {

using namespace kernels;

namespace {

class KimiDelta : Mixer {
  public:
    KimiDelta(Builder &builder, int32_t layer)
        : Mixer(builder, layer),
          heads_{b_.hyper().head_count, "attention.head_count"},
          dims_(size("kda.head_dim", 1, kMaxKeyDims)),
          all_{heads_.value * dims_.value, "attention.head_count * kda.head_dim"} {}

    void emit(const SubLayer &sublayer, double bound) {
        const int64_t all = all_.value, dims = dims_.value;
        const auto heads = static_cast<int32_t>(heads_.value);
        const Slot q_in = b_.slot("delta q", all), k_in = b_.slot("delta k", all),
                   v_in = b_.slot("delta v", all), q = b_.slot("convolved q", all),
                   k = b_.slot("convolved k", all), v = b_.slot("convolved v", all),
                   decay = b_.slot("delta decay", all), gate = b_.slot("delta gate", all),
                   beta = b_.slot("delta beta", heads_.value), out = b_.slot("delta out", all);
        project_qkv(sublayer.in, q_in, k_in, v_in);
        b_.add(Linear{sublayer.in, {part("ssm_beta", heads_, beta)}});
        low_rank("ssm_f", sublayer.in, decay);
        low_rank("ssm_g", sublayer.in, gate);
        b_.add(Activation{beta, kNoSlot, beta, Activation::Kind::Sigmoid});
        b_.add(ScanGate{.in = decay,
                        .decay = decay,
                        .bias = b_.vector(name("ssm_dt.bias"), all_),
                        .rate = b_.flat_vector(name("ssm_a"), heads_, {1, "one"}),
                        .form = bound == 0 ? ScanGate::Form::Softplus : ScanGate::Form::Sigmoid,
                        .bound = static_cast<float>(bound)});
        conv("ssm_conv1d_q", taps(), all_, 0, all, true, q_in, q);
        conv("ssm_conv1d_k", taps(), all_, 0, all, true, k_in, k);
        conv("ssm_conv1d_v", taps(), all_, 0, all, true, v_in, v);
        unit(q, heads, dims, 1 / std::sqrt(static_cast<double>(dims)));
        unit(k, heads, dims, 1);
        b_.add(LinearScan{.q = q,
                          .k = k,
                          .v = v,
                          .out = out,
                          .decay = decay,
                          .strength = beta,
                          .heads = heads,
                          .key_heads = heads,
                          .dk = static_cast<int32_t>(dims),
                          .dv = static_cast<int32_t>(dims),
                          .delta = true,
                          .state = b_.state_layer(all * dims)});
        b_.add(Norm{.in = out,
                    .out = out,
                    .weight = b_.vector(name("ssm_norm.weight"), dims_),
                    .eps = b_.hyper().norm_epsilon,
                    .parts = heads});
        b_.add(Activation{gate, out, out, Activation::Kind::Sigmoid});
        project("attn_output", all_, out, sublayer);
    }

  private:
    void project_qkv(Slot in, Slot q, Slot k, Slot v) {
        if (b_.has(name("attn_qkv.weight")))
            b_.add(b_.split(name("attn_qkv"), width_, false, in, {{all_, q}, {all_, k}, {all_, v}}));
        else
            b_.add(Linear{in, {part("attn_q", all_, q), part("attn_k", all_, k), part("attn_v", all_, v)}});
    }
    // One matrix, tensor + "_a", or a product of two: "_b" times "_a".
    void low_rank(const std::string &tensor, Slot in, Slot out) {
        const std::string second = name(tensor + "_b.weight");
        if (!b_.has(second)) return b_.add(Linear{in, {part(tensor + "_a", all_, out)}});
        const Slot low = b_.slot("delta low rank", dims_.value);
        b_.add(Linear{in, {part(tensor + "_a", dims_, low)}});
        b_.add(Linear{low, {{b_.matrix(second, all_, dims_), kNoWeight, out, kNoSlot}}});
    }

    Size heads_, dims_, all_;
};

class Lightning : Mixer {
  public:
    Lightning(Builder &builder, int32_t layer)
        : Mixer(builder, layer),
          layer_(layer),
          heads_(b_.hyper().head_count),
          dims_(b_.hyper().key_length),
          all_{int64_t{heads_} * dims_, "attention.head_count * attention.key_length"} {
        if (b_.hyper().value_length != dims_)
            b_.metadata().fail("attention.value_length", "differs from attention.key_length");
    }

    void emit(const SubLayer &sublayer) {
        const int64_t all = all_.value, dims = dims_;
        const Size rows_size{3 * all, "3 * attention.head_count * attention.key_length"};
        const Slot rows = b_.slot("lightning rows", rows_size.value), q = b_.slot("lightning q", all),
                   k = b_.slot("lightning k", all), v = b_.slot("lightning v", all),
                   gate = b_.slot("lightning gate", all), out = b_.slot("lightning out", all);
        b_.add(Linear{sublayer.in, {part("attn_qkv", rows_size, rows), part("attn_gate", all_, gate)}});
        b_.add(Activation{rows, kNoSlot, rows, Activation::Kind::Silu});
        int64_t first = 0;
        for (const Slot slot : {q, k, v}) {  // interleaved by head
            b_.add(Copy{rows, slot, {first, 3 * dims}, {0, dims}, heads_, dims});
            first += dims;
        }
        b_.add(LinearScan{.q = q,
                          .k = k,
                          .v = v,
                          .out = out,
                          .rate = rates(),
                          .heads = heads_,
                          .key_heads = heads_,
                          .dk = dims_,
                          .dv = dims_,
                          .state = b_.state_layer(all * dims)});
        b_.add(Norm{out, out, b_.vector(name("attn_norm_2.weight"), all_), b_.hyper().norm_epsilon});
        b_.add(Activation{gate, out, out, Activation::Kind::Sigmoid});
        project("attn_output", all_, out, sublayer);
    }

  private:
    // The slopes of ALiBi's heads, smaller in later layers.
    WeightId rates() {
        const int32_t last = std::max(1, b_.hyper().block_count - 1);
        const double of_layer = 1 - double(layer_) / last + 1e-5;
        std::vector<float> all;
        for (const double slope : distance_slopes(heads_, 8))
            all.push_back(static_cast<float>(-slope * of_layer));
        return b_.constant(name("decay rates"), std::move(all), 1, 1, heads_);
    }

    int32_t layer_, heads_, dims_;
    Size all_;
};

}  // namespace

void emit_kimi_delta(Builder &b, int32_t layer, const SubLayer &sublayer, double bound) {
    KimiDelta(b, layer).emit(sublayer, bound);
}
void emit_lightning(Builder &b, int32_t layer, const SubLayer &sublayer) {
    Lightning(b, layer).emit(sublayer);
}

}  // namespace runnel::model
