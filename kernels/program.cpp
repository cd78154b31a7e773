#include "kernels/program.h"

#include "kernels/backend.h"

namespace runnel::kernels {

size_t Program::weight_bytes_per_token() const {
    size_t bytes = 0;
    const auto count = [&](WeightId id) {
        if (id != kNoWeight) bytes += weights[static_cast<size_t>(id)].bytes();
    };
    for (const Step &step : steps) {
        if (const auto *embed = std::get_if<Embed>(&step)) {
            const Weight &table = weights[static_cast<size_t>(embed->table)];
            bytes += gguf::row_bytes(table.type, table.cols);
            if (embed->positions != kNoWeight) {
                const Weight &positions = weights[static_cast<size_t>(embed->positions)];
                bytes += gguf::row_bytes(positions.type, positions.cols);
            }
        } else if (const auto *norm = std::get_if<Norm>(&step)) {
            count(norm->weight), count(norm->bias);
        } else if (const auto *linear = std::get_if<Linear>(&step)) {
            for (const Linear::Part &part : linear->parts) count(part.weight), count(part.bias);
        } else if (const auto *attention = std::get_if<Attention>(&step)) {
            count(attention->q_norm), count(attention->k_norm), count(attention->sinks);
        } else if (const auto *heads = std::get_if<HeadLinear>(&step)) {
            count(heads->weight);
        } else if (const auto *experts = std::get_if<Experts>(&step)) {
            for (WeightId id : {experts->gate, experts->up, experts->down})
                if (id != kNoWeight)
                    bytes += weights[static_cast<size_t>(id)].matrix_bytes() *
                             static_cast<size_t>(experts->routing.used);
            for (WeightId id :
                 {experts->gate_bias, experts->up_bias, experts->down_bias, experts->routing.expert_scales})
                if (id != kNoWeight)
                    bytes += weights[static_cast<size_t>(id)].bytes() /
                             static_cast<size_t>(weights[static_cast<size_t>(experts->down)].count) *
                             static_cast<size_t>(experts->routing.used);
            count(experts->routing.selection_bias);
        } else if (const auto *logits = std::get_if<Logits>(&step)) {
            count(logits->weight), count(logits->bias);
        }
    }
    return bytes;
}

std::vector<Program::Part> Program::whole_parts() const {
    if (!parts.empty()) return parts;
    return {{steps.size(), {}, {}}};
}

size_t cache_block_bytes(const Program &program, int32_t group, CacheType k, CacheType v) {
    size_t bytes = 0;
    for (const CacheLayer &layer : program.cache_layers)
        if (layer.group == group)
            bytes += size_t{kBlockTokens} * static_cast<size_t>(layer.kv_heads) *
                     (cache_row_bytes(k, layer.head_dim_k) + cache_row_bytes(v, layer.head_dim_v));
    return bytes;
}

}  // namespace runnel::kernels
