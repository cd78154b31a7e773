// A language model without weights: its logits are a hash of all tokens of the sequence, read back through
// the block tables, so that a wrong table, cell or position changes them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace runnel::testing {

inline uint64_t mix(uint64_t x) {  // SplitMix64's finalizer
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

inline uint64_t hash_tokens(const std::vector<int32_t> &tokens) {
    uint64_t h = 1;
    for (const int32_t t : tokens) h = mix(h * 31 + static_cast<uint64_t>(t));
    return h;
}

// The logit of a token, in [-8, 8).
inline float toy_logit(uint64_t hash, int32_t id) {
    return static_cast<float>(mix(hash ^ static_cast<uint64_t>(id) << 20) >> 40) * 0x1p-24f * 16 - 8;
}

inline kernels::Program toy_program(int32_t vocab, bool recurrent = false) {
    kernels::Program program;
    program.vocab = vocab;
    program.cache_layers = {{1, 8, 8, 0}, {1, 8, 8, 1}};  // two groups
    if (recurrent) program.state_layers = {{2}};          // the hash of the tokens so far
    return program;
}

class ToyBackend final : public kernels::Backend {
  public:
    // Called in every execute() before anything is computed.
    std::function<void(const kernels::Batch &)> on_execute;
    // The arguments of every execute().
    struct Record {
        size_t tokens, sequences, rows;
    };
    std::vector<Record> records;
    // Replaces the logits of a prefix.
    std::function<void(const std::vector<int32_t> &prefix, std::span<float> logits)> model;
    size_t memory = size_t{1} << 33;
    // The largest k of top-k selection on this device; 0: it returns full rows only
    int32_t selects = 0;
    // Counts: full rows and candidates returned with batches, and rows read afterwards.
    size_t whole_rows = 0, candidates = 0, rows_read = 0;
    size_t masked_rows = 0;  // selected with a mask

    kernels::DeviceInfo info() const override { return {"toy", "toy", memory, memory}; }

    void load(const kernels::Program &program, const kernels::CacheConfig &cache,
              int32_t max_tokens) override {
        vocab_ = static_cast<int32_t>(program.vocab);
        max_tokens_ = max_tokens;
        pools_.clear();
        for (const int32_t blocks : cache.blocks)
            pools_.emplace_back(static_cast<size_t>(blocks) * kernels::kBlockTokens, -1);
        recurrent_ = !program.state_layers.empty();
        states_.assign(static_cast<size_t>(cache.states), 0);
    }
    void read_state(kernels::StateId slot, std::span<std::byte> bytes) override {
        std::memcpy(bytes.data(), &states_.at(static_cast<size_t>(slot)), sizeof(uint64_t));
    }
    void write_state(kernels::StateId slot, std::span<const std::byte> bytes) override {
        std::memcpy(&states_.at(static_cast<size_t>(slot)), bytes.data(), sizeof(uint64_t));
    }

    void copy_blocks(int32_t group, std::span<const kernels::BlockCopy> copies) override {
        std::vector<int32_t> &pool = pools_.at(static_cast<size_t>(group));
        for (const kernels::BlockCopy &copy : copies)
            std::copy_n(pool.begin() + copy.from * kernels::kBlockTokens, kernels::kBlockTokens,
                        pool.begin() + copy.to * kernels::kBlockTokens);
    }

    void read_block(int32_t group, kernels::BlockId block, std::span<std::byte> bytes) override {
        std::memcpy(bytes.data(), cells(group, block), kernels::kBlockTokens * sizeof(int32_t));
    }
    void write_block(int32_t group, kernels::BlockId block, std::span<const std::byte> bytes) override {
        std::memcpy(cells(group, block), bytes.data(), kernels::kBlockTokens * sizeof(int32_t));
    }

    bool execute(const kernels::Batch &batch, std::span<float> logits) override {
        if (logits.size() != batch.logit_rows.size() * static_cast<size_t>(vocab_))
            throw std::logic_error("logits size");
        if (!compute(batch)) return false;
        std::copy(logits_.begin(), logits_.end(), logits.begin());
        whole_rows += batch.logit_rows.size();
        return true;
    }

    int32_t most_candidates() const override { return selects; }
    bool execute(const kernels::Batch &batch, int32_t count, std::span<kernels::TopLogit> largest,
                 std::span<kernels::ExpSum> sums) override {
        if (count < 1 || count > selects || count > vocab_) throw std::logic_error("candidates");
        if (largest.size() != batch.logit_rows.size() * static_cast<size_t>(count))
            throw std::logic_error("candidates size");
        if (!compute(batch)) return false;
        for (size_t r = 0; r < batch.logit_rows.size(); ++r) {
            const kernels::TokenMask mask = batch.masks.empty() ? kernels::TokenMask() : batch.masks[r];
            masked_rows += mask.empty() ? 0 : 1;
            const auto is_allowed = [&](int32_t id) {
                const auto bit = static_cast<size_t>(id);
                return mask.empty() || (mask[bit / 64] >> bit % 64 & 1) != 0;
            };
            std::vector<kernels::TopLogit> sorted = sorted_row(r);
            auto refused = std::stable_partition(
                sorted.begin(), sorted.end(),
                [&](const kernels::TopLogit &c) { return !std::isfinite(c.logit) || is_allowed(c.token); });
            for (; refused != sorted.end(); ++refused)
                refused->logit = -std::numeric_limits<float>::infinity();
            std::copy_n(sorted.begin(), count, largest.begin() + static_cast<std::ptrdiff_t>(r) * count);
            if (count == 1) continue;
            sums[r] = {};
            for (int32_t id = 0; id < vocab_; ++id)
                if (is_allowed(id)) sums[r].add(row_of(r)[static_cast<size_t>(id)]);
        }
        candidates += largest.size();
        return true;
    }
    void read_logits(int32_t row, std::span<float> logits) override {
        const std::span<const float> found = row_of(static_cast<size_t>(row));
        std::copy(found.begin(), found.end(), logits.begin());
        ++rows_read;
    }

  private:
    // Computes the batch's rows into logits_. False if it was cancelled.
    bool compute(const kernels::Batch &batch) {
        records.push_back({batch.tokens.size(), batch.sequences.size(), batch.logit_rows.size()});
        if (batch.tokens.empty() || static_cast<int32_t>(batch.tokens.size()) > max_tokens_)
            throw std::logic_error("batch size");
        if (on_execute) on_execute(batch);
        if (batch.cancel && batch.cancel->load()) return false;
        logits_.resize(batch.logit_rows.size() * static_cast<size_t>(vocab_));
        std::map<int32_t, std::vector<int32_t>> prefixes;  // of each token of the batch
        for (const kernels::SequenceSpan &s : batch.sequences) write(batch, s);
        for (const kernels::SequenceSpan &s : batch.sequences) read(s, prefixes);
        if (recurrent_) advance_states(batch, prefixes);
        for (size_t r = 0; r < batch.logit_rows.size(); ++r) {
            const std::span<float> row = row_of(r);
            const std::vector<int32_t> &prefix = prefixes.at(batch.logit_rows[r]);
            const uint64_t hash = hash_tokens(prefix);
            for (int32_t id = 0; id < vocab_; ++id) row[static_cast<size_t>(id)] = toy_logit(hash, id);
            if (model) model(prefix, row);
        }
        return true;
    }
    std::span<float> row_of(size_t row) {
        const auto vocab = static_cast<size_t>(vocab_);
        return std::span(logits_).subspan(row * vocab, vocab);
    }
    // A row in a device's order: logits that are not finite first, then larger ones; at ties, lower tokens.
    std::vector<kernels::TopLogit> sorted_row(size_t row) {
        std::vector<kernels::TopLogit> all;
        for (const float l : row_of(row)) all.push_back({static_cast<int32_t>(all.size()), l});
        std::stable_sort(all.begin(), all.end(), [](const auto &a, const auto &b) {
            if (!std::isfinite(a.logit) || !std::isfinite(b.logit))
                return !std::isfinite(a.logit) && std::isfinite(b.logit);
            return a.logit > b.logit;
        });
        for (kernels::TopLogit &one : all)
            if (!std::isfinite(one.logit)) one.logit = std::numeric_limits<float>::quiet_NaN();
        return all;
    }

    int32_t &cell(const kernels::SequenceSpan &s, size_t group, int32_t c) {
        const kernels::BlockId block = s.tables[group][static_cast<size_t>(c / kernels::kBlockTokens)];
        return pools_[group].at(
            static_cast<size_t>(block * kernels::kBlockTokens + c % kernels::kBlockTokens));
    }
    // Writes the `count` tokens of the batch from `from` on to the cells from `to` on.
    void write(const kernels::Batch &batch, const kernels::SequenceSpan &s, int32_t from, int32_t to,
               int32_t count) {
        for (int32_t i = 0; i < count; ++i) {
            const auto t = static_cast<size_t>(from + i);
            if (batch.positions[t] != to + i) throw std::logic_error("position");
            for (size_t g = 0; g < pools_.size(); ++g) cell(s, g, to + i) = batch.tokens[t];
        }
    }
    void write(const kernels::Batch &batch, const kernels::SequenceSpan &s) {
        if (s.tables.size() != pools_.size()) throw std::logic_error("a table per group");
        write(batch, s, s.shared_from, s.past - s.shared, s.shared);
        write(batch, s, s.first, s.past, s.count);
    }
    // The tokens visible to each token of the sequence.
    void read(const kernels::SequenceSpan &s, std::map<int32_t, std::vector<int32_t>> &prefixes) {
        for (int32_t i = 0; i < s.count; ++i) {
            std::vector<int32_t> &prefix = prefixes[s.first + i];
            for (int32_t c = 0; c <= s.past + i; ++c) {
                prefix.push_back(cell(s, 0, c));
                if (cell(s, 1, c) != prefix.back()) throw std::logic_error("groups differ");
            }
        }
    }

    // Checks that every state read is the state of the tokens before the batch, and that no slot is written
    // that another span reads or writes.
    void advance_states(const kernels::Batch &batch,
                        const std::map<int32_t, std::vector<int32_t>> &prefixes) {
        std::vector<int> touched(states_.size(), 0);
        for (const kernels::SequenceSpan &s : batch.sequences) {
            std::vector<int32_t> before = prefixes.at(s.first);
            before.pop_back();
            if ((s.state == kernels::kNoState) != before.empty()) throw std::logic_error("a state to read");
            if (s.state == kernels::kNoState) continue;
            if (states_.at(static_cast<size_t>(s.state)) != hash_tokens(before))
                throw std::logic_error("the state is of other tokens");
            touched[static_cast<size_t>(s.state)] = 1;
        }
        for (const kernels::SequenceSpan &s : batch.sequences) {
            if (s.state_writes.empty() || s.state_writes.back().tokens != s.count)
                throw std::logic_error("the last state is kept");
            for (const kernels::StateWrite &write : s.state_writes) {
                const auto slot = static_cast<size_t>(write.slot);
                if (touched.at(slot)++ > 0) throw std::logic_error("a state is overwritten");
                states_[slot] = hash_tokens(prefixes.at(s.first + write.tokens - 1));
            }
        }
    }

    int32_t *cells(int32_t group, kernels::BlockId block) {
        return &pools_.at(static_cast<size_t>(group)).at(static_cast<size_t>(block * kernels::kBlockTokens));
    }

    int32_t vocab_ = 0, max_tokens_ = 0;
    std::vector<float> logits_;                // of the last batch
    std::vector<std::vector<int32_t>> pools_;  // per group: the token in every cell
    bool recurrent_ = false;
    std::vector<uint64_t> states_;  // per slot
};

}  // namespace runnel::testing
