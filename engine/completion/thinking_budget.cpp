#include "engine/completion/thinking_budget.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/text/utf8.h"

namespace runnel::completion {
namespace {

using StyleKind = text::ReasoningStyle::Kind;
using text::harmony::kChannel, text::harmony::kEnd, text::harmony::kMessage;

constexpr std::string_view kSpace = " \t\r\n";
constexpr size_t kLongestMark = 32;

bool within_character(std::string_view text) {
    for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n)
        if (text::first_char(text.substr(text.size() - n)).cut_off) return true;
    return false;
}

bool contains(std::string_view text, std::string_view mark) {
    return !mark.empty() && text.find(mark) != text.npos;
}

// Removes the text up to the end of a mark; false when the mark is not there.
bool skip_past(std::string &text, std::string_view mark) {
    const size_t at = text.find(mark);
    if (at == std::string::npos) return false;
    text.erase(0, at + mark.size());
    return true;
}

}  // namespace

std::vector<TokenId> ThinkingBudget::closing_tokens(const text::ReasoningStyle &style,
                                                    const text::Tokenizer &tokenizer) {
    using namespace text::harmony;
    const std::string next = std::string(kEnd).append(kStart).append("assistant").append(kFinal);
    return tokenizer.encode(style.kind == StyleKind::Harmony ? next : style.close,
                            {.add_special = false, .parse_special = true, .continues = true});
}

ThinkingBudget::ThinkingBudget(text::ReasoningStyle style, bool begins_inside, int64_t most,
                               std::vector<TokenId> closing, std::function<std::string(TokenId)> text,
                               int64_t prompt_tokens)
    : style_(std::move(style)),
      most_(most),
      closing_(std::move(closing)),
      text_(std::move(text)),
      begin_(prompt_tokens),
      states_(1, {begins_inside ? Phase::Inside : Phase::Start}) {
    if (style_.kind == StyleKind::None) states_[0].phase = Phase::Answer;
}

std::optional<TokenId> ThinkingBudget::operator()(std::span<const TokenId> history, int64_t dropped) {
    constexpr int64_t kNewest = 256;  // only these may change: rejected drafts are no older
    const int64_t begin = begin_ - dropped;
    const auto length = std::max<int64_t>(0, static_cast<int64_t>(history.size()) - begin);
    const auto at = [&](int64_t i) { return history[static_cast<size_t>(begin + i)]; };
    auto known = std::min(length, static_cast<int64_t>(tokens_.size()));
    for (int64_t i = std::max({int64_t{0}, -begin, known - kNewest}); i < known; ++i)
        if (tokens_[static_cast<size_t>(i)] != at(i)) known = i;
    tokens_.resize(static_cast<size_t>(known));
    states_.resize(static_cast<size_t>(known) + 1);
    for (int64_t i = known; i < length; ++i) {
        State next = states_.back();
        advance(next, at(i));
        states_.push_back(std::move(next));
        tokens_.push_back(at(i));
    }
    return forced(states_.back());
}

std::optional<TokenId> ThinkingBudget::forced(const State &state) const {
    if (state.phase != Phase::Inside || closing_.empty()) return std::nullopt;
    if (state.closed > 0) return closing_[state.closed];
    if (state.count < most_ || within_character(state.tail)) return std::nullopt;
    return closing_[0];
}

void ThinkingBudget::advance(State &state, TokenId token) const {
    if (state.phase == Phase::Answer) return;
    if (forced(state) == token) {
        if (++state.closed == closing_.size()) state = {Phase::Answer, state.count};
        return;
    }
    state.closed = 0;
    if (state.phase == Phase::Inside) ++state.count;
    read(state, text_(token));
}

void ThinkingBudget::read(State &state, std::string_view bytes) const {
    state.tail += bytes;
    if (state.phase == Phase::Start) {
        const std::string_view mark =
            style_.kind == StyleKind::Harmony ? kChannel : std::string_view(style_.open);
        state.tail.erase(0, std::min(state.tail.find_first_not_of(kSpace), state.tail.size()));
        if (state.tail.size() < mark.size() && mark.starts_with(state.tail)) return;
        const bool opens = state.tail.starts_with(mark);
        state.phase = !opens                              ? Phase::Answer
                      : style_.kind == StyleKind::Harmony ? Phase::Header
                                                          : Phase::Inside;
        state.tail.erase(0, mark.size());
    }
    if (style_.kind == StyleKind::Harmony)
        read_channels(state);
    else if (state.phase == Phase::Inside &&
             (contains(state.tail, style_.close) || contains(state.tail, style_.call)))
        state.phase = Phase::Answer;
    if (state.phase == Phase::Answer) state.tail.clear();
    const size_t longest = std::max({kLongestMark, style_.close.size(), style_.call.size()});
    if (state.phase != Phase::Header && state.tail.size() > longest)
        state.tail.erase(0, state.tail.size() - longest);
}

void ThinkingBudget::read_channels(State &state) const {
    constexpr size_t kLongestHeader = 1000;
    while (state.phase != Phase::Answer) {
        if (state.phase != Phase::Header) {
            if (!skip_past(state.tail, kEnd)) return;
            state.phase = Phase::Header;
        }
        const size_t end = state.tail.find(kMessage);
        if (end == std::string::npos && state.tail.size() > kLongestHeader) state.phase = Phase::Answer;
        if (end == std::string::npos) return;
        std::string_view channel = std::string_view(state.tail).substr(0, end);
        if (const size_t at = channel.rfind(kChannel); at != channel.npos)
            channel.remove_prefix(at + kChannel.size());
        state.phase = channel.starts_with("analysis") ? Phase::Inside
                      : channel.starts_with("final")  ? Phase::Answer
                                                      : Phase::Other;
        state.tail.erase(0, end + kMessage.size());
    }
}

}  // namespace runnel::completion
