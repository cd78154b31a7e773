// Drafts from the text so far: when its end has been seen before, what came then may come again. Needs no
// second model; pays where a text is edited, quoted, summarized, or repeats itself.
//
// Two guesses compete by how often their like was right so far in this text:
// - what followed the longest suffix that was seen before (suffix_index.h), the more credible the longer it
//   is. (Prompt lookup: Saxena 2023; with a suffix automaton: Hu et al. 2024, "SAM decoding".)
// - where such a match broke off: the old text goes on behind what was replaced, put in or left out there.
//   A copy with changes is thus taken up again after a token or two, before a suffix is long enough to be
//   unmistakable, and at the right place among lines that are all alike.
// The one that loses is a branch, if it differs; if not, what else followed a suffix that was seen before.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/decode/speculation/acceptance.h"
#include "engine/decode/speculation/draft_source.h"
#include "engine/decode/speculation/suffix_index.h"

namespace runnel::decode {

class LookupDraft final : public DraftSource {
  public:
    // The first call takes some 0.3 us per token of the text, others that much per new token. A text that
    // does not begin as the last one (as its last tokens show) is indexed again as a whole.
    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                Sampler &sampler) override;
    // The same, of which no sampler is needed.
    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability);
    std::string_view name() const override { return "lookup"; }

  private:
    // How often the tokens behind a match of so many tokens were right.
    class Credit {
      public:
        explicit Credit(double doubt) : doubt_(doubt) {}
        double of(int32_t matched) const;
        void add(int32_t matched, bool right);

      private:
        static size_t bin(int32_t matched);
        double doubt_;
        std::array<SuccessRate, 12> rates_;
    };
    // Goes on in the old text where a match broke off.
    struct Trail {
        int32_t broke;        // the token of the old text that did not come
        int32_t limit;        // where the old text ended then
        int32_t since;        // tokens that came from there on
        int32_t at;           // the old token that is expected next,
        int32_t matched = 0;  // after so many that came as expected
    };
    struct Guess {
        int32_t at;  // the next token is that of the text there
        int32_t matched;
        bool trail;
        double probability;
    };

    void follow(std::span<const TokenId> text);
    void take(TokenId token);
    // What followed the longest suffix, and what the trail expects.
    std::optional<Guess> suffix_guess() const;
    std::optional<Guess> trail_guess() const;
    std::optional<Guess> guess() const;
    std::optional<Guess> other_guess(const Guess &best) const;
    TokenId token(const Guess &guess, std::span<const TokenId> drafted, int32_t i) const;
    float probability(const Guess &guess, int32_t i) const;
    void add_branch(Draft &draft, const Guess &best, int32_t most, float least_probability) const;
    void judge(TokenId token);
    void pursue(TokenId token);
    void find_again();
    TokenId at(int32_t index) const { return text_[static_cast<size_t>(index)]; }

    SuffixIndex index_;
    std::vector<TokenId> text_;
    std::optional<Trail> trail_;
    Credit suffixes_{3}, trails_{2};
};

}  // namespace runnel::decode
