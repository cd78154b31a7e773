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
#include "engine/model/layer_embedding.h"
#include "engine/model/shared_keys.h"

namespace runnel::model {

using namespace kernels;

namespace {

constexpr int64_t kMaxHeadSize = 1024, kMaxHeads = 4096, kMaxWidth = 1 << 20;

// The per-layer sizes given by the file's keys.
class Layers {
    template <typename T>
    static typename std::vector<T>::const_reference at(const std::vector<T> &values, int32_t layer) {
        return values[static_cast<size_t>(layer)];
    }

  public:
    explicit Layers(Builder &b);

    const AttentionKind &kind(int32_t layer) const { return at(full_, layer) ? whole_ : windowed_; }
    int32_t kv_heads(int32_t layer) const { return static_cast<int32_t>(at(kv_heads_, layer)); }
    int64_t hidden(int32_t layer) const { return at(hidden_, layer); }
    // By layer: the one whose keys and values it reads.
    const std::vector<int32_t> &owners() const { return owners_; }

  private:
    void read_kinds(Builder &b);
    void check_owners(const Builder &b) const;

    AttentionKind whole_, windowed_;
    std::vector<bool> full_;
    std::vector<int64_t> kv_heads_, hidden_;
    std::vector<int32_t> owners_;
};

Layers::Layers(Builder &b) : full_(full_layers(b, 6)), owners_(key_owners(b, full_, 0)) {
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
    check_owners(b);
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
    whole_ = {.head = {h.key_length, "attention.key_length"},
              .q_keys = "attention.head_count * key_length",
              .kv_keys = "attention.head_count_kv * key_length",
              .window = 0,
              .rope = b.rope(RopeTable::Pairs::Halves),
              .values_may_be_keys = true};
    windowed_ = {
        .head = {key, "attention.key_length_swa"},
        .q_keys = "attention.head_count * key_length_swa",
        .kv_keys = "attention.head_count_kv * key_length_swa",
        .window = static_cast<int32_t>(m.required_integer("attention.sliding_window", 1, INT32_MAX)),
        .rope = b.unscaled_rope(RopeTable::Pairs::Halves, m.real("rope.freq_base_swa").value_or(10000),
                                static_cast<int32_t>(rotated))};
}

void Layers::check_owners(const Builder &b) const {
    for (int32_t i = 0; i < b.hyper().block_count; ++i)
        if (kv_heads(at(owners_, i)) != kv_heads(i))
            b.metadata().fail("attention.head_count_kv", "differs between layer " + std::to_string(i) +
                                                             " and layer " + std::to_string(at(owners_, i)) +
                                                             ", whose keys it reads");
}

class Gemma4 {
  public:
    explicit Gemma4(Builder &builder)
        : b_(builder),
          h_(builder.hyper()),
          layers_(builder),
          attention_(builder, layers_.owners()),
          own_embedding_(builder),
          width_{h_.embedding_length, "embedding_length"} {}
    Gemma4(const Gemma4 &) = delete;  // the traits' functions hold its address
    Gemma4 &operator=(const Gemma4 &) = delete;

    DecoderTraits traits() {
        DecoderTraits t{.block = DecoderTraits::Block::Sandwich, .act = Activation::Kind::GeluTanh};
        t.logit_softcap = b_.metadata().real("final_logit_softcapping", 0).value_or(0);
        t.embedding_scale = std::sqrt(double(h_.embedding_length));
        t.attention = [this](Builder &, int32_t layer, const SubLayer &way) {
            attention_.emit(layer, layers_.kind(layer), layers_.kv_heads(layer), way);
        };
        t.feed_forward = [this](Builder &, int32_t layer, const SubLayer &way) { feed_forward(layer, way); };
        t.after_embeddings = [this](Builder &, Slot x) {
            x_ = x;
            if (own_embedding_.present()) own_embedding_.emit_inputs(x);
        };
        t.after_layer = [this](Builder &, int32_t layer, Slot) { finish(layer); };
        return t;
    }

  private:
    void feed_forward(int32_t layer, const SubLayer &way);
    void experts(int32_t layer, const SubLayer &way);
    void finish(int32_t layer);

    static std::string name(int32_t layer, const std::string &tensor) { return layer_prefix(layer) + tensor; }
    void norm(const std::string &tensor, Slot in, Slot out, Slot add = kNoSlot) {
        b_.add(Norm{
            .in = in, .out = out, .weight = b_.vector(tensor, width_), .eps = h_.norm_epsilon, .add = add});
    }

    Builder &b_;
    const HyperParameters &h_;
    Layers layers_;
    SharedKeyAttention attention_;
    LayerEmbedding own_embedding_;
    Size width_;
    Slot x_ = kNoSlot;  // the residual stream
};

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

void Gemma4::finish(int32_t layer) {
    if (own_embedding_.present()) {
        const Slot branch = b_.slot("branch", width_.value);
        own_embedding_.emit_branch(layer, x_, branch);
        norm(name(layer, "post_norm.weight"), branch, x_, x_);
    }
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
