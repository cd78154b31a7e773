#include "engine/decode/session.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "engine/decode/error.h"
#include "engine/decode/scheduler.h"

namespace runnel::decode {

void Session::append(std::span<const TokenId> tokens, int32_t rows) {
    assert(!due_ && rows >= 1 && static_cast<size_t>(rows) <= tokens.size());
    assert(rows <= executor_->batch_size());
    if (tokens.size() > room())
        throw DecodeError(DecodeError::Kind::BadInput,
                          "the text has " + std::to_string(tokens_.size() + tokens.size()) +
                              " tokens, but the context holds " + std::to_string(executor_->context()) +
                              ": shorten it, or choose a larger context with -c");
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    wanted_rows_ = rows;
    due_ = true;
    rows_ = {};
}

void Session::append_drafts(std::span<const TokenId> drafts) {
    assert(due_ && drafts.size() <= room());
    tokens_.insert(tokens_.end(), drafts.begin(), drafts.end());
    wanted_rows_ += static_cast<int32_t>(drafts.size());
    assert(wanted_rows_ <= executor_->batch_size());
}

void Session::append_branch(size_t shared, std::span<const TokenId> guesses) {
    const size_t drafts = static_cast<size_t>(wanted_rows_) - 1, from = tokens_.size() - drafts + shared;
    assert(due_ && shared < drafts && !guesses.empty());
    assert(from + guesses.size() <= static_cast<size_t>(executor_->context()));
    branches_.push_back({from, {guesses.begin(), guesses.end()}});
}

size_t Session::branch_tokens() const {
    size_t tokens = 0;
    for (const Branch &branch : branches_) tokens += branch.guesses.size();
    return tokens;
}

void Session::choose_branch(size_t branch) {
    Branch &chosen = branches_[branch];
    assert(!chosen.rows.empty());
    cache_ = std::move(chosen.cache);
    tokens_.resize(chosen.from);
    tokens_.insert(tokens_.end(), chosen.guesses.begin(), chosen.guesses.end());
    branches_.clear();
    rows_ = {};
}

bool Session::feed(std::span<const TokenId> tokens, const StopRequest *stop) {
    if (tokens.empty()) return true;
    append(tokens);
    return compute(stop);
}

bool Session::compute(const StopRequest *stop) {
    Scheduler alone(*executor_, {.parallel = 1, .output = std::move(own_output_)});
    alone.add(*this);
    bool going = true;
    try {
        while (due_ && going) going = alone.step(stop);
    } catch (...) {
        truncate(static_cast<size_t>(cache_.length()));
        throw;
    }
    if (!going) truncate(static_cast<size_t>(cache_.length()));
    own_output_ = alone.take_output();  // rows() and those of branches stay where they are
    if (!going) rows_ = {};
    return going;
}

void Session::truncate(size_t length) {
    assert(length <= tokens_.size());
    due_ = false;
    branches_.clear();
    if (length == tokens_.size()) return;
    if (length < static_cast<size_t>(cache_.length()))
        cache_.truncate(cache_.truncatable(static_cast<int32_t>(length)));
    tokens_.resize(length);
    rows_ = {};
}

size_t Session::make_room(size_t keeping) {
    if (keeping + 2 > tokens_.size()) return 0;
    const size_t dropped = (tokens_.size() - keeping + 1) / 2;
    const std::vector<TokenId> rest(tokens_.begin() + static_cast<std::ptrdiff_t>(keeping + dropped),
                                    tokens_.end());
    truncate(keeping);
    tokens_.insert(tokens_.end(), rest.begin(), rest.end());
    return dropped;
}

size_t Session::reuse(std::span<const TokenId> wanted) {
    const size_t most = std::min(tokens_.size(), wanted.empty() ? 0 : wanted.size() - 1);
    const auto end = tokens_.begin() + static_cast<std::ptrdiff_t>(most);
    const size_t common =
        static_cast<size_t>(std::mismatch(tokens_.begin(), end, wanted.begin()).first - tokens_.begin());
    truncate(common);
    executor_->attach(cache_, wanted);
    // Both begin as `wanted` does.
    const auto known = static_cast<size_t>(cache_.length());
    tokens_.resize(std::min(tokens_.size(), known));
    tokens_.insert(tokens_.end(), wanted.begin() + static_cast<std::ptrdiff_t>(tokens_.size()),
                   wanted.begin() + static_cast<std::ptrdiff_t>(known));
    return known;
}

Session Session::fork() const {
    assert(!due_);
    Session copy(*executor_);
    copy.cache_ = executor_->fork(cache_);
    copy.tokens_ = tokens_;
    return copy;
}

void Session::evict() {
    cache_.truncate(0);
    for (Branch &branch : branches_) branch.cache = {};
    rows_ = {};
}

}  // namespace runnel::decode
