#include "engine/model/dflash.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "engine/model/builder.h"
#include "engine/model/decoder.h"
#include "engine/model/factors.h"
#include "engine/model/head_parts.h"
#include "engine/model/head_taps.h"
#include "engine/model/unread_keys.h"
#include "gguf/printable.h"
#include "kernels/steps.h"

namespace runnel::model {
namespace {

using namespace kernels;

constexpr const char *kDFlashInput = "DFlash input";  // g
constexpr int64_t kMostTaps = 64;
// The drafter's block is never longer, whatever the file says.
constexpr int64_t kMostBlock = 32;

// What other variants of the architecture have.
void refuse_variants(const gguf::File &file, const Metadata &m) {
    const auto refuse = [&](const std::string &what) {
        throw ModelError(name_of(file) + ": " + what + ", which is not supported: only plain DFlash is");
    };
    if (file.find_tensor("markov_w1.weight")) refuse("a DSpark drafter");
    if (file.find_tensor("selector_hidden.weight")) refuse("a DFlash2 drafter");
    if (m.integer("hyper_connection.count", 0, INT32_MAX).value_or(0) > 0)
        refuse("a drafter with hyper-connections");
}

HeadTarget dflash_target(const gguf::File &file, const Metadata &m) {
    return {.kind = HeadKind::DFlash,
            .width = m.required_integer("embedding_length", 1, INT32_MAX),
            .layers = tapped_layers(m, 1, kMostTaps),
            .draft_rows = draft_rows(file)};
}

class Drafter {
  public:
    explicit Drafter(const HeadMatrices &matrices)
        : matrices_(matrices),
          b_(matrices.builder),
          h_(b_.hyper()),
          act_(activation()),
          full_(full_layers(b_, 0)),
          window_(sliding_window(b_, 0)),
          rope_(b_.rope(RopeTable::Pairs::Halves)) {}

    // Emits the block's program, and keeps the steps for the text.
    void emit();
    // Of the text: only appends k and v.
    std::vector<Step> take_text() { return std::move(text_); }
    Slot fused() const { return fused_; }

  private:
    Activation::Kind activation() const;
    double real(const char *key, double absent) const { return b_.metadata().real(key).value_or(absent); }
    WeightId matrix(int32_t layer, const char *name, Size rows, Size cols) {
        return b_.matrix(layer_prefix(layer) + name + ".weight", rows, cols);
    }
    void norm(const std::string &name, Slot in, Slot out, Slot add = kNoSlot) {
        b_.add(Norm{.in = in,
                    .out = out,
                    .weight = b_.vector(name + ".weight", width_),
                    .eps = h_.norm_epsilon,
                    .add = add});
    }
    void emit_layer(int32_t layer);
    void attention(int32_t layer, Slot in, Slot out, Slot add);

    const HeadMatrices &matrices_;
    Builder &b_;
    const HyperParameters &h_;
    const Activation::Kind act_;
    const std::vector<bool> full_;
    const int64_t window_;
    const int32_t rope_;
    Size width_{h_.embedding_length, "embedding_length"};
    Slot fused_ = b_.slot(kDFlashInput, width_.value), x_ = b_.slot(kResidual, width_.value),
         branch_ = b_.slot("branch", width_.value);
    std::vector<Step> text_;
};

Activation::Kind Drafter::activation() const {
    const std::string_view name = b_.metadata().text("hidden_activation").value_or("silu");
    if (name == "silu") return Activation::Kind::Silu;
    if (name != "gelu" && name != "gelu_pytorch_tanh")
        b_.metadata().fail("hidden_activation", "\"" + gguf::printable(name) + "\" is not supported");
    return Activation::Kind::GeluTanh;
}

void Drafter::attention(int32_t layer, Slot in, Slot out, Slot add) {
    const int64_t head = h_.key_length;
    const Size q_size{h_.head_count * head, "attention.head_count * key_length"},
        kv_size{h_.head_count_kv * head, "attention.head_count_kv * key_length"},
        head_size{head, "attention.key_length"};
    const std::string prefix = layer_prefix(layer);
    const double scale = real("attention.scale", 0);
    const bool full = window_ == 0 || full_[static_cast<size_t>(layer)];
    Attention a{
        .q = b_.slot("q", q_size.value),
        .k = b_.slot("k", kv_size.value),
        .v = b_.slot("v", kv_size.value),
        .out = b_.slot("attended", q_size.value),
        .cache = b_.cache_layer({h_.head_count_kv, h_.key_length, h_.key_length}, 0),
        .heads = h_.head_count,
        .kv_heads = h_.head_count_kv,
        .head_dim_k = h_.key_length,
        .head_dim_v = h_.key_length,
        .scale = static_cast<float>(scale != 0 ? scale : 1 / std::sqrt(double(head))),
        .window = full ? 0 : static_cast<int32_t>(window_),
        .rope = rope_,
        .q_norm = b_.vector(prefix + "attn_q_norm.weight", head_size),
        .k_norm = b_.vector(prefix + "attn_k_norm.weight", head_size),
        .norm_eps = h_.norm_epsilon,
        .sinks = b_.optional_vector(prefix + "attn_sinks.weight", {h_.head_count, "attention.head_count"}),
        .layer = layer};
    const bool own_values = b_.has(prefix + "attn_v.weight");
    Linear keys{.in = fused_, .parts = {}, .layer = layer};
    keys.parts.push_back({matrix(layer, "attn_k", kv_size, width_), kNoWeight, a.k, kNoSlot});
    if (own_values) keys.parts.push_back({matrix(layer, "attn_v", kv_size, width_), kNoWeight, a.v, kNoSlot});
    const Norm values{.in = a.k,
                      .out = a.v,
                      .weight = kNoWeight,
                      .eps = h_.norm_epsilon,
                      .parts = h_.head_count_kv,
                      .layer = layer};
    text_.emplace_back(keys);
    if (!own_values) text_.emplace_back(values);
    Attention appends = a;
    appends.q = appends.out = kNoSlot;
    text_.emplace_back(appends);
    keys.in = in;
    keys.parts.insert(keys.parts.begin(), {matrix(layer, "attn_q", q_size, width_), kNoWeight, a.q, kNoSlot});
    b_.add(keys);
    if (!own_values) b_.add(values);
    b_.add(a);
    b_.add(Linear{a.out,
                  {{matrix(layer, "attn_output", width_, q_size), kNoWeight, out, add,
                    static_cast<float>(real("attention.value_scale", 1))}}});
}

void Drafter::emit_layer(int32_t layer) {
    const std::string prefix = layer_prefix(layer), attn_post = prefix + "post_attention_norm",
                      ffn_post = prefix + "post_ffw_norm", factor = prefix + "layer_output_scale.weight";
    const bool after_attention = b_.has(attn_post + ".weight"), after_ffn = b_.has(ffn_post + ".weight");
    norm(prefix + "attn_norm", x_, branch_);
    attention(layer, branch_, after_attention ? branch_ : x_, after_attention ? kNoSlot : x_);
    if (after_attention) norm(attn_post, branch_, x_, x_);
    norm(prefix + "ffn_norm", x_, branch_);
    emit_feed_forward(b_, {.act = act_}, layer,
                      {branch_, after_ffn ? branch_ : x_, after_ffn ? kNoSlot : x_});
    if (after_ffn) norm(ffn_post, branch_, x_, x_);
    if (!b_.has(factor)) return;
    if (!after_ffn)
        throw ModelError(name_of(matrices_.head) + ": tensor " + factor +
                         ": not supported in a layer without post_ffw_norm");
    std::get<Norm>(b_.program().steps.back()).scale = b_.values(factor, {1, "one"}, {1, "one"}).front();
}

void Drafter::emit() {
    if (h_.value_length != h_.key_length)
        b_.metadata().fail("attention.value_length", "differs from attention.key_length");
    const double scale = real("embedding_scale", 0), logit_scale = real("logit_scale", 0);
    b_.begin_layer(0);
    b_.add(Embed{
        .table = matrices_.embedding(), .out = x_, .scale = scale == 0 ? 1.0f : static_cast<float>(scale)});
    for (int32_t layer = 0; layer < h_.block_count; ++layer) {
        b_.begin_layer(layer);
        emit_layer(layer);
    }
    b_.end_layers();
    norm("output_norm", x_, branch_);
    b_.add(Logits{.in = branch_,
                  .weight = matrices_.output(true),
                  .scale = logit_scale == 0 ? 1.0f : static_cast<float>(logit_scale),
                  .softcap = static_cast<float>(real("final_logit_softcapping", 0))});
}

// Adds the steps that compute g to the target's.
void fuse_dflash(Model &target, const gguf::File &head, const Metadata &metadata, const HyperParameters &h,
                 const HeadTarget &needs) {
    Builder b(head, metadata, h, 0);
    const Size all{static_cast<int64_t>(needs.layers.size()) * needs.width, "layers * embedding_length"},
        width{h.embedding_length, "embedding_length"};
    const WeightId fc = b.matrix("fc.weight", width, all), norm = b.vector("enc.output_norm.weight", width);
    if (b.has("fc.scale"))
        throw ModelError(name_of(head) + ": tensor fc.scale: factors of this matrix are not supported");
    const auto weight = [&](WeightId id) -> const Weight & {
        return b.program().weights[static_cast<size_t>(id)];
    };
    fuse_taps(target, HeadKind::DFlash, head, needs.layers,
              {.slot = kDFlashInput,
               .width = h.embedding_length,
               .matrix = weight(fc),
               .after = &weight(norm),
               .eps = h.norm_epsilon});
}

}  // namespace

HeadTarget dflash_target(const gguf::File &file) {
    return dflash_target(file, Metadata(file));
}

DraftHead add_dflash(Model &target, const gguf::File &target_file, const gguf::File &head, int64_t context) {
    const Metadata metadata(head);
    HyperParameters hyper = read_hyper_parameters(head, metadata);
    refuse_variants(head, metadata);
    const HeadTarget needs = dflash_target(head, metadata);
    if (needs.width != target.hyper.embedding_length)
        metadata.fail("embedding_length",
                      std::to_string(needs.width) + ", but " +
                          target_has(target, target.hyper.embedding_length, " as embedding_length"));
    check_taps(metadata, needs.layers, target);
    check_same_tokens(target, target_file, head);
    DraftHead made{.kind = HeadKind::DFlash,
                   .program = {},
                   .tokens = draft_tokens(head, target.program.vocab),
                   .notes = {}};
    const gguf::Value *mask = head.find("tokenizer.ggml.mask_token_id");
    const int64_t token = mask ? mask->as_int().value_or(-1) : -1;
    if (token < 0 || token >= target.program.token_ids())
        throw ModelError(name_of(head) + ": key tokenizer.ggml.mask_token_id: " +
                         (mask ? "not a token of the target" : "missing"));
    made.mask = static_cast<int32_t>(token);
    made.block_tokens =
        static_cast<int32_t>(std::min(kMostBlock, metadata.integer("block_size", 2, INT32_MAX).value_or(16)));
    made.both_ways = !metadata.boolean("attention.causal").value_or(false);
    hyper.vocab = made.tokens.empty() ? target.program.vocab : static_cast<int64_t>(made.tokens.size());
    Builder builder(head, metadata, hyper, context);
    const HeadMatrices matrices{head, builder, target, target_file};
    Drafter drafter(matrices);
    drafter.emit();
    for (const char *of_target : {"fc.weight", "enc.output_norm.weight"}) builder.ignore(of_target);
    apply_factors(head, builder);
    made.block = builder.take();
    made.program = made.block;
    made.program.steps = drafter.take_text();
    made.program.parts = {
        {.end = made.program.steps.size(), .in = {drafter.fused()}, .out = {drafter.fused()}}};
    fuse_dflash(target, head, metadata, hyper, needs);
    made.notes = check_unread_keys(metadata);
    return made;
}

}  // namespace runnel::model
