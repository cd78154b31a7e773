// Runs of a program of one group on a Backend, for tests that compare the bits of several devices with those of one.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "kernels/forwarding_backend.h"

namespace runnel::tests {

inline constexpr int32_t kBlocks = 4, kMaxTokens = 40;

using namespace kernels;

// Logits of all tokens, fed in chunks.
inline std::vector<float> run(Backend &backend, const Program &program, std::span<const int32_t> tokens,
                              size_t chunk, int32_t past = 0) {
    std::vector<float> all;
    std::vector<BlockId> table(kBlocks);
    std::iota(table.rbegin(), table.rend(), 0);
    for (size_t at = 0; at < tokens.size(); at += chunk) {
        const auto part = tokens.subspan(at, std::min(chunk, tokens.size() - at));
        const int32_t first = past + static_cast<int32_t>(at);
        std::vector<int32_t> positions(part.size()), rows(part.size());
        std::iota(positions.begin(), positions.end(), first);
        std::iota(rows.begin(), rows.end(), 0);
        const SequenceSpan span{0, static_cast<int32_t>(part.size()), first, {table}};
        std::vector<float> logits(part.size() * static_cast<size_t>(program.vocab), 12345);
        REQUIRE(backend.execute({part, positions, {&span, 1}, rows}, logits));
        all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
}

inline std::vector<int32_t> random_tokens(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(count);
    for (int32_t &t : tokens) t = static_cast<int32_t>(random() % 50);
    return tokens;
}

inline bool same(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Logits of a draft tree after the first `past` tokens, which fill block 3 - past / 32 and those after
// it (run()): a sequence continues with six tokens, and a branch, in another block, with the first three
// of them and two of its own.
inline std::vector<float> run_branch(Backend &backend, const Program &program,
                                     std::span<const int32_t> tokens, int32_t past) {
    std::vector<BlockId> table(kBlocks), other;
    std::iota(table.rbegin(), table.rend(), 0);
    other = table;
    const auto last = static_cast<size_t>(past / kBlockTokens);
    other[last] = 0;
    backend.copy_blocks(0, std::vector<BlockCopy>{{table[last], 0}});
    std::vector<int32_t> positions, rows(8);
    for (const int32_t i : {0, 1, 2, 3, 4, 5, 3, 4}) positions.push_back(past + i);
    std::iota(rows.begin(), rows.end(), 0);
    const SequenceSpan spans[] = {{0, 6, past, {table}}, {6, 2, past + 3, {other}, 3, 0}};
    std::vector<float> logits(8 * static_cast<size_t>(program.vocab), 12345);
    REQUIRE(backend.execute({tokens.first(8), positions, spans, rows}, logits));
    return logits;
}

// While `armed`, fails every batch, or every batch of this part of its program.
class FailingBackend final : public ForwardingBackend {
  public:
    FailingBackend(std::unique_ptr<Backend> device, const std::atomic<bool> &armed, int32_t part = -1)
        : ForwardingBackend(std::move(device)), armed_(armed), part_(part) {}
    bool execute(const Batch &batch, std::span<float> logits) override {
        if (armed_ && (part_ < 0 || part_ == batch.part))
            throw BackendError(BackendError::Kind::Failed, "the device is lost");
        return ForwardingBackend::execute(batch, logits);
    }

  private:
    const std::atomic<bool> &armed_;
    const int32_t part_;
};

// While `armed`, cancels every batch that it gets.
class CancellingBackend final : public ForwardingBackend {
  public:
    CancellingBackend(std::unique_ptr<Backend> device, std::atomic<bool> &armed, std::atomic<bool> &cancel)
        : ForwardingBackend(std::move(device)), armed_(armed), cancel_(cancel) {}
    bool execute(const Batch &batch, std::span<float> logits) override {
        if (armed_) cancel_ = true;
        return ForwardingBackend::execute(batch, logits);
    }

  private:
    std::atomic<bool> &armed_, &cancel_;
};

}  // namespace runnel::tests
