// Drafts from the text so far: if its end has occurred before, what followed then may follow again. Needs no
// second model; useful if a text is edited, quoted, summarized, or repeats itself.
//
// Two kinds of guesses compete, by how often each was right so far in this text:
// - suffix: what followed the longest suffix that occurred before (suffix_index.h); the longer, the more
//   probable. (Prompt lookup: Saxena 2023; with a suffix automaton: Hu et al. 2024, "SAM decoding".)
// - trail: after such a match broke off, the old text may continue after a replaced, inserted or deleted
// part.
//   A copy with changes is thus resumed after a token or two, before any suffix is long enough, and at the
//   right place among lines that are all alike.
// The losing guess becomes a branch if it differs; if not, another continuation of an earlier suffix does.
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
    // The first call takes some 0.3 us per token of the text, later calls that much per new token. A text
    // that does not extend the previous one (only its last tokens are compared) is indexed from scratch.
    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                Sampler &sampler) override;
    // draft() without the sampler, which is not used.
    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability);
    std::string_view name() const override { return "lookup"; }

  private:
    // How often the token after a match of `matched` tokens was right.
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
    // A match that broke off, and the place in the old text from which the new text may continue.
    struct Trail {
        int32_t broke;        // index of the old token that did not come
        int32_t limit;        // length of the text when the match broke off
        int32_t since;        // new tokens since then
        int32_t at;           // index of the old token that is expected next
        int32_t matched = 0;  // tokens in a row that came as expected
    };
    struct Guess {
        int32_t at;  // index in the text of the token that is expected next
        int32_t matched;
        bool trail;
        double probability;
    };

    void follow(std::span<const TokenId> text);
    void take(TokenId token);
    // The guesses of the suffix and of the trail, the better one, and the one for a branch.
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
