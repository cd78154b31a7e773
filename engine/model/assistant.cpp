#include "engine/model/assistant.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <variant>

#include "engine/model/builder.h"
#include "engine/model/decoder.h"
#include "engine/model/factors.h"
#include "engine/model/gemma4_layers.h"
#include "engine/model/head_parts.h"
#include "engine/model/unread_keys.h"
#include "gguf/printable.h"
#include "kernels/steps.h"

namespace runnel::model {
namespace {

using namespace kernels;

constexpr const char *kTarget = "gemma4";

int64_t target_width(const Metadata &m) {
    return m.required_integer("embedding_length_out", 1, INT32_MAX);
}

class Assistant {
  public:
    Assistant(const gguf::File &file, Builder &builder, const Model &target)
        : file_(file),
          b_(builder),
          h_(builder.hyper()),
          target_(target),
          layers_(builder, 0),
          attention_(builder),
          target_width_{target_width(builder.metadata()), "embedding_length_out"} {}

    void emit();

  private:
    struct Source {  // the target's cells that layers of one kind read
        int32_t cache, window;
    };
    Source source(int32_t layer) const;
    Slot slot(const std::string &name, int64_t width) { return b_.slot(name, width); }
    void norm(const std::string &name, Slot in, Slot out, Slot add = kNoSlot) {
        b_.add(Norm{.in = in,
                    .out = out,
                    .weight = b_.vector(name + ".weight", width_),
                    .eps = h_.norm_epsilon,
                    .add = add});
    }
    void input(Slot before);
    void emit_layer(int32_t layer);

    const gguf::File &file_;
    Builder &b_;
    const HyperParameters &h_;
    const Model &target_;
    Gemma4Layers layers_;
    SharedKeyAttention attention_;
    Size target_width_, width_{h_.embedding_length, "embedding_length"};
    Slot x_ = slot(kResidual, h_.embedding_length), branch_ = slot("branch", h_.embedding_length);
};

// Throws if the target has no such layer, or one with other sizes.
Assistant::Source Assistant::source(int32_t layer) const {
    const bool windowed = layers_.kind(layer).window > 0;
    const Attention *last = nullptr;
    for_each_step<Attention>(target_.program, [&](const Attention &step) {
        if ((step.window > 0) == windowed) last = &step;
    });
    const std::string name = "layer " + std::to_string(layer) + (windowed ? ", with a window," : "");
    if (!last)
        throw ModelError(name_of(file_) + ": " + name +
                         " reads keys of such a layer of the target, which has none");
    const CacheLayer &cells = target_.program.cache_layers[static_cast<size_t>(last->cache)];
    const auto expect = [&](int64_t mine, int64_t other, const char *what) {
        if (mine != other)
            throw ModelError(name_of(file_) + ": " + name + " has " + std::to_string(mine) + " " + what +
                             ", but the target's last layer of this kind has " + std::to_string(other));
    };
    expect(layers_.kv_heads(layer), cells.kv_heads, "K/V heads");
    expect(layers_.kind(layer).head.value, cells.head_dim_k, "dimensions per head");
    expect(layers_.kind(layer).head.value, cells.head_dim_v, "dimensions per head");
    return {last->cache, last->window};
}

// x = Wpre [sqrt(E) e(t); h]
void Assistant::input(Slot before) {
    const int64_t width = target_width_.value;
    const Slot token = slot("token's embedding", width), both = slot("embedding and hidden state", 2 * width);
    const Weight &table = target_.program.weights[static_cast<size_t>(embedding_of(target_, file_).table)];
    b_.program().weights.push_back(table);
    b_.add(Embed{.table = static_cast<WeightId>(b_.program().weights.size() - 1),
                 .out = token,
                 .scale = static_cast<float>(std::sqrt(double(width)))});
    b_.add(Copy{.in = token, .out = both, .from = {}, .to = {}, .width = width});
    b_.add(Copy{.in = before, .out = both, .from = {}, .to = {.first = width}, .width = width});
    const WeightId projection =
        b_.matrix("nextn.pre_projection.weight", width_, {2 * width, "2 * embedding_length_out"});
    b_.add(Linear{both, {{projection, kNoWeight, x_, kNoSlot}}});
}

void Assistant::emit_layer(int32_t layer) {
    const std::string prefix = layer_prefix(layer);
    const Source from = source(layer);
    AttentionKind kind = layers_.kind(layer);
    // The token is not among the cells: its window has one cell less.
    if (kind.window > 0) kind.window = std::max(1, std::min(kind.window, from.window) - 1);
    norm(prefix + "attn_norm", x_, branch_);
    attention_.emit_reader(layer, kind, layers_.kv_heads(layer), {branch_, branch_, kNoSlot}, from.cache);
    norm(prefix + "post_attention_norm", branch_, x_, x_);
    norm(prefix + "ffn_norm", x_, branch_);
    emit_feed_forward(b_, {.act = Activation::Kind::GeluTanh}, layer, {branch_, branch_, kNoSlot},
                      layers_.hidden(layer));
    norm(prefix + "post_ffw_norm", branch_, x_, x_);
    const std::string factor = prefix + "layer_output_scale.weight";
    std::get<Norm>(b_.program().steps.back()).scale = b_.values(factor, {1, "one"}, {1, "one"}).front();
}

void Assistant::emit() {
    const Program &target = target_.program;
    b_.program().cache_layers = target.cache_layers;
    const Slot last = std::get<Logits>(target.steps.back()).in;
    const Slot before = slot(kHiddenBefore, target_width_.value),
               normed = slot("normed state", h_.embedding_length),
               after = slot(target.slots[static_cast<size_t>(last)].name, target_width_.value);
    b_.begin_layer(0);
    input(before);
    for (int32_t layer = 0; layer < h_.block_count; ++layer) {
        b_.begin_layer(layer);
        emit_layer(layer);
    }
    b_.end_layers();
    norm("output_norm", x_, normed);
    const WeightId back =
        b_.matrix("nextn.post_projection.weight", target_width_, {h_.embedding_length, "embedding_length"});
    b_.add(Linear{normed, {{back, kNoWeight, after, kNoSlot}}});
    const Size tokens{target.vocab, "the target's tokens"};
    const auto cap = b_.metadata().real("final_logit_softcapping", 0).value_or(0);
    b_.add(Logits{.in = normed,
                  .weight = b_.matrix("token_embd.weight", tokens, width_),
                  .softcap = static_cast<float>(cap)});
    b_.program().parts = {{.end = b_.program().steps.size(), .in = {before}, .out = {after}}};
    for (const char *unused : {"masked_embd_centroids.weight", "masked_embd_ordering"}) b_.ignore(unused);
}

}  // namespace

HeadTarget assistant_target(const gguf::File &file) {
    return {.kind = HeadKind::Assistant, .width = target_width(Metadata(file)), .layers = {}};
}

DraftHead make_assistant(const Model &target, const gguf::File &target_file, const gguf::File &head,
                         int64_t context) {
    const Metadata metadata(head);
    HyperParameters hyper = read_hyper_parameters(head, metadata);
    metadata.integer("nextn_predict_layers", 0, hyper.block_count);
    // Converters write these for all of Gemma 4; here all layers share, and tensors show that there is no such embedding.
    metadata.integer("attention.shared_kv_layers", 0, hyper.block_count);
    metadata.find("embedding_length_per_layer_input");
    if (target.hyper.architecture != kTarget)
        throw ModelError(name_of(head) +
                         ": a Gemma 4 assistant drafts for models of the architecture gemma4; "
                         "the target is " +
                         gguf::printable(target.hyper.architecture));
    if (target_width(metadata) != target.hyper.embedding_length)
        metadata.fail("embedding_length_out",
                      std::to_string(target_width(metadata)) + ", but " +
                          target_has(target, target.hyper.embedding_length, " as embedding_length"));
    check_same_tokens(target, target_file, head);
    hyper.vocab = target.program.vocab;
    Builder builder(head, metadata, hyper, context);
    Assistant(head, builder, target).emit();
    apply_factors(head, builder);
    DraftHead made{HeadKind::Assistant, builder.take(), {}, {}};
    made.notes = check_unread_keys(metadata);
    return made;
}

}  // namespace runnel::model
