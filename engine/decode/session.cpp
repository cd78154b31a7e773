#include "engine/decode/session.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "engine/decode/error.h"

namespace runnel::decode {

bool Session::feed(std::span<const TokenId> tokens, const StopRequest *stop) {
    if (tokens.size() > room())
        throw DecodeError(DecodeError::Kind::BadInput,
                          "the text has " + std::to_string(tokens_.size() + tokens.size()) +
                              " tokens, but the context holds " + std::to_string(executor_->context()) +
                              ": shorten it, or choose a larger context with -c");
    const size_t chunk = static_cast<size_t>(executor_->batch_size());
    while (!tokens.empty()) {
        const auto part = tokens.first(std::min(chunk, tokens.size()));
        const bool last = part.size() == tokens.size();
        has_logits_ = false;
        const StepInput input{&cache_, part, last ? 1 : 0};
        if ((stop && stop->requested()) ||
            !executor_->step({&input, 1}, logits_, stop ? stop->flag() : nullptr))
            return false;
        tokens_.insert(tokens_.end(), part.begin(), part.end());
        has_logits_ = last;
        tokens = tokens.subspan(part.size());
    }
    return true;
}

void Session::truncate(size_t length) {
    assert(length <= tokens_.size());
    if (length == tokens_.size()) return;
    cache_.truncate(static_cast<int32_t>(length));
    tokens_.resize(length);
    has_logits_ = false;
}

size_t Session::reuse(std::span<const TokenId> wanted) {
    const size_t most = std::min(tokens_.size(), wanted.empty() ? 0 : wanted.size() - 1);
    const auto end = tokens_.begin() + static_cast<std::ptrdiff_t>(most);
    const size_t common =
        static_cast<size_t>(std::mismatch(tokens_.begin(), end, wanted.begin()).first - tokens_.begin());
    truncate(common);
    return common;
}

}  // namespace runnel::decode
