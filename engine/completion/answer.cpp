#include "engine/completion/answer.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace runnel::completion {

Vocabulary vocabulary_of(const text::Tokenizer &tokenizer) {
    return {[&tokenizer](TokenId id) { return id < tokenizer.size() ? tokenizer.decode(id) : std::string(); },
            [&tokenizer](TokenId id) { return id < tokenizer.size() && tokenizer.is_end_of_generation(id); }};
}

std::string_view name(FinishReason reason) {
    switch (reason) {
        case FinishReason::Stop:
            return "stop";
        case FinishReason::Length:
            return "length";
        case FinishReason::Deadline:
            return "deadline";
        case FinishReason::Interrupt:
            return "interrupt";
    }
    return {};
}

Answer::Answer(Vocabulary vocabulary, Limits options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)), matcher_(options_.stops) {}

int64_t Answer::remaining() const {
    if (options_.max_tokens < 0) return std::numeric_limits<int64_t>::max();
    return std::max<int64_t>(0, options_.max_tokens - static_cast<int64_t>(tokens_.size()));
}

bool Answer::is_end(TokenId id) const {
    const auto &ends = options_.end_tokens;
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) return true;
    return !options_.ignore_end && vocabulary_.is_end(id);
}

std::string Answer::take(TokenId id) {
    assert(!over_);
    if (is_end(id)) return end(FinishReason::Stop);
    tokens_.push_back(id);
    const std::string certain = matcher_.push(vocabulary_.text(id));
    bytes_ += certain.size();
    std::string text = characters_.push(certain);
    if (matcher_.stopped()) text += end(FinishReason::Stop);
    return text;
}

std::vector<TokenId> Answer::written() const {
    size_t bytes = 0, count = 0;
    for (; count < tokens_.size(); ++count) {
        bytes += vocabulary_.text(tokens_[count]).size();
        if (bytes > bytes_) break;
    }
    return {tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::string Answer::end(FinishReason reason, std::string_view ending) {
    assert(!over_);
    over_ = true;
    reason_ = reason;
    const std::string held = matcher_.flush();
    bytes_ += held.size();
    std::string rest = characters_.push(held + std::string(ending));
    rest += characters_.flush();
    return rest;
}

}  // namespace runnel::completion
