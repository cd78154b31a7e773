// A source of drafts whose acceptance is set by hand: for measurements and tests of everything behind it.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/decode/speculation/draft_source.h"

namespace runnel::decode {

// Is told what the model will say, and says so, except that each token is wrong with probability
// 1 - acceptance. The errors depend on the seed and on where the token stands only, not on the lengths of
// drafts, and a draft is wrong from its first error on. Its tokens cost nothing. Is sure of every token. With
// second choices, every token has a branch of one token, which is right with probability `second` where the
// first choice is wrong.
class SyntheticDraft final : public DraftSource {
  public:
    // `truth`: the whole text, the prompt included. `vocab` > 2: tokens are below.
    SyntheticDraft(std::vector<TokenId> truth, double acceptance, uint64_t seed, int32_t vocab,
                   std::optional<double> second = std::nullopt)
        : truth_(std::move(truth)), acceptance_(acceptance), seed_(seed), vocab_(vocab), second_(second) {}

    // None when `text` (by its last token) is not what it was told.
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

}  // namespace runnel::decode
