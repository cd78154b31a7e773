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
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/completion/beams.h"
#include "engine/completion/constraints.h"
#include "engine/completion/event.h"
#include "engine/completion/prompt.h"
#include "engine/completion/request.h"
#include "engine/decode/engine.h"
#include "engine/decode/scheduler.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/decode/stop_request.h"
#include "engine/text/tool_calls/parse.h"
#include "gguf/base/timer.h"

namespace runnel::completion {

struct QueueOptions {
    int32_t parallel = 1;                // maximum of answers computed at a time; others wait
    decode::MakeSpeculator drafts = {};  // one for every answer; null: drafts of forced text only
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
    // Of all answers but canceled ones. The seconds of a pass are divided among its sequences.
    decode::SpeculationCounts speculation() const;

  private:
    using Clock = base::Clock;

    // One unfinished answer. Until its prompt is computed, it stands for all samples of its request.
    struct Entry {
        Entry(RequestId request, decode::ScheduledSequence scheduled, decode::Sampler chain, Answer answer)
            : id(request),
              sequence(std::move(scheduled)),
              sampler(std::move(chain)),
              text(std::move(answer)) {}

        RequestId id;
        decode::ScheduledSequence sequence;
        decode::Sampler sampler;
        Answer text;
        std::optional<text::ReasoningSplitter> splitter;
        std::optional<text::ToolCallSplitter> calls;
        std::shared_ptr<const text::ToolUse> tools;  // of `calls`
        std::optional<size_t> shift_keeping;
        int32_t samples = 1;
        bool logprobs = false;
        int32_t top_logprobs = 0, prompt_logprobs = -1;
        std::vector<TokenId> unread;  // of a prompt that is scored: not in the sequence yet
        bool drafts = false, keep = false, close = false, closed = false;
        std::unique_ptr<decode::Speculator> speculator;  // from the first token on
        decode::SpeculationCounts counted;               // by the speculator, for earlier answers
        Done done;
        size_t unused = 0;                        // tokens of the sequence behind the last one taken
        int64_t dropped = 0;                      // tokens that the continued sequence dropped before
        bool computing = false, started = false;  // was part of a pass; has its first token
        Clock::time_point submitted, began, last_token;
        double busy_at_start = 0;  // busy() at the first token
    };
    using Entries = std::list<Entry>;
    struct Kept {
        decode::ScheduledSequence sequence;
        std::unique_ptr<decode::Speculator> speculator;  // for the next answer
        int64_t dropped;
    };

    struct Beams {
        RequestId id;
        std::unique_ptr<BeamSearch> search;
        std::optional<text::ReasoningSplitter> splitter;
        std::optional<text::ToolCallSplitter> calls;
        std::shared_ptr<const text::ToolUse> tools;
        Done done = {};
        Clock::time_point submitted = {};
    };

    void start(RequestId id, const Request &request);
    void start_beams(RequestId id, const Request &request);
    Limits limits_of(const Request &request, const Prompt &prompt) const;
    Prompt prompt_of(const Request &request) const;
    decode::Sampler sampler_of(const Request &request) const;
    std::optional<decode::Constraint> constraint_of(const Request &request, const Prompt &prompt);
    std::unique_ptr<decode::Speculator> speculator_of(const Entry &answer);
    Entries::iterator insert(Entry answer);
    void append_next(const decode::StopRequest *stop);
    void report_prefill();
    void split(Entries::iterator answer);
    void advance(Entries::iterator answer, const decode::ScheduledSequence &computed);
    void take(Entry &answer, const decode::ScheduledSequence &computed);
    void read_prompt(Entry &answer);
    bool score_prompt(Entry &answer);
    void count_token(Entry &answer);
    bool go_on(Entry &answer);
    void fail(Entry &answer, const decode::DecodeError &error);
    void emit(Entry &answer, TokenId token, const std::string &text);
    void report_text(Done &of, std::optional<text::ReasoningSplitter> &splitter,
                     std::optional<text::ToolCallSplitter> &calls, TokenId token, const std::string &text,
                     bool over);
    std::shared_ptr<const text::ToolUse> tools_of(const Request &request) const;
    const Vocabulary &vocabulary_of_answer(const Prompt &prompt, bool with_calls) const;
    void advance_beams();
    void finish(Beams &beams, FinishReason reason);
    void end(Entry &answer, FinishReason reason);
    void report_ended();
    void count(const Done &done);
    void finish(Entries::iterator answer);
    SequenceHandle keep(Entry &answer);
    double busy() const;

    decode::Executor *executor_;
    Vocabulary vocabulary_;
    const decode::Engine *engine_ = nullptr;
    const PromptFormat *format_ = nullptr;
    Vocabulary turn_vocabulary_;  // includes the marks of reasoning
    Vocabulary call_vocabulary_;  // and those of tool calls
    decode::MakeSpeculator make_speculator_;
    std::unique_ptr<Constraints> constraints_;            // made for the first constraint
    std::shared_ptr<decode::SharedCosts> grammar_costs_;  // where only forced text is drafted
    int32_t parallel_;
    decode::Scheduler scheduler_;
    Entries answers_;
    std::unordered_map<const decode::ScheduledSequence *, Entries::iterator> by_sequence_;
    std::list<Beams> beams_;
    std::vector<Entry *> going_on_;  // their last token is not in the sequence yet
    std::vector<Done> ended_;        // by submit(), and not reported yet
    std::map<SequenceHandle, Kept> kept_;
    SequenceHandle last_handle_ = kNoSequence;
    RequestId last_id_ = 0;
    std::vector<Event> events_;
    Counts counts_;
    decode::SpeculationCounts speculation_;  // of finished answers
    double busy_ = 0;                        // seconds in step() so far
    std::optional<Clock::time_point> step_began_;
};

}  // namespace runnel::completion
