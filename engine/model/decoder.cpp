#include "engine/model/decoder.h"

#include <bit>
#include <cmath>

namespace runnel::model {

using namespace kernels;

namespace {

// The sizes of a decoder's matrices, and the keys they come from.
struct Sizes {
    Sizes(const HyperParameters &h, int64_t heads, int64_t kv_heads, int64_t hidden_units)
        : width{h.embedding_length, "embedding_length"},
          q{heads * h.key_length, "attention.head_count * key_length"},
          k{kv_heads * h.key_length, "attention.head_count_kv * key_length"},
          v{kv_heads * h.value_length, "attention.head_count_kv * value_length"},
          attended{heads * h.value_length, "attention.head_count * value_length"},
          hidden{hidden_units, "feed_forward_length"} {}
    Size width, q, k, v, attended, hidden;
};

// What remains to be applied to gates of attention: softplus is a step of its own.
Activation::Kind gate_activation(bool softplus) {
    return softplus ? Activation::Kind::Identity : Activation::Kind::Sigmoid;
}

class Decoder {
  public:
    // width: of feed-forward networks; 0: feed_forward_length. kv_heads: 0: attention.head_count_kv
    Decoder(Builder &builder, const DecoderTraits &traits, int64_t width = 0, int32_t kv_heads = 0)
        : b_(builder),
          h_(builder.hyper()),
          t_(traits),
          width_(width > 0 ? width : h_.feed_forward_length),
          heads_(h_.head_count),
          kv_heads_(kv_heads > 0 ? kv_heads : h_.head_count_kv),
          size_(h_, heads_, kv_heads_, width_) {}
    void use_rope(int32_t rope) { rope_ = window_rope_ = rope; }
    void take_sizes(int32_t layer);

    void emit();
    void attention(int32_t layer, const SubLayer &sublayer);
    void feed_forward(int32_t layer, const SubLayer &sublayer);

  private:
    void embed(WeightId table);
    void layers();
    void layer(int32_t layer);
    void draft_block(WeightId table);
    void draft_norm(int32_t layer);
    enum class Kind { Attention, FeedForward };
    void sublayer(int32_t layer, const std::string &norm, const std::string &post_norm, Kind kind);
    void parallel(int32_t layer);
    void emit_sublayer(int32_t layer, Kind kind, const SubLayer &io);
    void norm(const std::string &name, Slot in, Slot out, Slot add = kNoSlot, double scale = 1);
    void clamp_qkv();
    void inner_norm(const std::string &name, Slot slot, Size size);
    void gate_attended(int32_t layer, Slot in, Slot attended);
    Linear projections(int32_t layer, Slot in);
    Linear gate_and_up(int32_t layer, Slot in, Slot gate, Slot up);
    Linear::Part part(const std::string &tensor, Size rows, Size cols, bool bias_required, Slot out);
    void norm_heads(int32_t layer, Attention &attention);
    void own_norm(const std::string &tensor, Slot slot, int32_t heads, Norm::Kind kind);
    WeightId ones();
    WeightId slopes();
    WeightId gains(const std::string &tensor);
    Attention describe(int32_t layer, Slot out);
    bool full(int32_t layer) const { return t_.full.empty() || t_.full[static_cast<size_t>(layer)]; }
    bool biases(DecoderTraits::Biases least) const { return t_.biases >= least; }

    Slot x() { return b_.slot(kResidual, h_.embedding_length); }
    Slot normed() { return b_.slot(kHidden, h_.embedding_length); }
    Slot q() { return b_.slot("q", size_.q.value); }
    Slot k() { return b_.slot("k", size_.k.value); }
    Slot v() { return b_.slot("v", size_.v.value); }

    Builder &b_;
    const HyperParameters &h_;
    const DecoderTraits &t_;
    int64_t width_;
    int32_t heads_, kv_heads_;  // of the current layer, like size_
    Sizes size_;
    int32_t rope_ = -1, window_rope_ = -1;
    WeightId ones_ = kNoWeight, slopes_ = kNoWeight;
};

void Decoder::emit() {
    const Size vocab{h_.vocab, "the vocabulary"};
    const WeightId embedding = b_.matrix("token_embd.weight", vocab, size_.width);
    if (!b_.draft_block()) embed(embedding);
    if (t_.pairs) {
        rope_ = window_rope_ = b_.rope(*t_.pairs, t_.rope_base_factor, t_.rope_dimensions);
        if (t_.window_rope_base)
            window_rope_ = b_.unscaled_rope(*t_.pairs, *t_.window_rope_base, t_.window_rope_dimensions);
    }
    std::string output = "output.weight";
    if (b_.draft_block()) {
        draft_block(embedding);
        const std::string own = layer_prefix(b_.draft_layer()) + "nextn.shared_head_head.weight";
        if (b_.has(own)) output = own;
    } else {
        layers();
    }
    b_.add(Logits{.in = normed(),
                  .weight = b_.has(output) ? b_.matrix(output, vocab, size_.width) : embedding,
                  .bias = b_.optional_vector("output.bias", vocab),
                  .scale = static_cast<float>(t_.logit_scale),
                  .softcap = static_cast<float>(t_.logit_softcap)});
}

void Decoder::layers() {
    if (t_.after_embeddings) t_.after_embeddings(b_, x());
    for (int32_t pass = 0; pass < t_.passes; ++pass) {
        if (pass > 0 && t_.norm_between_passes) norm(t_.output_norm, x(), x());
        for (int32_t i = 0; i < h_.block_count; ++i) {
            b_.begin_layer(pass * h_.block_count + i);
            layer(i);
            if (t_.after_layer) t_.after_layer(b_, i, x());
        }
    }
    b_.end_layers();
    norm(t_.output_norm, x(), normed());
}

// The block's input is Weh [N e(t); N' h(t - 1)], with the embedding e of token t and the hidden state h of the
// token before it. The slots of the program's part are set, but not its end.
void Decoder::draft_block(WeightId table) {
    const int32_t i = b_.draft_layer();
    const std::string name = layer_prefix(i) + "nextn.";
    const int64_t width = h_.embedding_length;
    const Slot token = b_.slot("token's embedding", width), before = b_.slot(kHiddenBefore, width),
               both = b_.slot("embedding and hidden state", 2 * width);
    b_.begin_layer(i);
    if (b_.has(name + "embed_tokens.weight"))
        table = b_.matrix(name + "embed_tokens.weight", {h_.vocab, "the vocabulary"}, size_.width);
    b_.add(Embed{table, token, static_cast<float>(t_.embedding_scale)});
    norm(name + "enorm", token, token);
    norm(name + "hnorm", before, before);
    b_.add(Copy{.in = token, .out = both, .from = {}, .to = {}, .width = width});
    b_.add(Copy{.in = before, .out = both, .from = {}, .to = {.first = width}, .width = width});
    const Size both_size{2 * width, "2 * embedding_length"};
    b_.add(Linear{both, {part(name + "eh_proj", size_.width, both_size, false, x())}});
    layer(i);
    b_.end_layers();
    draft_norm(i);
    b_.program().parts = {{.end = 0, .in = {before}, .out = {t_.draft_before_norm ? x() : normed()}}};
}

// The block's last norm: its own under one of two names, or, if it is of the same kind, the model's.
void Decoder::draft_norm(int32_t i) {
    const std::string own = layer_prefix(i) + "nextn.shared_head_norm",
                      other = layer_prefix(i) + "layer_output_norm";
    const std::string name = t_.draft_norm || b_.has(own + ".weight") ? own
                             : b_.has(other + ".weight")              ? other
                                                                      : t_.output_norm;
    if (!t_.draft_norm) return norm(name, x(), normed());
    const double eps = b_.metadata().required_real("attention.layer_norm_epsilon", 0, 1);
    b_.add(Norm{.in = x(),
                .out = normed(),
                .weight = b_.vector(name + ".weight", size_.width),
                .eps = static_cast<float>(eps),
                .kind = *t_.draft_norm});
}

void Decoder::embed(WeightId table) {
    Embed embed{table, x(), static_cast<float>(t_.embedding_scale)};
    if (t_.learned_positions)
        embed.positions =
            b_.matrix("position_embd.weight", {h_.context_length, "context_length"}, size_.width);
    b_.add(embed);
}

// Sets the sizes of layer `i`, in families whose layers differ.
void Decoder::take_sizes(int32_t i) {
    const auto at = [&](const std::vector<int64_t> &sizes, int64_t same) {
        return sizes.empty() ? same : sizes[static_cast<size_t>(i)];
    };
    heads_ = static_cast<int32_t>(at(t_.heads, heads_));
    kv_heads_ = static_cast<int32_t>(at(t_.kv_heads, kv_heads_));
    width_ = at(t_.hidden, width_);
    if (kv_heads_ > 0 && heads_ % kv_heads_ != 0)
        b_.metadata().fail("attention.head_count_kv",
                           "does not divide attention.head_count in layer " + std::to_string(i));
    size_ = Sizes(h_, heads_, kv_heads_, width_);
}

void Decoder::layer(int32_t i) {
    if (t_.block == DecoderTraits::Block::Parallel) return parallel(i);
    take_sizes(i);
    if (heads_ > 0) sublayer(i, t_.attn_norm, t_.attn_post_norm, Kind::Attention);
    if (t_.one_half || (!t_.hidden.empty() && width_ == 0)) return;
    sublayer(i, t_.ffn_norm, t_.ffn_post_norm, Kind::FeedForward);
}

// Attention or the feed-forward network, with the norms before and after it.
void Decoder::sublayer(int32_t i, const std::string &norm_before, const std::string &norm_after, Kind kind) {
    using Block = DecoderTraits::Block;
    SubLayer io{.in = x(), .out = x(), .add = x(), .scale = static_cast<float>(t_.residual_scale)};
    if (t_.block != Block::PostNorm) {
        io.in = normed();
        norm(layer_prefix(i) + norm_before, x(), io.in);
    }
    const bool norms_after = t_.block == Block::PostNorm || t_.block == Block::Sandwich;
    if (norms_after) {
        io.out = b_.slot("branch", h_.embedding_length);
        io.add = kNoSlot;
    }
    if (t_.block == Block::NormedResidual)
        norm(layer_prefix(i) + norm_before, x(), x(), kNoSlot, t_.normed_residual_scale);
    emit_sublayer(i, kind, io);
    if (norms_after) norm(layer_prefix(i) + norm_after, io.out, x(), x());
}

void Decoder::parallel(int32_t i) {
    const Slot feed_in =
        t_.ffn_norm.empty() ? normed() : b_.slot("normed for feed-forward", h_.embedding_length);
    norm(layer_prefix(i) + t_.attn_norm, x(), normed());
    if (!t_.ffn_norm.empty()) norm(layer_prefix(i) + t_.ffn_norm, x(), feed_in);
    const float scale = static_cast<float>(t_.residual_scale);
    emit_sublayer(i, Kind::Attention, {normed(), x(), x(), scale});
    emit_sublayer(i, Kind::FeedForward, {feed_in, x(), x(), scale});
}

void Decoder::emit_sublayer(int32_t i, Kind kind, const SubLayer &io) {
    if (kind == Kind::Attention && t_.attention)
        t_.attention(b_, i, io);
    else if (kind == Kind::Attention)
        attention(i, io);
    else if (t_.feed_forward)
        t_.feed_forward(b_, i, io);
    else
        feed_forward(i, io);
}

void Decoder::norm(const std::string &name, Slot in, Slot out, Slot add, double scale) {
    const bool post_norm = add != kNoSlot && t_.post_norm_epsilon > 0;
    b_.add(Norm{.in = in,
                .out = out,
                // (Files of Falcon-H1 lack the suffix, because of a converter's error.)
                .weight = t_.norm_weights ? b_.vector(b_.has(name) ? name : name + ".weight", size_.width)
                                          : kNoWeight,
                .eps = post_norm ? static_cast<float>(t_.post_norm_epsilon) : h_.norm_epsilon,
                .kind = t_.norm,
                .bias = t_.norm_biases ? b_.vector(name + ".bias", size_.width) : kNoWeight,
                .add = add,
                .scale = static_cast<float>(scale)});
}

Linear::Part Decoder::part(const std::string &tensor, Size rows, Size cols, bool bias_required, Slot out) {
    const std::string bias = tensor + ".bias";
    return {b_.matrix(tensor + ".weight", rows, cols),
            bias_required ? b_.vector(bias, rows) : b_.optional_vector(bias, rows), out, kNoSlot};
}

Linear Decoder::projections(int32_t i, Slot in) {
    const bool bias = biases(DecoderTraits::Biases::Qkv);
    const std::string fused = layer_prefix(i) + "attn_qkv";
    if (b_.has(fused + ".weight"))
        return b_.split(fused, size_.width, bias, in, {{size_.q, q()}, {size_.k, k()}, {size_.v, v()}});
    return {in,
            {part(layer_prefix(i) + "attn_q", size_.q, size_.width, bias, q()),
             part(layer_prefix(i) + "attn_k", size_.k, size_.width, bias, k()),
             part(layer_prefix(i) + "attn_v", size_.v, size_.width, bias, v())}};
}

Attention Decoder::describe(int32_t i, Slot out) {
    const double of_file = b_.metadata().real("attention.scale", 0).value_or(0);
    const double usual = t_.attention_scale != 0 ? t_.attention_scale : 1 / std::sqrt(double(h_.key_length));
    const bool is_full = full(i), windowed = !is_full || t_.full.empty();
    const bool rotated =
        t_.rotated.empty() ? windowed || t_.rope_on_full : t_.rotated[static_cast<size_t>(i)];
    const int32_t window = windowed ? static_cast<int32_t>(t_.window) : 0;
    return {
        .q = q(),
        .k = k(),
        .v = v(),
        .out = out,
        .cache = b_.cache_layer({kv_heads_, h_.key_length, h_.value_length}, window),
        .heads = heads_,
        .kv_heads = kv_heads_,
        .head_dim_k = h_.key_length,
        .head_dim_v = h_.value_length,
        .scale = static_cast<float>(of_file != 0 ? of_file : usual),
        .window = window,
        .rope = !rotated   ? -1
                : windowed ? window_rope_
                           : rope_,
        .norm_eps = h_.norm_epsilon,
        .window_kind = t_.window_kind,
        .softcap = static_cast<float>(t_.attention_softcap),
        .sinks = b_.optional_vector(layer_prefix(i) + "attn_sinks.weight", {heads_, "attention.head_count"}),
        .slopes = slopes(),
        .temperature = is_full ? t_.temperature : Attention::Temperature{}};
}

void Decoder::own_norm(const std::string &tensor, Slot slot, int32_t heads, Norm::Kind kind) {
    const WeightId weight = b_.flat_vector(tensor, {heads, "heads"}, {h_.key_length, "attention.key_length"});
    b_.add(Norm{
        .in = slot, .out = slot, .weight = weight, .eps = h_.norm_epsilon, .kind = kind, .parts = heads});
}

// A vector of ones, for norms without weights.
WeightId Decoder::ones() {
    if (ones_ == kNoWeight)
        ones_ = b_.constant("ones", std::vector<float>(static_cast<size_t>(h_.key_length), 1.0f), 1, 1,
                            h_.key_length);
    return ones_;
}

// The slopes of ALiBi's biases.
WeightId Decoder::slopes() {
    if (t_.largest_alibi_bias == 0 || slopes_ != kNoWeight) return slopes_;
    const std::vector<double> all = distance_slopes(heads_, t_.largest_alibi_bias);
    return slopes_ = b_.constant("ALiBi slopes", {all.begin(), all.end()}, 1, 1, heads_);
}

// The gain of each q head, repeated for the head's dimensions.
WeightId Decoder::gains(const std::string &tensor) {
    const size_t head = static_cast<size_t>(h_.key_length);
    std::vector<float> all;
    for (const float gain : b_.values(tensor, {heads_, "attention.head_count"}, {1, "one"}))
        all.insert(all.end(), head, gain);
    return b_.constant(tensor, std::move(all), 1, 1, size_.q.value);
}

void Decoder::norm_heads(int32_t i, Attention &attention) {
    using HeadNorm = DecoderTraits::HeadNorm;
    const std::string q_name = layer_prefix(i) + "attn_q_norm.weight",
                      k_name = layer_prefix(i) + "attn_k_norm.weight";
    if (t_.head_norm == HeadNorm::PerHead || t_.head_norm == HeadNorm::PerHeadAfterRope) {
        const Size head{h_.key_length, "attention.key_length"};
        attention.q_norm = b_.vector(q_name, head);
        attention.k_norm = b_.vector(k_name, head);
        attention.norm_after_rope = t_.head_norm == HeadNorm::PerHeadAfterRope;
    } else if (t_.head_norm == HeadNorm::WholeRow) {
        b_.add(Norm{q(), q(), b_.vector(q_name, size_.q), h_.norm_epsilon});
        b_.add(Norm{k(), k(), b_.vector(k_name, size_.k), h_.norm_epsilon});
    } else if (t_.head_norm == HeadNorm::OwnLayerNorm || t_.head_norm == HeadNorm::OwnRmsNorm) {
        const bool rms = t_.head_norm == HeadNorm::OwnRmsNorm;
        own_norm(q_name, q(), heads_, rms ? Norm::Kind::Rms : Norm::Kind::Layer);
        own_norm(k_name, k(), kv_heads_, rms ? Norm::Kind::Rms : Norm::Kind::Layer);
    } else if (t_.head_norm == HeadNorm::PlainAfterRope && attention.rope >= 0) {
        attention.q_norm = attention.k_norm = ones();
        attention.norm_after_rope = true;
    } else if (t_.head_norm == HeadNorm::PlainWithGain) {
        // A rotation changes neither the norm nor the gain, so both may precede RoPE.
        b_.add(Norm{.in = q(), .out = q(), .weight = gains(q_name), .eps = h_.norm_epsilon, .parts = heads_});
        b_.add(Norm{.in = k(), .out = k(), .weight = kNoWeight, .eps = h_.norm_epsilon, .parts = kv_heads_});
    }
}

void Decoder::attention(int32_t i, const SubLayer &io) {
    const Slot attended = b_.slot("attended", size_.attended.value);
    b_.add(projections(i, io.in));
    clamp_qkv();
    Attention attention = describe(i, attended);
    norm_heads(i, attention);
    if (t_.before_attention) t_.before_attention(b_, i, io.in, attention);
    b_.add(attention);
    gate_attended(i, io.in, attended);
    inner_norm(layer_prefix(i) + "attn_sub_norm.weight", attended, size_.attended);
    Linear::Part output = part(layer_prefix(i) + "attn_output", size_.width, size_.attended,
                               biases(DecoderTraits::Biases::All), io.out);
    output.add = io.add;
    output.scale = io.scale * static_cast<float>(t_.attention_out_scale);
    b_.add(Linear{attended, {output}});
}

void Decoder::inner_norm(const std::string &name, Slot slot, Size size) {
    if (t_.inner_norms) b_.add(Norm{slot, slot, b_.vector(name, size), h_.norm_epsilon});
}

void Decoder::clamp_qkv() {
    const float limit = static_cast<float>(t_.qkv_limit);
    if (limit == 0) return;
    for (const Slot slot : {q(), k(), v()})
        b_.add(Activation{
            slot, kNoSlot, slot, Activation::Kind::Clamp, {.positive = limit, .negative = -limit}});
}

void Decoder::gate_attended(int32_t i, Slot in, Slot attended) {
    using Gates = DecoderTraits::Gates;
    if (t_.attention_gates == Gates::None) return;
    const std::string name = layer_prefix(i) + "attn_gate";
    const bool of_heads = t_.attention_gates == Gates::PerHead ||
                          (t_.attention_gates == Gates::ByRows && b_.rows_of(name + ".weight") == heads_);
    if (of_heads) {
        const WeightId matrix = b_.matrix(name + ".weight", {heads_, "attention.head_count"}, size_.width);
        return emit_head_gates(b_, matrix, in, attended, heads_, h_.value_length, t_.softplus_gates);
    }
    const Slot gate = b_.slot("attention gate", size_.attended.value);
    b_.add(Linear{in, {part(name, size_.attended, size_.width, false, gate)}});
    if (t_.softplus_gates) b_.add(ScanGate{.in = gate, .step = gate});
    b_.add(Activation{gate, attended, attended, gate_activation(t_.softplus_gates)});
}

Linear Decoder::gate_and_up(int32_t i, Slot in, Slot gate, Slot up) {
    const bool bias = biases(DecoderTraits::Biases::All);
    const std::string up_name = layer_prefix(i) + "ffn_up", gate_name = layer_prefix(i) + "ffn_gate";
    if (!t_.gated) return {in, {part(up_name, size_.hidden, size_.width, bias, gate)}};
    if (!b_.has(gate_name + ".weight") && b_.rows_of(up_name + ".weight") != size_.hidden.value)
        return b_.split(up_name, size_.width, bias, in, {{size_.hidden, gate}, {size_.hidden, up}});
    return {in,
            {part(gate_name, size_.hidden, size_.width, bias, gate),
             part(up_name, size_.hidden, size_.width, bias, up)}};
}

void Decoder::feed_forward(int32_t i, const SubLayer &io) {
    const Slot gate = b_.slot("gate", size_.hidden.value);
    const Slot up = t_.gated ? b_.slot("up", size_.hidden.value) : kNoSlot;
    b_.add(gate_and_up(i, io.in, gate, up));
    Activation activation{gate, up, gate, t_.act};
    if (!t_.act_parameters.empty()) activation.parameters = t_.act_parameters[static_cast<size_t>(i)];
    t_.silu_limits.apply(activation, i);
    b_.add(activation);
    inner_norm(layer_prefix(i) + "ffn_sub_norm.weight", gate, size_.hidden);
    Linear::Part down = part(layer_prefix(i) + "ffn_down", size_.width, size_.hidden,
                             biases(DecoderTraits::Biases::All), io.out);
    down.add = io.add;
    down.scale = io.scale;
    b_.add(Linear{gate, {down}});
}

}  // namespace

std::string layer_prefix(int32_t layer) {
    return "blk." + std::to_string(layer) + ".";
}

void emit_decoder(Builder &builder, const DecoderTraits &traits) {
    Decoder(builder, traits).emit();
}

void emit_attention(Builder &builder, const DecoderTraits &traits, int32_t layer, const SubLayer &sublayer,
                    int32_t rope, int32_t kv_heads) {
    Decoder decoder(builder, traits, 0, kv_heads);
    decoder.use_rope(rope);
    decoder.take_sizes(layer);
    decoder.attention(layer, sublayer);
}

// A column of ones repeats each head's gate.
void emit_head_gates(Builder &b, WeightId matrix, Slot in, Slot attended, int64_t heads, int64_t width,
                     bool softplus) {
    const Slot gates = b.slot("head gates", heads), repeated = b.slot("repeated head gates", heads * width);
    b.add(Linear{in, {{matrix, kNoWeight, gates, kNoSlot}}});
    if (softplus) b.add(ScanGate{.in = gates, .step = gates});
    std::vector<float> ones(static_cast<size_t>(heads * width), 1.0f);
    b.add(HeadLinear{
        gates, repeated, {0, 1}, {0, width}, b.constant("head gates", std::move(ones), heads, width, 1)});
    b.add(Activation{repeated, attended, attended, gate_activation(softplus)});
}

void emit_feed_forward(Builder &builder, const DecoderTraits &traits, int32_t layer, const SubLayer &sublayer,
                       int64_t width) {
    Decoder(builder, traits, width).feed_forward(layer, sublayer);
}

std::vector<double> distance_slopes(int32_t heads, double largest) {
    const auto n = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(heads)));
    std::vector<double> all;
    for (int32_t head = 0; head < heads; ++head) {
        const double i = head < n ? head + 1 : (2 * (head - n) + 1) / 2.0;
        all.push_back(std::exp2(-largest * i / n));
    }
    return all;
}

std::vector<int64_t> by_layer(const Builder &builder, const char *key, int64_t low, int64_t high,
                              int64_t absent) {
    const int64_t layers = int64_t{builder.hyper().block_count} + builder.hyper().draft_layers;
    return builder.metadata()
        .integers(key, layers, low, high)
        .value_or(std::vector<int64_t>(static_cast<size_t>(layers), absent));
}

double window_rope_base(const Builder &builder) {
    const Metadata &m = builder.metadata();
    return m.real("rope.freq_base_swa").value_or(m.real("rope.freq_base").value_or(10000));
}

int32_t window_rope_dimensions(const Builder &builder) {
    const HyperParameters &h = builder.hyper();
    const char *key = "rope.dimension_count_swa";
    const int64_t rotated = builder.metadata().integer(key, 2, h.key_length).value_or(h.rope_dimensions);
    if (rotated % 2 != 0) builder.metadata().fail(key, "must be even");
    return static_cast<int32_t>(rotated);
}

std::vector<bool> full_layers(const Builder &builder, int64_t period, bool first) {
    const int32_t layers = builder.hyper().block_count + builder.hyper().draft_layers;
    const char *key = "attention.sliding_window_pattern";
    std::vector<bool> full;
    if (auto windowed = builder.metadata().booleans(key)) {
        // (The converter of cohere2moe leaves the draft layers out.)
        if (windowed->size() == static_cast<size_t>(builder.hyper().block_count))
            windowed->resize(static_cast<size_t>(layers), false);
        if (windowed->size() != static_cast<size_t>(layers))
            builder.metadata().fail(key, "has " + std::to_string(windowed->size()) + " entries, but " +
                                             builder.hyper().architecture + ".block_count is " +
                                             std::to_string(layers));
        for (const bool is_windowed : *windowed) full.push_back(!is_windowed);
        return full;
    }
    period = builder.metadata().integer(key, 0, INT32_MAX).value_or(period);
    for (int32_t i = 0; i < layers; ++i)
        full.push_back(i >= builder.hyper().block_count || (period > 0 && (first ? i : i + 1) % period == 0));
    return full;
}

int64_t sliding_window(const Builder &builder, int64_t absent) {
    return builder.metadata().integer("attention.sliding_window", 0, INT32_MAX).value_or(absent);
}

}  // namespace runnel::model
