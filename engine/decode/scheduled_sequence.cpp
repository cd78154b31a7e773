#include "engine/decode/scheduled_sequence.h"

#include <cassert>

namespace runnel::decode {

void ScheduledSequence::append(std::span<const TokenId> tokens, int32_t rows) {
    assert(!due_ && rows >= 1 && static_cast<size_t>(rows) <= tokens.size());
    assert(rows <= executor().batch_size());
    sequence_.append(tokens);
    wanted_rows_ = rows;
    due_ = true;
    rows_ = {};
}

void ScheduledSequence::append_drafts(std::span<const TokenId> drafts) {
    assert(due_);
    sequence_.append(drafts);
    wanted_rows_ += static_cast<int32_t>(drafts.size());
    assert(wanted_rows_ <= executor().batch_size());
}

void ScheduledSequence::append_branch(size_t shared, std::span<const TokenId> tokens) {
    const size_t drafts = static_cast<size_t>(wanted_rows_) - 1;
    const size_t from = sequence_.tokens().size() - drafts + shared;
    assert(due_ && shared < drafts && !tokens.empty());
    assert(from + tokens.size() <= static_cast<size_t>(executor().context()));
    branches_.push_back({from, {tokens.begin(), tokens.end()}});
}

size_t ScheduledSequence::branch_tokens() const {
    size_t tokens = 0;
    for (const DraftBranch &branch : branches_) tokens += branch.tokens.size();
    return tokens;
}

void ScheduledSequence::choose_branch(size_t branch) {
    DraftBranch &chosen = branches_[branch];
    assert(!chosen.rows.empty());
    sequence_.replace(chosen.from, chosen.tokens, std::move(chosen.cache));
    branches_.clear();
    rows_ = {};
}

void ScheduledSequence::truncate(size_t length) {
    due_ = false;
    branches_.clear();
    if (length == sequence_.tokens().size()) return;
    sequence_.truncate(length);
    rows_ = {};
}

void ScheduledSequence::set_rows(const LogitRows &rows) {
    rows_ = rows;
    want_candidates(0);
    due_ = false;
}

void ScheduledSequence::drop_branch_caches() {
    for (DraftBranch &branch : branches_) branch.cache = {};
}

void ScheduledSequence::evict() {
    sequence_.evict();
    drop_branch_caches();
    rows_ = {};
}

}  // namespace runnel::decode
