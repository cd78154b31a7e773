#include "kernels/program.h"

#include <utility>

#include "kernels/backend.h"
#include "kernels/steps.h"

namespace runnel::kernels {

namespace {

struct ByteCounter : StepVisitor {
    const std::vector<Weight> &weights;
    size_t bytes = 0;

    void row(WeightId id) {
        if (id == kNoWeight) return;
        const Weight &table = weights[static_cast<size_t>(id)];
        bytes += gguf::row_bytes(table.type, table.cols);
    }
    void matrix(WeightId id, Use use) {
        if (id == kNoWeight) return;
        size_t all = weights[static_cast<size_t>(id)].bytes();
        if (use.experts > 0) {
            const auto experts = static_cast<size_t>(weights[static_cast<size_t>(use.of)].count);
            all = all / experts * static_cast<size_t>(use.experts);
        }
        bytes += all;
    }
    void vector(WeightId id, Use use) { matrix(id, use); }
};

}  // namespace

size_t HashedEmbed::row(const Hash &hash, const float *tokens, size_t head) {
    const size_t grams = head / static_cast<size_t>(hash.heads_per_gram) + 2;
    uint64_t mixed = 0;
    bool ended = false;
    for (size_t i = 0; i < grams; ++i) {
        const auto id = static_cast<int64_t>(tokens[i]) - 1;
        ended = ended || (i > 0 && (id < 0 || id == hash.end));
        mixed ^= hash.multipliers[i] * static_cast<uint64_t>(ended ? hash.end : id);
    }
    return static_cast<size_t>(hash.heads[head].offset + mixed % hash.heads[head].size);
}

size_t Program::weight_bytes_per_token() const {
    ByteCounter counter{{}, weights};
    for (const Step &step : steps) describe(step, counter);
    return counter.bytes;
}

double Program::operations_per_token() const {
    double sum = 0;
    for (const Step &step : steps)
        visit_matrices(step, [&](WeightId id, Use use) {
            const Weight &w = weights[static_cast<size_t>(id)];
            const auto matrices = static_cast<double>(use.experts > 0 ? use.experts : w.count);
            if (!use.logit_rows)
                sum += 2 * matrices * static_cast<double>(w.rows) * static_cast<double>(w.cols);
        });
    return sum;
}

int64_t Program::token_ids() const {
    WeightId first = kNoWeight;
    for (const Step &step : steps)
        visit_tables(step, [&](WeightId table) {
            if (first == kNoWeight) first = table;
        });
    return first == kNoWeight ? vocab : weights[static_cast<size_t>(first)].rows;
}

bool Program::gives_logits() const {
    bool found = false;
    for (const Step &step : steps) visit_matrices(step, [&](WeightId, Use use) { found |= use.logit_rows; });
    return found;
}

std::optional<GatedLinear> gated_linear(const Program &program, size_t index) {
    if (index + 1 >= program.steps.size()) return std::nullopt;
    const auto *linear = std::get_if<Linear>(&program.steps[index]);
    const auto *act = std::get_if<Activation>(&program.steps[index + 1]);
    if (linear == nullptr || act == nullptr || linear->parts.size() != 2) return std::nullopt;
    GatedLinear gated{linear->in, linear->parts[0], linear->parts[1], act};
    if (gated.gate.out != act->gate) std::swap(gated.gate, gated.up);
    if (gated.gate.out != act->gate || gated.up.out != act->up || act->gate == act->up) return std::nullopt;
    return gated;
}

std::vector<Program::Part> Program::whole_parts() const {
    if (!parts.empty()) return parts;
    return {{steps.size(), {}, {}}};
}

size_t state_bytes(const Program &program) {
    size_t bytes = 0;
    for (const StateLayer &layer : program.state_layers)
        bytes += static_cast<size_t>(layer.floats) * sizeof(float);
    return bytes;
}

size_t cache_block_bytes(const Program &program, int32_t group, CacheType k, CacheType v) {
    size_t bytes = 0;
    for (const CacheLayer &layer : program.cache_layers)
        if (layer.group == group)
            bytes += size_t{kBlockTokens} * static_cast<size_t>(layer.kv_heads) *
                     (cache_row_bytes(key_type(layer, k), layer.head_dim_k) +
                      cache_row_bytes(v, layer.head_dim_v));
    return bytes;
}

}  // namespace runnel::kernels
