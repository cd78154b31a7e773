#include "engine/decode/scheduler.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "engine/decode/error.h"

namespace runnel::decode {
namespace {

bool is_due(const ScheduledSequence *entry) {
    return entry->due();
}

// attach() leaves one token to compute, for its logits; where more rows are wanted, more must be left.
std::span<const TokenId> attachable(const std::vector<TokenId> &tokens, int32_t rows) {
    return std::span(tokens).first(tokens.size() - static_cast<size_t>(rows) + 1);
}

// An answer's next token with its drafts, which must not wait behind a prompt.
bool is_continuation(const ScheduledSequence &entry) {
    return entry.sequence().pending() <= 1 + size_t{kMostDrafts};
}

}  // namespace

Scheduler::Scheduler(Executor &executor, SchedulerOptions options)
    : executor_(&executor), parallel_(options.parallel) {
    assert(parallel_ >= 1);
}

void Scheduler::add(ScheduledSequence &entry) {
    assert(&entry.executor() == executor_);
    waiting_.push_back(&entry);
}

void Scheduler::add_idle(ScheduledSequence &entry) {
    idle_.push_back(&entry);
    const cache::BlockPool *states = executor_->cache().states();
    if (!states) return;
    const auto holding = [&] {
        return std::ranges::count_if(idle_, [](const ScheduledSequence *one) {
            return one->sequence().cache().state() != cache::kNoState;
        });
    };
    while (holding() > std::max(states->size() / 4, 2)) evict_idle();
}

void Scheduler::remove(ScheduledSequence &entry) {
    std::erase(waiting_, &entry);
    std::erase(idle_, &entry);
    std::erase(running_, &entry);
    std::erase(ready_, &entry);
}

// First come, first served. A sequence is admitted when the pool has blocks for all tokens of the running
// sequences and its own, and one more each: otherwise it would soon be preempted.
void Scheduler::admit() {
    if (waiting_.empty() || running_.size() >= static_cast<size_t>(parallel_)) return;
    FreeBlocks free;
    const auto claim = [&](const ScheduledSequence *s) {
        return executor_->claim(free, s->sequence().cache(),
                                static_cast<int64_t>(s->tokens().size()) + cache::kBlockTokens);
    };
    while (!waiting_.empty() && running_.size() < static_cast<size_t>(parallel_)) {
        ScheduledSequence &next = *waiting_.front();
        const bool empty = next.sequence().cache().length() == 0;
        if (empty) executor_->attach(next.sequence().cache(), attachable(next.tokens(), next.wanted_rows()));
        const auto fits = [&] {
            free = executor_->free_blocks();
            return std::all_of(running_.begin(), running_.end(), claim) && claim(&next);
        };
        bool room = fits();
        while (!room && evict_idle()) room = fits();
        const bool alone = std::none_of(running_.begin(), running_.end(), is_due);
        if (!room && !alone) {        // if no other sequence is due, try
            if (empty) next.evict();  // gives back what attach() added: others may need the blocks
            return;
        }
        running_.push_back(&next);
        waiting_.pop_front();
    }
}

bool Scheduler::in_step(const ScheduledSequence &entry) const {
    return std::any_of(parts_.begin(), parts_.end(), [&](const Part &p) { return p.entry == &entry; });
}

// True if another sequence of this step already computes the block that this one needs next.
bool Scheduler::computed_in_step(const ScheduledSequence &entry) const {
    const size_t from = static_cast<size_t>(entry.sequence().cache().length()),
                 to = from + size_t{cache::kBlockTokens};
    if (from % size_t{cache::kBlockTokens} != 0 || entry.tokens().size() <= to) return false;
    return std::any_of(parts_.begin(), parts_.end(), [&](const Part &p) {
        const std::vector<TokenId> &other = p.entry->tokens();
        const size_t end = static_cast<size_t>(p.entry->sequence().cache().length());
        return end >= to && end - p.tokens <= from &&
               std::equal(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(to),
                          entry.tokens().begin());
    });
}

// Evicts the oldest idle sequence that holds blocks. False when there is none.
bool Scheduler::evict_idle() {
    for (ScheduledSequence *entry : idle_)
        if (entry->sequence().cache().length() > 0) {
            entry->evict();
            return true;
        }
    return false;
}

// Evicts a sequence that has no tokens in the step; of the running ones the newest, but not `oldest` or an older
// one. False if there is none.
bool Scheduler::preempt_last(const ScheduledSequence &oldest) {
    const auto evict = [&](ScheduledSequence *entry) {
        entry->evict();
        ++counts_.preemptions;
        return true;
    };
    // Idle sequences first; then waiting ones, which may hold the blocks of a fork, and those that are not due.
    if (evict_idle()) return true;
    for (size_t i = waiting_.size(); i-- > 0;)
        if (waiting_[i]->sequence().cache().length() > 0) return evict(waiting_[i]);
    for (size_t i = running_.size(); i-- > 0;)
        if (!running_[i]->due() && running_[i]->sequence().cache().length() > 0) return evict(running_[i]);
    for (size_t i = running_.size(); i-- > 0;) {
        ScheduledSequence *entry = running_[i];
        if (in_step(*entry) || entry->sequence().cache().length() == 0) {
            if (entry == &oldest) return false;
            continue;
        }
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
        waiting_.push_front(entry);
        return evict(entry);
    }
    return false;
}

// Adds as many tokens of the sequence as the step has room for. Tokens that need logits stay in one step.
void Scheduler::plan(ScheduledSequence &entry) {
    // Takes over blocks that other sequences have computed since, except tokens whose logits are wanted.
    executor_->attach(entry.sequence().cache(), attachable(entry.tokens(), entry.wanted_rows()));
    if (computed_in_step(entry)) return;
    const size_t place = static_cast<size_t>(executor_->batch_size() - executor_->step_tokens());
    const size_t pending = entry.sequence().pending(), rows = static_cast<size_t>(entry.wanted_rows());
    size_t count = std::min(pending, place);
    if (count < pending && pending - count < rows) count = pending - rows;
    if (count == 0) return;
    const int32_t wanted = count == pending ? entry.wanted_rows() : 0;
    const auto from = static_cast<size_t>(entry.sequence().cache().length());
    const StepInput input{.cache = &entry.sequence().cache(),
                          .tokens = std::span(entry.tokens()).subspan(from, count),
                          .logit_rows = wanted,
                          .candidates = entry.wanted_candidates()};
    while (!executor_->add(input)) {
        // Preempt the newest sequence, possibly this one.
        if (!preempt_last(entry) || entry.sequence().pending() != pending) return;
    }
    parts_.push_back({&entry, count, wanted, executor_->step_tokens() - static_cast<int32_t>(count)});
}

// Branches take only the room and the blocks that sequences leave in the step.
void Scheduler::plan_branches(const Part &part) {
    ScheduledSequence &entry = *part.entry;
    const int32_t computed = entry.sequence().cache().length() - static_cast<int32_t>(part.tokens);
    for (size_t i = 0; i < entry.branches().size(); ++i) {
        DraftBranch &branch = entry.branches()[i];
        const auto place = static_cast<size_t>(executor_->batch_size() - executor_->step_tokens());
        if (branch.tokens.size() > place) continue;
        const auto begin = entry.tokens().begin();
        std::vector<TokenId> tokens(begin + computed, begin + static_cast<std::ptrdiff_t>(branch.from));
        const auto shared = static_cast<int32_t>(tokens.size());
        tokens.insert(tokens.end(), branch.tokens.begin(), branch.tokens.end());
        branch.cache = executor_->fork(entry.sequence().cache());
        branch.cache.truncate(computed);
        const int32_t first = executor_->step_tokens(), rows = static_cast<int32_t>(branch.tokens.size());
        if (executor_->add({.cache = &branch.cache,
                            .tokens = tokens,
                            .logit_rows = rows,
                            .shared = shared,
                            .shared_from = part.first,
                            .candidates = entry.wanted_candidates()}))
            parts_.push_back({&entry, branch.tokens.size(), rows, first, static_cast<std::ptrdiff_t>(i)});
        else
            branch.cache = {};
    }
}

void Scheduler::drop_branches() {
    for (const Part &part : parts_) part.entry->drop_branch_caches();
}

void Scheduler::plan() {
    parts_.clear();
    const std::vector<ScheduledSequence *> candidates = running_;  // preempting changes running_
    for (const bool continued : {true, false})
        for (ScheduledSequence *entry : candidates) {
            const bool still = std::find(running_.begin(), running_.end(), entry) != running_.end();
            if (still && entry->due() && !in_step(*entry) && is_continuation(*entry) == continued)
                plan(*entry);
        }
    for (size_t i = 0, sequences = parts_.size(); i < sequences; ++i)
        if (const Part part = parts_[i]; part.rows > 0) plan_branches(part);
}

// Masks of the rows of the sequences that have a grammar, if candidates will be selected.
void Scheduler::collect_masks() {
    masks_.clear();
    if (!executor_->selects()) return;
    size_t rows = 0;
    bool any = false;
    for (const Part &part : parts_) {
        rows += static_cast<size_t>(part.rows);
        any |= part.rows > 0 && part.entry->mask();
    }
    if (!any) return;
    const auto words = (static_cast<size_t>(executor_->vocab()) + 63) / 64;
    mask_bits_.resize(rows * words);
    std::vector<TokenId> text;
    for (const Part &part : parts_) {
        const auto begin = part.entry->tokens().begin();
        const DraftBranch *branch =
            part.branch < 0 ? nullptr : &part.entry->branches()[static_cast<size_t>(part.branch)];
        const auto count = static_cast<size_t>(part.rows);
        if (branch && part.entry->mask()) {
            text.assign(begin, begin + static_cast<std::ptrdiff_t>(branch->from));
            text.insert(text.end(), branch->tokens.begin(), branch->tokens.end());
        }
        const std::span<const TokenId> tokens = branch ? text : std::span(part.entry->tokens());
        for (size_t i = 0; i < count; ++i) {
            const auto bits = std::span(mask_bits_).subspan(masks_.size() * words, words);
            const RowMask &mask = part.entry->mask();
            const bool is_masked = mask && mask(tokens.first(tokens.size() - count + 1 + i), bits);
            masks_.push_back(is_masked ? kernels::TokenMask(bits) : kernels::TokenMask());
        }
    }
    if (std::ranges::all_of(masks_, &kernels::TokenMask::empty)) masks_.clear();
}

void Scheduler::describe(base::TraceSpan &span) const {
    int64_t tokens = 0, rows = 0;
    for (const Part &part : parts_) tokens += static_cast<int64_t>(part.tokens), rows += part.rows;
    span.note("sequences", static_cast<int64_t>(parts_.size()));
    span.note("tokens", tokens);
    span.note("logits", rows);
    if (parts_.size() == 1) span.note("depth", parts_.front().entry->sequence().cache().length() - tokens);
}

void Scheduler::finish() {
    size_t count = 0, row = 0;
    for (const Part &part : parts_) count += static_cast<size_t>(part.rows);
    const LogitRows all(*executor_, count, output_);
    ++counts_.steps;
    for (const Part &part : parts_) {
        counts_.sequences += part.branch < 0;
        counts_.tokens += static_cast<int64_t>(part.tokens);
        part.entry->count_computed(part.tokens);
        if (part.rows == 0) continue;
        const LogitRows rows = all.part(row, static_cast<size_t>(part.rows));
        row += rows.size();
        if (part.branch >= 0) {
            part.entry->branches()[static_cast<size_t>(part.branch)].rows = rows;
            continue;
        }
        part.entry->set_rows(rows);
        ready_.push_back(part.entry);
    }
}

bool Scheduler::step(const StopRequest *stop) {
    for (ScheduledSequence *entry : ready_) entry->drop_rows();  // their memory is about to be written
    ready_.clear();
    if (stop && stop->requested()) return false;
    admit();
    try {
        plan();
        collect_masks();
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
    base::TraceSpan span("pass");
    describe(span);
    try {
        if (!executor_->run(output_, stop ? stop->flag() : nullptr, masks_)) {
            drop_branches();
            return false;
        }
    } catch (...) {
        drop_branches();
        throw;
    }
    span.end();
    finish();
    return true;
}

}  // namespace runnel::decode
