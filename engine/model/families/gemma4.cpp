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
#include <cmath>
#include <string>
#include <vector>

#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/gemma4_layers.h"
#include "engine/model/layer_embedding.h"
#include "engine/model/shared_keys.h"

namespace runnel::model {

using namespace kernels;

namespace {

// By layer: the one whose keys and values it reads.
std::vector<int32_t> owners(const Builder &b, const Gemma4Layers &layers) {
    std::vector<int32_t> all = key_owners(b, layers.full(), 0);
    for (int32_t i = 0; i < b.hyper().block_count; ++i)
        if (const int32_t owner = all[static_cast<size_t>(i)]; layers.kv_heads(owner) != layers.kv_heads(i))
            b.metadata().fail("attention.head_count_kv", "differs between layer " + std::to_string(i) +
                                                             " and layer " + std::to_string(owner) +
                                                             ", whose keys it reads");
    return all;
}

class Gemma4 {
  public:
    explicit Gemma4(Builder &builder)
        : b_(builder),
          h_(builder.hyper()),
          layers_(builder, 6),
          attention_(builder, owners(builder, layers_)),
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
    Gemma4Layers layers_;
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
