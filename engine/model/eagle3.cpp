#include "engine/model/eagle3.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <variant>

#include "engine/model/builder.h"
#include "engine/model/decoder.h"
#include "engine/model/factors.h"
#include "engine/model/layers.h"
#include "engine/model/unread_keys.h"
#include "gguf/printable.h"
#include "kernels/steps.h"

namespace runnel::model {
namespace {

using namespace kernels;

constexpr const char *kFused = "EAGLE-3 input";  // g in the target's program, y in the head's

[[noreturn]] void fail(const gguf::File &file, const std::string &what) {
    throw ModelError(name_of(file) + ": " + what);
}

int64_t rows_of_d2t(const gguf::File &file) {
    const gguf::Tensor *t = file.find_tensor("d2t");
    if (!t) return 0;
    if (t->type != gguf::Type::I64 || t->rank > 1 || t->elements() > INT32_MAX)
        fail(file, "tensor d2t: expected a vector of i64");
    return t->elements();
}

Eagle3Target target_of(const gguf::File &file, const Metadata &m) {
    Eagle3Target target{};
    const char *key = "target_layers";
    const gguf::Value *value = m.find(key);
    if (!value) m.fail(key, "missing");
    const bool three = value->type() == gguf::ValueType::Array && value->size() == target.layers.size();
    const std::vector<int64_t> layers = three ? value->as_ints() : std::vector<int64_t>();
    if (layers.size() != target.layers.size()) m.fail(key, "expected an array of three layers");
    std::ranges::copy(layers, target.layers.begin());
    target.width = m.required_integer("target_hidden_size", 1, INT32_MAX);
    target.draft_rows = rows_of_d2t(file);
    return target;
}

// The target's tokens by row of the output matrix.
std::vector<int32_t> tokens_of(const gguf::File &file, int64_t vocab) {
    std::vector<int32_t> tokens(static_cast<size_t>(rows_of_d2t(file)));
    std::vector<bool> known(static_cast<size_t>(vocab));
    for (size_t i = 0; i < tokens.size(); ++i) {
        int64_t token;
        std::memcpy(&token, file.find_tensor("d2t")->data + i * sizeof token, sizeof token);
        const std::string row = "tensor d2t: row " + std::to_string(i) + " is token " + std::to_string(token);
        if (token < 0 || token >= vocab)
            fail(file, row + ", but the target has " + std::to_string(vocab) + " tokens");
        if (known[static_cast<size_t>(token)]) fail(file, row + ", like an earlier row");
        known[static_cast<size_t>(token)] = true;
        tokens[i] = static_cast<int32_t>(token);
    }
    return tokens;
}

// Layers that are computed several times count as often. The last ones may have no steps.
int32_t layer_count(const Model &target) {
    return std::max(target.hyper.block_count, layers_of(target.program).count);
}

// Throws if the head was made for a model of other sizes.
void check_target(const gguf::File &head, const Metadata &m, const Eagle3Target &needs, const Model &target,
                  const gguf::File &target_file) {
    const HyperParameters &h = target.hyper;
    const auto of_target = [&](int64_t count, const char *what) {
        return "the target (" + gguf::printable(h.architecture) + ") has " + std::to_string(count) + what;
    };
    if (needs.width != h.embedding_length)
        m.fail("target_hidden_size", std::to_string(needs.width) + ", but " +
                                         of_target(h.embedding_length, " as embedding_length"));
    const int32_t layers = layer_count(target);
    for (const int64_t layer : needs.layers)
        if (layer < 0 || layer > layers)
            m.fail("target_layers",
                   "holds " + std::to_string(layer) + ", but " + of_target(layers, " layers"));
    const char *key = "tokenizer.ggml.tokens";
    const gguf::Value *own = head.find(key), *other = target_file.find(key);
    if (own && other && own->size() != other->size())
        fail(head, "key " + std::string(key) + ": has " + std::to_string(own->size()) + " tokens, but " +
                       of_target(static_cast<int64_t>(other->size()), ""));
}

// --- the target's part ---------------------------------------------------------------------------------------

Slot add_slot(Program &program, const std::string &name, int64_t width) {
    program.slots.push_back({name, width});
    return static_cast<Slot>(program.slots.size() - 1);
}

// The slot that the target's layers read and write in turn.
Slot residual_stream(const gguf::File &head, const Model &target) {
    const Program &program = target.program;
    const auto slot = std::ranges::find_if(program.slots, [&](const SlotInfo &one) {
        return one.name == kResidual && one.width == target.hyper.embedding_length;
    });
    bool mixed = false;
    for_each_step<Mix>(program, [&](const Mix &) { mixed = true; });
    if (slot == program.slots.end() || mixed)
        fail(head, "an EAGLE-3 head does not work with this " + gguf::printable(target.hyper.architecture) +
                       " model: its layers do not pass on a single residual stream");
    return static_cast<Slot>(slot - program.slots.begin());
}

// Whether the last state of these families is the one before the output norm.
bool before_norm(const std::string &architecture) {
    return architecture == "gpt-oss" || architecture == "mimo2" || architecture == "step35";
}

// Where a copy of the residual stream before layer `layer` belongs: after the layer's first step if that leaves it as it is.
// It is mostly a norm, which often shares a launch with the step before it. After the last layer with steps: the output's.
size_t place_of_tap(const Program &program, int32_t layer, Slot residual) {
    const Layers layers = layers_of(program);
    const auto begins = [&](int32_t other) { return other >= std::min(layer, layers.count); };
    const auto first =
        static_cast<size_t>(std::ranges::find_if(layers.of_step, begins) - layers.of_step.begin());
    return writes_slot(program.steps[first], residual) ? first : first + 1;
}

void insert(Program &program, size_t place, Step step) {
    program.steps.insert(program.steps.begin() + static_cast<std::ptrdiff_t>(place), std::move(step));
}

// Adds copies of the three states, one after the other, in a new slot.
Slot add_taps(Model &target, const gguf::File &head, const std::array<int64_t, 3> &layers) {
    Program &program = target.program;
    const int64_t width = target.hyper.embedding_length;
    const int32_t count = layer_count(target);
    const Slot residual = residual_stream(head, target),
               taps = add_slot(program, "EAGLE-3 taps", static_cast<int64_t>(layers.size()) * width);
    for (size_t i = 0; i < layers.size(); ++i) {
        const auto layer = static_cast<int32_t>(layers[i]);
        Copy copy{.in = residual,
                  .out = taps,
                  .from = {},
                  .to = {.first = static_cast<int64_t>(i) * width},
                  .width = width};
        const bool last = layer == count;
        if (!last) copy.layer = layer;
        if (last && !before_norm(target.hyper.architecture)) {
            copy.in = std::get<Logits>(program.steps.back()).in;
            insert(program, program.steps.size() - 1, copy);
        } else {
            insert(program, place_of_tap(program, layer, residual), copy);
        }
    }
    return taps;
}

// Adds the steps that compute g.
void add_fusion(Model &target, const gguf::File &head, const Metadata &metadata, const HyperParameters &h,
                const Eagle3Target &needs) {
    Builder b(head, metadata, h, 0);
    const Size all{3 * needs.width, "3 * target_hidden_size"}, width{h.embedding_length, "embedding_length"};
    const bool normed = metadata.boolean("norm_before_fc").value_or(false);
    if (b.has("fc.scale")) fail(head, "tensor fc.scale: factors of this matrix are not supported");
    const WeightId fc = b.matrix("fc.weight", width, all),
                   norm = normed ? b.vector("enc.output_norm.weight", all) : kNoWeight;
    const Slot taps = add_taps(target, head, needs.layers);
    Program &program = target.program;
    const Slot fused = add_slot(program, kFused, h.embedding_length);
    const auto import = [&](WeightId id) {
        program.weights.push_back(b.program().weights[static_cast<size_t>(id)]);
        return static_cast<WeightId>(program.weights.size() - 1);
    };
    if (normed)
        insert(program, program.steps.size() - 1,
               Norm{.in = taps, .out = taps, .weight = import(norm), .eps = h.norm_epsilon});
    insert(program, program.steps.size() - 1, Linear{taps, {{import(fc), kNoWeight, fused, kNoSlot}}});
}

// --- the head ------------------------------------------------------------------------------------------------

class Head {
  public:
    Head(const gguf::File &file, Builder &builder, const Model &target, const gguf::File &target_file)
        : file_(file), b_(builder), h_(builder.hyper()), target_(target), target_file_(target_file) {}

    void emit();

  private:
    Slot slot(const char *name, int64_t width) { return b_.slot(name, width); }
    Linear::Part part(const char *name, Size rows, Size cols, Slot out, Slot add = kNoSlot) {
        return {b_.matrix(layer_prefix(0) + name + ".weight", rows, cols), kNoWeight, out, add};
    }
    Norm norm(const std::string &name, Slot in, Slot out) {
        return {.in = in, .out = out, .weight = b_.vector(name + ".weight", width_), .eps = h_.norm_epsilon};
    }
    WeightId embedding();
    WeightId output();
    WeightId borrow(const char *name, WeightId of_target);
    void attention(Slot in, Slot out, Slot add);
    [[noreturn]] void missing(const std::string &name, const std::string &why) const {
        fail(file_, "tensor " + name + ": missing" + why);
    }

    const gguf::File &file_;
    Builder &b_;
    const HyperParameters &h_;
    const Model &target_;
    const gguf::File &target_file_;
    Size width_{h_.embedding_length, "embedding_length"};
};

// A matrix of the target, which this file lacks.
WeightId Head::borrow(const char *name, WeightId of_target) {
    const Weight &weight = target_.program.weights[static_cast<size_t>(of_target)];
    if (weight.cols != h_.embedding_length)
        missing(name, ", and the target's has " + std::to_string(weight.cols) + " columns, expected " +
                          std::to_string(h_.embedding_length) + " (embedding_length)");
    if (target_file_.find("prism.hadamard.version")) missing(name, ", and the target's is rotated");
    b_.program().weights.push_back(weight);
    return static_cast<WeightId>(b_.program().weights.size() - 1);
}

WeightId Head::embedding() {
    const char *name = "token_embd.weight";
    if (b_.has(name)) return b_.matrix(name, {target_.program.token_ids(), "the target's tokens"}, width_);
    WeightId table = kNoWeight;
    for_each_step<Embed>(target_.program, [&](const Embed &embed) {
        if (table == kNoWeight) table = embed.table;
    });
    if (table == kNoWeight) missing(name, "");
    return borrow(name, table);
}

WeightId Head::output() {
    const char *name = "output.weight";
    const bool some = b_.has("d2t");
    if (b_.has(name))
        return b_.matrix(name, {h_.vocab, some ? "rows of d2t" : "the target's tokens"}, width_);
    if (some) missing(name, ", but there is d2t");
    return borrow(name, std::get<Logits>(target_.program.steps.back()).weight);
}

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
               both = slot("embedding and hidden state", 2 * width), y = slot(kFused, width),
               normed = slot(kHidden, width);
    const bool normed_residual = b_.metadata().boolean("norm_before_residual").value_or(false);
    const std::string prefix = layer_prefix(0);
    b_.begin_layer(0);
    b_.add(Embed{embedding(), token});
    b_.add(norm(prefix + "attn_norm", token, token));
    b_.add(norm(prefix + "attn_norm_2", before, normed_before));
    b_.add(Copy{.in = token, .out = both, .from = {}, .to = {}, .width = width});
    b_.add(Copy{.in = normed_before, .out = both, .from = {}, .to = {.first = width}, .width = width});
    attention(both, y, normed_residual ? normed_before : before);
    b_.add(norm(prefix + "ffn_norm", y, normed));
    emit_feed_forward(b_, {}, 0, {.in = normed, .out = y, .add = y});
    b_.end_layers();
    b_.add(norm("output_norm", y, normed));
    b_.add(Logits{.in = normed, .weight = output()});
    b_.program().parts = {{.end = b_.program().steps.size(), .in = {before}, .out = {y}}};
}

}  // namespace

bool is_eagle3(const gguf::File &file) {
    const gguf::Value *value = file.find("general.architecture");
    return value && value->as_string() == std::string_view(kEagle3);
}

Eagle3Target eagle3_target(const gguf::File &file) {
    return target_of(file, Metadata(file));
}

Eagle3 add_eagle3(Model &target, const gguf::File &target_file, const gguf::File &head, int64_t context) {
    const Metadata metadata(head);
    if (metadata.architecture() != kEagle3) fail(head, "not an EAGLE-3 head");
    HyperParameters hyper = read_hyper_parameters(head, metadata);
    if (hyper.block_count != 1 || hyper.draft_layers != 0) metadata.fail("block_count", "must be 1");
    const Eagle3Target needs = target_of(head, metadata);
    check_target(head, metadata, needs, target, target_file);
    Eagle3 made{{}, tokens_of(head, target.program.vocab), {}};
    hyper.vocab = made.tokens.empty() ? target.program.vocab : static_cast<int64_t>(made.tokens.size());
    Builder builder(head, metadata, hyper, context);
    Head(head, builder, target, target_file).emit();
    apply_factors(head, builder);
    made.program = builder.take();
    add_fusion(target, head, metadata, hyper, needs);
    made.notes = check_unread_keys(metadata);
    return made;
}

}  // namespace runnel::model
