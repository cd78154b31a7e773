#include "kernels/cuda/runtime/batch_input.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/steps.h"

namespace runnel::kernels::cuda {

namespace {

bool same(const Attention::Temperature &a, const Attention::Temperature &b) {
    return a.beta == b.beta && a.length == b.length && a.offset == b.offset;
}

// The factor of q at a position (step 3 of Attention, kernels/attention_steps.h).
float factor(const Attention::Temperature &t, int32_t position) {
    const int64_t lengths = (int64_t{position} + t.offset) / t.length;
    return static_cast<float>(1 + static_cast<double>(t.beta) * std::log1p(static_cast<double>(lengths)));
}

// The distinct temperatures of the program.
std::vector<Attention::Temperature> temperatures_of(const Program &program) {
    std::vector<Attention::Temperature> all;
    for_each_step<Attention>(program, [&](const Attention &a) {
        const auto is_it = [&](const Attention::Temperature &t) { return same(t, a.temperature); };
        if (a.temperature.beta != 0 && std::none_of(all.begin(), all.end(), is_it))
            all.push_back(a.temperature);
    });
    return all;
}

constexpr int64_t kMostEntries = (1 << 20) / kBlockTokens;  // of a table, initially

// Entries of a table of a group with this many blocks.
int64_t table_entries(const CacheConfig &cache, int32_t blocks) {
    if (cache.context == 0) return std::max(blocks, 1);
    return std::min((int64_t{cache.context} + kBlockTokens - 1) / kBlockTokens, kMostEntries);
}

}  // namespace

size_t BatchInput::bytes(const Program &program, int32_t max_tokens) {
    const int64_t tokens = rounded(max_tokens);
    const auto factors = static_cast<int64_t>(temperatures_of(program).size());
    return static_cast<size_t>(factors_at(tokens) + tokens * factors) * sizeof(int32_t);
}

size_t BatchInput::table_bytes(const CacheConfig &cache, int32_t max_tokens) {
    int64_t entries = 0;
    for (const int32_t blocks : cache.blocks) entries += table_entries(cache, blocks);
    return static_cast<size_t>(entries * rounded(max_tokens)) * sizeof(int32_t);
}

BatchInput::BatchInput(const Program &program, const CacheConfig &cache, int32_t max_tokens)
    : max_tokens_(rounded(max_tokens)), temperatures_(temperatures_of(program)) {
    static_assert(sizeof(SequenceInfo) == kSequenceInts * sizeof(int32_t));
    const size_t size = bytes(program, max_tokens);
    host_ = PinnedMemory(size);
    device_ = DeviceMemory(size, "the batch");
    std::memset(host_.data(), 0, size);
    for (const int32_t blocks : cache.blocks) tables_.emplace_back(table_entries(cache, blocks), max_tokens_);
}

const float *BatchInput::factors(const Attention::Temperature &temperature) const {
    if (temperature.beta == 0) return nullptr;
    int64_t at = factors_at();
    for (size_t i = 0; !same(temperatures_[i], temperature); ++i) at += max_tokens_;
    return reinterpret_cast<const float *>(tokens() + at);
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
    for (const SequenceSpan &s : batch.sequences)
        *info++ = {s.first, s.count, s.past, s.shared, s.shared_from, s.both_ways ? s.past + s.count : 0};
    auto *factors = reinterpret_cast<float *>(to + factors_at());
    for (const Attention::Temperature &t : temperatures_) {
        for (size_t i = 0; i < batch.positions.size(); ++i) factors[i] = factor(t, batch.positions[i]);
        factors += max_tokens_;
    }
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

bool BatchInput::holds(const Batch &batch) const {
    const int32_t *all = host_.as<int32_t>();
    return std::equal(batch.tokens.begin(), batch.tokens.end(), all) &&
           std::equal(batch.logit_rows.begin(), batch.logit_rows.end(), all + 2 * max_tokens_);
}

}  // namespace runnel::kernels::cuda
