// Runs one sequence on a backend and compares its logits with others.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/backend.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_program.h"

namespace runnel::tests {

inline constexpr int32_t kBlocks = 16, kMaxTokens = 48;
using Logits2 = std::vector<std::vector<float>>;  // [token][vocab]

inline std::vector<int32_t> random_tokens(size_t count, int64_t vocab, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(count);
    for (int32_t &t : tokens) t = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
    return tokens;
}

// One sequence on a backend. Its blocks are allocated backwards, so that pages are not in order.
class Runner {
  public:
    Runner(std::unique_ptr<kernels::Backend> backend, const kernels::Program &program,
           kernels::CacheType k = kernels::CacheType::F16, kernels::CacheType v = kernels::CacheType::F16)
        : program_(program), backend_(std::move(backend)) {
        backend_->load(program, {{kBlocks}, k, v}, kMaxTokens);
        for (int32_t i = 0; i < kBlocks; ++i) table_.push_back(kBlocks - 1 - i);
    }

    // Logits of all tokens, fed in chunks to cells from `past` on.
    Logits2 run(std::span<const int32_t> tokens, size_t chunk, int32_t past = 0) {
        Logits2 all;
        for (size_t at = 0; at < tokens.size(); at += chunk) {
            const auto part = tokens.subspan(at, std::min(chunk, tokens.size() - at));
            const auto first = past + static_cast<int32_t>(at);
            std::vector<int32_t> positions(part.size()), rows(part.size());
            std::iota(positions.begin(), positions.end(), first);
            std::iota(rows.begin(), rows.end(), 0);
            const kernels::SequenceSpan span{0, static_cast<int32_t>(part.size()), first, {table_}};
            const size_t vocab = static_cast<size_t>(program_.vocab);
            std::vector<float> logits(part.size() * vocab, 12345);
            REQUIRE(backend_->execute({part, positions, {&span, 1}, rows}, logits));
            for (size_t t = 0; t < part.size(); ++t)
                all.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(t * vocab),
                                 logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * vocab));
        }
        return all;
    }
    kernels::Backend &backend() { return *backend_; }

  private:
    const kernels::Program &program_;
    std::unique_ptr<kernels::Backend> backend_;
    std::vector<kernels::BlockId> table_;
};

inline void check_equal(const Logits2 &a, const Logits2 &b, const std::string &what) {
    CAPTURE(what);
    REQUIRE(a.size() == b.size());
    for (size_t t = 0; t < a.size(); ++t) {
        CAPTURE(t);
        REQUIRE(std::memcmp(a[t].data(), b[t].data(), a[t].size() * sizeof(float)) == 0);
    }
}

// Mean KL divergence between two sets of logits, in nats; and how often the best token
// differs.
struct Distance {
    double kl = 0;
    int other_best = 0;
};
inline Distance distance(const std::vector<reference::Row> &expected, const Logits2 &logits) {
    Distance d;
    for (size_t t = 0; t < logits.size(); ++t) {
        const reference::Row y = reference::to_row(logits[t]);
        const double p0 = reference::log_sum_exp(expected[t]), q0 = reference::log_sum_exp(y);
        for (size_t i = 0; i < y.size(); ++i)
            d.kl += std::exp(expected[t][i] - p0) * ((expected[t][i] - p0) - (y[i] - q0)) /
                    static_cast<double>(logits.size());
        d.other_best += std::max_element(y.begin(), y.end()) - y.begin() !=
                        std::max_element(expected[t].begin(), expected[t].end()) - expected[t].begin();
    }
    return d;
}

inline std::vector<reference::Row> rows_of(const Logits2 &logits) {
    std::vector<reference::Row> rows;
    for (const auto &row : logits) rows.push_back(reference::to_row(row));
    return rows;
}

// Values are the first dimensions of the keys (multi-head latent attention).
inline kernels::Program with_latents(const TinyProgram &tiny) {
    kernels::Program program = tiny.program();
    for (kernels::CacheLayer &layer : program.cache_layers) layer.head_dim_v = 0;
    for (kernels::Step &step : program.steps)
        if (auto *a = std::get_if<kernels::Attention>(&step)) a->v = kernels::kNoSlot;
    for (kernels::RopeTable &rope : program.ropes) rope.inv_freq.resize(4), rope.first = 32;
    return program;
}

}  // namespace runnel::tests
