// Many answers at once: prompts in at any time, finished answers out as they end.
//
//   AnswerBatch batch(executor, vocabulary, 32);
//   batch.submit({.key = 7, .prompt = tokens, .sampler = sampler, .options = {}});
//   while (batch.unfinished() > 0 && batch.step(&stop))
//       for (AnswerBatch::Finished &f : batch.take_finished()) write(f.key, f.text);
//
// Every answer has its own sampler, limits and stop strings, and is the same as if it were alone. With
// speculation, each sequence brings drafts of its own to a step, which sequences that run at the same time
// divide among them, and may go on by several tokens.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/decode/answer.h"
#include "engine/decode/sampler.h"
#include "engine/decode/scheduler.h"
#include "engine/decode/session.h"
#include "engine/decode/speculation/speculator.h"

namespace runnel::decode {

class AnswerBatch {
  public:
    struct Job {
        uint64_t key;                 // the caller's
        std::vector<TokenId> prompt;  // not empty
        Sampler sampler;
        GenerationOptions options;
        // So many answers: the prompt is computed once, its blocks are shared, and sample i draws from stream
        // sampler.stream() + i.
        int32_t samples = 1;
        bool scored = false;      // Finished::log_probability is wanted
        Vocabulary vocabulary{};  // in place of the batch's, if it has functions
    };
    struct Finished {
        uint64_t key;
        std::string text;
        std::vector<TokenId> tokens;
        size_t prompt_tokens;
        FinishReason reason;
        bool context_full = false;  // why the reason is Length
        std::string error{};        // not empty: there is no answer, and this is why
        bool bad_input = false;     // the prompt's fault, not the model's
        int32_t sample = 0;
        double log_probability = 0;  // of all tokens, the one that ended it included, in the model's own
                                     // distribution (before sampling)
        int64_t forgotten = 0;       // tokens that GenerationOptions::shift_keeping cost
    };
    struct Counts {
        int64_t started = 0;  // have their first token
        int64_t finished = 0, failed = 0;
        int64_t prompt_tokens = 0, generated_tokens = 0;  // of finished answers
        int64_t sampled_tokens = 0;                       // of all
    };

    // At most `parallel` answers are computed at a time; others wait. Without `speculators` nothing is
    // drafted.
    AnswerBatch(Executor &executor, Vocabulary vocabulary, int32_t parallel, MakeSpeculator speculators = {})
        : executor_(&executor),
          vocabulary_(std::move(vocabulary)),
          make_speculator_(std::move(speculators)),
          scheduler_(executor, {.parallel = parallel}) {}

    // What cannot be answered (a prompt longer than the context) is finished at once, with an error.
    void submit(Job job);
    // Forgets answers that are not finished. False when there is none of that key.
    bool cancel(uint64_t key);
    // Finishes all answers with what there is.
    void end_all(FinishReason reason);
    size_t unfinished() const { return entries_.size(); }

    // Computes one step and takes the next tokens of every sequence that is ready. False when a stop was
    // requested. Throws what Scheduler::step throws.
    bool step(const StopRequest *stop = nullptr);
    std::vector<Finished> take_finished() { return std::exchange(finished_, {}); }

    const Counts &counts() const { return counts_; }
    const SchedulerCounts &schedule() const { return scheduler_.counts(); }
    // Of finished answers. The seconds of a pass are divided among its sequences.
    const SpeculationCounts &speculation() const { return speculation_; }

  private:
    struct Entry {
        uint64_t key;
        size_t prompt_tokens;
        Session session;
        Sampler sampler;
        Answer answer;
        std::optional<size_t> shift_keeping{};
        int64_t forgotten = 0;
        std::string text{};
        bool context_full = false;
        std::string error{};
        bool bad_input = false;
        int32_t samples = 1;  // that it still stands for
        int32_t sample = 0;   // the first of those
        bool scored = false;
        double log_probability = 0;
        std::unique_ptr<Speculator> speculator{};  // from the first token on
    };
    using Entries = std::list<Entry>;

    Entries::iterator insert(Entry entry);
    void split(Entry &entry);
    void advance(Entries::iterator entry, const Session &computed);
    void take(Entry &entry, const Session &computed);
    void ask_for_more(const StopRequest *stop);
    bool go_on(Entry &entry);
    bool make_room(Entry &entry);
    void finish(Entries::iterator entry);

    Executor *executor_;
    Vocabulary vocabulary_;
    MakeSpeculator make_speculator_;
    Entries entries_;
    std::unordered_map<const Session *, Entries::iterator> by_session_;
    Scheduler scheduler_;
    std::vector<Finished> finished_;
    std::vector<Entry *> going_on_;  // after a step
    Counts counts_;
    SpeculationCounts speculation_;
};

}  // namespace runnel::decode
