#include "engine/decode/bans.h"

#include <utility>

#include "engine/decode/error.h"

namespace runnel::decode {

TokenTexts::TokenTexts(const std::function<std::string(TokenId)> &text, int32_t rows) : offsets_{0} {
    for (TokenId id = 0; id < rows; ++id) {
        bytes_ += text(id);
        offsets_.push_back(bytes_.size());
    }
}

Bans::Bans(std::vector<std::string> texts, std::shared_ptr<const TokenTexts> tokens)
    : texts_(std::move(texts)), tokens_(std::move(tokens)) {
    size_t bytes = 0;
    for (const std::string &text : texts_) {
        if (text.empty()) throw DecodeError(DecodeError::Kind::BadInput, "a banned text is empty");
        bytes += text.size();
    }
    if (bytes > kMostBytes)
        throw DecodeError(DecodeError::Kind::BadInput, "the banned texts have " + std::to_string(bytes) +
                                                           " bytes together: at most " +
                                                           std::to_string(kMostBytes) + " are supported");
    next_.emplace_back().fill(kStart);
    for (const std::string &text : texts_) {
        State at = kStart;
        for (size_t i = 0; i < text.size() && at != kMatched; ++i) {
            const auto byte = static_cast<uint8_t>(text[i]);
            if (i + 1 == text.size()) {
                next_[at][byte] = kMatched;
            } else if (next_[at][byte] == kStart) {
                const auto added = static_cast<State>(next_.size());
                next_.emplace_back().fill(kStart);
                next_[at][byte] = added;
            }
            at = next_[at][byte];
        }
    }
    // Fill in failure transitions: where no text continues, continue from the longest suffix that begins a
    // text. Breadth-first, because a state needs the transitions of shorter suffixes.
    std::vector<State> suffix(next_.size(), kStart), order{kStart};
    for (size_t i = 0; i < order.size(); ++i) {
        const State at = order[i];
        for (size_t byte = 0; byte < 256; ++byte) {
            const State child = next_[at][byte], other = at == kStart ? kStart : next_[suffix[at]][byte];
            if (child == kMatched) continue;
            if (child == kStart || other == kMatched) {
                next_[at][byte] = other;
            } else {
                suffix[child] = other;
                order.push_back(child);
            }
        }
    }
}

Bans::State Bans::advance(State state, std::string_view bytes) const {
    for (size_t i = 0; i < bytes.size() && state != kMatched; ++i)
        state = next_[state][static_cast<uint8_t>(bytes[i])];
    return state;
}

const grammar::Bits &Bans::forbidden(State state) {
    constexpr size_t kMostKept = 64;  // bit sets; one takes 32 KB for 262,144 tokens
    if (forbidden_.size() > kMostKept) forbidden_.clear();
    const auto [found, added] = forbidden_.try_emplace(state);
    if (added) {
        found->second.resize((static_cast<size_t>(rows()) + 63) / 64);
        for (TokenId id = 0; id < rows(); ++id)
            if (advance(state, id) == kMatched) grammar::set_bit(found->second, id);
    }
    return found->second;
}

}  // namespace runnel::decode
