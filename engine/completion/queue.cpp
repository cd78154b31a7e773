#include "engine/completion/queue.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "engine/decode/next_token.h"
#include "engine/decode/speculation/grammar_draft.h"

namespace runnel::completion {

using decode::DecodeError;
using decode::ScheduledSequence;

CompletionQueue::CompletionQueue(decode::Engine &engine, const PromptFormat &format, QueueOptions options)
    : CompletionQueue(engine.executor(), Preparer(engine, format), std::move(options)) {}

CompletionQueue::CompletionQueue(decode::Executor &executor, Vocabulary vocabulary, QueueOptions options)
    : CompletionQueue(executor, Preparer(executor, std::move(vocabulary)), std::move(options)) {}

CompletionQueue::CompletionQueue(decode::Executor &executor, Preparer preparer, QueueOptions options)
    : executor_(&executor),
      preparer_(std::move(preparer)),
      make_speculator_(std::move(options.drafts)),
      parallel_(options.parallel),
      scheduler_(executor, {.parallel = options.parallel}) {}

CompletionQueue::Answers::iterator CompletionQueue::insert(RunningAnswer answer) {
    answers_.push_back(std::move(answer));
    const Answers::iterator at = std::prev(answers_.end());
    by_sequence_[&at->sequence] = at;
    scheduler_.add(at->sequence);
    return at;
}

void CompletionQueue::remove(Answers::iterator answer) {
    scheduler_.remove(answer->sequence);
    by_sequence_.erase(&answer->sequence);
    std::erase(going_on_, &*answer);
    answers_.erase(answer);
}

RequestId CompletionQueue::submit(const Request &request) {
    assert(request.samples >= 1 && request.beams >= 1);
    const RequestId id = ++last_id_;
    const auto refuse = [&](const std::exception &error, DecodeError::Kind kind) {
        for (int32_t i = 0; i < request.samples; ++i)
            ended_.push_back({.id = id, .sample = i, .error = error.what(), .kind = kind});
    };
    try {
        request.beams > 1 ? start_beams(id, request) : start(id, request);
    } catch (const DecodeError &error) {
        refuse(error, error.kind);
    } catch (const kernels::BackendError &) {
        throw;
    } catch (const std::runtime_error &error) {
        refuse(error, DecodeError::Kind::BadInput);
    }
    return id;
}

// Text that the grammar forces is drafted first.
std::unique_ptr<decode::Speculator> CompletionQueue::speculator_of(const RunningAnswer &answer) {
    const decode::Constraint *constraint = answer.sampler.constraint();
    if (!constraint || !constraint->has_grammar()) return make_speculator_();
    std::unique_ptr<decode::Speculator> speculator;
    if (make_speculator_) {
        speculator = make_speculator_();
    } else {
        if (!grammar_costs_) grammar_costs_ = std::make_shared<decode::SharedCosts>();
        speculator = std::make_unique<decode::Speculator>(std::vector<std::unique_ptr<decode::DraftSource>>(),
                                                          decode::SpeculationOptions(), grammar_costs_);
    }
    speculator->add_first(std::make_unique<decode::GrammarDraft>(preparer_.words()));
    return speculator;
}

void CompletionQueue::start(RequestId id, const Request &request) {
    const Clock::time_point now = Clock::now();
    Prepared prepared = preparer_.prepare(request);
    const Prompt &prompt = prepared.prompt;
    RunningAnswer answer(id, ScheduledSequence(*executor_), std::move(prepared.sampler),
                         Answer(*prepared.vocabulary, std::move(prepared.limits)), prepared.channels);
    answer.shift_keeping = prompt.shift_keeping;
    answer.samples = request.samples;
    answer.logprobs = request.logprobs;
    answer.top_logprobs = request.top_logprobs;
    const bool scores_prompt = request.prompt_logprobs >= 0;
    answer.drafts = request.drafts && make_speculator_;
    answer.log_drafts = request.log_drafts;
    answer.keep = request.keep;
    answer.mark = prompt.mark;
    answer.submitted = now;
    answer.done.id = id;
    answer.done.usage.prompt_tokens = prompt.tokens.size();
    answer.done.usage.left_out = prompt.left_out;
    // max_tokens is 0 and no sequence is kept: nothing to compute. (A constraint may have to add an ending.)
    if (answer.text.complete() && !request.keep && !request.constraint && !scores_prompt) {
        answer.text.end(FinishReason::Length);
        answer.done.reason = answer.text.reason();
        for (int32_t i = 0; i < request.samples; ++i) {
            answer.done.sample = i;
            ended_.push_back(answer.done);
        }
        return;
    }
    const size_t known = continue_kept(answer, request, prompt);
    if (auto constraint = preparer_.constraint(request, prepared)) {
        answer.close = request.close;
        answer.drafts = request.drafts && (make_speculator_ || constraint->has_grammar());
        answer.sampler.constrain(std::move(*constraint));
        answer.sampler.begin_answer(prompt.tokens.size());
    }
    preparer_.limit_thinking(request, prepared, answer.dropped, answer.sampler);
    if (scores_prompt) {
        answer.scorer.emplace(prompt.tokens, request.prompt_logprobs);
        answer.scorer->append_part(answer.sequence);
    } else {
        answer.sequence.append(std::span(prompt.tokens).subspan(known));
    }
    const Answers::iterator inserted = insert(std::move(answer));
    if (!scores_prompt && !inserted->logprobs) decode::prepare_next(inserted->sequence, inserted->sampler);
}

// Continues with a fork of the sequence that the request names. Returns how many tokens of the prompt it holds.
size_t CompletionQueue::continue_kept(RunningAnswer &answer, const Request &request, const Prompt &prompt) {
    if (request.continue_from == kNoSequence) return 0;
    const auto found = kept_.find(request.continue_from);
    if (found == kept_.end()) throw DecodeError(DecodeError::Kind::Failed, "the sequence was released");
    Kept &kept = found->second;
    scheduler_.remove(kept.sequence);  // and back, as the newest
    scheduler_.add_idle(kept.sequence);
    decode::Sequence sequence = kept.sequence.sequence().fork();
    size_t known = 0;
    if (request.prompt_logprobs < 0)
        known = sequence.reuse(prompt.tokens);
    else
        sequence.truncate(0);
    answer.sequence = ScheduledSequence(std::move(sequence));
    if (answer.drafts) answer.speculator = std::move(kept.speculator);
    answer.dropped = kept.dropped;
    answer.sampler.drop(kept.dropped);
    if (answer.speculator) {
        answer.speculator->forget();
        answer.counted = answer.speculator->counts();
    }
    return known;
}

void CompletionQueue::start_beams(RequestId id, const Request &request) {
    if (request.logprobs || request.prompt_logprobs >= 0)
        throw DecodeError(DecodeError::Kind::BadInput,
                          "a search with beams gives no log-probabilities of tokens");
    if (request.samples > 1 || request.beams > parallel_)
        throw DecodeError(DecodeError::Kind::BadInput,
                          "a search of " + std::to_string(request.beams) +
                              " beams needs one sample and as many parallel sequences as beams");
    const Clock::time_point now = Clock::now();
    const Prepared prepared = preparer_.prepare(request);
    BeamOptions options{.beams = request.beams,
                        .limits = prepared.limits,
                        .logit_bias = prepared.sampler.options().logit_bias,
                        .constraint = preparer_.constraint(request, prepared),
                        .close = request.close};
    auto search = std::make_unique<BeamSearch>(*executor_, scheduler_, *prepared.vocabulary,
                                               std::move(options), prepared.prompt.tokens);
    beams_.push_back({.id = id,
                      .search = std::move(search),
                      .channels = prepared.channels,
                      .submitted = now,
                      .done = {.id = id,
                               .usage = {.prompt_tokens = prepared.prompt.tokens.size(),
                                         .left_out = prepared.prompt.left_out}}});
}

bool CompletionQueue::cancel(RequestId id) {
    const size_t before = unfinished();
    std::erase_if(ended_, [&](const Done &done) { return done.id == id; });
    std::erase_if(beams_, [&](const BeamAnswer &beams) { return beams.id == id; });
    for (auto answer = answers_.begin(); answer != answers_.end();) {
        const auto next = std::next(answer);
        if (answer->id == id) remove(answer);
        answer = next;
    }
    return unfinished() < before;
}

size_t CompletionQueue::unfinished() const {
    return answers_.size() + ended_.size() + beams_.size();
}

const decode::Sequence *CompletionQueue::sequence(RequestId id) const {
    for (const RunningAnswer &answer : answers_)
        if (answer.id == id) return &answer.sequence.sequence();
    return nullptr;
}

const decode::Sequence *CompletionQueue::kept(SequenceHandle handle) const {
    const auto found = kept_.find(handle);
    return found == kept_.end() ? nullptr : &found->second.sequence.sequence();
}

void CompletionQueue::release(SequenceHandle handle) {
    const auto kept = kept_.find(handle);
    if (kept == kept_.end()) return;
    scheduler_.remove(kept->second.sequence);
    kept_.erase(kept);
}

void CompletionQueue::forget_drafts(SequenceHandle handle) {
    if (const auto kept = kept_.find(handle); kept != kept_.end()) kept->second.speculator.reset();
}

decode::SpeculationCounts CompletionQueue::speculation() const {
    decode::SpeculationCounts all = speculation_;
    for (const RunningAnswer &answer : answers_)
        if (answer.speculator) all.add(answer.speculator->counts().since(answer.counted));
    return all;
}

bool CompletionQueue::step(const decode::StopRequest *stop) {
    events_.clear();
    report_ended();
    if (stop && stop->requested()) return false;
    if (answers_.empty() && beams_.empty()) return true;
    busy_.begin_step();
    append_next(stop);
    const Clock::time_point began = Clock::now();
    const int64_t computed = scheduler_.counts().tokens;
    const bool going = scheduler_.step(stop);
    if (going && after_pass_) after_pass_();
    if (going) {
        const decode::Pass pass{static_cast<int32_t>(scheduler_.counts().tokens - computed),
                                base::seconds_since(began)};
        const base::TraceSpan span("sample");
        for (RunningAnswer &answer : answers_) answer.report_prefill(busy_, events_);
        bool observed = false;  // once per pass
        const std::vector<ScheduledSequence *> ready(scheduler_.ready().begin(), scheduler_.ready().end());
        for (ScheduledSequence *sequence : ready) {
            const auto found = by_sequence_.find(sequence);
            if (found == by_sequence_.end()) continue;  // the sequence of a beam
            const Answers::iterator answer = found->second;
            if (answer->speculator && answer->started) {
                decode::SharedCosts *costs = answer->speculator->costs();
                if (costs && !std::exchange(observed, true)) costs->observe(pass);
                answer->speculator->passed(pass.seconds / static_cast<double>(ready.size()));
            }
            if (answer->score_prompt()) continue;
            if (answer->samples > 1 && !answer->failed()) split(answer);
            advance(answer, *sequence);
        }
        advance_beams();
    }
    busy_.end_step();
    return going;
}

// Appends the last token of each answer that continues, with drafts. The last token of an answer costs no
// pass.
void CompletionQueue::append_next(const decode::StopRequest *stop) {
    if (going_on_.empty()) return;
    const base::TraceSpan span("draft");
    std::vector<decode::Continuation> continuations;
    for (RunningAnswer *answer : std::exchange(going_on_, {})) {
        if (answer->drafts && !answer->speculator) answer->speculator = speculator_of(*answer);
        if (answer->log_drafts && answer->speculator) answer->speculator->log_passes();
        if (!answer->logprobs) decode::prepare_next(answer->sequence, answer->sampler);
        continuations.push_back({&answer->sequence, answer->text.tokens().back(), answer->text.remaining(),
                                 answer->speculator.get(), &answer->sampler});
    }
    const auto sequences = static_cast<int32_t>(std::max<size_t>(1, scheduler_.running()));
    decode::append_with_drafts(continuations, sequences, stop);
}

// Once the prompt of several samples is computed, gives each of them a sequence of its own.
void CompletionQueue::split(Answers::iterator answer) {
    const int32_t samples = std::exchange(answer->samples, 1);
    for (int32_t i = 1; i < samples; ++i) advance(insert(answer->sample(i)), answer->sequence);
}

// Takes the answer's next tokens from the logits of `computed`, a sequence with the same text. The answer then
// continues or ends.
void CompletionQueue::advance(Answers::iterator answer, const ScheduledSequence &computed) {
    if (!answer->failed() && !answer->text.complete()) {
        const bool started = answer->started;
        counts_.sampled_tokens += answer->take(computed, busy_, events_);
        if (answer->started && !started) ++counts_.started;
    }
    if (!answer->failed() && answer->go_on(events_))
        going_on_.push_back(&*answer);
    else
        finish(answer);
}

void CompletionQueue::report_ended() {
    for (Done &done : std::exchange(ended_, {})) {
        count(done);
        events_.push_back(std::move(done));
    }
}

void CompletionQueue::count(const Done &done) {
    if (!done.error.empty()) {
        ++counts_.failed;
        return;
    }
    ++counts_.finished;
    counts_.prompt_tokens += static_cast<int64_t>(done.usage.prompt_tokens);
    counts_.generated_tokens += static_cast<int64_t>(done.tokens.size());
}

void CompletionQueue::end_all(FinishReason reason) {
    events_.clear();
    report_ended();
    for (const BeamAnswer &beams : beams_) finish(beams, reason);
    beams_.clear();
    while (!answers_.empty()) {
        if (!answers_.front().text.over()) answers_.front().end(reason, events_);
        finish(answers_.begin());
    }
}

void CompletionQueue::advance_beams() {
    for (auto beams = beams_.begin(); beams != beams_.end();) {
        const auto next = std::next(beams);
        if (!beams->advance(busy_.step_began(), events_)) {
            finish(*beams, FinishReason::Length);
            beams_.erase(beams);
        }
        beams = next;
    }
}

void CompletionQueue::finish(const BeamAnswer &beams, FinishReason reason) {
    const size_t before = events_.size();
    beams.finish(reason, events_);
    for (size_t i = before; i < events_.size(); ++i)
        if (const Done *done = std::get_if<Done>(&events_[i])) count(*done);
}

SequenceHandle CompletionQueue::keep(decode::SequenceCache cache) {
    const std::vector<TokenId> tokens = cache.tokens();
    decode::Sequence sequence(*executor_);
    sequence.replace(0, tokens, std::move(cache));
    const auto [kept, added] =
        kept_.emplace(++last_handle_, Kept{ScheduledSequence(std::move(sequence)), nullptr, 0});
    scheduler_.add_idle(kept->second.sequence);
    return kept->first;
}

SequenceHandle CompletionQueue::keep(RunningAnswer &answer) {
    if (answer.sequence.due())
        answer.sequence.settle();
    else
        answer.sequence.truncate(answer.sequence.tokens().size() - answer.unused);
    const auto [kept, added] =
        kept_.emplace(++last_handle_, Kept{std::move(answer.sequence), std::move(answer.speculator),
                                           answer.dropped + answer.done.usage.forgotten});
    scheduler_.add_idle(kept->second.sequence);
    return kept->first;
}

void CompletionQueue::finish(Answers::iterator answer) {
    answer->conclude();
    Done &done = answer->done;
    if (done.speculation) speculation_.add(*done.speculation);
    scheduler_.remove(answer->sequence);
    if (answer->keep) done.kept = keep(*answer);
    for (int32_t i = 0; i < answer->samples; ++i) {
        count(done);
        events_.push_back(done);
        ++done.sample;
    }
    remove(answer);
}

}  // namespace runnel::completion
