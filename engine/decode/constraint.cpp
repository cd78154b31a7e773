#include "engine/decode/constraint.h"

#include <algorithm>
#include <cassert>

#include "engine/decode/error.h"

namespace runnel::decode {
namespace {

// Rethrows GrammarLimit as DecodeError.
template <class F>
decltype(auto) guarded(F f) {
    try {
        return f();
    } catch (const grammar::GrammarLimit &error) {
        throw DecodeError(DecodeError::Kind::Failed, error.what());
    }
}

}  // namespace

Constraint::Constraint(std::shared_ptr<grammar::Masks> masks, std::optional<FreeText> free)
    : masks_(std::move(masks)) {
    if (free) free_ = std::make_shared<const FreeText>(std::move(*free));
    begin(0);
}

Constraint::Constraint(std::shared_ptr<Bans> bans) : bans_(std::move(bans)) {
    begin(0);
}

void Constraint::begin(size_t prompt_tokens) {
    begin_ = static_cast<int64_t>(prompt_tokens);
    kept_ = 0;
    tokens_.clear();
    const bool inside = free_ && free_->open == text::kNoToken;
    constexpr grammar::StateId kAnyText = 1;  // stands for "no grammar": any value but kDead
    states_.assign(1, {masks_ ? masks_->start() : kAnyText, inside ? 0 : free_ ? kBefore : kBehind});
}

// Reuses the states of tokens that have not changed. Only the newest 256 tokens are compared: drafts, which
// may be rejected, are shorter than that.
Constraint::State Constraint::state_of(std::span<const TokenId> history) {
    constexpr size_t kNewest = 256;
    const auto length =
        static_cast<size_t>(std::max<int64_t>(0, static_cast<int64_t>(history.size()) - begin_));
    const auto at = [&](size_t i) { return history[static_cast<size_t>(begin_ + static_cast<int64_t>(i))]; };
    size_t known = std::min(length, tokens_.size());
    for (size_t i = known > kNewest ? known - kNewest : 0; i < known; ++i)
        if (begin_ + static_cast<int64_t>(i) >= kept_ && tokens_[i] != at(i)) known = i;
    tokens_.resize(known);
    states_.resize(known + 1);
    for (size_t i = known; i < length; ++i) {
        states_.push_back(guarded([&] { return advance(states_.back(), at(i)); }));
        // A banned text that was forced (at the end of reasoning) does not forbid what follows.
        if (states_.back().ban == Bans::kMatched) states_.back().ban = Bans::kStart;
        tokens_.push_back(at(i));
    }
    return states_.back();
}

Constraint::State Constraint::advance(State state, TokenId token) {
    State next = masks_ ? advance_grammar(state, token) : state;
    if (bans_) next.ban = bans_->advance(state.ban, token);
    return next;
}

Constraint::State Constraint::advance_grammar(State state, TokenId token) {
    if (state.matched == kBefore && token == free_->open) return {state.grammar, 0};
    if (state.matched < 0) return {masks_->advance(state.grammar, token), kBehind};
    if (masks_->index().is_end(token)) return free_->may_end ? state : State{grammar::kDead, kBehind};
    const std::string bytes = free_->text(token);
    const std::string &close = free_->close;
    for (size_t i = 0; i < bytes.size(); ++i) {
        // The longest prefix of `close` that the text ends with (`close` is short).
        std::string tail = close.substr(0, static_cast<size_t>(state.matched)) + bytes[i];
        while (!tail.empty() && !close.starts_with(tail)) tail.erase(0, 1);
        state.matched = static_cast<int32_t>(tail.size());
        if (tail.size() < close.size()) continue;
        const std::string_view rest = std::string_view(bytes).substr(i + 1);
        return {masks_->machine().advance(masks_->start(), rest), kBehind};
    }
    return state;
}

// All tokens except end tokens, and tokens that continue after FreeText::close with text that the grammar
// refuses.
const grammar::Bits &Constraint::free_mask(State state) {
    const grammar::TokenIndex &index = masks_->index();
    if (anything_.empty()) {
        anything_.resize((static_cast<size_t>(index.rows()) + 63) / 64);
        for (TokenId id = 0; id < index.rows(); ++id) {
            if (!index.is_sampleable(id) || (index.is_end(id) && !free_->may_end)) continue;
            grammar::set_bit(anything_, id);
            const std::string text = free_->text(id);
            if (text.find(free_->close) != std::string::npos)
                over_mark_.insert(over_mark_.begin(), id);
            else if (text.find(free_->close.back()) != std::string::npos)
                over_mark_.push_back(id);
        }
        // Order: tokens with all of `close`, kNoToken as a separator, tokens with the end of `close`.
        const auto whole = std::ranges::find_if(
            over_mark_, [&](TokenId id) { return free_->text(id).find(free_->close) == std::string::npos; });
        over_mark_.insert(whole, text::kNoToken);
    }
    mask_ = anything_;
    for (const TokenId id : over_mark_) {
        if (id == text::kNoToken && state.matched == 0) break;
        if (id == text::kNoToken) continue;
        const State next = advance_grammar(state, id);
        if (next.matched < 0 && next.grammar == grammar::kDead) grammar::clear_bit(mask_, id);
    }
    return mask_;
}

const grammar::Bits &Constraint::mask_of(State state) {
    if (!masks_) {
        if (anything_.empty()) anything_.assign((static_cast<size_t>(bans_->rows()) + 63) / 64, ~uint64_t{0});
        return anything_;
    }
    if (state.matched >= 0) return free_mask(state);
    const grammar::Bits &mask = masks_->mask(state.grammar);
    if (state.matched != kBefore) return mask;
    mask_ = mask;
    grammar::set_bit(mask_, free_->open);
    return mask_;
}

const grammar::Bits &Constraint::mask(std::span<const TokenId> history) {
    const State state = state_of(history);
    return guarded([&]() -> const grammar::Bits & {
        const grammar::Bits &mask = mask_of(state);
        if (!bans_) return mask;
        if (&mask != &mask_) mask_ = mask;
        const grammar::Bits &forbidden = bans_->forbidden(state.ban);
        for (size_t i = 0; i < std::min(mask_.size(), forbidden.size()); ++i) mask_[i] &= ~forbidden[i];
        return mask_;
    });
}

const grammar::Bits *Constraint::grammar_mask(std::span<const TokenId> history) {
    return masks_ && state_of(history).matched < 0 ? &mask(history) : nullptr;
}

bool Constraint::allows(std::span<const TokenId> history, TokenId token) {
    const State state = state_of(history);
    return guarded([&] { return !is_dead(advance(state, token)); });
}

size_t Constraint::allowed(std::span<const TokenId> history, std::span<const TokenId> guesses) {
    State state = state_of(history);
    for (size_t i = 0; i < guesses.size(); ++i) {
        state = guarded([&] { return advance(state, guesses[i]); });
        if (is_dead(state)) return i;
        if (masks_ && masks_->index().is_end(guesses[i])) return i + 1;
    }
    return guesses.size();
}

std::string Constraint::forced(std::span<const TokenId> history, size_t most) {
    const State state = state_of(history);
    if (!masks_ || state.matched >= 0) return {};
    return guarded([&] { return masks_->forced(state.grammar, most); });
}

bool Constraint::complete(std::span<const TokenId> answer) const {
    if (!masks_) return true;
    Constraint own = *this;
    own.begin(0);
    const State state = own.state_of(answer);
    if (state.matched >= 0) return free_->may_end;
    return state.grammar != grammar::kDead && masks_->accepts(state.grammar);
}

std::string Constraint::ending(std::span<const TokenId> answer) const {
    if (!masks_) return {};
    Constraint own = *this;
    own.begin(0);
    const State state = own.state_of(answer);
    if (state.matched >= 0 || state.grammar == grammar::kDead || masks_->accepts(state.grammar)) return {};
    try {
        const std::string end = masks_->machine().shortest_end(state.grammar).value_or("");
        return bans_ && bans_->advance(state.ban, end) == Bans::kMatched ? "" : end;
    } catch (const grammar::GrammarLimit &) {  // the search goes deeper than the grammar's limits
        return {};
    }
}

}  // namespace runnel::decode
