#include "kernels/cuda/batch_input.h"

#include <algorithm>
#include <cstring>

namespace runnel::kernels::cuda {

BatchInput::BatchInput(const CacheConfig &cache, int32_t max_tokens) : max_tokens_((max_tokens + 3) / 4 * 4) {
    const size_t bytes = static_cast<size_t>(kInfo * max_tokens_ + 4) * sizeof(int32_t) +
                         static_cast<size_t>(max_tokens_) * sizeof(SequenceInfo);
    host_ = PinnedMemory(bytes);
    device_ = DeviceMemory(bytes, "the batch");
    std::memset(host_.data(), 0, bytes);
    for (const int32_t blocks : cache.blocks) tables_.emplace_back(std::max(blocks, 1), max_tokens_);
}

BatchInput::Tables::Tables(int64_t entries, int64_t sequences)
    : stride(entries),
      host(static_cast<size_t>(entries * sequences) * sizeof(int32_t)),
      device(host.size(), "block tables") {}

bool BatchInput::reserve(const Batch &batch) {
    bool moved = false;
    for (size_t group = 0; group < tables_.size(); ++group) {
        size_t entries = 0;
        for (const SequenceSpan &s : batch.sequences) entries = std::max(entries, s.tables[group].size());
        if (static_cast<int64_t>(entries) <= tables_[group].stride) continue;
        tables_[group] = Tables(static_cast<int64_t>(entries + entries / 2), max_tokens_);
        moved = true;
    }
    return moved;
}

void BatchInput::upload(Stream &stream, const Batch &batch) {
    const auto count = static_cast<int32_t>(batch.sequences.size());
    int32_t *to = host_.as<int32_t>();
    std::copy(batch.tokens.begin(), batch.tokens.end(), to);
    std::copy(batch.positions.begin(), batch.positions.end(), to + max_tokens_);
    std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), to + 2 * max_tokens_);
    to[kInfo * max_tokens_] = count;
    auto *info = reinterpret_cast<SequenceInfo *>(to + kInfo * max_tokens_ + 4);
    for (const SequenceSpan &s : batch.sequences) *info++ = {s.first, s.count, s.past, 0};
    stream.copy_to_device(device_.data(), host_.data(), host_.size());
    for (size_t group = 0; group < tables_.size(); ++group) {
        const Tables &tables = tables_[group];
        for (size_t s = 0; s < batch.sequences.size(); ++s) {
            const auto table = batch.sequences[s].tables[group];
            const size_t at = s * static_cast<size_t>(tables.stride), bytes = table.size_bytes();
            std::copy(table.begin(), table.end(), tables.host.as<int32_t>() + at);
            stream.copy_to_device(tables.device.as<int32_t>() + at, tables.host.as<int32_t>() + at, bytes);
        }
    }
}

}  // namespace runnel::kernels::cuda
