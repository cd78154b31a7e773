// Decides which tokens of which sequences the next step computes. A chat is a batch of one sequence; a sequence
// with speculation adds several tokens to a step and gets several rows of logits.
//
//   Scheduler scheduler(executor, {.parallel = 32});
//   scheduler.add(sequence);                              // any number, at any time, with tokens appended
//   while (scheduler.step(&stop))
//       for (ScheduledSequence *s : scheduler.ready()) {  // all their tokens are computed
//           const TokenId id = sample(s->logits());
//           over ? scheduler.remove(*s) : s->append({&id, 1});
//       }
//
// Every step holds first the tokens of sequences that are being continued, then chunks of prompts, oldest
// first, up to batch_size() tokens: a long prompt never starves the others, and a step takes all the
// work that fits. Room and blocks that remain go to draft branches. Sequences wait, first come first served,
// until the pool has blocks for all their tokens. When it runs out nevertheless (answers grow), the newest
// sequence is preempted: it gives its blocks back, waits at the head of the queue, and its tokens are
// computed again later. Its text stays the same, since logits depend on nothing but the tokens before them.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "engine/decode/scheduled_sequence.h"
#include "engine/decode/stop_request.h"
#include "gguf/base/trace.h"

namespace runnel::decode {

struct SchedulerOptions {
    int32_t parallel = 1;  // most sequences that are computed at a time
};

struct SchedulerCounts {
    int64_t steps = 0;
    int64_t tokens = 0;       // computed, recomputed ones included
    int64_t sequences = 0;    // sequences per step, summed over the steps
    int64_t preemptions = 0;  // how often a sequence gave its blocks back
};

class Scheduler {
  public:
    Scheduler(Executor &executor, SchedulerOptions options);

    // Adds a sequence at the end of the queue. It belongs to the same executor and must not move until
    // remove() or the end of the scheduler.
    void add(ScheduledSequence &entry);
    // Adds a sequence that is not computed and may be evicted when others need its blocks. With recurrent layers, the
    // oldest idle sequences are evicted when all of them together hold more than a quarter of the states: the other
    // states are checkpoints, from which any text can continue.
    void add_idle(ScheduledSequence &entry);
    // Removes a sequence in any state; it keeps its tokens and blocks.
    void remove(ScheduledSequence &entry);

    // Runs one step, unless no sequence is due. Returns false when a stop was requested: nothing has changed
    // then, except that preempted sequences wait. Throws what Executor::add and run throw, and
    // DecodeError{OutOfMemory} when the pool is too small for a single sequence, or is held by sequences
    // outside this scheduler.
    bool step(const StopRequest *stop = nullptr);

    // Sequences whose tokens were all computed by the last step, in order. Valid until the next call.
    std::span<ScheduledSequence *const> ready() const { return ready_; }

    size_t running() const { return running_.size(); }
    size_t waiting() const { return waiting_.size(); }
    const SchedulerCounts &counts() const { return counts_; }

  private:
    struct Part {
        ScheduledSequence *entry;
        size_t tokens;
        int32_t rows;
        int32_t first;               // index of its first token in the step
        std::ptrdiff_t branch = -1;  // index among the entry's branches; -1: the sequence itself
    };
    void admit();
    void plan();
    void plan(ScheduledSequence &entry);
    void plan_branches(const Part &part);
    void drop_branches();
    bool in_step(const ScheduledSequence &entry) const;
    bool computed_in_step(const ScheduledSequence &entry) const;
    bool evict_idle();
    bool preempt_last(const ScheduledSequence &oldest);
    void collect_masks();
    void describe(base::TraceSpan &span) const;
    void finish();

    Executor *executor_;
    int32_t parallel_;
    std::deque<ScheduledSequence *> waiting_;
    std::vector<ScheduledSequence *> idle_;     // the longest unused first
    std::vector<ScheduledSequence *> running_;  // in the order of admission
    std::vector<Part> parts_;                   // of the step being built or run
    std::vector<ScheduledSequence *> ready_;
    StepOutput output_;
    std::vector<uint64_t> mask_bits_;
    std::vector<kernels::TokenMask> masks_;  // of the step's rows, in mask_bits_; empty: none
    SchedulerCounts counts_;
};

}  // namespace runnel::decode
