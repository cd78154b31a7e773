#include "engine/decode/scheduler.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "engine/decode/error.h"

namespace runnel::decode {
namespace {

bool is_due(const Session *session) {
    return session->due();
}

// attach() leaves one token to compute, for its logits; where more rows are wanted, more must be left.
std::span<const TokenId> attachable(const std::vector<TokenId> &tokens, int32_t rows) {
    return std::span(tokens).first(tokens.size() - static_cast<size_t>(rows) + 1);
}

// One answer's next token, or a few drafts: what must not wait behind a prompt.
bool is_continuation(const Session &session) {
    constexpr size_t kLongest = 32;  // a token and kMostDrafts behind it (speculation/speculator.h)
    return session.pending() <= kLongest;
}

}  // namespace

Scheduler::Scheduler(Executor &executor, SchedulerOptions options)
    : executor_(&executor), parallel_(options.parallel), output_(std::move(options.output)) {
    assert(parallel_ >= 1);
}

void Scheduler::add(Session &session) {
    assert(&session.executor() == executor_);
    waiting_.push_back(&session);
}

void Scheduler::remove(Session &session) {
    std::erase(waiting_, &session);
    std::erase(running_, &session);
    std::erase(ready_, &session);
}

// First come, first served. Everyone who runs, and the newcomer, gets a claim on the blocks for all its
// tokens and one more, so that a sequence is not let in only to be thrown out again.
void Scheduler::admit() {
    if (waiting_.empty() || running_.size() >= static_cast<size_t>(parallel_)) return;
    FreeBlocks free;
    const auto claim = [&](const Session *s) {
        return executor_->claim(free, s->cache_,
                                static_cast<int64_t>(s->tokens_.size()) + cache::kBlockTokens);
    };
    while (!waiting_.empty() && running_.size() < static_cast<size_t>(parallel_)) {
        Session &next = *waiting_.front();
        const bool empty = next.cache_.length() == 0;
        if (empty) executor_->attach(next.cache_, attachable(next.tokens_, next.wanted_rows_));
        free = executor_->free_blocks();
        const bool room = std::all_of(running_.begin(), running_.end(), claim) && claim(&next);
        const bool alone = std::none_of(running_.begin(), running_.end(), is_due);
        if (!room && !alone) {        // alone it may try
            if (empty) next.evict();  // who waits holds nothing it did not have
            return;
        }
        running_.push_back(&next);
        waiting_.pop_front();
    }
}

bool Scheduler::in_step(const Session &session) const {
    return std::any_of(parts_.begin(), parts_.end(), [&](const Part &p) { return p.session == &session; });
}

// Another sequence of this step brings the text that this one lacks next: one of them is enough.
bool Scheduler::computed_in_step(const Session &session) const {
    const size_t from = static_cast<size_t>(session.cache_.length()), to = from + size_t{cache::kBlockTokens};
    if (from % size_t{cache::kBlockTokens} != 0 || session.tokens_.size() <= to) return false;
    return std::any_of(parts_.begin(), parts_.end(), [&](const Part &p) {
        const std::vector<TokenId> &other = p.session->tokens_;
        const size_t end = static_cast<size_t>(p.session->cache_.length());
        return end >= to && end - p.tokens <= from &&
               std::equal(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(to),
                          session.tokens_.begin());
    });
}

// The newest that has no part in the step yet, `oldest` or one that came after it. False when there is none.
bool Scheduler::preempt_last(const Session &oldest) {
    const auto evict = [&](Session *session) {
        session->evict();
        ++counts_.preemptions;
        return true;
    };
    // Who waits may hold blocks that it brought along (a fork), who is not due has no use for them now.
    for (size_t i = waiting_.size(); i-- > 0;)
        if (waiting_[i]->cache_.length() > 0) return evict(waiting_[i]);
    for (size_t i = running_.size(); i-- > 0;)
        if (!running_[i]->due() && running_[i]->cache_.length() > 0) return evict(running_[i]);
    for (size_t i = running_.size(); i-- > 0;) {
        Session *session = running_[i];
        if (in_step(*session) || session->cache_.length() == 0) {
            if (session == &oldest) return false;
            continue;
        }
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
        waiting_.push_front(session);
        return evict(session);
    }
    return false;
}

// As much of the sequence as the step has place for. The rows that logits are wanted for stay together.
void Scheduler::plan(Session &session) {
    // What others have computed meanwhile, but not the tokens whose logits are wanted.
    executor_->attach(session.cache_, attachable(session.tokens_, session.wanted_rows_));
    if (computed_in_step(session)) return;
    const size_t place = static_cast<size_t>(executor_->batch_size() - executor_->step_tokens());
    const size_t pending = session.pending(), rows = static_cast<size_t>(session.wanted_rows_);
    size_t count = std::min(pending, place);
    if (count < pending && pending - count < rows) count = pending - rows;
    if (count == 0) return;
    const int32_t wanted = count == pending ? session.wanted_rows_ : 0;
    const auto from = static_cast<size_t>(session.cache_.length());
    const StepInput input{.cache = &session.cache_,
                          .tokens = std::span(session.tokens_).subspan(from, count),
                          .logit_rows = wanted,
                          .candidates = session.wanted_candidates_};
    while (!executor_->add(input)) {
        // Who needs room takes it from the newest, which may be itself.
        if (!preempt_last(session) || session.pending() != pending) return;
    }
    parts_.push_back({&session, count, wanted, executor_->step_tokens() - static_cast<int32_t>(count)});
}

// They are guesses: nobody gives up a block or a place for them.
void Scheduler::plan_branches(const Part &part) {
    Session &session = *part.session;
    const int32_t computed = session.cache_.length() - static_cast<int32_t>(part.tokens);
    for (size_t i = 0; i < session.branches_.size(); ++i) {
        Session::Branch &branch = session.branches_[i];
        const auto place = static_cast<size_t>(executor_->batch_size() - executor_->step_tokens());
        if (branch.guesses.size() > place) continue;
        const auto begin = session.tokens_.begin();
        std::vector<TokenId> tokens(begin + computed, begin + static_cast<std::ptrdiff_t>(branch.from));
        const auto shared = static_cast<int32_t>(tokens.size());
        tokens.insert(tokens.end(), branch.guesses.begin(), branch.guesses.end());
        branch.cache = executor_->fork(session.cache_);
        branch.cache.truncate(computed);
        const int32_t first = executor_->step_tokens(), rows = static_cast<int32_t>(branch.guesses.size());
        if (executor_->add({.cache = &branch.cache,
                            .tokens = tokens,
                            .logit_rows = rows,
                            .shared = shared,
                            .shared_from = part.first,
                            .candidates = session.wanted_candidates_}))
            parts_.push_back({&session, branch.guesses.size(), rows, first, static_cast<std::ptrdiff_t>(i)});
        else
            branch.cache = {};
    }
}

void Scheduler::drop_branches() {
    for (const Part &part : parts_)
        for (Session::Branch &branch : part.session->branches_) branch.cache = {};
}

void Scheduler::plan() {
    parts_.clear();
    const std::vector<Session *> candidates = running_;  // preempting changes running_
    for (const bool continued : {true, false})
        for (Session *session : candidates) {
            const bool still = std::find(running_.begin(), running_.end(), session) != running_.end();
            if (still && session->due() && !in_step(*session) && is_continuation(*session) == continued)
                plan(*session);
        }
    for (size_t i = 0, sequences = parts_.size(); i < sequences; ++i)
        if (const Part part = parts_[i]; part.rows > 0) plan_branches(part);
}

void Scheduler::finish() {
    size_t count = 0, row = 0;
    for (const Part &part : parts_) count += static_cast<size_t>(part.rows);
    const LogitRows all(*executor_, count, output_);
    ++counts_.steps;
    for (const Part &part : parts_) {
        counts_.sequences += part.branch < 0;
        counts_.tokens += static_cast<int64_t>(part.tokens);
        if (part.rows == 0) continue;
        const LogitRows rows = all.part(row, static_cast<size_t>(part.rows));
        row += rows.size();
        if (part.branch >= 0) {
            part.session->branches_[static_cast<size_t>(part.branch)].rows = rows;
            continue;
        }
        part.session->rows_ = rows;
        part.session->wanted_candidates_ = 0;
        part.session->due_ = false;
        ready_.push_back(part.session);
    }
}

bool Scheduler::step(const StopRequest *stop) {
    for (Session *session : ready_) session->rows_ = {};  // their memory is about to be written
    ready_.clear();
    if (stop && stop->requested()) return false;
    admit();
    try {
        plan();
    } catch (...) {
        executor_->discard();
        drop_branches();
        throw;
    }
    if (parts_.empty()) {
        if (std::any_of(running_.begin(), running_.end(), is_due) ||
            std::any_of(waiting_.begin(), waiting_.end(), is_due))
            throw DecodeError(DecodeError::Kind::OutOfMemory,
                              "the cache is full: choose a larger context with -c");
        return true;
    }
    try {
        if (!executor_->run(output_, stop ? stop->flag() : nullptr)) {
            drop_branches();
            return false;
        }
    } catch (...) {
        drop_branches();
        throw;
    }
    finish();
    return true;
}

}  // namespace runnel::decode
