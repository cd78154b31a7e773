// Runs texts through a backend whose program has recurrent steps: at once, or in random chunks and state
// slots, with roll-backs to states that were kept.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace runnel::tests {

using TextLogits = std::vector<std::vector<float>>;  // of every token

inline bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The larger difference; NaN is the largest of all.
inline double larger(double worst, double difference) {
    return std::isnan(worst) || difference <= worst ? worst : difference;
}

class RecurrentTexts {
  public:
    RecurrentTexts(const kernels::Program &program, std::vector<std::vector<int32_t>> texts)
        : program_(program), texts_(std::move(texts)) {
        for (const kernels::CacheLayer &layer : program.cache_layers)
            groups_ = std::max(groups_, static_cast<size_t>(layer.group) + 1);
        for (const std::vector<int32_t> &text : texts_) {
            tokens_ += static_cast<int32_t>(text.size());
            std::vector<kernels::BlockId> table(text.size() / kernels::kBlockTokens + 1);
            std::iota(table.rbegin(), table.rend(), blocks_);
            blocks_ += static_cast<int32_t>(table.size());
            tables_.push_back(std::move(table));
        }
    }

    kernels::CacheConfig cache() const {
        return {.blocks = std::vector<int32_t>(groups_, blocks_), .states = slots()};
    }
    int32_t max_tokens() const { return tokens_; }

    // The logits of every text. If `random` is null, all texts are in one batch, without gaps. Checks that a
    // token which is computed again after a roll-back has the same bits.
    std::vector<TextLogits> run(kernels::Backend &backend, std::mt19937 *random) const {
        std::vector<TextLogits> all(texts_.size());
        std::vector<std::vector<Place>> kept(texts_.size(), {Place{}});
        std::vector<kernels::StateId> free(static_cast<size_t>(slots()));
        std::iota(free.begin(), free.end(), 0);
        if (random != nullptr) std::ranges::shuffle(free, *random);
        const auto done = [&](size_t i) {
            return kept[i].back().length == static_cast<int32_t>(texts_[i].size());
        };
        for (bool more = true; more;) {
            Step step;
            for (size_t i = 0; i < texts_.size(); ++i) {
                if (random != nullptr && kept[i].size() > 1 && (*random)() % 4 == 0) {  // roll back
                    free.push_back(kept[i].back().state);
                    kept[i].pop_back();
                }
                add(step, i, kept[i], free, random);
            }
            if (!step.tokens.empty()) execute(backend, step, all);
            more = false;
            for (size_t i = 0; i < texts_.size(); ++i) more = more || !done(i);
        }
        return all;
    }

  private:
    struct Place {
        int32_t length = 0;
        kernels::StateId state = kernels::kNoState;
    };
    struct Step {
        std::vector<int32_t> tokens, positions, rows;
        std::vector<kernels::SequenceSpan> spans;
        std::vector<size_t> text;  // of each token
    };
    static constexpr size_t kKept = 3;  // states of a text, the empty one included
    int32_t slots() const { return static_cast<int32_t>(texts_.size() * (kKept + 3)); }

    // Adds the text's next tokens to the step, sometimes none.
    void add(Step &step, size_t text, std::vector<Place> &kept, std::vector<kernels::StateId> &free,
             std::mt19937 *random) const {
        const Place from = kept.back();
        const auto left = static_cast<int32_t>(texts_[text].size()) - from.length;
        const int32_t count =
            random == nullptr ? left : std::min(left, static_cast<int32_t>((*random)() % 24));
        if (count == 0) return;
        while (kept.size() > kKept) {  // no roll-back reaches them
            free.push_back(kept[1].state);
            kept.erase(kept.begin() + 1);
        }
        kernels::SequenceSpan span{static_cast<int32_t>(step.tokens.size()), count, from.length, {}};
        span.tables.assign(groups_, tables_[text]);
        span.state = from.state;
        for (int32_t n = 1; n <= count; ++n) {
            if (n < count && (random == nullptr || (*random)() % 8 != 0 || free.size() <= texts_.size()))
                continue;
            span.state_writes.push_back({n, free.back()});
            kept.push_back({from.length + n, free.back()});
            free.pop_back();
        }
        for (int32_t i = 0; i < count; ++i) {
            step.rows.push_back(static_cast<int32_t>(step.tokens.size()));
            step.tokens.push_back(texts_[text][static_cast<size_t>(from.length + i)]);
            step.positions.push_back(from.length + i);
            step.text.push_back(text);
        }
        step.spans.push_back(std::move(span));
    }

    void execute(kernels::Backend &backend, const Step &step, std::vector<TextLogits> &all) const {
        const auto vocab = static_cast<size_t>(program_.vocab);
        std::vector<float> logits(step.rows.size() * vocab);
        REQUIRE(backend.execute({step.tokens, step.positions, step.spans, step.rows}, logits));
        for (size_t r = 0; r < step.rows.size(); ++r) {
            const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(r * vocab);
            std::vector<float> row(begin, begin + static_cast<std::ptrdiff_t>(vocab));
            TextLogits &text = all[step.text[r]];
            const auto position = static_cast<size_t>(step.positions[r]);
            if (position < text.size())
                REQUIRE(same_bits(row, text[position]));
            else
                text.push_back(std::move(row));
        }
    }

    const kernels::Program &program_;
    std::vector<std::vector<int32_t>> texts_;
    std::vector<std::vector<kernels::BlockId>> tables_;
    size_t groups_ = 0;
    int32_t blocks_ = 0, tokens_ = 0;
};

inline void check_same(const std::vector<TextLogits> &a, const std::vector<TextLogits> &b) {
    REQUIRE(a.size() == b.size());
    for (size_t text = 0; text < a.size(); ++text) {
        REQUIRE(a[text].size() == b[text].size());
        for (size_t t = 0; t < a[text].size(); ++t) REQUIRE(same_bits(a[text][t], b[text][t]));
    }
}

inline std::vector<std::vector<int32_t>> random_texts(std::initializer_list<int32_t> lengths, uint32_t ids,
                                                      std::mt19937 &random) {
    std::vector<std::vector<int32_t>> texts;
    for (const int32_t length : lengths) {
        texts.emplace_back();
        for (int32_t i = 0; i < length; ++i) texts.back().push_back(static_cast<int32_t>(random() % ids));
    }
    return texts;
}

}  // namespace runnel::tests
