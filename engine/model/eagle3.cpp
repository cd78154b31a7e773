#include "engine/model/eagle3.h"

#include <cmath>
#include <string>

#include "engine/model/builder.h"
#include "engine/model/decoder.h"
#include "engine/model/factors.h"
#include "engine/model/head_parts.h"
#include "engine/model/head_taps.h"
#include "engine/model/unread_keys.h"

namespace runnel::model {
namespace {

using namespace kernels;

constexpr const char *kEagleInput = "EAGLE-3 input";  // g in the target's program, y in the head's

HeadTarget read_target(const gguf::File &file, const Metadata &m) {
    return {.kind = HeadKind::Eagle3,
            .width = m.required_integer("target_hidden_size", 1, INT32_MAX),
            .layers = tapped_layers(m, 3, 3),
            .draft_rows = draft_rows(file)};
}

// Throws if the head was made for a model of other sizes.
void check_target(const gguf::File &head, const Metadata &m, const HeadTarget &needs, const Model &target,
                  const gguf::File &target_file) {
    const HyperParameters &h = target.hyper;
    if (needs.width != h.embedding_length)
        m.fail("target_hidden_size", std::to_string(needs.width) + ", but " +
                                         target_has(target, h.embedding_length, " as embedding_length"));
    check_taps(m, needs.layers, target);
    check_same_tokens(target, target_file, head);
}

// Adds the steps that compute g to the target's.
void fuse_eagle(Model &target, const gguf::File &head, const Metadata &metadata, const HyperParameters &h,
                const HeadTarget &needs) {
    Builder b(head, metadata, h, 0);
    const Size all{3 * needs.width, "3 * target_hidden_size"}, width{h.embedding_length, "embedding_length"};
    const bool normed = metadata.boolean("norm_before_fc").value_or(false);
    if (b.has("fc.scale"))
        throw ModelError(name_of(head) + ": tensor fc.scale: factors of this matrix are not supported");
    const WeightId fc = b.matrix("fc.weight", width, all),
                   norm = normed ? b.vector("enc.output_norm.weight", all) : kNoWeight;
    const auto weight = [&](WeightId id) -> const Weight & {
        return b.program().weights[static_cast<size_t>(id)];
    };
    fuse_taps(target, HeadKind::Eagle3, head, needs.layers,
              {.slot = kEagleInput,
               .width = h.embedding_length,
               .matrix = weight(fc),
               .before = normed ? &weight(norm) : nullptr,
               .eps = h.norm_epsilon});
}

// --- the head ------------------------------------------------------------------------------------------------

class Head {
  public:
    explicit Head(const HeadMatrices &matrices)
        : matrices_(matrices), b_(matrices.builder), h_(matrices.builder.hyper()) {}

    void emit();

  private:
    Slot slot(const char *name, int64_t width) { return b_.slot(name, width); }
    Linear::Part part(const char *name, Size rows, Size cols, Slot out, Slot add = kNoSlot) {
        return {b_.matrix(layer_prefix(0) + name + ".weight", rows, cols), kNoWeight, out, add};
    }
    Norm norm(const std::string &name, Slot in, Slot out) {
        return {.in = in, .out = out, .weight = b_.vector(name + ".weight", width_), .eps = h_.norm_epsilon};
    }
    void attention(Slot in, Slot out, Slot add);

    const HeadMatrices &matrices_;
    Builder &b_;
    const HyperParameters &h_;
    Size width_{h_.embedding_length, "embedding_length"};
};

void Head::attention(Slot in, Slot out, Slot add) {
    const Size both{2 * h_.embedding_length, "2 * embedding_length"},
        q_size{int64_t{h_.head_count} * h_.key_length, "attention.head_count * key_length"},
        k_size{int64_t{h_.head_count_kv} * h_.key_length, "attention.head_count_kv * key_length"},
        v_size{int64_t{h_.head_count_kv} * h_.value_length, "attention.head_count_kv * value_length"},
        attended_size{int64_t{h_.head_count} * h_.value_length, "attention.head_count * value_length"};
    const Slot q = slot("q", q_size.value), k = slot("k", k_size.value), v = slot("v", v_size.value),
               attended = slot("attended", attended_size.value);
    b_.add(Linear{
        in,
        {part("attn_q", q_size, both, q), part("attn_k", k_size, both, k), part("attn_v", v_size, both, v)}});
    const int32_t cache = b_.cache_layer({h_.head_count_kv, h_.key_length, h_.value_length}, 0);
    b_.add(Attention{.q = q,
                     .k = k,
                     .v = v,
                     .out = attended,
                     .cache = cache,
                     .heads = h_.head_count,
                     .kv_heads = h_.head_count_kv,
                     .head_dim_k = h_.key_length,
                     .head_dim_v = h_.value_length,
                     .scale = static_cast<float>(1 / std::sqrt(double(h_.key_length))),
                     .rope = b_.rope(RopeTable::Pairs::Adjacent)});
    b_.add(Linear{attended, {part("attn_output", width_, attended_size, out, add)}});
}

void Head::emit() {
    const int64_t width = h_.embedding_length;
    const Slot token = slot("token's embedding", width), before = slot(kHiddenBefore, width),
               normed_before = slot("normed hidden state before", width),
               both = slot("embedding and hidden state", 2 * width), y = slot(kEagleInput, width),
               normed = slot(kHidden, width);
    const bool normed_residual = b_.metadata().boolean("norm_before_residual").value_or(false);
    const std::string prefix = layer_prefix(0);
    b_.begin_layer(0);
    b_.add(Embed{matrices_.embedding(), token});
    b_.add(norm(prefix + "attn_norm", token, token));
    b_.add(norm(prefix + "attn_norm_2", before, normed_before));
    b_.add(Copy{.in = token, .out = both, .from = {}, .to = {}, .width = width});
    b_.add(Copy{.in = normed_before, .out = both, .from = {}, .to = {.first = width}, .width = width});
    attention(both, y, normed_residual ? normed_before : before);
    b_.add(norm(prefix + "ffn_norm", y, normed));
    emit_feed_forward(b_, {}, 0, {.in = normed, .out = y, .add = y});
    b_.end_layers();
    b_.add(norm("output_norm", y, normed));
    b_.add(Logits{.in = normed, .weight = matrices_.output()});
    b_.program().parts = {{.end = b_.program().steps.size(), .in = {before}, .out = {y}}};
}

}  // namespace

HeadTarget eagle3_target(const gguf::File &file) {
    return read_target(file, Metadata(file));
}

DraftHead add_eagle3(Model &target, const gguf::File &target_file, const gguf::File &head, int64_t context) {
    const Metadata metadata(head);
    HyperParameters hyper = read_hyper_parameters(head, metadata);
    if (hyper.block_count != 1 || hyper.draft_layers != 0) metadata.fail("block_count", "must be 1");
    const HeadTarget needs = read_target(head, metadata);
    check_target(head, metadata, needs, target, target_file);
    DraftHead made{HeadKind::Eagle3, {}, draft_tokens(head, target.program.vocab), {}};
    hyper.vocab = made.tokens.empty() ? target.program.vocab : static_cast<int64_t>(made.tokens.size());
    Builder builder(head, metadata, hyper, context);
    const HeadMatrices matrices{head, builder, target, target_file};
    Head(matrices).emit();
    apply_factors(head, builder);
    made.program = builder.take();
    fuse_eagle(target, head, metadata, hyper, needs);
    made.notes = check_unread_keys(metadata);
    return made;
}

}  // namespace runnel::model
