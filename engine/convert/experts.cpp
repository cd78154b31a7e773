#include "engine/convert/experts.h"

#include <algorithm>
#include <array>

#include "gguf/file.h"

namespace runnel::convert {
namespace {

constexpr int64_t kBlock = 32;  // weights

int64_t first_of(const Config &config, std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys)
        if (config.has(key)) return config.whole(key);
    config.fail(*keys.begin(), "is missing");
}

// `count` rows of each group of `stride` rows: first, first + step, ...
std::function<int64_t(int64_t)> rows_of_groups(int64_t count, int64_t stride, int64_t first, int64_t step) {
    return [=](int64_t row) { return row / count * stride + first + row % count * step; };
}

// The 16 bytes of a block in the folder hold weights 2i and 2i + 1 in the nibbles of byte i; in GGUF, i and i + 16.
void repack(std::span<const std::byte> from, std::span<std::byte> to) {
    std::array<uint8_t, kBlock> levels{};
    for (size_t i = 0; i < 16; ++i) {
        const auto byte = std::to_integer<uint8_t>(from[i]);
        levels[2 * i] = byte & 15, levels[2 * i + 1] = byte >> 4;
    }
    for (size_t i = 0; i < 16; ++i) to[i] = static_cast<std::byte>(levels[i] | levels[i + 16] << 4);
}

// One tensor of MXFP4 experts. `order`: the folder's row for a row of the output, both over all experts.
void add_blocks(Decoder &d, int64_t layer, const std::string &from, const std::string &to, int64_t experts,
                int64_t source_rows, int64_t rows, int64_t columns, std::function<int64_t(int64_t)> order) {
    const SourceTensor &blocks = d.plan().require_bytes(d.source_name(layer, from + "_blocks"));
    const SourceTensor &scales = d.plan().require_bytes(d.source_name(layer, from + "_scales"));
    if (columns % kBlock != 0) refuse_tensor(blocks, "has rows that are not whole blocks of 32 weights");
    const int64_t of_row = columns / kBlock;
    check_shape(blocks, {experts, source_rows, of_row, 16});
    check_shape(scales, {experts, source_rows, of_row});
    d.plan().add_blocks(d.output_name(layer, to), gguf::Type::MXFP4, {columns, rows, experts},
                        {&blocks, &scales},
                        [&blocks, &scales, order, of_row](int64_t row, std::span<std::byte> out) {
                            const int64_t first = order(row) * of_row;
                            for (int64_t b = 0; b < of_row; ++b) {
                                const auto at = static_cast<size_t>(first + b);
                                const auto block = out.subspan(static_cast<size_t>(b) * 17, 17);
                                block[0] = scales.bytes[at];
                                repack(blocks.bytes.subspan(at * 16, 16), block.subspan(1));
                            }
                        });
}

}  // namespace

ExpertSizes add_expert_sizes(Decoder &d) {
    const Config &config = d.config();
    const ExpertSizes sizes{
        .count = first_of(config, {"num_experts", "num_local_experts", "n_routed_experts"}),
        .width = first_of(config, {"moe_intermediate_size", "intermediate_size"})};
    if (sizes.count < 1 || sizes.width < 1) config.fail("num_experts", "or the width of an expert is 0");
    d.plan().key("expert_count", static_cast<uint32_t>(sizes.count));
    d.plan().key("expert_used_count",
                 static_cast<uint32_t>(first_of(config, {"num_experts_per_tok", "experts_per_token"})));
    d.plan().key("expert_feed_forward_length", static_cast<uint32_t>(sizes.width));
    return sizes;
}

void add_gated_experts(Decoder &d, int64_t layer, const ExpertSizes &sizes) {
    Plan &plan = d.plan();
    const int64_t n = sizes.count, ff = sizes.width, width = d.width();
    if (const SourceTensor *const both = plan.find(d.source_name(layer, "mlp.experts.gate_up_proj"))) {
        check_shape(*both, {n, 2 * ff, width});
        for (const int64_t half : {0, 1}) {
            Rows rows{.sources = {both}, .rows = n * ff, .columns = width};
            rows.order = rows_of_groups(ff, 2 * ff, half * ff, 1);
            plan.add(d.output_name(layer, half == 0 ? "ffn_gate_exps.weight" : "ffn_up_exps.weight"),
                     {width, ff, n}, std::move(rows));
        }
        const SourceTensor &down = plan.require(d.source_name(layer, "mlp.experts.down_proj"));
        check_shape(down, {n, width, ff});
        return plan.copy(down, d.output_name(layer, "ffn_down_exps.weight"));
    }
    struct Kind {
        const char *from, *to;
        int64_t rows, columns;
    };
    for (const Kind &kind :
         {Kind{"gate_proj", "ffn_gate_exps", ff, width}, Kind{"up_proj", "ffn_up_exps", ff, width},
          Kind{"down_proj", "ffn_down_exps", width, ff}}) {
        Rows rows{.sources = {}, .rows = kind.rows, .columns = kind.columns};
        for (int64_t e = 0; e < n; ++e) {
            const SourceTensor &expert = plan.require(
                d.source_name(layer, "mlp.experts." + std::to_string(e) + "." + kind.from + ".weight"));
            check_shape(expert, {kind.rows, kind.columns});
            if (e > 0 && expert.dtype != rows.sources.front()->dtype)
                refuse_tensor(expert, "has another type than the other experts of its layer");
            rows.sources.push_back(&expert);
        }
        plan.add(d.output_name(layer, std::string(kind.to) + ".weight"), {kind.columns, kind.rows, n},
                 std::move(rows));
    }
}

void add_mxfp4_experts(Decoder &d, int64_t layer, const ExpertSizes &sizes) {
    const int64_t n = sizes.count, ff = sizes.width, width = d.width();
    const std::string gate_up = "mlp.experts.gate_up_proj", down = "mlp.experts.down_proj";
    const SourceTensor &biases = d.plan().require(d.source_name(layer, gate_up + "_bias"));
    check_shape(biases, {n, 2 * ff});
    for (const int64_t odd : {0, 1}) {
        const std::string kind = odd ? "ffn_up_exps" : "ffn_gate_exps";
        add_blocks(d, layer, gate_up, kind + ".weight", n, 2 * ff, ff, width,
                   rows_of_groups(ff, 2 * ff, odd, 2));
        Rows rows{.sources = {&biases}, .rows = n, .columns = ff};
        rows.order = [](int64_t row) { return row; };
        rows.column_order = [odd](int64_t column) { return 2 * column + odd; };
        d.plan().add(d.output_name(layer, kind + ".bias"), {ff, n}, std::move(rows));
    }
    add_blocks(d, layer, down, "ffn_down_exps.weight", n, width, width, ff, [](int64_t row) { return row; });
    const SourceTensor &bias = d.plan().require(d.source_name(layer, down + "_bias"));
    check_shape(bias, {n, width});
    d.plan().copy(bias, d.output_name(layer, "ffn_down_exps.bias"));
}

}  // namespace runnel::convert
