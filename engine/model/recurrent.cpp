#include "engine/model/recurrent.h"

#include <algorithm>
#include <cmath>

#include "engine/model/mixer.h"

namespace runnel::model {

using namespace kernels;

namespace {

class GatedDelta : Mixer {
  public:
    GatedDelta(Builder &builder, int32_t layer, bool grouped)
        : Mixer(builder, layer),
          grouped_(grouped),
          key_heads_(size("ssm.group_count", 1, kMaxStateHeads)),
          heads_(size("ssm.time_step_rank", 1, kMaxStateHeads)),
          dims_(size("ssm.state_size", 1, kMaxKeyDims)),
          keys_{key_heads_.value * dims_.value, "ssm.group_count * ssm.state_size"},
          values_(size("ssm.inner_size", 1, kMaxStateWidth)) {
        const Metadata &m = b_.metadata();
        if (heads_.value % key_heads_.value != 0)
            m.fail("ssm.time_step_rank", "is not a multiple of ssm.group_count");
        if (values_.value % heads_.value != 0)
            m.fail("ssm.inner_size", "is not a multiple of ssm.time_step_rank");
        value_dims_ = values_.value / heads_.value;
        q_ = b_.slot("delta q", keys_.value), k_ = b_.slot("delta k", keys_.value);
        v_ = b_.slot("delta v", values_.value), z_ = b_.slot("delta gate", values_.value);
        beta_ = b_.slot("delta beta", heads_.value), alpha_ = b_.slot("delta alpha", heads_.value);
    }

    void emit(const SubLayer &sublayer, Activation::Kind gate) {
        projections(sublayer.in);
        gates(sublayer.in);
        const Slot q = b_.slot("convolved q", keys_.value), k = b_.slot("convolved k", keys_.value),
                   v = b_.slot("convolved v", values_.value);
        const Size channels{2 * keys_.value + values_.value,
                            "2 * ssm.group_count * ssm.state_size + ssm.inner_size"};
        conv("ssm_conv1d", taps(), channels, 0, keys_.value, true, q_, q);
        conv("ssm_conv1d", taps(), channels, keys_.value, keys_.value, true, k_, k);
        conv("ssm_conv1d", taps(), channels, 2 * keys_.value, values_.value, true, v_, v);
        const auto key_heads = static_cast<int32_t>(key_heads_.value),
                   heads = static_cast<int32_t>(heads_.value);
        unit(q, key_heads, dims_.value, 1 / std::sqrt(static_cast<double>(dims_.value)));
        unit(k, key_heads, dims_.value, 1);
        const Slot out = b_.slot("delta out", values_.value);
        b_.add(LinearScan{.q = q,
                          .k = k,
                          .v = v,
                          .out = out,
                          .decay = alpha_,
                          .strength = beta_,
                          .heads = heads,
                          .key_heads = key_heads,
                          .dk = static_cast<int32_t>(dims_.value),
                          .dv = static_cast<int32_t>(value_dims_),
                          .neighbors = grouped_,
                          .delta = true,
                          .state = b_.state_layer(heads_.value * dims_.value * value_dims_)});
        b_.add(Norm{.in = out,
                    .out = out,
                    .weight = b_.vector(name("ssm_norm.weight"), {value_dims_, "ssm.inner_size / heads"}),
                    .eps = b_.hyper().norm_epsilon,
                    .parts = heads});
        b_.add(Activation{z_, out, out, gate});
        project("ssm_out", values_, out, sublayer);
    }

  private:
    void projections(Slot in) {
        if (b_.has(name("ssm_in.weight"))) return interleaved(in);
        Linear linear =
            b_.split(name("attn_qkv"), width_, false, in, {{keys_, q_}, {keys_, k_}, {values_, v_}});
        linear.parts.push_back(part("attn_gate", values_, z_));
        b_.add(linear);
    }
    // The layout of old converters: [q k v z] per key head.
    void interleaved(Slot in) {
        const int64_t shared = heads_.value / key_heads_.value * value_dims_, d = dims_.value,
                      stride = 2 * d + 2 * shared;
        const Size all{key_heads_.value * stride,
                       "2 * ssm.group_count * ssm.state_size + 2 * ssm.inner_size"};
        const Slot rows = b_.slot("delta rows", all.value);
        b_.add(Linear{in, {part("ssm_in", all, rows)}});
        const auto pieces = [&](int64_t first, int64_t width, Slot out) {
            b_.add(
                Copy{rows, out, {first, stride}, {0, width}, static_cast<int32_t>(key_heads_.value), width});
        };
        pieces(0, d, q_), pieces(d, d, k_), pieces(2 * d, shared, v_), pieces(2 * d + shared, shared, z_);
    }
    void gates(Slot in) {
        if (b_.has(name("ssm_ba.weight"))) {
            const int64_t shared = heads_.value / key_heads_.value;
            const Size both{2 * heads_.value, "2 * ssm.time_step_rank"};
            const Slot rows = b_.slot("delta gates", both.value);
            b_.add(Linear{in, {part("ssm_ba", both, rows)}});
            const auto pieces = [&](int64_t first, Slot out) {
                b_.add(Copy{rows,
                            out,
                            {first, 2 * shared},
                            {0, shared},
                            static_cast<int32_t>(key_heads_.value),
                            shared});
            };
            pieces(0, beta_), pieces(shared, alpha_);
        } else {
            b_.add(Linear{in, {part("ssm_beta", heads_, beta_), part("ssm_alpha", heads_, alpha_)}});
        }
        b_.add(Activation{beta_, kNoSlot, beta_, Activation::Kind::Sigmoid});
        b_.add(ScanGate{.in = alpha_,
                        .decay = alpha_,
                        .bias = b_.vector(name("ssm_dt.bias"), heads_),
                        .rate = b_.vector(name("ssm_a"), heads_)});
    }

    bool grouped_;
    Size key_heads_, heads_, dims_, keys_, values_;
    int64_t value_dims_ = 0;
    Slot q_, k_, v_, z_, beta_, alpha_;
};

class Mamba2 : Mixer {
  public:
    Mamba2(Builder &builder, int32_t layer, bool normed)
        : Mixer(builder, layer),
          normed_(normed),
          inner_(size("ssm.inner_size", 1, kMaxStateWidth)),
          heads_(size("ssm.time_step_rank", 1, kMaxStateHeads)),
          groups_(size("ssm.group_count", 1, kMaxStateHeads)),
          state_(size("ssm.state_size", 1, kMaxKeyDims)),
          shared_{groups_.value * state_.value, "ssm.group_count * ssm.state_size"} {
        const Metadata &m = b_.metadata();
        if (inner_.value % heads_.value != 0)
            m.fail("ssm.inner_size", "is not a multiple of ssm.time_step_rank");
        if (heads_.value % groups_.value != 0 || inner_.value % groups_.value != 0)
            m.fail("ssm.group_count", "does not divide ssm.time_step_rank and ssm.inner_size");
    }

    void emit(const SubLayer &sublayer) {
        const int64_t inner = inner_.value, shared = shared_.value;
        const Slot z = b_.slot("scan gate", inner), x_in = b_.slot("scan x", inner),
                   b_in = b_.slot("scan b", shared), c_in = b_.slot("scan c", shared),
                   dt = b_.slot("scan dt", heads_.value), decay = b_.slot("scan decay", heads_.value),
                   x = b_.slot("convolved x", inner), b = b_.slot("convolved b", shared),
                   c = b_.slot("convolved c", shared), y = b_.slot("scanned", inner);
        b_.add(b_.split(name("ssm_in"), width_, false, sublayer.in,
                        {{inner_, z}, {inner_, x_in}, {shared_, b_in}, {shared_, c_in}, {heads_, dt}}));
        const Size channels{inner + 2 * shared, "ssm.inner_size + 2 * ssm.group_count * ssm.state_size"};
        conv("ssm_conv1d", taps(), channels, 0, inner, true, x_in, x);
        conv("ssm_conv1d", taps(), channels, inner, shared, true, b_in, b);
        conv("ssm_conv1d", taps(), channels, inner + shared, shared, true, c_in, c);
        const Size one{1, "one"};
        b_.add(ScanGate{.in = dt,
                        .step = dt,
                        .decay = decay,
                        .bias = b_.vector(name("ssm_dt.bias"), heads_),
                        .rate = b_.flat_vector(name("ssm_a"), heads_, one)});
        const int64_t dims = inner / heads_.value;
        b_.add(LinearScan{.q = c,
                          .k = b,
                          .v = x,
                          .out = y,
                          .decay = decay,
                          .strength = dt,
                          .skip = b_.flat_vector(name("ssm_d"), heads_, one),
                          .heads = static_cast<int32_t>(heads_.value),
                          .key_heads = static_cast<int32_t>(groups_.value),
                          .dk = static_cast<int32_t>(state_.value),
                          .dv = static_cast<int32_t>(dims),
                          .neighbors = true,
                          .state = b_.state_layer(inner * state_.value)});
        b_.add(Activation{z, y, y, Activation::Kind::Silu});
        if (normed_ || b_.has(name("ssm_norm.weight"))) {
            const Size group{inner / groups_.value, "ssm.inner_size / ssm.group_count"};
            b_.add(Norm{.in = y,
                        .out = y,
                        .weight = b_.flat_vector(name("ssm_norm.weight"), groups_, group),
                        .eps = b_.hyper().norm_epsilon,
                        .parts = static_cast<int32_t>(groups_.value)});
        }
        project("ssm_out", inner_, y, sublayer);
    }

  private:
    bool normed_;
    Size inner_, heads_, groups_, state_, shared_;
};

class Mamba : Mixer {
  public:
    Mamba(Builder &builder, int32_t layer)
        : Mixer(builder, layer),
          inner_(size("ssm.inner_size", 1, kMaxStateWidth)),
          rank_(size("ssm.time_step_rank", 1, kMaxStateWidth)),
          state_(size("ssm.state_size", 1, kMaxKeyDims)) {}

    void emit(const SubLayer &sublayer) {
        const int64_t inner = inner_.value;
        const Slot z = b_.slot("scan gate", inner), x_in = b_.slot("scan x", inner),
                   x = b_.slot("convolved x", inner), low = b_.slot("scan low rank", rank_.value),
                   dt = b_.slot("scan dt", inner), b = b_.slot("scan b", state_.value),
                   c = b_.slot("scan c", state_.value), y = b_.slot("scanned", inner);
        b_.add(b_.split(name("ssm_in"), width_, false, sublayer.in, {{inner_, x_in}, {inner_, z}}));
        conv("ssm_conv1d", taps(), inner_, 0, inner, true, x_in, x);
        b_.add(b_.split(name("ssm_x"), inner_, false, x, {{rank_, low}, {state_, b}, {state_, c}}));
        norm("ssm_dt_norm", low, rank_), norm("ssm_b_norm", b, state_), norm("ssm_c_norm", c, state_);
        b_.add(Linear{low, {{b_.matrix(name("ssm_dt.weight"), inner_, rank_), kNoWeight, dt, kNoSlot}}});
        b_.add(ScanGate{.in = dt, .step = dt, .bias = b_.vector(name("ssm_dt.bias"), inner_)});
        b_.add(SelectiveScan{.x = x,
                             .dt = dt,
                             .out = y,
                             .b = b,
                             .c = c,
                             .rate = rates(),
                             .skip = b_.vector(name("ssm_d"), inner_),
                             .state = b_.state_layer(inner * state_.value)});
        b_.add(Activation{z, y, y, Activation::Kind::Silu});
        project("ssm_out", inner_, y, sublayer);
    }

  private:
    // The weights exist for all three or for none.
    void norm(const std::string &tensor, Slot slot, Size size) {
        const bool weighted = b_.has(name("ssm_dt_norm.weight")) || b_.has(name("ssm_b_norm.weight"));
        if (!weighted && !b_.metadata().boolean("ssm.dt_b_c_rms").value_or(false)) return;
        b_.add(Norm{.in = slot,
                    .out = slot,
                    .weight = weighted ? b_.vector(name(tensor + ".weight"), size) : kNoWeight,
                    .eps = b_.hyper().norm_epsilon});
    }
    // The rates as [n][channels]; the file stores them by channel.
    WeightId rates() {
        const std::vector<float> by_channel = b_.values(name("ssm_a"), inner_, state_);
        std::vector<float> by_state(by_channel.size());
        for (int64_t c = 0; c < inner_.value; ++c)
            for (int64_t i = 0; i < state_.value; ++i)
                by_state[static_cast<size_t>(i * inner_.value + c)] =
                    by_channel[static_cast<size_t>(c * state_.value + i)];
        return b_.constant(name("ssm_a"), std::move(by_state), 1, state_.value, inner_.value);
    }

    Size inner_, rank_, state_;
};

// x and z are interleaved by head; B, C and dt come from the convolved x.
class Plamo2 : Mixer {
  public:
    Plamo2(Builder &builder, int32_t layer)
        : Mixer(builder, layer),
          inner_(size("ssm.inner_size", 1, kMaxStateWidth)),
          heads_(size("ssm.time_step_rank", 1, kMaxStateHeads)),
          state_(size("ssm.state_size", 1, kMaxKeyDims)),
          rank_{std::max<int64_t>(64, width_.value / 16), "max(64, embedding_length / 16)"} {
        const Metadata &m = b_.metadata();
        if (inner_.value % heads_.value != 0)
            m.fail("ssm.inner_size", "is not a multiple of ssm.time_step_rank");
        (void)m.integer("ssm.group_count", 0, 0);
    }

    void emit(const SubLayer &sublayer) {
        const int64_t inner = inner_.value, dims = inner / heads_.value;
        const auto heads = static_cast<int32_t>(heads_.value);
        const Size both{2 * inner, "2 * ssm.inner_size"};
        const Slot rows = b_.slot("scan rows", both.value), z = b_.slot("scan gate", inner),
                   x_in = b_.slot("scan x", inner), x = b_.slot("convolved x", inner),
                   low = b_.slot("scan low rank", rank_.value), b = b_.slot("scan b", state_.value),
                   c = b_.slot("scan c", state_.value), dt = b_.slot("scan dt", heads_.value),
                   decay = b_.slot("scan decay", heads_.value), y = b_.slot("scanned", inner);
        b_.add(Linear{sublayer.in, {part("ssm_in", both, rows)}});
        b_.add(Copy{rows, z, {0, 2 * dims}, {0, dims}, heads, dims});
        b_.add(Copy{rows, x_in, {dims, 2 * dims}, {0, dims}, heads, dims});
        conv("ssm_conv1d", taps(), inner_, 0, inner, true, x_in, x);
        b_.add(b_.split(name("ssm_x"), inner_, false, x, {{state_, b}, {state_, c}, {rank_, low}}));
        norm("ssm_b_norm", b, state_), norm("ssm_c_norm", c, state_), norm("ssm_dt_norm", low, rank_);
        b_.add(Linear{low, {{b_.matrix(name("ssm_dt.weight"), heads_, rank_), kNoWeight, dt, kNoSlot}}});
        b_.add(ScanGate{.in = dt,
                        .step = dt,
                        .decay = decay,
                        .bias = b_.vector(name("ssm_dt.bias"), heads_),
                        .rate = b_.vector(name("ssm_a"), heads_)});
        b_.add(LinearScan{.q = c,
                          .k = b,
                          .v = x,
                          .out = y,
                          .decay = decay,
                          .strength = dt,
                          .skip = b_.vector(name("ssm_d"), heads_),
                          .heads = heads,
                          .key_heads = 1,
                          .dk = static_cast<int32_t>(state_.value),
                          .dv = static_cast<int32_t>(dims),
                          .neighbors = true,
                          .state = b_.state_layer(inner * state_.value)});
        b_.add(Activation{z, y, y, Activation::Kind::Silu});
        project("ssm_out", inner_, y, sublayer);
    }

  private:
    // Its converter omits the suffix ".weight".
    void norm(const std::string &tensor, Slot slot, Size size) {
        const std::string full = name(tensor);
        b_.add(Norm{.in = slot,
                    .out = slot,
                    .weight = b_.vector(b_.has(full) ? full : full + ".weight", size),
                    .eps = b_.hyper().norm_epsilon});
    }

    Size inner_, heads_, state_, rank_;
};

class GatedConv : Mixer {
  public:
    using Mixer::Mixer;

    void emit(const SubLayer &sublayer) {
        if (!b_.metadata().boolean("attention.causal").value_or(true))
            b_.metadata().fail("attention.causal",
                               "false: models that do not generate text are not supported");
        const int64_t n = width_.value;
        const Slot before = b_.slot("conv gate before", n), behind = b_.slot("conv gate", n),
                   x = b_.slot("conv in", n), y = b_.slot("conv out", n);
        b_.add(b_.split(name("shortconv.in_proj"), width_, false, sublayer.in,
                        {{width_, before}, {width_, behind}, {width_, x}}));
        b_.add(Activation{before, x, x, Activation::Kind::Identity});
        conv("shortconv.conv", size("shortconv.l_cache", 2, kMaxTaps), width_, 0, n, false, x, y);
        b_.add(Activation{behind, y, y, Activation::Kind::Identity});
        project("shortconv.out_proj", width_, y, sublayer);
    }
};

class GatedAttention : Mixer {
  public:
    using Mixer::Mixer;

    void emit(const SubLayer &sublayer, int32_t rope, int32_t kv_heads,
              const std::function<void(Attention &)> &before) {
        const HyperParameters &h = b_.hyper();
        const int64_t head = h.key_length;
        if (h.value_length != h.key_length)
            b_.metadata().fail("attention.value_length", "differs from attention.key_length");
        const Size q{h.head_count * head, "attention.head_count * key_length"},
            both{2 * q.value, "2 * attention.head_count * key_length"},
            kv{kv_heads * head, "attention.head_count_kv * key_length"},
            of_head{head, "attention.key_length"};
        const Slot rows = b_.slot("q and gate", both.value), query = b_.slot("q", q.value),
                   gate = b_.slot("attention gate", q.value), key = b_.slot("k", kv.value),
                   value = b_.slot("v", kv.value), attended = b_.slot("attended", q.value);
        if (b_.has(name("attn_qkv.weight")))
            b_.add(b_.split(name("attn_qkv"), width_, false, sublayer.in,
                            {{both, rows}, {kv, key}, {kv, value}}));
        else
            b_.add(Linear{sublayer.in,
                          {part("attn_q", both, rows), part("attn_k", kv, key), part("attn_v", kv, value)}});
        b_.add(Copy{rows, query, {0, 2 * head}, {0, head}, h.head_count, head});
        b_.add(Copy{rows, gate, {head, 2 * head}, {0, head}, h.head_count, head});
        Attention step{.q = query,
                       .k = key,
                       .v = value,
                       .out = attended,
                       .cache = b_.cache_layer({kv_heads, h.key_length, h.key_length}, 0),
                       .heads = h.head_count,
                       .kv_heads = kv_heads,
                       .head_dim_k = h.key_length,
                       .head_dim_v = h.key_length,
                       .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head))),
                       .rope = rope,
                       .q_norm = b_.vector(name("attn_q_norm.weight"), of_head),
                       .k_norm = b_.vector(name("attn_k_norm.weight"), of_head),
                       .norm_eps = h.norm_epsilon};
        if (before) before(step);
        b_.add(step);
        b_.add(Activation{gate, attended, attended, Activation::Kind::Sigmoid});
        project("attn_output", q, attended, sublayer);
    }
};

}  // namespace

std::vector<int32_t> kv_heads_of_layers(const Builder &b) {
    const HyperParameters &h = b.hyper();
    const int64_t count = int64_t{h.block_count} + h.draft_layers;
    const auto heads = b.metadata().integers("attention.head_count_kv", count, 0, kMaxStateHeads);
    std::vector<int32_t> all(static_cast<size_t>(count), h.head_count_kv);
    if (heads) std::ranges::transform(*heads, all.begin(), [](int64_t n) { return static_cast<int32_t>(n); });
    for (const int32_t n : all)
        if (n > 0 && h.head_count % n != 0)
            b.metadata().fail("attention.head_count_kv", "does not divide attention.head_count");
    return all;
}

std::vector<bool> recurrent_layers(const Builder &b, int64_t interval) {
    const int32_t count = b.hyper().block_count + b.hyper().draft_layers;
    const char *key = "attention.recurrent_layers";
    interval = b.metadata().integer("full_attention_interval", 1, INT32_MAX).value_or(interval);
    if (const auto flags = b.metadata().booleans(key)) {
        if (flags->size() != static_cast<size_t>(count))
            b.metadata().fail(key, "has " + std::to_string(flags->size()) + " entries, but " +
                                       b.hyper().architecture + ".block_count is " + std::to_string(count));
        return *flags;
    }
    std::vector<bool> recurrent;  // draft layers never are
    for (int32_t i = 0; i < count; ++i)
        recurrent.push_back(i < b.hyper().block_count && (i + 1) % interval != 0);
    return recurrent;
}

void emit_gated_delta(Builder &b, int32_t layer, const SubLayer &sublayer, bool grouped,
                      Activation::Kind gate) {
    GatedDelta(b, layer, grouped).emit(sublayer, gate);
}
void emit_mamba2_mixer(Builder &b, int32_t layer, const SubLayer &sublayer, bool normed) {
    Mamba2(b, layer, normed).emit(sublayer);
}
void emit_mamba_mixer(Builder &b, int32_t layer, const SubLayer &sublayer) {
    Mamba(b, layer).emit(sublayer);
}
void emit_plamo2_mixer(Builder &b, int32_t layer, const SubLayer &sublayer) {
    Plamo2(b, layer).emit(sublayer);
}
void emit_short_conv(Builder &b, int32_t layer, const SubLayer &sublayer) {
    GatedConv(b, layer).emit(sublayer);
}
void emit_gated_attention(Builder &b, int32_t layer, const SubLayer &sublayer, int32_t rope, int32_t kv_heads,
                          const std::function<void(Attention &)> &before) {
    GatedAttention(b, layer).emit(sublayer, rope, kv_heads, before);
}

}  // namespace runnel::model
