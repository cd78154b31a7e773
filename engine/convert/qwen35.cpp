#include "engine/convert/qwen35.h"

#include <cmath>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "gguf/printable.h"

namespace runnel::convert {
namespace {

// The sizes of the delta nets. Each key head serves `shared` value heads: in the folder these are neighbors
// (head = key * shared + i), in GGUF they are key_heads apart (i * key_heads + key).
struct DeltaSizes {
    int64_t key_heads, heads, key_dim, value_dim, taps;

    int64_t keys() const { return key_heads * key_dim; }
    int64_t values() const { return heads * value_dim; }
    // The folder's row for row `row` of a tensor with `per_head` rows for each value head, behind `first` other rows.
    std::function<int64_t(int64_t)> order(int64_t per_head, int64_t first = 0) const {
        return [=, n = key_heads, shared = heads / key_heads](int64_t row) {
            if (row < first) return row;
            const int64_t head = (row - first) / per_head, within = (row - first) % per_head;
            return first + (head % n * shared + head / n) * per_head + within;
        };
    }
};

DeltaSizes read_sizes(const Config &config) {
    const DeltaSizes sizes{.key_heads = config.whole("linear_num_key_heads"),
                           .heads = config.whole("linear_num_value_heads"),
                           .key_dim = config.whole("linear_key_head_dim"),
                           .value_dim = config.whole("linear_value_head_dim"),
                           .taps = config.whole("linear_conv_kernel_dim")};
    constexpr int64_t kMost = 1 << 20;
    for (const int64_t size : {sizes.key_heads, sizes.heads, sizes.key_dim, sizes.value_dim, sizes.taps})
        if (size < 1 || size > kMost)
            config.fail("linear_key_head_dim",
                        "or another size of the delta nets is not between 1 and 1,048,576");
    if (sizes.heads % sizes.key_heads != 0)
        config.fail("linear_num_value_heads", "is not a multiple of linear_num_key_heads");
    return sizes;
}

void add_delta_net(Decoder &d, int64_t layer, const DeltaSizes &s) {
    Plan &plan = d.plan();
    const int64_t channels = 2 * s.keys() + s.values();
    const auto source = [&](const char *name) -> const SourceTensor & {
        return plan.require(d.source_name(layer, std::string("linear_attn.") + name));
    };
    const auto matrix = [&](const char *from, const char *to, int64_t rows,
                            std::function<int64_t(int64_t)> order) {
        const SourceTensor &tensor = source(from);
        check_shape(tensor, {rows, d.width()});
        Rows all = all_rows(tensor);
        all.order = std::move(order);
        plan.add(d.output_name(layer, to), {d.width(), rows}, std::move(all));
    };
    matrix("in_proj_qkv.weight", "attn_qkv.weight", channels, s.order(s.value_dim, 2 * s.keys()));
    matrix("in_proj_z.weight", "attn_gate.weight", s.values(), s.order(s.value_dim));
    matrix("in_proj_b.weight", "ssm_beta.weight", s.heads, s.order(1));
    matrix("in_proj_a.weight", "ssm_alpha.weight", s.heads, s.order(1));
    const auto vector = [&](const char *from, const char *to, std::function<float(float)> value) {
        const SourceTensor &tensor = source(from);
        check_shape(tensor, {s.heads});
        Rows all = all_rows(tensor);
        all.column_order = s.order(1);
        all.value = std::move(value);
        plan.add(d.output_name(layer, to), {s.heads}, std::move(all));
    };
    vector("A_log", "ssm_a", [](float x) { return -std::exp(x); });
    vector("dt_bias", "ssm_dt.bias", {});
    const SourceTensor &conv = source("conv1d.weight");
    check_shape(conv, {channels, 1, s.taps});
    Rows taps = all_rows(conv);
    taps.order = s.order(s.value_dim, 2 * s.keys());
    plan.add(d.output_name(layer, "ssm_conv1d.weight"), {s.taps, channels}, std::move(taps));
    plan.copy(source("norm.weight"), d.output_name(layer, "ssm_norm.weight"));
    const SourceTensor &out = source("out_proj.weight");
    check_shape(out, {d.width(), s.values()});
    Rows columns = all_rows(out);
    columns.column_order = s.order(s.value_dim);
    plan.add(d.output_name(layer, "ssm_out.weight"), {s.values(), d.width()}, std::move(columns));
}

// The interval of the attention layers: 4 if every fourth is one.
int64_t attention_interval(const Decoder &d) {
    const std::vector<std::string> types =
        d.layer_types("linear_attention", d.config().whole("full_attention_interval", 4));
    int64_t interval = 0;
    while (interval < d.layers() && types[static_cast<size_t>(interval)] != "full_attention") ++interval;
    ++interval;
    for (int64_t i = 0; i < d.layers(); ++i) {
        const std::string &type = types[static_cast<size_t>(i)];
        if (type != ((i + 1) % interval == 0 ? "full_attention" : "linear_attention"))
            d.config().fail("layer_types", "holds " + gguf::quoted(type) + " for layer " + std::to_string(i) +
                                               ", where attention in regular intervals is expected");
    }
    return interval;
}

// How many pairs of RoPE turn by time, height, width and a fourth position; in a text all four are the same.
void add_sections(Decoder &d, const RopeSettings &rope, int64_t pairs) {
    const text::Json *const given = rope.parameters.find("mrope_section");
    std::vector<int32_t> sections(4);
    for (int64_t i = 0; i < 3; ++i)
        sections[static_cast<size_t>(i)] = static_cast<int32_t>((pairs + 2 - i) / 3);
    if (given) {
        if (!given->is_array() || given->size() > sections.size())
            d.config().fail("mrope_section", "is not a list of at most 4");
        for (size_t i = 0; i < given->size(); ++i) {
            const text::Json &value = (*given)[i];
            if (!value.is_number_unsigned() || value.get<uint64_t>() > 4096)
                d.config().fail("mrope_section", "does not hold small numbers");
            sections[i] = value.get<int32_t>();
        }
    }
    d.plan().key("rope.dimension_sections", std::span<const int32_t>(sections));
}

}  // namespace

void convert_qwen35(Decoder &d) {
    const Config &config = d.config();
    d.require_activation("hidden_act", {"silu"});
    config.require_flag("attention_bias", false, false);
    const DeltaSizes sizes = read_sizes(config);
    const int64_t interval = attention_interval(d);
    d.add_sizes();
    d.add_key_length();
    Plan &plan = d.plan();
    const auto u32 = [](int64_t n) { return static_cast<uint32_t>(n); };
    plan.key("attention.head_count_kv", u32(d.kv_heads()));
    plan.key("feed_forward_length", u32(config.whole("intermediate_size")));
    plan.key("full_attention_interval", u32(interval));
    plan.key("ssm.conv_kernel", u32(sizes.taps));
    plan.key("ssm.group_count", u32(sizes.key_heads));
    plan.key("ssm.time_step_rank", u32(sizes.heads));
    plan.key("ssm.state_size", u32(sizes.key_dim));
    plan.key("ssm.inner_size", u32(sizes.values()));
    const RopeSettings rope = d.rope({}, 10000);
    const double share =
        rope.parameters.real("partial_rotary_factor", config.real("partial_rotary_factor", 0.25));
    if (!(share > 0 && share <= 1)) config.fail("partial_rotary_factor", "is not between 0 and 1");
    const auto rotated = static_cast<int64_t>(static_cast<double>(d.head_dim()) * share);
    d.add_rope(rope, rotated);
    add_sections(d, rope, rotated / 2);
    d.add_embeddings(Change::PlusOne);
    constexpr Change kNorm = Change::PlusOne;
    const LayerName both[] = {{"input_layernorm.weight", "attn_norm.weight", kNorm},
                              {"post_attention_layernorm.weight", "post_attention_norm.weight", kNorm},
                              {"mlp.gate_proj.weight", "ffn_gate.weight"},
                              {"mlp.up_proj.weight", "ffn_up.weight"},
                              {"mlp.down_proj.weight", "ffn_down.weight"}},
                    attention[] = {{"self_attn.q_proj.weight", "attn_q.weight"},
                                   {"self_attn.k_proj.weight", "attn_k.weight"},
                                   {"self_attn.v_proj.weight", "attn_v.weight"},
                                   {"self_attn.o_proj.weight", "attn_output.weight"},
                                   {"self_attn.q_norm.weight", "attn_q_norm.weight", kNorm},
                                   {"self_attn.k_norm.weight", "attn_k_norm.weight", kNorm}};
    for (int64_t i = 0; i < d.layers(); ++i) {
        d.add_layer(i, both);
        if ((i + 1) % interval == 0)
            d.add_layer(i, attention);
        else
            add_delta_net(d, i, sizes);
    }
}

}  // namespace runnel::convert
