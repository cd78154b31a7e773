#include "engine/convert/decoder.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::convert {
namespace {

// Row of the folder for row `row` of the output: each head's rows go from [2, half] to [half, 2].
int64_t unpaired_row(int64_t row, int64_t head_dim) {
    const int64_t head = row / head_dim, within = row % head_dim;
    return head * head_dim + within % 2 * (head_dim / 2) + within / 2;
}

// The divisors of Llama 3.1's scaling: long wavelengths are stretched, short ones stay.
std::vector<float> llama3_divisors(const RopeSettings &rope, int64_t rotated) {
    const Config &p = rope.parameters;
    const double factor = p.real("factor"), low = p.real("low_freq_factor"),
                 high = p.real("high_freq_factor"),
                 original = static_cast<double>(p.whole("original_max_position_embeddings"));
    if (!(factor > 0) || !(low > 0) || !(high > low))
        p.fail("rope_type", "llama3 has factors that make no sense");
    std::vector<float> divisors;
    for (int64_t i = 0; i < rotated; i += 2) {
        const double wavelength =
            2 * std::numbers::pi * std::pow(rope.base, static_cast<double>(i) / static_cast<double>(rotated));
        double divisor = 1;
        if (wavelength > original / low)
            divisor = factor;
        else if (wavelength >= original / high) {
            const double smooth = (original / wavelength - low) / (high - low);
            divisor = 1 / ((1 - smooth) / factor + smooth);
        }
        divisors.push_back(static_cast<float>(divisor));
    }
    return divisors;
}

uint32_t u32(int64_t value) {
    return static_cast<uint32_t>(value);
}
float f32(double value) {
    return static_cast<float>(value);
}

}  // namespace

std::vector<LayerName> plain_attention(bool pairs) {
    const Change q = pairs ? Change::QueryHeads : Change::None, k = pairs ? Change::KeyHeads : Change::None;
    return {{"input_layernorm.weight", "attn_norm.weight"},
            {"self_attn.q_proj.weight", "attn_q.weight", q},
            {"self_attn.q_proj.bias", "attn_q.bias", q, true},
            {"self_attn.k_proj.weight", "attn_k.weight", k},
            {"self_attn.k_proj.bias", "attn_k.bias", k, true},
            {"self_attn.v_proj.weight", "attn_v.weight"},
            {"self_attn.v_proj.bias", "attn_v.bias", Change::None, true},
            {"self_attn.o_proj.weight", "attn_output.weight"},
            {"self_attn.o_proj.bias", "attn_output.bias", Change::None, true}};
}

std::vector<LayerName> plain_feed_forward() {
    return {{"post_attention_layernorm.weight", "ffn_norm.weight"},
            {"mlp.gate_proj.weight", "ffn_gate.weight"},
            {"mlp.gate_proj.bias", "ffn_gate.bias", Change::None, true},
            {"mlp.up_proj.weight", "ffn_up.weight"},
            {"mlp.up_proj.bias", "ffn_up.bias", Change::None, true},
            {"mlp.down_proj.weight", "ffn_down.weight"},
            {"mlp.down_proj.bias", "ffn_down.bias", Change::None, true}};
}

std::vector<LayerName> with_head_norms(std::vector<LayerName> names, Change change) {
    names.push_back({"self_attn.q_norm.weight", "attn_q_norm.weight", change});
    names.push_back({"self_attn.k_norm.weight", "attn_k_norm.weight", change});
    return names;
}

Decoder::Decoder(Plan &plan, const Config &config)
    : plan_(plan),
      config_(config),
      layers_(config.whole("num_hidden_layers")),
      width_(config.whole("hidden_size")),
      heads_(config.whole("num_attention_heads")),
      kv_heads_(config.whole("num_key_value_heads", heads_)) {
    if (layers_ < 1 || layers_ > 10000) config_.fail("num_hidden_layers", "is not between 1 and 10000");
    if (heads_ < 1 || width_ < 1) config_.fail("num_attention_heads", "or hidden_size is 0");
    head_dim_ = config.whole("head_dim", width_ / heads_);
    constexpr int64_t kMostHeadDim = 8192;
    if (head_dim_ < 1 || head_dim_ > kMostHeadDim || head_dim_ % 2 != 0)
        config_.fail("head_dim", "is not an even number from 2 to 8192");
    for (const char *const prefix : {"model.", "model.language_model.", "language_model.model."})
        if (plan_.find(std::string(prefix) + "embed_tokens.weight")) prefix_ = prefix;
    if (prefix_.empty()) throw gguf::FileError("the folder lacks the tensor 'model.embed_tokens.weight'");
}

void Decoder::add_sizes(std::string_view epsilon) {
    plan_.key("block_count", u32(layers_));
    plan_.key("context_length", u32(config_.whole("max_position_embeddings")));
    plan_.key("embedding_length", u32(width_));
    plan_.key("attention.head_count", u32(heads_));
    plan_.key("attention.layer_norm_rms_epsilon", f32(config_.real(epsilon)));
}

void Decoder::add_key_length() {
    plan_.key("attention.key_length", u32(head_dim_));
    plan_.key("attention.value_length", u32(head_dim_));
}

void Decoder::add_dense_sizes() {
    add_sizes();
    add_key_length();
    plan_.key("attention.head_count_kv", u32(kv_heads_));
    plan_.key("feed_forward_length", u32(config_.whole_of_all("intermediate_size", layers_)));
}

RopeSettings Decoder::rope(std::string_view layer_type, double default_base) const {
    Config parameters = config_.object("rope_parameters");
    if (!layer_type.empty() && parameters.has(layer_type)) parameters = parameters.object(layer_type);
    if (!config_.has("rope_parameters")) parameters = config_.object("rope_scaling");
    return {.base = parameters.real("rope_theta", config_.real("rope_theta", default_base)),
            .type = parameters.string("rope_type", parameters.string("type", "default")),
            .parameters = parameters};
}

void Decoder::add_rope(const RopeSettings &rope, int64_t rotated) {
    const Config &p = rope.parameters;
    for (const Config &place : {p, config_})
        if (place.has("partial_rotary_factor") &&
            std::floor(place.real("partial_rotary_factor") * static_cast<double>(head_dim_)) !=
                static_cast<double>(rotated))
            place.fail("partial_rotary_factor", "does not fit this architecture, which rotates " +
                                                    std::to_string(rotated) + " of " +
                                                    std::to_string(head_dim_) + " dimensions");
    plan_.key("rope.dimension_count", u32(rotated));
    plan_.key("rope.freq_base", f32(rope.base));
    if (rope.type == "default") return;
    if (rope.type == "llama3") return plan_.add_values("rope_freqs.weight", llama3_divisors(rope, rotated));
    if (rope.type != "linear" && rope.type != "yarn")
        p.fail("rope_type", gguf::quoted(rope.type) + " is a scaling of RoPE that cannot be converted");
    plan_.key("rope.scaling.type", rope.type);
    plan_.key("rope.scaling.factor", f32(p.real("factor")));
    if (rope.type == "linear") return;
    for (const char *const key : {"mscale", "mscale_all_dim"})
        if (p.has(key)) p.fail(key, "is a setting of YaRN that cannot be converted");
    plan_.key("rope.scaling.original_context_length",
              u32(p.whole("original_max_position_embeddings", config_.whole("max_position_embeddings"))));
    if (!p.flag("truncate", true))
        plan_.note(
            "config.json's YaRN does not round the range of its ramp (truncate: false); a GGUF file's always "
            "does");
    if (p.has("attention_factor")) {
        // In GGUF, this multiplies YaRN's own 0.1 ln(factor) + 1.
        const double own = 0.1 * std::log(p.real("factor")) + 1;
        plan_.key("rope.scaling.attn_factor", f32(p.real("attention_factor") / own));
    }
    if (p.has("beta_fast")) plan_.key("rope.scaling.yarn_beta_fast", f32(p.real("beta_fast")));
    if (p.has("beta_slow")) plan_.key("rope.scaling.yarn_beta_slow", f32(p.real("beta_slow")));
}

void Decoder::add_embeddings(Change norm, std::string_view norm_from, std::string_view norm_to) {
    const SourceTensor &table = plan_.require(prefix_ + "embed_tokens.weight");
    constexpr int64_t kMostRows = 1 << 24;
    if (table.shape.size() != 2 || table.shape[0] > kMostRows)
        refuse_tensor(table, "is not a matrix with at most 16,777,216 rows");
    check_shape(table, {table.shape[0], width_});
    vocabulary_ = table.shape[0];
    plan_.key("vocab_size", u32(vocabulary_));
    plan_.copy(table, "token_embd.weight");
    add_changed(plan_.require(prefix_ + std::string(norm_from)), std::string(norm_to), norm);
    const SourceTensor *head = plan_.find("lm_head.weight");
    if (!head) head = plan_.find("language_model.lm_head.weight");
    if (!head) {
        if (!config_.flag("tie_word_embeddings", true))
            throw gguf::FileError("the folder lacks the tensor 'lm_head.weight'");
        return;
    }
    check_shape(*head, table.shape);
    if (head->dtype != table.dtype || !std::ranges::equal(head->bytes, table.bytes))
        plan_.copy(*head, "output.weight");
}

std::string Decoder::source_name(int64_t layer, std::string_view suffix) const {
    return prefix_ + "layers." + std::to_string(layer) + "." + std::string(suffix);
}

std::string Decoder::output_name(int64_t layer, std::string_view suffix) const {
    return "blk." + std::to_string(layer) + "." + std::string(suffix);
}

void Decoder::add_changed(const SourceTensor &from, const std::string &to, Change change) {
    if (change == Change::None) return plan_.copy(from, to);
    std::vector<int64_t> shape(from.shape.rbegin(), from.shape.rend());
    Rows rows = all_rows(from);
    switch (change) {
        case Change::None:
            break;
        case Change::QueryHeads:
        case Change::KeyHeads: {
            const int64_t out = (change == Change::QueryHeads ? heads_ : kv_heads_) * head_dim_;
            const auto order = [n = head_dim_](int64_t row) { return unpaired_row(row, n); };
            if (from.shape.size() == 1) {
                check_shape(from, {out});
                rows.column_order = order;
            } else {
                check_shape(from, {out, width_});
                rows.order = order;
            }
            break;
        }
        case Change::PlusOne:
            rows.value = [](float x) { return x + 1; };
            break;
        case Change::Squeeze:
            if (from.shape.size() != 3 || from.shape[1] != 1)
                refuse_tensor(from, "is not a convolution per channel");
            shape = {from.shape[2], from.shape[0]};
            break;
    }
    plan_.add(to, std::move(shape), std::move(rows));
}

void Decoder::add_layer(int64_t layer, std::span<const LayerName> names) {
    for (const LayerName &name : names) {
        const std::string from = source_name(layer, name.from);
        if (name.optional && !plan_.find(from)) continue;
        add_changed(plan_.require(from), output_name(layer, name.to), name.change);
    }
}

void Decoder::require_activation(std::string_view key, std::initializer_list<std::string_view> names) const {
    const std::string name = config_.string(key);
    if (std::ranges::find(names, name) == names.end())
        config_.fail(key,
                     "is " + gguf::quoted(name) + "; this architecture has " + std::string(*names.begin()));
}

std::vector<std::string> Decoder::layer_types(std::string_view other, int64_t period) const {
    if (!config_.has("layer_types") && period > 0) {
        std::vector<std::string> types;
        for (int64_t i = 1; i <= layers_; ++i) types.emplace_back(i % period == 0 ? "full_attention" : other);
        return types;
    }
    std::vector<std::string> types = config_.strings("layer_types");
    if (std::ssize(types) != layers_) config_.fail("layer_types", "does not have one entry per layer");
    return types;
}

}  // namespace runnel::convert
