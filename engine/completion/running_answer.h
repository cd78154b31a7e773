// One unfinished answer of a CompletionQueue: its sequence, sampler and text, from the prompt to the Done.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/completion/answer.h"
#include "engine/completion/event.h"
#include "engine/completion/prompt_scorer.h"
#include "engine/completion/text_channels.h"
#include "engine/decode/sampler.h"
#include "engine/decode/scheduled_sequence.h"
#include "engine/decode/speculation/speculator.h"
#include "gguf/base/timer.h"

namespace runnel::completion {

// The time that a queue spent in its steps.
class BusyTime {
  public:
    using Clock = base::Clock;
    void begin_step() { began_ = Clock::now(); }
    void end_step() {
        before_ = seconds();
        began_.reset();
    }
    Clock::time_point step_began() const { return *began_; }  // precondition: within a step
    double seconds() const { return before_ + (began_ ? base::seconds_since(*began_) : 0); }

  private:
    double before_ = 0;
    std::optional<Clock::time_point> began_;
};

// Until its prompt is computed, one RunningAnswer stands for all samples of its request.
struct RunningAnswer {
    using Clock = base::Clock;
    RunningAnswer(RequestId request, decode::ScheduledSequence scheduled, decode::Sampler chain,
                  Answer answer, TextChannels split)
        : id(request),
          sequence(std::move(scheduled)),
          sampler(std::move(chain)),
          text(std::move(answer)),
          channels(std::move(split)) {}

    // The answer of another sample, with a fork of the computed prompt.
    RunningAnswer sample(int32_t number) const;
    // Call while the prompt is computed. Appends a Prefill if the last pass computed a part of it.
    void report_prefill(const BusyTime &busy, std::vector<Event> &events);
    // True when more of a scored prompt has to be computed first. An error ends the answer.
    bool score_prompt();
    // Takes the next tokens from the rows of `computed`, which has the same tokens. Returns how many it took. An
    // error ends the answer.
    int64_t take(const decode::ScheduledSequence &computed, const BusyTime &busy, std::vector<Event> &events);
    // True if the answer continues; shifts a full context if the request allows it. Ends the answer
    // otherwise.
    bool go_on(std::vector<Event> &events);
    void end(FinishReason reason, std::vector<Event> &events);
    // Completes `done`, except Done::kept.
    void conclude();
    void fail(const decode::DecodeError &error);
    bool failed() const { return !done.error.empty(); }

    RequestId id;
    decode::ScheduledSequence sequence;
    decode::Sampler sampler;
    Answer text;
    TextChannels channels;
    std::optional<size_t> shift_keeping = {};
    int32_t samples = 1;
    bool logprobs = false;
    int32_t top_logprobs = 0;
    std::optional<PromptScorer> scorer = {};  // if the prompt is scored
    PromptMark mark = {};                     // of the prompt
    bool drafts = false, log_drafts = false, keep = false, close = false, closed = false;
    std::unique_ptr<decode::Speculator> speculator = {};  // from the first token on
    decode::SpeculationCounts counted = {};               // by the speculator, for earlier answers
    Done done = {};
    size_t unused = 0;                        // tokens of the sequence after the last one taken
    int64_t dropped = 0;                      // tokens that the continued sequence had dropped already
    bool computing = false, started = false;  // was part of a pass; has its first token
    Clock::time_point submitted = {}, began = {}, last_token = {};
    double busy_at_start = 0;  // the queue's BusyTime at the first token

  private:
    void emit(TokenId token, const std::string &text, std::vector<Event> &events);
    void count_token(const BusyTime &busy);
};

}  // namespace runnel::completion
