// Answers requests, submitted at any time, and reports the answers as events.
//
//   CompletionQueue queue(engine, format, {.parallel = 32});
//   queue.submit({.input = RawText{"Once upon a time"}});
//   while (queue.unfinished() > 0 && queue.step(&stop))
//       for (const Event &event : queue.events()) ...       // Prefill, Piece, Done
//
// Every answer has its own sampler, limits and stop strings. Its text does not depend on other requests nor,
// under DraftRule::Same, on drafts.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/completion/beam_answer.h"
#include "engine/completion/event.h"
#include "engine/completion/preparer.h"
#include "engine/completion/prompt.h"
#include "engine/completion/request.h"
#include "engine/completion/running_answer.h"
#include "engine/decode/engine.h"
#include "engine/decode/scheduler.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/decode/stop_request.h"
#include "gguf/base/timer.h"

namespace runnel::completion {

struct QueueOptions {
    int32_t parallel = 1;                // maximum of answers computed at a time; others wait
    decode::MakeSpeculator drafts = {};  // makes one speculator per answer; null: drafts of forced text only
};

class CompletionQueue {
  public:
    // Engine and format must outlive it.
    CompletionQueue(decode::Engine &engine, const PromptFormat &format, QueueOptions options);
    // For requests with Tokens as input and without constraints.
    CompletionQueue(decode::Executor &executor, Vocabulary vocabulary, QueueOptions options);
    CompletionQueue(const CompletionQueue &) = delete;
    CompletionQueue &operator=(const CompletionQueue &) = delete;

    // Reports no event: the next step() reports the Done of a request that cannot be answered.
    RequestId submit(const Request &request);
    // Removes a request, without any further event. False if it has no unfinished answer.
    bool cancel(RequestId id);

    // Computes one pass and takes the next tokens of every answer that is ready. False when a stop was
    // requested: no answer has changed then. Throws BackendError, and DecodeError{OutOfMemory} when the pool is
    // too small for a single answer.
    bool step(const decode::StopRequest *stop = nullptr);
    // `look` is called after every pass, before the answers that it completes leave the cache.
    void after_pass(std::function<void()> look) { after_pass_ = std::move(look); }
    // Ends all answers with the text so far. The events are the rest of their text and their Done.
    void end_all(FinishReason reason);
    // Events of the last step() or end_all(), in order. Valid until the next call of either.
    std::span<const Event> events() const { return events_; }
    // Unfinished answers. Samples count as one until their prompt is computed; so do beams.
    size_t unfinished() const;

    // The sequence of an unfinished answer (of the first sample), or null.
    const decode::Sequence *sequence(RequestId id) const;
    // The sequence of a handle from Done::kept; null after release().
    const decode::Sequence *kept(SequenceHandle handle) const;
    // Takes over a sequence of the same executor, for Request::continue_from.
    SequenceHandle keep(decode::SequenceCache cache);
    // Frees a kept sequence and its blocks; the handle is then invalid.
    void release(SequenceHandle handle);
    // Discards a kept sequence's speculator; the next answer makes its own, for other sampling options.
    void forget_drafts(SequenceHandle handle);

    struct Counts {
        int64_t started = 0;  // answers that have their first token
        int64_t finished = 0, failed = 0;
        int64_t prompt_tokens = 0, generated_tokens = 0;  // of finished answers
        int64_t sampled_tokens = 0;                       // of all answers
    };
    const Counts &counts() const { return counts_; }
    const decode::SchedulerCounts &schedule() const { return scheduler_.counts(); }
    // Counts of all answers except canceled ones. The seconds of a pass are divided among its sequences.
    decode::SpeculationCounts speculation() const;

  private:
    using Clock = base::Clock;
    using Answers = std::list<RunningAnswer>;
    struct Kept {
        decode::ScheduledSequence sequence;
        std::unique_ptr<decode::Speculator> speculator;  // for the next answer
        int64_t dropped;
    };

    CompletionQueue(decode::Executor &executor, Preparer preparer, QueueOptions options);
    void start(RequestId id, const Request &request);
    void start_beams(RequestId id, const Request &request);
    size_t continue_kept(RunningAnswer &answer, const Request &request, const Prompt &prompt);
    std::unique_ptr<decode::Speculator> speculator_of(const RunningAnswer &answer);
    Answers::iterator insert(RunningAnswer answer);
    void remove(Answers::iterator answer);
    void append_next(const decode::StopRequest *stop);
    void split(Answers::iterator answer);
    void advance(Answers::iterator answer, const decode::ScheduledSequence &computed);
    void advance_beams();
    void finish(const BeamAnswer &beams, FinishReason reason);
    void finish(Answers::iterator answer);
    void report_ended();
    void count(const Done &done);
    SequenceHandle keep(RunningAnswer &answer);

    decode::Executor *executor_;
    Preparer preparer_;
    decode::MakeSpeculator make_speculator_;
    std::shared_ptr<decode::SharedCosts> grammar_costs_;  // for answers that draft only forced text
    int32_t parallel_;
    decode::Scheduler scheduler_;
    Answers answers_;
    std::unordered_map<const decode::ScheduledSequence *, Answers::iterator> by_sequence_;
    std::list<BeamAnswer> beams_;
    std::vector<RunningAnswer *> going_on_;  // answers whose last token is not in the sequence yet
    std::vector<Done> ended_;                // ended by submit(), not reported yet
    std::map<SequenceHandle, Kept> kept_;
    SequenceHandle last_handle_ = kNoSequence;
    RequestId last_id_ = 0;
    std::vector<Event> events_;
    std::function<void()> after_pass_;
    Counts counts_;
    decode::SpeculationCounts speculation_;  // of finished answers
    BusyTime busy_;
};

}  // namespace runnel::completion
