#include "engine/measure/pass_cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/steps.h"

namespace runnel::measure {
namespace {

using kernels::Attention, kernels::CacheLayer, kernels::Indexer, kernels::Program, kernels::Use,
    kernels::Weight, kernels::WeightId;

double cell_bytes(const CacheLayer &layer, decode::CacheTypes types) {
    return static_cast<double>(layer.kv_heads) *
           static_cast<double>(kernels::cache_row_bytes(kernels::key_type(layer, types.k), layer.head_dim_k) +
                               kernels::cache_row_bytes(types.v, layer.head_dim_v));
}

// The weights of one step.
struct WeightCounter : kernels::StepVisitor {
    const Program &program;
    double tokens, logit_rows;
    PassCost cost{};

    const Weight &at(WeightId id) const { return program.weights[static_cast<size_t>(id)]; }
    double rows_used(Use use) const { return use.logit_rows ? logit_rows : tokens; }

    void row(WeightId id) {
        if (id != kernels::kNoWeight)
            cost.weights += tokens * static_cast<double>(gguf::row_bytes(at(id).type, at(id).cols));
    }
    void matrix(WeightId id, Use use) {
        if (id == kernels::kNoWeight || rows_used(use) <= 0) return;
        const Weight &weight = at(id);
        add_bytes(weight, use);
        const auto matrices = static_cast<double>(use.experts > 0 ? use.experts : weight.count);
        cost.matrix_operations += 2 * rows_used(use) * matrices * static_cast<double>(weight.rows) *
                                  static_cast<double>(weight.cols);
    }
    void vector(WeightId id, Use use) {
        if (id != kernels::kNoWeight && rows_used(use) > 0) add_bytes(at(id), use);
    }
    void add_bytes(const Weight &weight, Use use) {
        double share = 1;
        if (use.experts > 0) {
            // The chance that at least one token chooses an expert.
            const double chosen = static_cast<double>(use.experts) / static_cast<double>(at(use.of).count);
            share = 1 - std::pow(1 - chosen, rows_used(use));
        }
        cost.weights += share * static_cast<double>(weight.bytes());
    }
};

// The first cell of the window of the token at `position`.
int64_t window_begin(const Attention &attention, int64_t position) {
    if (attention.window <= 0) return 0;
    const int64_t window = attention.window;
    if (attention.window_kind == Attention::Window::Chunked) return position - position % window;
    return std::max<int64_t>(0, position - window + 1);
}

void add_attention(const Program &program, const Attention &attention, int64_t depth, int64_t tokens,
                   decode::CacheTypes types, PassCost &cost) {
    const CacheLayer &layer = program.cache_layers[static_cast<size_t>(attention.cache)];
    const double cell = cell_bytes(layer, types);
    if (attention.k != kernels::kNoSlot) cost.cache_written += cell * static_cast<double>(tokens);
    if (!attention.attends()) return;
    // With an indexer, a token attends to at most this many cells.
    const int64_t most = attention.chosen == kernels::kNoSlot
                             ? INT64_MAX
                             : program.slots[static_cast<size_t>(attention.chosen)].width /
                                   attention.chosen_lists * attention.chosen_block / attention.stride;
    const int64_t together = most < INT64_MAX / tokens ? most * tokens : INT64_MAX;
    cost.cache_read +=
        cell * static_cast<double>(std::min(cells_in_sight(attention, depth, tokens), together));
    int64_t pairs = 0;
    for (int64_t i = 0; i < tokens; ++i) pairs += std::min(visible_cells(attention, depth + i), most);
    const double scores = static_cast<double>(pairs) * attention.heads;
    cost.scores += scores;
    cost.attention_operations += 2 * scores * (attention.head_dim_k + attention.head_dim_v);
}

void add_indexer(const Program &program, const Indexer &indexer, int64_t depth, int64_t tokens,
                 decode::CacheTypes types, PassCost &cost) {
    const double cell = cell_bytes(program.cache_layers[static_cast<size_t>(indexer.cache)], types);
    cost.cache_written += cell * static_cast<double>(tokens);
    // A token that sees no more chooses all without scores.
    const int64_t first = std::max(depth, int64_t{indexer.all_cells()}), end = depth + tokens;
    if (first >= end) return;
    cost.cache_read += cell * static_cast<double>(end);
    double pairs = 0;
    for (int64_t position = first; position < end; ++position) pairs += static_cast<double>(position + 1);
    cost.attention_operations += 2 * pairs * indexer.heads * (indexer.head_dim + 1);
}

void add_cache_steps(const Program &program, int64_t depth, int64_t tokens, decode::CacheTypes types,
                     PassCost &cost) {
    kernels::for_each_step<Attention>(program, [&](const Attention &attention) {
        add_attention(program, attention, depth, tokens, types, cost);
    });
    kernels::for_each_step<Indexer>(
        program, [&](const Indexer &indexer) { add_indexer(program, indexer, depth, tokens, types, cost); });
}

}  // namespace

int64_t visible_cells(const Attention &attention, int64_t position) {
    return cells_in_sight(attention, position, 1);
}

int64_t cells_in_sight(const Attention &attention, int64_t depth, int64_t tokens) {
    const int64_t begin = window_begin(attention, depth), end = depth + tokens;
    return (end - begin + std::min<int64_t>(begin, attention.sink_cells)) / attention.stride;
}

PassCost pass_cost(const Program &program, int64_t depth, int64_t tokens, decode::CacheTypes types,
                   int64_t logit_rows) {
    WeightCounter counter{{}, program, static_cast<double>(tokens), static_cast<double>(logit_rows)};
    for (const kernels::Step &step : program.steps) kernels::describe(step, counter);
    add_cache_steps(program, depth, tokens, types, counter.cost);
    counter.cost.states = 2 * static_cast<double>(kernels::state_bytes(program));
    return counter.cost;
}

PassCost decode_cost(const Program &program, int64_t depth, int64_t count, decode::CacheTypes types) {
    // Costs depend only on the number of visible cells, so everything else is counted once.
    PassCost mean = pass_cost(program, depth, 1, types);
    for (double PassCost::*part : {&PassCost::cache_read, &PassCost::attention_operations, &PassCost::scores})
        mean.*part = 0;
    for (int64_t i = 0; i < count; ++i) {
        PassCost one;
        add_cache_steps(program, depth + i, 1, types, one);
        const auto share = 1 / static_cast<double>(count);
        mean.cache_read += share * one.cache_read;
        mean.attention_operations += share * one.attention_operations;
        mean.scores += share * one.scores;
    }
    return mean;
}

}  // namespace runnel::measure
