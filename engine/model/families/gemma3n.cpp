// gemma3n: Gemma 3n E2B and E4B, text only. Attention as in Gemma 3, with normed value heads, keys and values shared by
// the last layers (shared_keys.h), and an embedding of the token for every layer (layer_embedding.h). Besides:
//   - AltUp (Baykal et al. 2023): four residual streams s_0..s_3, of which a layer computes the first. With the
//     router R(x) = tanh(W RMS(x) / width), a layer begins with predictions p = (C + I) s, C = Wp R(s_0) as a 4 x 4
//     matrix, and turns p_0 into z. It ends with s_j = p_j + (1 + (Wc R(z))_j) (z - p_0).
//   - Laurel: the attention's input n also takes a path of low rank. t = (p_0 + RMS(attention) + n + RMS(Wr Wl n)) /
//     sqrt(2) is what the feed-forward network reads and adds to.
//   - Sparse activations in the first layers: a gate g becomes max(g - mean(g) - c * deviation(g), 0) before GELU.
//   - The branch of the layer's embedding reads s_0 and is added to s_1..s_3.
// The first streams are projections of the embedding with the embedding's length (root of the sum of squares). At the
// end, projections of s_1..s_3 with the length of s_0 are averaged with s_0.
// (transformers' Gemma3nTextModel; tensors as llama.cpp's converter names them.)
#include <algorithm>
#include <cmath>
#include <map>

#include "engine/model/families.h"
#include "engine/model/layer_embedding.h"
#include "engine/model/shared_keys.h"

namespace runnel::model {

using namespace kernels;

namespace {

constexpr int32_t kStreams = 4;
constexpr Size kStreamCount{kStreams, "altup.num_inputs"}, kOtherCount{kStreams - 1, "altup.num_inputs - 1"};
constexpr int64_t kMaxRank = 1 << 16;
constexpr float kTiny = 1e-30f;  // epsilon of norms that only prevents a division by zero
// What files without the keys have.
constexpr int32_t kOwnKeys = 20;          // attention.shared_kv_layers: all layers after these
constexpr int64_t kLayerEmbedding = 256;  // embedding_length_per_layer_input
// activation_sparsity_scale of the first layers: 95% of a normal distribution are below.
constexpr int32_t kSparseLayers = 10;
constexpr float kSparsity = 1.6448534f;

class Gemma3n {
  public:
    explicit Gemma3n(Builder &builder);
    void emit();

  private:
    void begin();
    void layer(int32_t i);
    void end();
    Slot router(const std::string &prefix, Slot in);
    void predict(const std::string &prefix);
    void correct(const std::string &prefix);
    void laurel(const std::string &prefix, Slot out);
    void feed_forward(int32_t i, Slot out);
    void cut(Slot gate, float deviations);
    void add_layer_embedding(int32_t i);
    void multiply_by(WeightId weight, Slot in, Slot out);
    void mean_times(const std::vector<float> &factors, const std::vector<float> &offsets, Slot in, Slot out);
    void length_times(Slot in, const std::vector<float> &factors, const std::vector<float> &offsets,
                      Slot out);
    float deviations(int32_t i) const { return sparsity_[static_cast<size_t>(i)]; }

    Slot slot(const std::string &name) { return b_.slot(name, width_.value); }
    void norm(const std::string &tensor, Slot in, Slot out, Slot add = kNoSlot) {
        b_.add(Norm{
            .in = in, .out = out, .weight = b_.vector(tensor, width_), .eps = h_.norm_epsilon, .add = add});
    }
    Linear::Part part(const std::string &tensor, Size rows, Size cols, Slot out) {
        return {b_.matrix(tensor, rows, cols), kNoWeight, out, kNoSlot};
    }

    Builder &b_;
    const HyperParameters &h_;
    const Metadata &m_;
    Size width_;
    std::vector<bool> full_;
    // By layer: a gate is cut below the mean plus so many deviations; -inf: not at all.
    std::vector<float> sparsity_;
    SharedKeyAttention attention_;
    LayerEmbedding embedding_;
    AttentionKind whole_, windowed_;
    Slot first_, others_;                      // the streams s_0, and s_1..s_3 side by side
    Slot first_predicted_, others_predicted_;  // p
    Slot normed_, current_;                    // current: t, then z
};

std::vector<float> sparsity_of(const Builder &b) {
    const char *key = "activation_sparsity_scale";
    const auto count = static_cast<size_t>(b.hyper().block_count);
    const gguf::Value *value = b.metadata().find(key);
    if (value == nullptr) {
        std::vector<float> all(count, -INFINITY);
        std::fill_n(all.begin(), std::min<size_t>(count, kSparseLayers), kSparsity);
        return all;
    }
    // Layers without a cut have -inf.
    std::vector<float> all = value->as_floats();
    if (all.size() != count) b.metadata().fail(key, "does not have one number per layer");
    for (const float deviations : all)
        if (std::isnan(deviations) || deviations == INFINITY)
            b.metadata().fail(key, "has an entry that is neither a finite number nor -inf");
    return all;
}

Gemma3n::Gemma3n(Builder &builder)
    : b_(builder),
      h_(builder.hyper()),
      m_(builder.metadata()),
      width_{h_.embedding_length, "embedding_length"},
      full_(full_layers(builder, 5)),
      sparsity_(sparsity_of(builder)),
      attention_(builder, key_owners(builder, full_, std::max(0, h_.block_count - kOwnKeys))),
      embedding_(builder, kLayerEmbedding),
      first_(slot(kResidual)),
      others_(b_.slot("other streams", (kStreams - 1) * width_.value)),
      first_predicted_(slot("prediction")),
      others_predicted_(b_.slot("other predictions", (kStreams - 1) * width_.value)),
      normed_(slot(kHidden)),
      current_(slot("current")) {
    if (m_.integer("altup.num_inputs", 1, INT32_MAX).value_or(kStreams) != kStreams)
        m_.fail("altup.num_inputs", "is not 4, the only number that is supported");
    if (m_.integer("altup.active_idx", 0, INT32_MAX).value_or(0) != 0)
        m_.fail("altup.active_idx", "is not 0, the only stream that is supported");
    if (h_.value_length != h_.key_length)
        m_.fail("attention.value_length", "differs from attention.key_length");
    whole_ = {.head = {h_.key_length, "attention.key_length"},
              .q_keys = "attention.head_count * key_length",
              .kv_keys = "attention.head_count_kv * key_length",
              .window = 0,
              .rope = b_.rope(RopeTable::Pairs::Halves)};
    windowed_ = whole_;
    windowed_.window = static_cast<int32_t>(m_.required_integer("attention.sliding_window", 1, INT32_MAX));
    windowed_.rope =
        b_.unscaled_rope(RopeTable::Pairs::Halves, m_.real("rope.freq_base_swa").value_or(10000));
}

// --- numbers per token ---------------------------------------------------------------------------------------

// out = in * weight, element by element: a norm whose epsilon outweighs the values. Its root, 2^30, is exact.
void Gemma3n::multiply_by(WeightId weight, Slot in, Slot out) {
    b_.add(Norm{.in = in, .out = out, .weight = weight, .eps = 0x1p60f, .scale = 0x1p30f});
}

// out[j] = factors[j] * mean(in) + offsets[j]
void Gemma3n::mean_times(const std::vector<float> &factors, const std::vector<float> &offsets, Slot in,
                         Slot out) {
    const int64_t cols = b_.program().slots[static_cast<size_t>(in)].width;
    const auto rows = static_cast<int64_t>(factors.size());
    std::vector<float> matrix;
    for (const float factor : factors)
        matrix.insert(matrix.end(), static_cast<size_t>(cols), factor / static_cast<float>(cols));
    const std::string name = "mean of " + std::to_string(cols);
    b_.add(Linear{in,
                  {{b_.constant(name, std::move(matrix), 1, rows, cols),
                    b_.constant(name, offsets, 1, 1, rows), out, kNoSlot}}});
}

// out[j] = factors[j] * root(mean(in^2)) + offsets[j]. Changes normed_.
void Gemma3n::length_times(Slot in, const std::vector<float> &factors, const std::vector<float> &offsets,
                           Slot out) {
    b_.add(Norm{.in = in, .out = normed_, .weight = kNoWeight, .eps = kTiny});
    b_.add(Activation{in, normed_, normed_, Activation::Kind::Identity});
    mean_times(factors, offsets, normed_, out);
}

// --- the streams ---------------------------------------------------------------------------------------------

// The streams from the embedding in s_0.
void Gemma3n::begin() {
    const WeightId projections = b_.matrices("altup_proj.weight", kOtherCount, width_, width_);
    b_.add(HeadLinear{first_, others_predicted_, {0, 0}, {0, width_.value}, projections});
    b_.add(Norm{.in = others_predicted_,
                .out = others_predicted_,
                .weight = kNoWeight,
                .eps = kTiny,
                .parts = kStreams - 1});
    const Slot length = b_.slot("length", 1);
    length_times(first_, {1}, {0}, length);
    b_.add(Mix{.in = {others_predicted_},
               .out = {others_},
               .width = (kStreams - 1) * width_.value,
               .coefficients = length});
}

// The average of the streams.
void Gemma3n::end() {
    const WeightId projections = b_.matrices("altup_unembd_proj.weight", kOtherCount, width_, width_);
    b_.add(HeadLinear{others_, others_predicted_, {0, width_.value}, {0, width_.value}, projections});
    b_.add(Norm{.in = others_predicted_,
                .out = others_predicted_,
                .weight = kNoWeight,
                .eps = kTiny,
                .parts = kStreams - 1});
    const Slot shares = b_.slot("shares of streams", kStreams);
    length_times(first_, {0, 0.25f, 0.25f, 0.25f}, {0.25f, 0, 0, 0}, shares);
    b_.add(Mix{
        .in = {first_, others_predicted_}, .out = {current_}, .width = width_.value, .coefficients = shares});
    norm("output_norm.weight", current_, normed_);
}

// (R(x) + 1) / 2, in which tanh(a) = 2 sigmoid(2a) - 1. Changes normed_.
Slot Gemma3n::router(const std::string &prefix, Slot in) {
    norm(prefix + "altup_router_norm.weight", in, normed_);
    const Slot out = b_.slot("router", kStreams);
    Linear::Part weights = part(prefix + "altup_router.weight", kStreamCount, width_, out);
    weights.scale = static_cast<float>(2 / double(width_.value));
    b_.add(Linear{normed_, {weights}});
    b_.add(Activation{out, kNoSlot, out, Activation::Kind::Sigmoid});
    return out;
}

// Numbers for a Mix of `inputs` slices: rows of a matrix of R(x), plus constants.
class Coefficients {
  public:
    explicit Coefficients(int32_t outputs, int32_t inputs)
        : inputs_(inputs),
          count_(outputs * inputs),
          rows_(static_cast<size_t>(count_ * kStreams)),
          constants_(static_cast<size_t>(count_)) {}

    // Adds factor * (values . R(x) + constant) to the coefficient of an input for an output.
    void add(int32_t output, int32_t input, const float *values, float factor, float constant) {
        const auto at = static_cast<size_t>(output * inputs_ + input);
        for (size_t k = 0; values != nullptr && k < kStreams; ++k)
            rows_[at * kStreams + k] += factor * values[k];
        constants_[at] += factor * constant;
    }
    // router: (R(x) + 1) / 2
    Slot emit(Builder &b, const std::string &name, Slot router) {
        for (size_t at = 0; at < constants_.size(); ++at)
            for (size_t k = 0; k < kStreams; ++k) {
                float &value = rows_[at * kStreams + k];
                constants_[at] -= value;
                value *= 2;
            }
        const Slot out = b.slot(name, count_);
        b.add(Linear{router,
                     {{b.constant(name, rows_, 1, count_, kStreams),
                       b.constant(name, constants_, 1, 1, count_), out, kNoSlot}}});
        return out;
    }

  private:
    int32_t inputs_, count_;
    std::vector<float> rows_, constants_;
};

void Gemma3n::predict(const std::string &prefix) {
    const Slot routed = router(prefix, first_);
    const std::vector<float> values = b_.values(prefix + "altup_predict_coef.weight",
                                                {kStreams * kStreams, "altup.num_inputs^2"}, kStreamCount);
    Coefficients all(kStreams, kStreams);
    for (int32_t j = 0; j < kStreams; ++j)
        for (int32_t i = 0; i < kStreams; ++i)
            all.add(j, i, &values[static_cast<size_t>((j * kStreams + i) * kStreams)], 1, i == j ? 1 : 0);
    b_.add(Mix{.in = {first_, others_},
               .out = {first_predicted_, others_predicted_},
               .width = width_.value,
               .coefficients = all.emit(b_, "coefficients of predictions", routed)});
}

void Gemma3n::correct(const std::string &prefix) {
    const Slot routed = router(prefix, current_);
    const std::vector<float> values =
        b_.values(prefix + "altup_correct_coef.weight", kStreamCount, kStreamCount);
    Coefficients all(kStreams, kStreams + 1);
    for (int32_t j = 0; j < kStreams; ++j) {
        const float *row = &values[static_cast<size_t>(j * kStreams)];
        all.add(j, j, nullptr, 1, 1);
        all.add(j, 0, row, -1, 1);
        all.add(j, kStreams, row, 1, 1);
    }
    b_.add(Mix{.in = {first_predicted_, others_predicted_, current_},
               .out = {first_, others_},
               .width = width_.value,
               .coefficients = all.emit(b_, "coefficients of corrections", routed)});
}

// --- a layer -------------------------------------------------------------------------------------------------

// out = RMS(Wr Wl normed_)
void Gemma3n::laurel(const std::string &prefix, Slot out) {
    const int64_t rank = b_.rows_of(prefix + "laurel_l.weight");
    const Size size{std::clamp<int64_t>(rank, 1, kMaxRank), "rows of laurel_l"};
    const Slot low = b_.slot("low rank", size.value);
    b_.add(Linear{normed_, {part(prefix + "laurel_l.weight", size, width_, low)}});
    b_.add(Linear{low, {part(prefix + "laurel_r.weight", width_, size, out)}});
    norm(prefix + "laurel_post_norm.weight", out, out);
}

// gate = max(gate - mean - deviations * deviation, 0), with the deviation of a sample (n - 1, as in llama.cpp;
// transformers divides by n). A layer norm gives v = (gate - mean) / d with d = root(mean((gate - mean)^2)), and
// d = mean(gate * v), because the mean of v is 0.
void Gemma3n::cut(Slot gate, float deviations) {
    const int64_t n = h_.feed_forward_length;
    const double bound = double{deviations} * std::sqrt(double(n) / double(std::max<int64_t>(1, n - 1)));
    const Slot v = b_.slot("normed gate", n), d = b_.slot("deviation", 1);
    const WeightId bias =
        b_.constant("bound", std::vector<float>(static_cast<size_t>(n), static_cast<float>(-bound)), 1, 1, n);
    Norm layer_norm{.in = gate, .out = v, .weight = kNoWeight, .eps = kTiny, .kind = Norm::Kind::Layer};
    b_.add(layer_norm);
    b_.add(Activation{gate, v, gate, Activation::Kind::Identity});
    mean_times({1}, {0}, gate, d);
    // Another norm leaves v as it is and subtracts the bound.
    layer_norm.in = v, layer_norm.bias = bias;
    b_.add(layer_norm);
    b_.add(Activation{v, kNoSlot, v, Activation::Kind::Relu});
    b_.add(Mix{.in = {v}, .out = {gate}, .width = n, .coefficients = d});
}

void Gemma3n::feed_forward(int32_t i, Slot out) {
    const Size hidden{h_.feed_forward_length, "feed_forward_length"};
    const std::string prefix = layer_prefix(i);
    const Slot gate = b_.slot("gate", hidden.value), up = b_.slot("up", hidden.value);
    b_.add(Linear{normed_,
                  {part(prefix + "ffn_gate.weight", hidden, width_, gate),
                   part(prefix + "ffn_up.weight", hidden, width_, up)}});
    if (std::isfinite(deviations(i))) cut(gate, deviations(i));
    b_.add(Activation{gate, up, gate, Activation::Kind::GeluTanh});
    b_.add(Linear{gate, {part(prefix + "ffn_down.weight", width_, hidden, out)}});
}

void Gemma3n::add_layer_embedding(int32_t i) {
    const std::string prefix = layer_prefix(i);
    const Slot branch = slot("branch"), repeated = others_predicted_;
    multiply_by(b_.vector(prefix + "altup_correct_scale.weight", width_), first_, normed_);
    embedding_.emit_branch(i, normed_, branch);
    b_.add(Copy{.in = branch,
                .out = repeated,
                .from = {},
                .to = {.stride = width_.value},
                .count = kStreams - 1,
                .width = width_.value});
    b_.add(Norm{.in = repeated,
                .out = others_,
                .weight = b_.vector(prefix + "post_norm.weight", width_),
                .eps = h_.norm_epsilon,
                .add = others_,
                .parts = kStreams - 1});
}

void Gemma3n::layer(int32_t i) {
    const std::string prefix = layer_prefix(i);
    const Slot branch = slot("branch"), low_rank = slot("laurel");
    predict(prefix);
    norm(prefix + "attn_norm.weight", first_predicted_, normed_);
    laurel(prefix, low_rank);
    const AttentionKind &kind = full_[static_cast<size_t>(i)] ? whole_ : windowed_;
    attention_.emit(i, kind, h_.head_count_kv, {normed_, branch, kNoSlot});
    norm(prefix + "post_attention_norm.weight", branch, branch);
    b_.add(Mix{.in = {first_predicted_, branch, normed_, low_rank},
               .out = {current_},
               .width = width_.value,
               .scale = static_cast<float>(std::sqrt(0.5))});
    norm(prefix + "ffn_norm.weight", current_, normed_);
    feed_forward(i, branch);
    norm(prefix + "post_ffw_norm.weight", branch, current_, current_);
    correct(prefix);
    add_layer_embedding(i);
}

void Gemma3n::emit() {
    const Size vocab{h_.vocab, "the vocabulary"};
    const WeightId table = b_.matrix("token_embd.weight", vocab, width_);
    b_.add(Embed{table, first_, static_cast<float>(std::sqrt(double(width_.value)))});
    embedding_.emit_inputs(first_);
    begin();
    for (int32_t i = 0; i < h_.block_count; ++i) {
        b_.begin_layer(i);
        layer(i);
    }
    b_.end_layers();
    end();
    b_.add(Logits{.in = normed_,
                  .weight = b_.has("output.weight") ? b_.matrix("output.weight", vocab, width_) : table,
                  .softcap = static_cast<float>(m_.real("final_logit_softcapping", 0).value_or(30))});
}

}  // namespace

void emit_gemma3n(Builder &b) {
    Gemma3n(b).emit();
}

}  // namespace runnel::model
