#include "engine/model/experts.h"

namespace runnel::model {

using namespace kernels;

namespace {

constexpr int64_t kMaxExperts = 65536, kMaxExpertWidth = 1 << 20;

struct Matrices {
    WeightId gate, up = kNoWeight, down, gate_bias, up_bias = kNoWeight, down_bias;
    WeightId gate_scales = kNoWeight, up_scales = kNoWeight;
};

class ExpertLayer {
  public:
    ExpertLayer(Builder &builder, const ExpertTraits &traits, int32_t layer)
        : b_(builder),
          t_(traits),
          layer_(layer),
          prefix_(layer_prefix(layer)),
          experts_{b_.metadata().required_integer("expert_count", 1, kMaxExperts), "expert_count"},
          width_{b_.hyper().embedding_length, "embedding_length"} {}

    // Emits the router, the experts and the shared expert.
    void emit(const SubLayer &sublayer) {
        const Slot logits = b_.slot("router", experts_.value);
        b_.add(Linear{t_.router_in == kNoSlot ? sublayer.in : t_.router_in,
                      {{b_.matrix(prefix_ + "ffn_gate_inp.weight", experts_, width_),
                        b_.optional_vector(prefix_ + "ffn_gate_inp.bias", experts_), logits, kNoSlot,
                        static_cast<float>(t_.router_scale)}}});
        const Matrices m = matrices();
        Experts step{.in = sublayer.in,
                     .logits = logits,
                     .out = sublayer.out,
                     .add = sublayer.add,
                     .chosen = t_.chosen,
                     .routing = routing(sublayer.scale),
                     .gate = m.gate,
                     .up = m.up,
                     .down = m.down,
                     .gate_bias = m.gate_bias,
                     .up_bias = m.up_bias,
                     .down_bias = m.down_bias,
                     .gate_scales = m.gate_scales,
                     .up_scales = m.up_scales,
                     .act = t_.act,
                     .weights_on_input = t_.weights_on_input};
        t_.limits.apply(step, layer_);
        b_.add(step);
        if (b_.has(prefix_ + "ffn_up_shexp.weight"))
            shared({sublayer.in, sublayer.out, sublayer.out, sublayer.scale});
    }

  private:
    Routing routing(float scale) const;
    void read_choice(Routing &routing) const;
    void check_groups(const Routing &routing) const;
    Matrices matrices();
    Size hidden_width(const std::string &down) const;
    WeightId biases(const std::string &name, Size rows);
    WeightId scales(const std::string &name, Size experts);
    WeightId product_of_scales(const std::string &up, const std::string &down);
    void shared(const SubLayer &sublayer);
    Activation shared_activation(Slot gate, Slot up) const;

    Builder &b_;
    const ExpertTraits &t_;
    int32_t layer_;
    std::string prefix_;
    Size experts_, width_;
};

// What the file says about the choice of experts.
void ExpertLayer::read_choice(Routing &r) const {
    const Metadata &m = b_.metadata();
    switch (m.integer("expert_gating_func", 0, 4).value_or(0)) {
        case 1:
            r.score = Routing::Score::Softmax;
            break;
        case 2:
            r.score = Routing::Score::Sigmoid;
            break;
        case 3:
            r.score = Routing::Score::SelectedSoftmax;
            break;
        case 4:
            r.score = Routing::Score::SqrtSoftplus;
            break;
        default:
            break;
    }
    r.selection_bias = b_.optional_vector(
        prefix_ + (b_.has(prefix_ + "exp_probs_b.bias") ? "exp_probs_b.bias" : "exp_probs_b"), experts_);
    // DeepSeek-V2 scores a group by its best expert; V3, which has the bias, by the sum of its two best.
    r.group_best = r.selection_bias == kNoWeight ? 1 : 2;
    r.groups = static_cast<int32_t>(m.integer("expert_group_count", 0, experts_.value).value_or(1));
    r.groups_used =
        static_cast<int32_t>(m.integer("expert_group_used_count", 0, experts_.value).value_or(r.groups));
    if (r.groups > 1) check_groups(r);
}

Routing ExpertLayer::routing(float scale) const {
    const Metadata &m = b_.metadata();
    Routing r{.score = t_.score,
              .used = static_cast<int32_t>(m.required_integer("expert_used_count", 1, experts_.value))};
    if (r.score != Routing::Score::SparseMixer) read_choice(r);
    r.normalize = t_.normalize ? *t_.normalize : m.boolean("expert_weights_norm").value_or(false);
    const double of_file = m.real("expert_weights_scale", 0).value_or(1);
    r.scale = static_cast<float>(of_file == 0 ? 1 : of_file) * scale;
    if (!b_.has(prefix_ + "ffn_down_exps.bias") && !t_.weights_on_input)
        r.expert_scales = b_.optional_vector(prefix_ + "ffn_down_exps.scale", experts_);
    return r;
}

void ExpertLayer::check_groups(const Routing &r) const {
    const Metadata &m = b_.metadata();
    if (experts_.value % r.groups != 0) m.fail("expert_group_count", "does not divide expert_count");
    const int64_t size = experts_.value / r.groups;
    if (size < r.group_best) m.fail("expert_group_count", "leaves fewer than two experts in a group");
    if (r.groups_used < 1 || r.groups_used > r.groups)
        m.fail("expert_group_used_count", "is not between 1 and expert_group_count");
    if (r.groups_used * size < r.used)
        m.fail("expert_group_used_count", "leaves fewer experts than expert_used_count");
}

// Files without a key for the width use feed_forward_length; in some old files that is the
// total of all chosen experts.
Size ExpertLayer::hidden_width(const std::string &down) const {
    const Metadata &m = b_.metadata();
    const char *key = "expert_feed_forward_length", *dense = "feed_forward_length";
    const int64_t known = m.integer(key, 0, kMaxExpertWidth).value_or(0);
    if (known > 0 || !b_.has(down + ".weight")) return {known, key};
    const int64_t width = b_.cols_of(down + ".weight"), all = b_.hyper().feed_forward_length;
    const int64_t used = m.required_integer("expert_used_count", 1, experts_.value);
    if (width != all && width * used != all)
        m.fail(dense,
               std::to_string(all) + ", but tensor " + down + ".weight has rows of " + std::to_string(width));
    return {width, dense};
}

Matrices ExpertLayer::matrices() {
    const std::string down = prefix_ + "ffn_down_exps", merged = prefix_ + "ffn_gate_up_exps";
    const Size hidden = hidden_width(down);
    const auto stack = [&](const std::string &name, Size rows, Size cols) {
        return b_.matrices(name + ".weight", experts_, rows, cols);
    };
    const WeightId of_down = stack(down, width_, hidden), down_bias = biases(down, width_);
    if (b_.has(merged + ".weight")) {
        const Size both{2 * hidden.value, "2 * expert_feed_forward_length"};
        return {.gate = stack(merged, both, width_),
                .down = of_down,
                .gate_bias = biases(merged, both),
                .down_bias = down_bias,
                .gate_scales = scales(merged, experts_)};
    }
    const std::string gate = prefix_ + "ffn_gate_exps", up = prefix_ + "ffn_up_exps";
    if (!t_.gated)
        return {.gate = stack(up, hidden, width_),
                .down = of_down,
                .gate_bias = biases(up, hidden),
                .down_bias = down_bias,
                .gate_scales = scales(up, experts_)};
    return {.gate = stack(gate, hidden, width_),
            .up = stack(up, hidden, width_),
            .down = of_down,
            .gate_bias = biases(gate, hidden),
            .up_bias = biases(up, hidden),
            .down_bias = down_bias,
            .gate_scales = scales(gate, experts_),
            .up_scales = t_.weights_on_input ? product_of_scales(up, down) : scales(up, experts_)};
}

WeightId ExpertLayer::biases(const std::string &name, Size rows) {
    return b_.has(name + ".bias") ? b_.vectors(name + ".bias", experts_, rows) : kNoWeight;
}

// The factors of a stack of matrices, which files of NVFP4 have.
WeightId ExpertLayer::scales(const std::string &name, Size experts) {
    return b_.optional_factors(name + ".scale", experts);
}

// With weights_on_input, Experts has no factor for the down products; as up is linear, its factors stand for both.
WeightId ExpertLayer::product_of_scales(const std::string &up, const std::string &down) {
    const WeightId of_up = scales(up, experts_), of_down = scales(down, experts_);
    if (of_up == kNoWeight || of_down == kNoWeight) return of_up == kNoWeight ? of_down : of_up;
    const Size one{1, "one"};
    std::vector<float> product = b_.values(up + ".scale", one, experts_);
    const std::vector<float> other = b_.values(down + ".scale", one, experts_);
    for (size_t i = 0; i < product.size(); ++i) product[i] *= other[i];
    return b_.constant(up + ".scale", std::move(product), 1, 1, experts_.value);
}

Activation ExpertLayer::shared_activation(Slot gate, Slot up) const {
    Activation step{gate, up, gate, t_.act};
    t_.shared_limits.apply(step, layer_);
    return step;
}

// A shared expert with a gate is a mixture of one expert; without one, a dense network.
void ExpertLayer::shared(const SubLayer &sublayer) {
    const std::string gate_name = prefix_ + "ffn_gate_shexp.weight",
                      up_name = prefix_ + "ffn_up_shexp.weight";
    const bool merged = t_.gated && !b_.has(gate_name);
    const Size hidden{merged ? b_.rows_of(up_name) / 2 : b_.rows_of(up_name), "rows of ffn_up_shexp"};
    if (merged) {
        const Slot gated = b_.slot("shared gate", hidden.value), upped = b_.slot("shared up", hidden.value);
        b_.add(b_.split(prefix_ + "ffn_up_shexp", width_, false, sublayer.in,
                        {{hidden, gated}, {hidden, upped}}));
        b_.add(shared_activation(gated, upped));
        b_.add(Linear{gated,
                      {{b_.matrix(prefix_ + "ffn_down_shexp.weight", width_, hidden), kNoWeight, sublayer.out,
                        sublayer.add, sublayer.scale}}});
        return;
    }
    const WeightId gate = t_.gated ? b_.matrix(gate_name, hidden, width_) : kNoWeight,
                   up = b_.matrix(up_name, hidden, width_),
                   down = b_.matrix(prefix_ + "ffn_down_shexp.weight", width_, hidden);
    if (b_.has(prefix_ + "ffn_gate_inp_shexp.weight")) {
        const Slot logit = b_.slot("shared expert's gate", 1);
        const Size one{1, "one"};
        const WeightId of_up = scales(prefix_ + "ffn_up_shexp", one);
        b_.add(Linear{
            sublayer.in,
            {{b_.matrix(prefix_ + "ffn_gate_inp_shexp.weight", one, width_), kNoWeight, logit, kNoSlot}}});
        Experts step{.in = sublayer.in,
                     .logits = logit,
                     .out = sublayer.out,
                     .add = sublayer.add,
                     .routing = {.score = Routing::Score::Sigmoid,
                                 .used = 1,
                                 .scale = sublayer.scale,
                                 .expert_scales = scales(prefix_ + "ffn_down_shexp", one)},
                     .gate = t_.gated ? gate : up,
                     .up = t_.gated ? up : kNoWeight,
                     .down = down,
                     .gate_scales = t_.gated ? scales(prefix_ + "ffn_gate_shexp", one) : of_up,
                     .up_scales = t_.gated ? of_up : kNoWeight,
                     .act = t_.act};
        t_.shared_limits.apply(step, layer_);
        b_.add(step);
        return;
    }
    if (!t_.gated) {
        const Slot inner = b_.slot("shared up", hidden.value);
        b_.add(Linear{sublayer.in, {{up, kNoWeight, inner, kNoSlot}}});
        b_.add(Activation{inner, kNoSlot, inner, t_.act});
        b_.add(Linear{inner, {{down, kNoWeight, sublayer.out, sublayer.add, sublayer.scale}}});
        return;
    }
    const Slot gated = b_.slot("shared gate", hidden.value), upped = b_.slot("shared up", hidden.value);
    b_.add(Linear{sublayer.in, {{gate, kNoWeight, gated, kNoSlot}, {up, kNoWeight, upped, kNoSlot}}});
    b_.add(shared_activation(gated, upped));
    b_.add(Linear{gated, {{down, kNoWeight, sublayer.out, sublayer.add, sublayer.scale}}});
}

// Whether the layer has experts (experts.h), by the file's keys or, with by_presence, by its tensors.
bool layer_has_experts(const Builder &b, const ExpertTraits &experts, int32_t layer) {
    const Metadata &m = b.metadata();
    if (experts.by_presence) return b.has(layer_prefix(layer) + "ffn_gate_inp.weight");
    const int64_t first = m.integer("leading_dense_block_count", 0, INT32_MAX).value_or(0),
                  step = m.integer("interleave_moe_layer_step", 0, INT32_MAX).value_or(1);
    return has_experts(b) && layer >= first && step > 0 && (layer + 1) % step == 0;
}

}  // namespace

bool has_experts(const Builder &b) {
    return b.metadata().integer("expert_count", 0, kMaxExperts).value_or(0) > 0;
}

void with_experts(DecoderTraits &traits, const ExpertTraits &experts) {
    const DecoderTraits dense = traits;
    traits.feed_forward = [dense, experts](Builder &b, int32_t layer, const SubLayer &sublayer) {
        if (layer_has_experts(b, experts, layer))
            emit_experts(b, experts, layer, sublayer);
        else
            emit_feed_forward(b, dense, layer, sublayer);
    };
}

void emit_experts(Builder &b, const ExpertTraits &traits, int32_t layer, const SubLayer &sublayer) {
    ExpertLayer(b, traits, layer).emit(sublayer);
}

}  // namespace runnel::model
