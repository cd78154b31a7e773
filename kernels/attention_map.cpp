#include "kernels/attention_map.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "kernels/reference/operations.h"
#include "kernels/whole_text.h"

namespace runnel::kernels {
namespace {

using reference::Row;

// Index of the step with the layer's attention.
size_t attention_step(const Program &program, int32_t layer) {
    for (size_t i = 0; i < program.steps.size(); ++i)
        if (const auto *step = std::get_if<Attention>(&program.steps[i]);
            step && step->attends() && step->layer == layer) {
            if (step->sums != kNoSlot)
                throw std::invalid_argument("layer " + std::to_string(layer) +
                                            " attends to keys of several kinds, which has no picture");
            return i;
        }
    throw std::invalid_argument("layer " + std::to_string(layer) + " has no attention");
}

// The step that appends the keys which the step at `index` reads: that step itself, unless layers share them.
size_t key_step(const Program &program, size_t index) {
    const auto &wanted = std::get<Attention>(program.steps[index]);
    for (size_t i = index + 1; i-- > 0;)
        if (const auto *step = std::get_if<Attention>(&program.steps[i]);
            step && step->cache == wanted.cache && step->k != kNoSlot)
            return i;
    throw std::invalid_argument("layer " + std::to_string(wanted.layer) + " has no keys");
}

Row vector_of(const Program &program, WeightId id) {
    if (id == kNoWeight) return {};
    const Weight &weight = program.weights[static_cast<size_t>(id)];
    const auto *const data = reinterpret_cast<const float *>(weight.data);
    return {data, data + weight.rows * weight.cols * weight.count};
}

// Norm and RoPE (steps 1 and 2 of Attention, attention_steps.h) of every head of a row.
Row turned(const Program &program, const Attention &step, Row row, WeightId norm, int32_t position) {
    const Row weight = vector_of(program, norm);
    for (size_t at = 0; at < row.size(); at += static_cast<size_t>(step.head_dim_k)) {
        const auto head = std::span(row).subspan(at, static_cast<size_t>(step.head_dim_k));
        const auto rotate = [&] {
            if (step.rope >= 0)
                reference::rope(head, program.ropes[static_cast<size_t>(step.rope)], position);
        };
        if (step.norm_after_rope) rotate();
        if (!weight.empty())
            std::ranges::copy(reference::rms_norm(head, weight, double{step.norm_eps}), head.begin());
        if (!step.norm_after_rope) rotate();
    }
    return row;
}

// The rows of a slot: [tokens][width].
std::vector<Row> rows_of(Backend &backend, const Program &program, Slot slot, size_t tokens) {
    const SlotRows rows = backend.exchange(slot);
    const auto width = program.slots[static_cast<size_t>(slot)].width;
    std::vector<Row> all;
    for (size_t t = 0; t < tokens; ++t) {
        const float *const row = rows.data + static_cast<int64_t>(t) * rows.stride;
        all.emplace_back(row, row + width);
    }
    return all;
}

}  // namespace

std::vector<AttentionLayer> attention_layers(const Program &program) {
    std::vector<AttentionLayer> layers;
    for (const Step &step : program.steps)
        if (const auto *attention = std::get_if<Attention>(&step);
            attention && attention->attends() && attention->sums == kNoSlot)
            layers.push_back({attention->layer, attention->heads});
    return layers;
}

std::optional<AttentionMap> attention_map(const Program &whole, int32_t layer, const Device &device,
                                          std::span<const int32_t> tokens, const std::atomic<bool> *cancel) {
    const size_t query_at = attention_step(whole, layer), key_at = key_step(whole, query_at);
    // A part ends before each of the two steps, so that their slots can be read; the last part is not run.
    Program program = whole;
    program.parts.clear();
    if (key_at < query_at) program.parts.push_back({key_at, {}, {}});
    program.parts.push_back({query_at, {}, {}});
    program.parts.push_back({program.steps.size(), {}, {}});
    const auto context = static_cast<int32_t>(tokens.size());
    const auto backend = device.backend();
    backend->load(program, cache_of_one(program, context), context);
    WholeText text(program, tokens, context, cancel);

    const auto &asks = std::get<Attention>(program.steps[query_at]),
               &holds = std::get<Attention>(program.steps[key_at]);
    std::vector<Row> queries, keys;
    for (int32_t part = 0; part + 1 < static_cast<int32_t>(program.parts.size()); ++part) {
        text.batch.part = part;
        if (!backend->execute(text.batch, {})) return std::nullopt;
        const size_t end = program.parts[static_cast<size_t>(part)].end;
        if (end == key_at) keys = rows_of(*backend, program, holds.k, tokens.size());
        if (end == query_at) queries = rows_of(*backend, program, asks.q, tokens.size());
    }
    std::vector<Row> chosen;
    if (asks.chosen != kNoSlot) chosen = rows_of(*backend, program, asks.chosen, tokens.size());
    Row all_keys;
    for (size_t t = 0; t < tokens.size(); ++t) {
        const Row key = turned(program, holds, keys[t], holds.k_norm, static_cast<int32_t>(t));
        all_keys.insert(all_keys.end(), key.begin(), key.end());
    }
    // With the identity matrix as values, the output of a head is its attention weights.
    Attention step = asks;
    step.head_dim_v = context;
    const size_t n = tokens.size(), kv_heads = static_cast<size_t>(step.kv_heads);
    Row values(n * kv_heads * n);
    for (size_t t = 0; t < n; ++t)
        for (size_t head = 0; head < kv_heads; ++head) values[(t * kv_heads + head) * n + t] = 1;
    const Row sinks = vector_of(program, step.sinks), slopes = vector_of(program, step.slopes);
    AttentionMap map{layer, step.heads, step.window, step.sink_cells, n, {}};
    map.weights.resize(static_cast<size_t>(step.heads) * n * n);
    for (size_t t = 0; t < n; ++t) {
        if (cancel && *cancel) return std::nullopt;
        const auto own = static_cast<int32_t>(t);
        const auto query = [&](int32_t position) {
            Row q = turned(program, step, queries[t], step.q_norm, position);
            for (double &value : q) value *= reference::temperature(step.temperature, own);
            return q;
        };
        const Row to_sinks =
            step.sink_cells > 0 ? query(std::min(own, step.window + step.sink_cells - 1)) : Row{};
        const Row weights = reference::attention_heads(step, query(own), all_keys, values, own, sinks,
                                                       to_sinks, slopes, chosen.empty() ? Row{} : chosen[t]);
        for (size_t head = 0; head < static_cast<size_t>(step.heads); ++head)
            std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(head * n), n,
                        map.weights.begin() + static_cast<std::ptrdiff_t>((head * n + t) * n));
    }
    return map;
}

}  // namespace runnel::kernels
