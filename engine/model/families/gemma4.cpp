// gemma4: Gemma 4 E2B, E4B, 12B, 26B-A4B, 31B. Norms before and after both halves of a layer, normed query,
// key and (without weights) value heads, scores that are not scaled, soft-capped logits, and a factor for the
// stream after every layer. What differs from layer to layer:
//   - five window layers (E2B: four), then a full one, each kind with its own head size, number of K/V heads
//     and RoPE; full layers rotate the first quarter of the pairs (rope_freqs divides the others' frequencies
//     by 1e30), and in the large models their values are their keys before norm and RoPE;
//   - the last `attention.shared_kv_layers` layers have no keys and values: they read those of the last layer
//     of their kind that has them, and may have a wider feed-forward network;
//   - E2B, E4B: an embedding of the token for every layer (`embedding_length_per_layer_input` = P wide),
//     mixed with a projection of the ordinary embedding, gated by the stream and added to the stream at
//     the end of the layer;
//   - 26B-A4B: experts next to the dense network; their router reads the stream itself.
// (transformers' Gemma4TextModel; tensors as llama.cpp's converter names them.)
#include <algorithm>
#include <cmath>

#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

using namespace kernels;

namespace {

constexpr int64_t kMaxHeadSize = 1024, kMaxHeads = 4096, kMaxWidth = 1 << 20, kMaxEmbedding = 65536;

// The attention layers of one kind.
struct Kind {
    Size head;  // of a key, and of a value
    int32_t window, rope;
};

// The per-layer sizes given by the file's keys.
class Layers {
    template <typename T>
    static typename std::vector<T>::const_reference at(const std::vector<T> &values, int32_t layer) {
        return values[static_cast<size_t>(layer)];
    }

  public:
    explicit Layers(Builder &b);

    const Kind &kind(int32_t layer) const { return at(full_, layer) ? whole_ : windowed_; }
    int32_t kv_heads(int32_t layer) const { return static_cast<int32_t>(at(kv_heads_, layer)); }
    int64_t hidden(int32_t layer) const { return at(hidden_, layer); }
    bool full(int32_t layer) const { return at(full_, layer); }
    // The layer whose keys and values this one reads: itself, or an earlier one.
    int32_t owner(int32_t layer) const { return at(owner_, layer); }

  private:
    void read_kinds(Builder &b);
    void find_owners(const Builder &b);

    Kind whole_, windowed_;
    std::vector<bool> full_;
    std::vector<int64_t> kv_heads_, hidden_;
    std::vector<int32_t> owner_;
};

Layers::Layers(Builder &b) : full_(full_layers(b, 6)) {
    const Metadata &m = b.metadata();
    const HyperParameters &h = b.hyper();
    const int64_t count = int64_t{h.block_count} + h.draft_layers;
    const auto per_layer = [&](const char *key, int64_t high, int64_t absent) {
        return m.integers(key, count, 1, high)
            .value_or(std::vector<int64_t>(static_cast<size_t>(count), absent));
    };
    kv_heads_ = per_layer("attention.head_count_kv", kMaxHeads, h.head_count);
    hidden_ = per_layer("feed_forward_length", kMaxWidth, h.feed_forward_length);
    for (const int64_t heads : kv_heads_)
        if (h.head_count % heads != 0)
            m.fail("attention.head_count_kv", "does not divide attention.head_count");
    read_kinds(b);
    find_owners(b);
}

void Layers::read_kinds(Builder &b) {
    const Metadata &m = b.metadata();
    const HyperParameters &h = b.hyper();
    const auto size = [&](const char *key, int64_t high, int64_t absent) {
        return m.integer(key, 1, high).value_or(absent);
    };
    const int64_t key = size("attention.key_length_swa", kMaxHeadSize, h.key_length);
    if (h.value_length != h.key_length) m.fail("attention.value_length", "differs from attention.key_length");
    if (size("attention.value_length_swa", kMaxHeadSize, key) != key)
        m.fail("attention.value_length_swa", "differs from attention.key_length_swa");
    const int64_t rotated = size("rope.dimension_count_swa", key, key);
    if (rotated % 2 != 0) m.fail("rope.dimension_count_swa", "must be even");
    // Without the divisors, all pairs of full layers would turn, which the model does not expect.
    if (std::find(full_.begin(), full_.end(), true) != full_.end())
        b.values("rope_freqs.weight", {1, "a vector"}, {h.rope_dimensions / 2, "rope.dimension_count / 2"});
    whole_ = {{h.key_length, "attention.key_length"}, 0, b.rope(RopeTable::Pairs::Halves)};
    windowed_ = {{key, "attention.key_length_swa"},
                 static_cast<int32_t>(m.required_integer("attention.sliding_window", 1, INT32_MAX)),
                 b.unscaled_rope(RopeTable::Pairs::Halves, m.real("rope.freq_base_swa").value_or(10000),
                                 static_cast<int32_t>(rotated))};
}

void Layers::find_owners(const Builder &b) {
    const int32_t count = b.hyper().block_count;
    const char *key = "attention.shared_kv_layers";
    const auto own = count - static_cast<int32_t>(b.metadata().integer(key, 0, count - 1).value_or(0));
    for (int32_t i = 0; i < count; ++i) {
        int32_t owner = i < own ? i : own - 1;
        while (owner >= 0 && full(owner) != full(i)) --owner;
        if (owner < 0)
            b.metadata().fail(key, std::to_string(count - own) + " leaves layer " + std::to_string(i) +
                                       " no layer of its kind whose keys it could read");
        if (kv_heads(owner) != kv_heads(i))
            b.metadata().fail("attention.head_count_kv", "differs between layer " + std::to_string(i) +
                                                             " and layer " + std::to_string(owner) +
                                                             ", whose keys it reads");
        owner_.push_back(owner);
    }
}

class Gemma4 {
  public:
    explicit Gemma4(Builder &builder)
        : b_(builder),
          h_(builder.hyper()),
          layers_(builder),
          width_{h_.embedding_length, "embedding_length"} {
        const char *key = "embedding_length_per_layer_input";
        own_embedding_ = {b_.metadata().integer(key, 0, kMaxEmbedding).value_or(0), key};
    }
    Gemma4(const Gemma4 &) = delete;  // the traits' functions hold its address
    Gemma4 &operator=(const Gemma4 &) = delete;

    DecoderTraits traits() {
        DecoderTraits t{.block = DecoderTraits::Block::Sandwich, .act = Activation::Kind::GeluTanh};
        t.logit_softcap = b_.metadata().real("final_logit_softcapping", 0).value_or(0);
        t.embedding_scale = std::sqrt(double(h_.embedding_length));
        t.attention = [this](Builder &, int32_t layer, const SubLayer &way) { attention(layer, way); };
        t.feed_forward = [this](Builder &, int32_t layer, const SubLayer &way) { feed_forward(layer, way); };
        t.after_embeddings = [this](Builder &, Slot x) {
            x_ = x;
            if (own_embedding_.value > 0) embed_for_layers();
        };
        t.after_layer = [this](Builder &, int32_t layer, Slot) { finish(layer); };
        return t;
    }

  private:
    void attention(int32_t layer, const SubLayer &way);
    Attention describe(int32_t layer) const;
    void feed_forward(int32_t layer, const SubLayer &way);
    void experts(int32_t layer, const SubLayer &way);
    void embed_for_layers();
    void add_own_embedding(int32_t layer);
    void finish(int32_t layer);

    static std::string name(int32_t layer, const std::string &tensor) {
        return "blk." + std::to_string(layer) + "." + tensor;
    }
    Linear::Part part(const std::string &tensor, Size rows, Size cols, Slot out) {
        return {b_.matrix(tensor, rows, cols), kNoWeight, out, kNoSlot};
    }
    void norm(const std::string &tensor, Slot in, Slot out, Slot add = kNoSlot) {
        b_.add(Norm{
            .in = in, .out = out, .weight = b_.vector(tensor, width_), .eps = h_.norm_epsilon, .add = add});
    }
    Slot layer_inputs() { return b_.slot("inputs of layers", own_embedding_.value * h_.block_count); }

    Builder &b_;
    const HyperParameters &h_;
    Layers layers_;
    Size width_, own_embedding_;
    Slot x_ = kNoSlot;                  // the residual stream
    std::vector<int32_t> cache_layer_;  // by layer that has keys and values
};

Attention Gemma4::describe(int32_t layer) const {
    const Kind &kind = layers_.kind(layer);
    const auto head = static_cast<int32_t>(kind.head.value);
    return {.q = kNoSlot,
            .k = kNoSlot,
            .v = kNoSlot,
            .out = kNoSlot,
            .cache = -1,
            .heads = h_.head_count,
            .kv_heads = layers_.kv_heads(layer),
            .head_dim_k = head,
            .head_dim_v = head,
            .scale = 1,
            .window = kind.window,
            .rope = kind.rope,
            .norm_eps = h_.norm_epsilon};
}

void Gemma4::attention(int32_t layer, const SubLayer &way) {
    Attention a = describe(layer);
    const bool full = layers_.full(layer);
    const Size head = layers_.kind(layer).head,
               all{h_.head_count * head.value,
                   full ? "attention.head_count * key_length" : "attention.head_count * key_length_swa"},
               kv{a.kv_heads * head.value,
                  full ? "attention.head_count_kv * key_length" : "attention.head_count_kv * key_length_swa"};
    const std::string k_name = name(layer, "attn_k"), v_name = name(layer, "attn_v");
    a.q = b_.slot("q", all.value), a.out = b_.slot("attended", all.value);
    a.q_norm = b_.vector(name(layer, "attn_q_norm.weight"), head);
    Linear projections{way.in, {part(name(layer, "attn_q.weight"), all, width_, a.q)}};
    const int32_t owner = layers_.owner(layer);
    if (owner == layer) {
        a.k = b_.slot("k", kv.value), a.v = b_.slot("v", kv.value);
        a.k_norm = b_.vector(k_name + "_norm.weight", head);
        projections.parts.push_back(part(k_name + ".weight", kv, width_, a.k));
        const bool own_values = !full || b_.has(v_name + ".weight");
        if (own_values) projections.parts.push_back(part(v_name + ".weight", kv, width_, a.v));
        b_.add(projections);
        b_.add(Norm{.in = own_values ? a.v : a.k,
                    .out = a.v,
                    .weight = kNoWeight,
                    .eps = h_.norm_epsilon,
                    .parts = a.kv_heads});
        cache_layer_.push_back(b_.cache_layer({a.kv_heads, a.head_dim_k, a.head_dim_v}, a.window));
    } else {
        // Trained checkpoints hold these, and nothing reads them.
        for (const std::string &unused : {k_name + ".weight", v_name + ".weight", k_name + "_norm.weight"})
            b_.ignore(unused);
        b_.add(projections);
    }
    a.cache = cache_layer_[static_cast<size_t>(owner)];
    b_.add(a);
    Linear::Part output = part(name(layer, "attn_output.weight"), width_, all, way.out);
    output.add = way.add;
    b_.add(Linear{a.out, {output}});
}

void Gemma4::feed_forward(int32_t layer, const SubLayer &way) {
    const DecoderTraits dense{.act = Activation::Kind::GeluTanh};
    const bool mixed = has_experts(b_) && b_.has(name(layer, "ffn_gate_inp.weight"));
    const Slot out = mixed ? b_.slot("dense branch", width_.value) : way.out;
    emit_feed_forward(b_, dense, layer, {way.in, out, way.add}, layers_.hidden(layer));
    if (!mixed) return;
    norm(name(layer, "post_ffw_norm_1.weight"), out, out);
    experts(layer, {x_, way.out, out});
}

// Reads the stream and adds its output to way.add.
void Gemma4::experts(int32_t layer, const SubLayer &way) {
    const Slot router_in = b_.slot("router input", width_.value),
               normed = b_.slot("normed for experts", width_.value);
    norm(name(layer, "ffn_gate_inp.scale"), way.in, router_in);
    norm(name(layer, "pre_ffw_norm_2.weight"), way.in, normed);
    const ExpertTraits traits{.normalize = true,
                              .act = Activation::Kind::GeluTanh,
                              .router_in = router_in,
                              .router_scale = 1 / std::sqrt(double(width_.value))};
    emit_experts(b_, traits, layer, {normed, way.out, kNoSlot});
    norm(name(layer, "post_ffw_norm_2.weight"), way.out, way.out, way.add);
}

// For every layer: (RMS(projection of the embedding / sqrt(width)) + sqrt(P) * own embedding) / sqrt(2)
void Gemma4::embed_for_layers() {
    const Size p = own_embedding_,
               all{p.value * h_.block_count, "embedding_length_per_layer_input * block_count"};
    const Slot inputs = layer_inputs(), projected = b_.slot("projected embedding", all.value);
    b_.add(Embed{b_.matrix("per_layer_token_embd.weight", {h_.vocab, "the vocabulary"}, all), inputs,
                 static_cast<float>(std::sqrt(double(p.value)))});
    Linear::Part projection = part("per_layer_model_proj.weight", all, width_, projected);
    projection.scale = static_cast<float>(1 / std::sqrt(double(width_.value)));
    b_.add(Linear{x_, {projection}});
    b_.add(Norm{.in = projected,
                .out = inputs,
                .weight = b_.vector("per_layer_proj_norm.weight", p),
                .eps = h_.norm_epsilon,
                .add = inputs,
                .parts = h_.block_count,
                .scale = static_cast<float>(std::sqrt(0.5))});
}

// x += RMS(W (gelu(V x) * the layer's input))
void Gemma4::add_own_embedding(int32_t layer) {
    const Size p = own_embedding_;
    const Slot gate = b_.slot("layer's gate", p.value), input = b_.slot("layer's input", p.value),
               out = b_.slot("branch", width_.value);
    b_.add(Linear{x_, {part(name(layer, "inp_gate.weight"), p, width_, gate)}});
    b_.add(Copy{
        .in = layer_inputs(), .out = input, .from = {.first = layer * p.value}, .to = {}, .width = p.value});
    b_.add(Activation{gate, input, gate, Activation::Kind::GeluTanh});
    b_.add(Linear{gate, {part(name(layer, "proj.weight"), width_, p, out)}});
    norm(name(layer, "post_norm.weight"), out, x_, x_);
}

void Gemma4::finish(int32_t layer) {
    if (own_embedding_.value > 0) add_own_embedding(layer);
    const std::string factor = name(layer, "layer_output_scale.weight");
    // Either way, the last step is now the norm that adds to the stream.
    if (b_.has(factor))
        std::get<Norm>(b_.program().steps.back()).scale = b_.values(factor, {1, "one"}, {1, "one"}).front();
}

}  // namespace

void emit_gemma4(Builder &b) {
    Gemma4 model(b);
    emit_decoder(b, model.traits());
}

}  // namespace runnel::model
