// A draft source with a given acceptance rate, for measurements and tests of speculative decoding.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/decode/speculation/draft_source.h"

namespace runnel::measure {

using decode::Draft, decode::DraftSource, decode::Sampler;
using text::TokenId;

// A draft source with a given acceptance rate. Knows the target text. Each token is wrong with probability 1
// - acceptance, independently; the errors depend only on the seed and the position. Reports probability 1 for
// every token. With `second`, every token has a branch of one token: if the token is wrong, the branch is
// right with probability `second`; otherwise it is wrong. Drafting takes almost no time.
class SyntheticDraft final : public DraftSource {
  public:
    // `truth`: the whole target text, prompt included. `vocab` > 2: all tokens are below it.
    SyntheticDraft(std::vector<TokenId> truth, double acceptance, uint64_t seed, int32_t vocab,
                   std::optional<double> second = std::nullopt)
        : truth_(std::move(truth)), acceptance_(acceptance), seed_(seed), vocab_(vocab), second_(second) {}

    // Empty if the last token of `text` differs from the known text.
    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                Sampler &sampler) override;
    std::string_view name() const override { return "synthetic"; }

  private:
    std::vector<TokenId> truth_;
    double acceptance_;
    uint64_t seed_;
    int32_t vocab_;
    std::optional<double> second_;
};

}  // namespace runnel::measure
