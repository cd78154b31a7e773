// Backends that keep the hidden states of all tokens.
#include "engine/decode/hidden_states.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/support/random.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::decode;
using namespace runnel::testing;
using kernels::Backend, kernels::Batch, kernels::BlockId, kernels::SequenceSpan, kernels::TopLogit;
using runnel::tests::TinyProgram;

namespace {

constexpr int32_t kVocab = 130, kSequences = 3, kBlocksEach = 3, kMaxTokens = 48;

// Sequences that grow in random batches.
class Batches {
  public:
    explicit Batches(Random &random) : random_(random) {
        for (size_t s = 0; s < kSequences; ++s) {
            tables_[s].resize(kBlocksEach);
            std::iota(tables_[s].begin(), tables_[s].end(), static_cast<BlockId>(s * kBlocksEach));
        }
    }

    // Between 0 and 20 tokens of each sequence, at least one in all; logits of a random part of the tokens.
    Batch next() {
        tokens_.clear(), positions_.clear(), spans_.clear(), rows_.clear();
        for (size_t s = 0; s < kSequences; ++s) {
            const auto room = static_cast<uint64_t>(kBlocksEach * kernels::kBlockTokens - past_[s]);
            const uint64_t most = random_.below(2) == 0 ? 2 : 16;
            const auto count = static_cast<int32_t>(random_.below(std::min(most, room) + 1));
            if (count == 0) continue;
            spans_.push_back({static_cast<int32_t>(tokens_.size()), count, past_[s], {tables_[s]}});
            for (int32_t i = 0; i < count; ++i) {
                tokens_.push_back(static_cast<int32_t>(random_.below(kVocab)));
                positions_.push_back(past_[s]++);
            }
        }
        if (tokens_.empty()) return {};
        const uint64_t keep = random_.below(4);
        for (size_t i = 0; i < tokens_.size(); ++i)
            if (random_.below(3) < keep) rows_.push_back(static_cast<int32_t>(i));
        return {tokens_, positions_, spans_, rows_};
    }

  private:
    Random &random_;
    std::vector<BlockId> tables_[kSequences];
    int32_t past_[kSequences] = {};
    std::vector<int32_t> tokens_, positions_, rows_;
    std::vector<SequenceSpan> spans_;
};

std::vector<float> logits_of(Backend &backend, const Batch &batch) {
    std::vector<float> logits(batch.logit_rows.size() * kVocab);
    REQUIRE(backend.execute(batch, logits));
    return logits;
}

struct Selected {
    std::vector<TopLogit> largest;
    std::vector<kernels::ExpSum> sums;
    std::vector<float> whole;  // the last row
};

Selected selected_of(Backend &backend, const Batch &batch, int32_t count) {
    const size_t rows = batch.logit_rows.size();
    Selected selected{std::vector<TopLogit>(rows * static_cast<size_t>(count)),
                      std::vector<kernels::ExpSum>(rows), std::vector<float>(rows > 0 ? kVocab : 0)};
    REQUIRE(backend.execute(batch, count, selected.largest, selected.sums));
    if (rows > 0) backend.read_logits(static_cast<int32_t>(rows) - 1, selected.whole);
    return selected;
}

template <class T>
bool same_bits(const std::vector<T> &a, const std::vector<T> &b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

void check(std::unique_ptr<Backend> (*make)(), uint64_t seed) {
    CAPTURE(seed);
    const TinyProgram tiny({.width = 32,
                            .feed_forward = 32,
                            .vocab = kVocab,
                            .type = seed % 2 == 0 ? gguf::Type::F32 : gguf::Type::Q8_0},
                           5);
    const kernels::CacheConfig cache{{kSequences * kBlocksEach}};
    const auto states = std::make_shared<HiddenStates>();
    const kernels::Program program = tiny.program();
    const kernels::Slot last = std::get<kernels::Logits>(program.steps.back()).in;
    const kernels::SlotInfo &state = program.slots[static_cast<size_t>(last)];
    const std::unique_ptr<Backend> plain = make(), keeping = keep_hidden_states(make(), states, state);
    plain->load(tiny.program(), cache, kMaxTokens);
    keeping->load(tiny.program(), cache, kMaxTokens);
    CHECK(states->blocks() == kSequences * kBlocksEach);
    Random random(seed);
    Batches batches(random);
    size_t rows = 0;
    for (int round = 0; round < 12; ++round) {
        CAPTURE(round);
        const Batch batch = batches.next();
        if (batch.tokens.empty()) continue;
        rows += batch.logit_rows.size();
        const auto most = static_cast<uint64_t>(plain->most_candidates());
        if (most > 0 && random.below(2) == 0) {
            const auto count = static_cast<int32_t>(1 + random.below(std::min<uint64_t>(most, 20)));
            const Selected a = selected_of(*keeping, batch, count), b = selected_of(*plain, batch, count);
            CHECK(same_bits(a.largest, b.largest));
            if (count > 1) CHECK(a.sums == b.sums);
            CHECK(same_bits(a.whole, b.whole));
        } else {
            CHECK(same_bits(logits_of(*keeping, batch), logits_of(*plain, batch)));
        }
    }
    CHECK(rows > 0);
}

}  // namespace

TEST_CASE("hidden states: keeping them changes no bit of the logits, on the CPU and the (emulated) GPU") {
    for (uint64_t seed = 0; seed < 6; ++seed) {
        check([] { return kernels::cpu::make_cpu_backend(2); }, seed);
        check([] { return kernels::cuda::make_cuda_backend(0); }, seed);
    }
}
