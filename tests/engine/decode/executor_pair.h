// Two executors of one program, whose sequences and logits must stay equal: one device, and several that divide its cache.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "engine/decode/executor.h"

namespace runnel::tests {

using Tokens = std::vector<decode::TokenId>;

inline Tokens random_text(std::mt19937 &random, size_t count) {
    Tokens tokens(count);
    for (decode::TokenId &t : tokens) t = static_cast<decode::TokenId>(random() % 50);
    return tokens;
}

inline bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Sequences of two executors, to which the same happens.
class ExecutorPair {
  public:
    ExecutorPair(decode::Executor &one, decode::Executor &several) : one_(one), several_(several) {}

    size_t size() const { return of_one_.size(); }
    int32_t length(size_t i) const { return of_one_[i].length(); }
    void add() {
        of_one_.push_back(one_.new_sequence());
        of_several_.push_back(several_.new_sequence());
    }
    void fork(size_t i) {
        of_one_.push_back(one_.fork(of_one_[i]));
        of_several_.push_back(several_.fork(of_several_[i]));
    }
    void erase(size_t i) {
        of_one_.erase(of_one_.begin() + static_cast<std::ptrdiff_t>(i));
        of_several_.erase(of_several_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    void truncate(size_t i, int32_t length) {
        of_one_[i].truncate(length);
        of_several_[i].truncate(length);
    }
    // Reuses what both know of the text, as far as both do.
    void attach(size_t i, const Tokens &text) {
        one_.attach(of_one_[i], text);
        several_.attach(of_several_[i], text);
        const int32_t both = std::min(of_one_[i].length(), of_several_[i].length());
        truncate(i, both);
    }
    // One step with tokens for some sequences; the logits must be equal.
    void step(const std::vector<std::pair<size_t, Tokens>> &parts) {
        std::vector<float> logits[2];
        for (const bool several : {false, true}) {
            std::vector<decode::StepInput> inputs;
            for (const auto &[i, tokens] : parts)
                inputs.push_back({.cache = several ? &of_several_[i] : &of_one_[i],
                                  .tokens = tokens,
                                  .logit_rows = static_cast<int32_t>(std::min<size_t>(tokens.size(), 3))});
            REQUIRE((several ? several_ : one_).step(inputs, logits[several]));
        }
        REQUIRE(same_bits(logits[0], logits[1]));
    }
    // A draft and a branch of it that shares two tokens.
    void step_with_branch(size_t i, const Tokens &tokens) {
        std::vector<float> logits[2];
        Tokens other = {tokens[0], tokens[1], tokens.back()};
        for (const bool several : {false, true}) {
            decode::Executor &executor = several ? several_ : one_;
            decode::SequenceCache &cache = several ? of_several_[i] : of_one_[i];
            decode::SequenceCache branch = executor.fork(cache);
            REQUIRE(executor.add({.cache = &cache, .tokens = tokens, .logit_rows = 2}));
            REQUIRE(executor.add({.cache = &branch, .tokens = other, .logit_rows = 1, .shared = 2}));
            REQUIRE(executor.run(logits[several]));
        }
        REQUIRE(same_bits(logits[0], logits[1]));
    }

  private:
    decode::Executor &one_, &several_;
    std::vector<decode::SequenceCache> of_one_, of_several_;
};

}  // namespace runnel::tests
