#include "engine/decode/speculation/lookup_draft.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace runnel::decode {
namespace {

constexpr int32_t kLeastMatch = 2;    // a match of one token predicts nothing
constexpr int32_t kTrustedMatch = 4;  // a wrong guess after such a match starts a trail: the text was changed
constexpr int32_t kSureMatch = 8;     // a suffix match of this length ends the trail
constexpr int32_t kLongestChange = 32;
constexpr size_t kCompared = 256;  // last tokens that tell whether a text goes on
constexpr size_t kJudged = 64;     // more new tokens than that are a prompt, which says nothing about answers
constexpr double kLookupPrior = 4;

}  // namespace

size_t LookupDraft::Credit::bin(int32_t matched) {
    constexpr std::array<int32_t, 11> kBounds{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64};
    return static_cast<size_t>(std::ranges::upper_bound(kBounds, matched) - kBounds.begin());
}

double LookupDraft::Credit::of(int32_t matched) const {
    return rates_[bin(matched)].value((matched + 1) / (matched + 1 + doubt_), kLookupPrior);
}

void LookupDraft::Credit::add(int32_t matched, bool right) {
    rates_[bin(matched)].add(right);
}

std::optional<LookupDraft::Guess> LookupDraft::suffix_guess() const {
    const SuffixIndex::Match match = index_.match();
    if (match.length < kLeastMatch) return std::nullopt;
    return Guess{match.end, match.length, false, suffixes_.of(match.length)};
}

std::optional<LookupDraft::Guess> LookupDraft::trail_guess() const {
    if (!trail_ || trail_->at >= trail_->limit) return std::nullopt;
    return Guess{trail_->at, trail_->matched, true, trails_.of(trail_->matched)};
}

std::optional<LookupDraft::Guess> LookupDraft::guess() const {
    const std::optional<Guess> suffix = suffix_guess(), trail = trail_guess();
    if (!suffix || !trail) return suffix ? suffix : trail;
    return trail->probability > suffix->probability ? trail : suffix;
}

std::optional<LookupDraft::Guess> LookupDraft::other_guess(const Guess &best) const {
    const std::optional<Guess> loser = best.trail ? suffix_guess() : trail_guess();
    if (loser && loser->at != best.at && at(loser->at) != at(best.at)) return loser;
    const SuffixIndex::Match match = index_.match_without(at(best.at));
    if (match.length < kLeastMatch) return std::nullopt;
    return Guess{match.end, match.length, false, suffixes_.of(match.length)};
}

// Counts whether the guesses for `token` were right, and begins or ends a trail accordingly.
void LookupDraft::judge(TokenId token) {
    const SuffixIndex::Match match = index_.match();
    if (match.length >= kLeastMatch) suffixes_.add(match.length, at(match.end) == token);
    if (trail_ && trail_->at < trail_->limit) trails_.add(trail_->matched, at(trail_->at) == token);
    const std::optional<Guess> best = guess();
    if (best && best->matched >= kTrustedMatch && at(best->at) != token)
        trail_ =
            Trail{.broke = best->at, .limit = static_cast<int32_t>(text_.size()), .since = 0, .at = best->at};
    else if (best && !best->trail && best->matched >= kSureMatch)
        trail_.reset();
}

// Advances the trail by the newest token, which is in the text already.
void LookupDraft::pursue(TokenId token) {
    Trail &trail = *trail_;
    ++trail.since;
    if (trail.matched > 0 || trail.since > 1) {
        if (trail.at < trail.limit && at(trail.at) == token) {
            ++trail.at;
            ++trail.matched;
            return;
        }
        if (trail.matched >= kTrustedMatch) {
            trail.broke = trail.at;
            trail.since = 1;
        }
    }
    trail.matched = 0;
    find_again();
    if (trail.since > kLongestChange) trail_.reset();
}

// Looks for the newest token in the old text, from the break on: preferably after the same token as in the
// new text, and as near as possible to where it would be if tokens had been replaced one by one.
void LookupDraft::find_again() {
    Trail &trail = *trail_;
    const auto newest = static_cast<int32_t>(text_.size()) - 1;
    const int32_t replaced = trail.broke + trail.since - 1;
    const int32_t end = std::min(trail.limit, replaced + kLongestChange / 2);
    int32_t best = -1;
    bool best_pair = false;
    for (int32_t i = trail.broke; i < end; ++i) {
        if (at(i) != at(newest)) continue;
        const bool pair = trail.since > 1 && i > 0 && at(i - 1) == at(newest - 1);
        if (best >= 0 && pair == best_pair && std::abs(i - replaced) >= std::abs(best - replaced)) continue;
        if (best_pair && !pair) continue;
        best = i;
        best_pair = pair;
    }
    trail.matched = best < 0 ? 0 : best_pair ? 2 : 1;
    trail.at = best < 0 ? replaced + 1 : best + 1;
}

void LookupDraft::take(TokenId token) {
    index_.append(token);
    text_.push_back(token);
}

void LookupDraft::follow(std::span<const TokenId> text) {
    const size_t known = text_.size(), compared = std::min(known, kCompared);
    if (text.size() < known || !std::equal(text_.end() - static_cast<std::ptrdiff_t>(compared), text_.end(),
                                           text.begin() + static_cast<std::ptrdiff_t>(known - compared))) {
        index_ = SuffixIndex();
        text_.clear();
    }
    text = text.subspan(text_.size());
    if (text_.empty() || text.size() > kJudged) {
        trail_.reset();
        for (const TokenId token : text) take(token);
        return;
    }
    for (const TokenId token : text) {
        judge(token);
        take(token);
        if (trail_) pursue(token);
    }
}

// The i-th token of the guess. A guess that reaches the end of the text continues with the tokens that were
// drafted.
TokenId LookupDraft::token(const Guess &guess, std::span<const TokenId> drafted, int32_t i) const {
    const auto from = static_cast<size_t>(guess.at + i);
    return from < text_.size() ? text_[from] : drafted[from - text_.size()];
}

float LookupDraft::probability(const Guess &guess, int32_t i) const {
    return static_cast<float>((guess.trail ? trails_ : suffixes_).of(guess.matched + i));
}

void LookupDraft::add_branch(Draft &draft, const Guess &best, int32_t most, float least_probability) const {
    const std::optional<Guess> other = other_guess(best);
    if (!other || draft.tokens.empty()) return;
    Branch branch;
    for (int32_t i = 0; i < most && probability(*other, i) >= least_probability; ++i) {
        branch.tokens.push_back(token(*other, branch.tokens, i));
        branch.probabilities.push_back(probability(*other, i));
    }
    if (!branch.tokens.empty()) draft.branches.push_back(std::move(branch));
}

Draft LookupDraft::draft(std::span<const TokenId> text, int32_t most, float least_probability) {
    follow(text);
    Draft draft;
    const std::optional<Guess> best = guess();
    if (!best) return draft;
    for (int32_t i = 0; i < most && probability(*best, i) >= least_probability; ++i) {
        draft.tokens.push_back(token(*best, draft.tokens, i));
        draft.probabilities.push_back(probability(*best, i));
    }
    add_branch(draft, *best, most, least_probability);
    return draft;
}

Draft LookupDraft::draft(std::span<const TokenId> text, int32_t most, float least_probability, Sampler &) {
    return draft(text, most, least_probability);
}

}  // namespace runnel::decode
