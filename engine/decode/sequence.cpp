#include "engine/decode/sequence.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "engine/decode/error.h"

namespace runnel::decode {

void Sequence::append(std::span<const TokenId> tokens) {
    if (tokens.size() > free_cells())
        throw DecodeError(DecodeError::Kind::BadInput,
                          "the text has " + std::to_string(tokens_.size() + tokens.size()) +
                              " tokens, but the context holds " + std::to_string(executor_->context()) +
                              ": shorten it, or choose a larger context with -c");
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void Sequence::truncate(size_t length) {
    assert(length <= tokens_.size());
    if (length < static_cast<size_t>(cache_.length()))
        cache_.truncate(cache_.truncatable(static_cast<int32_t>(length)));
    tokens_.resize(length);
}

void Sequence::replace(size_t from, std::span<const TokenId> tokens, SequenceCache cache) {
    cache_ = std::move(cache);
    tokens_.resize(from);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

size_t Sequence::shift_context(size_t keeping) {
    if (keeping + 2 > tokens_.size()) return 0;
    const size_t dropped = (tokens_.size() - keeping + 1) / 2;
    const std::vector<TokenId> rest(tokens_.begin() + static_cast<std::ptrdiff_t>(keeping + dropped),
                                    tokens_.end());
    truncate(keeping);
    tokens_.insert(tokens_.end(), rest.begin(), rest.end());
    return dropped;
}

size_t Sequence::reuse(std::span<const TokenId> wanted) {
    const size_t most = std::min(tokens_.size(), wanted.empty() ? 0 : wanted.size() - 1);
    const auto end = tokens_.begin() + static_cast<std::ptrdiff_t>(most);
    const size_t common =
        static_cast<size_t>(std::mismatch(tokens_.begin(), end, wanted.begin()).first - tokens_.begin());
    truncate(common);
    executor_->attach(cache_, wanted);
    // tokens_ and the cache both hold a prefix of `wanted`.
    const auto known = static_cast<size_t>(cache_.length());
    tokens_.resize(std::min(tokens_.size(), known));
    tokens_.insert(tokens_.end(), wanted.begin() + static_cast<std::ptrdiff_t>(tokens_.size()),
                   wanted.begin() + static_cast<std::ptrdiff_t>(known));
    return known;
}

Sequence Sequence::fork() const {
    Sequence copy(*executor_);
    copy.cache_ = executor_->fork(cache_);
    copy.tokens_ = tokens_;
    return copy;
}

}  // namespace runnel::decode
