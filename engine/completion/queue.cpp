#include "engine/completion/queue.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "engine/completion/thinking_budget.h"
#include "engine/decode/next_token.h"
#include "engine/decode/speculation/grammar_draft.h"

namespace runnel::completion {

using base::seconds_between, base::seconds_since;
using decode::DecodeError;
using decode::ScheduledSequence;

namespace {

// Whether an answer with these tools may be plain text, without a call.
bool may_be_text(const std::shared_ptr<const text::ToolUse> &tools) {
    return tools && tools->choice == text::ToolUse::Choice::Auto;
}

}  // namespace

CompletionQueue::CompletionQueue(decode::Engine &engine, const PromptFormat &format, QueueOptions options)
    : CompletionQueue(engine.executor(), vocabulary_of(engine.tokenizer()), std::move(options)) {
    engine_ = &engine;
    format_ = &format;
    turn_vocabulary_ = format.vocabulary();
    call_vocabulary_ = format.vocabulary(true);
}

CompletionQueue::CompletionQueue(decode::Executor &executor, Vocabulary vocabulary, QueueOptions options)
    : executor_(&executor),
      vocabulary_(std::move(vocabulary)),
      make_speculator_(std::move(options.drafts)),
      parallel_(options.parallel),
      scheduler_(executor, {.parallel = options.parallel}) {}

CompletionQueue::Entries::iterator CompletionQueue::insert(Entry answer) {
    answers_.push_back(std::move(answer));
    const Entries::iterator at = std::prev(answers_.end());
    by_sequence_[&at->sequence] = at;
    scheduler_.add(at->sequence);
    return at;
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

Prompt CompletionQueue::prompt_of(const Request &request) const {
    const auto context = static_cast<size_t>(executor_->context());
    if (format_) return format_->make(request, context);
    const auto *tokens = std::get_if<Tokens>(&request.input);
    if (!tokens) throw DecodeError(DecodeError::Kind::BadInput, "there is no tokenizer: give token ids");
    return fitted({.tokens = tokens->ids}, request.overflow, tokens->fixed, context);
}

decode::Sampler CompletionQueue::sampler_of(const Request &request) const {
    decode::Sampler sampler =
        engine_ ? engine_->sampler(request.sampling) : decode::Sampler(request.sampling, executor_->vocab());
    sampler.set_stream(request.stream);
    return sampler;
}

Limits CompletionQueue::limits_of(const Request &request, const Prompt &prompt) const {
    Limits limits = request.limits;
    limits.ignore_end = limits.ignore_end && !request.constraint && !tools_of(request);
    if (prompt.is_turn)
        limits.stops.insert(limits.stops.end(), format_->stops().begin(), format_->stops().end());
    return limits;
}

std::optional<decode::Constraint> CompletionQueue::constraint_of(const Request &request,
                                                                 const Prompt &prompt) {
    const std::shared_ptr<const text::ToolUse> tools = tools_of(request);
    const bool required = tools && tools->choice == text::ToolUse::Choice::Required;
    if (required && request.constraint)
        throw DecodeError(DecodeError::Kind::BadInput,
                          "a constraint and a required tool call exclude each other");
    if (!request.constraint && !tools) return std::nullopt;
    if (!engine_) throw DecodeError(DecodeError::Kind::BadInput, "a constraint needs the tokenizer");
    if (!constraints_)
        constraints_ =
            std::make_unique<Constraints>(engine_->tokenizer(), executor_->vocab(), call_vocabulary_.text);
    const text::ReasoningStyle reasoning = prompt.is_turn ? format_->reasoning() : text::ReasoningStyle();
    if (request.constraint) return constraints_->make(*request.constraint, reasoning, prompt.begins_inside);
    return constraints_->make_calls(*format_->tool_format(), *tools, reasoning, prompt.begins_inside);
}

// Text that the grammar forces is drafted first.
std::unique_ptr<decode::Speculator> CompletionQueue::speculator_of(const Entry &answer) {
    const bool constrained = answer.sampler.constraint() != nullptr;
    if (!constrained) return make_speculator_();
    std::unique_ptr<decode::Speculator> speculator;
    if (make_speculator_) {
        speculator = make_speculator_();
    } else {
        if (!grammar_costs_) grammar_costs_ = std::make_shared<decode::SharedCosts>();
        speculator = std::make_unique<decode::Speculator>(std::vector<std::unique_ptr<decode::DraftSource>>(),
                                                          decode::SpeculationOptions(), grammar_costs_);
    }
    speculator->add_first(std::make_unique<decode::GrammarDraft>(constraints_->words()));
    return speculator;
}

// The tools whose calls are looked for in the answer; null: none.
std::shared_ptr<const text::ToolUse> CompletionQueue::tools_of(const Request &request) const {
    const auto *messages = std::get_if<Messages>(&request.input);
    if (!messages || !messages->tools || !format_) return nullptr;
    const text::ToolUse &tools = *messages->tools;
    using Choice = text::ToolUse::Choice;
    const bool can_call = !tools.tools.empty() && tools.choice != Choice::None;
    if (request.constraint && tools.choice == Choice::Auto) return nullptr;  // leaves no place for calls
    if (can_call && format_->tool_format()) return messages->tools;
    if (tools.choice == Choice::Required)
        throw DecodeError(
            DecodeError::Kind::BadInput,
            "a tool call is required, but the chat template has no tool-call format that runnel knows");
    return nullptr;
}

const Vocabulary &CompletionQueue::vocabulary_of_answer(const Prompt &prompt, bool with_calls) const {
    return with_calls ? call_vocabulary_ : prompt.is_turn ? turn_vocabulary_ : vocabulary_;
}

void CompletionQueue::start(RequestId id, const Request &request) {
    const Clock::time_point now = Clock::now();
    const auto tools = tools_of(request);
    const Prompt prompt = prompt_of(request);
    Entry answer(id, ScheduledSequence(*executor_), sampler_of(request),
                 Answer(vocabulary_of_answer(prompt, tools != nullptr), limits_of(request, prompt)));
    answer.shift_keeping = prompt.shift_keeping;
    answer.samples = request.samples;
    answer.logprobs = request.logprobs;
    answer.top_logprobs = request.top_logprobs;
    answer.prompt_logprobs = request.prompt_logprobs;
    const bool scores_prompt = request.prompt_logprobs >= 0;
    answer.drafts = request.drafts && make_speculator_;
    answer.keep = request.keep;
    answer.submitted = now;
    if (prompt.is_turn) answer.splitter = format_->splitter(prompt, tools != nullptr);
    answer.tools = tools;
    if (tools) answer.calls.emplace(*format_->tool_format(), *tools, prompt.tokens.size());
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
    size_t known = 0;
    if (request.continue_from != kNoSequence) {
        const auto found = kept_.find(request.continue_from);
        if (found == kept_.end()) throw DecodeError(DecodeError::Kind::Failed, "the sequence was released");
        Kept &kept = found->second;
        decode::Sequence sequence = kept.sequence.sequence().fork();
        if (!scores_prompt)
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
    }
    if (auto constraint = constraint_of(request, prompt)) {
        answer.sampler.constrain(std::move(*constraint));
        answer.sampler.begin_answer(prompt.tokens.size());
        answer.close = request.close;
        answer.drafts = request.drafts;
    }
    if (request.thinking_budget >= 0 && prompt.is_turn && engine_) {
        text::ReasoningStyle style = format_->reasoning();
        // A required call is constrained only behind the closing mark, which must come.
        if (may_be_text(tools) && !format_->tool_format()->bare)
            style.call = format_->tool_format()->triggers().front();
        answer.sampler.force(ThinkingBudget(style, prompt.begins_inside, request.thinking_budget,
                                            ThinkingBudget::closing_tokens(style, engine_->tokenizer()),
                                            vocabulary_of_answer(prompt, tools != nullptr).text,
                                            static_cast<int64_t>(prompt.tokens.size()) + answer.dropped));
    }
    if (scores_prompt) {
        answer.unread = prompt.tokens;
        read_prompt(answer);
        insert(std::move(answer));
        return;
    }
    answer.sequence.append(std::span(prompt.tokens).subspan(known));
    if (!answer.logprobs) decode::prepare_next(answer.sequence, answer.sampler);
    insert(std::move(answer));
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
    const auto tools = tools_of(request);
    const Prompt prompt = prompt_of(request);
    BeamOptions options{.beams = request.beams,
                        .limits = limits_of(request, prompt),
                        .logit_bias = sampler_of(request).options().logit_bias,
                        .constraint = constraint_of(request, prompt),
                        .close = request.close};
    beams_.push_back({.id = id,
                      .search = std::make_unique<BeamSearch>(*executor_, scheduler_,
                                                             vocabulary_of_answer(prompt, tools != nullptr),
                                                             std::move(options), prompt.tokens),
                      .splitter = {},
                      .calls = {},
                      .tools = {},
                      .submitted = now});
    Beams &beams = beams_.back();
    if (prompt.is_turn) beams.splitter = format_->splitter(prompt, tools != nullptr);
    beams.tools = tools;
    if (tools) beams.calls.emplace(*format_->tool_format(), *tools, prompt.tokens.size());
    beams.done.id = id;
    beams.done.usage = {.prompt_tokens = prompt.tokens.size(), .left_out = prompt.left_out};
}

bool CompletionQueue::cancel(RequestId id) {
    const size_t before = unfinished();
    std::erase_if(ended_, [&](const Done &done) { return done.id == id; });
    std::erase_if(beams_, [&](const Beams &beams) { return beams.id == id; });
    for (auto answer = answers_.begin(); answer != answers_.end();) {
        const auto next = std::next(answer);
        if (answer->id == id) {
            scheduler_.remove(answer->sequence);
            by_sequence_.erase(&answer->sequence);
            std::erase(going_on_, &*answer);
            answers_.erase(answer);
        }
        answer = next;
    }
    return unfinished() < before;
}

size_t CompletionQueue::unfinished() const {
    return answers_.size() + ended_.size() + beams_.size();
}

const decode::Sequence *CompletionQueue::sequence(RequestId id) const {
    for (const Entry &answer : answers_)
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
    for (const Entry &answer : answers_)
        if (answer.speculator) all.add(answer.speculator->counts().since(answer.counted));
    return all;
}

double CompletionQueue::busy() const {
    return busy_ + (step_began_ ? seconds_since(*step_began_) : 0);
}

bool CompletionQueue::step(const decode::StopRequest *stop) {
    events_.clear();
    report_ended();
    if (stop && stop->requested()) return false;
    if (answers_.empty() && beams_.empty()) return true;
    step_began_ = Clock::now();
    append_next(stop);
    const Clock::time_point began = Clock::now();
    const int64_t computed = scheduler_.counts().tokens;
    const bool going = scheduler_.step(stop);
    if (going) {
        const decode::Pass pass{static_cast<int32_t>(scheduler_.counts().tokens - computed),
                                seconds_since(began)};
        report_prefill();
        bool observed = false;  // once per pass
        const std::vector<ScheduledSequence *> ready(scheduler_.ready().begin(), scheduler_.ready().end());
        for (ScheduledSequence *sequence : ready) {
            const auto found = by_sequence_.find(sequence);
            if (found == by_sequence_.end()) continue;  // a beam's
            const Entries::iterator answer = found->second;
            if (answer->speculator && answer->started) {
                decode::SharedCosts *costs = answer->speculator->costs();
                if (costs && !std::exchange(observed, true)) costs->observe(pass);
                answer->speculator->passed(pass.seconds / static_cast<double>(ready.size()));
            }
            if (score_prompt(*answer)) continue;
            if (answer->samples > 1 && answer->done.error.empty()) split(answer);
            advance(answer, *sequence);
        }
        advance_beams();
    }
    busy_ = busy();
    step_began_.reset();
    return going;
}

// Appends the last token of each answer that goes on, with drafts. The last token of an answer costs no pass.
void CompletionQueue::append_next(const decode::StopRequest *stop) {
    std::vector<decode::Continuation> continuations;
    for (Entry *answer : std::exchange(going_on_, {})) {
        if (answer->drafts && !answer->speculator) answer->speculator = speculator_of(*answer);
        if (!answer->logprobs) decode::prepare_next(answer->sequence, answer->sampler);
        continuations.push_back({&answer->sequence, answer->text.tokens().back(), answer->text.remaining(),
                                 answer->speculator.get(), &answer->sampler});
    }
    const auto sequences = static_cast<int32_t>(std::max<size_t>(1, scheduler_.running()));
    decode::append_with_drafts(continuations, sequences, stop);
}

void CompletionQueue::report_prefill() {
    for (Entry &answer : answers_) {
        if (answer.started || answer.sequence.computed() == answer.done.timings.prefill_tokens) continue;
        Timings &timings = answer.done.timings;
        if (!std::exchange(answer.computing, true)) {
            answer.began = *step_began_;
            timings.queued_seconds = seconds_between(answer.submitted, answer.began);
        }
        timings.prefill_tokens = answer.sequence.computed();
        timings.prefill_seconds = seconds_since(answer.began);
        const int64_t done = answer.sequence.sequence().cache().length();
        events_.push_back(Prefill{answer.id, done, static_cast<int64_t>(answer.done.usage.prompt_tokens),
                                  std::max<int64_t>(0, done - timings.prefill_tokens),
                                  answer.done.usage.left_out});
    }
}

// Once the prompt of several samples is computed, gives each of them a sequence of its own.
void CompletionQueue::split(Entries::iterator answer) {
    const int32_t samples = std::exchange(answer->samples, 1);
    for (int32_t i = 1; i < samples; ++i) {
        Entry more(answer->id, ScheduledSequence(answer->sequence.sequence().fork()), answer->sampler,
                   answer->text);
        more.splitter = answer->splitter;
        more.calls = answer->calls;
        more.tools = answer->tools;
        more.shift_keeping = answer->shift_keeping;
        more.logprobs = answer->logprobs;
        more.top_logprobs = answer->top_logprobs;
        more.drafts = answer->drafts;
        more.keep = answer->keep;
        more.close = answer->close;
        more.done = answer->done;
        more.dropped = answer->dropped;
        more.computing = true;
        more.submitted = answer->submitted;
        more.began = answer->began;
        more.done.sample = i;
        more.sampler.set_stream(answer->sampler.stream() + static_cast<uint32_t>(i));
        advance(insert(std::move(more)), answer->sequence);
    }
}

// Takes the next tokens from the rows of `computed`, which has the same tokens. The answer goes on or ends.
void CompletionQueue::advance(Entries::iterator answer, const ScheduledSequence &computed) {
    if (answer->done.error.empty() && !answer->text.complete()) take(*answer, computed);
    if (answer->done.error.empty() && go_on(*answer))
        going_on_.push_back(&*answer);
    else
        finish(answer);
}

void CompletionQueue::take(Entry &answer, const ScheduledSequence &computed) {
    try {
        const decode::LogitRows &all = computed.rows();
        const auto [tokens, rows, branch] =
            decode::take_tokens(answer.sequence, answer.started ? all : all.part(all.size() - 1, 1),
                                answer.speculator.get(), answer.sampler);
        answer.unused = tokens.size();
        for (size_t i = 0; i < tokens.size() && !answer.text.over() && !answer.text.complete(); ++i) {
            if (answer.logprobs) {
                answer.done.logprobs.push_back(
                    decode::log_probabilities(rows[i].whole(), tokens[i], answer.top_logprobs));
                answer.done.log_probability += answer.done.logprobs.back().token.log_probability;
            }
            count_token(answer);
            --answer.unused;
            const size_t before = answer.text.tokens().size();
            const std::string text = answer.text.take(tokens[i]);
            const bool is_token = answer.text.tokens().size() > before;  // not an end
            if (answer.logprobs && !is_token) answer.done.logprobs.pop_back();
            emit(answer, is_token ? tokens[i] : text::kNoToken, text);
        }
    } catch (const DecodeError &error) {
        fail(answer, error);
    }
}

// A scored prompt is read in parts, because all rows of a part are there at once.
void CompletionQueue::read_prompt(Entry &answer) {
    constexpr size_t kMostRows = 64;
    const size_t count =
        std::min({answer.unread.size(), kMostRows, static_cast<size_t>(executor_->batch_size())});
    answer.sequence.append(std::span(answer.unread).first(count), static_cast<int32_t>(count));
    answer.unread.erase(answer.unread.begin(), answer.unread.begin() + static_cast<std::ptrdiff_t>(count));
}

// True when more of the prompt has to be read first. May fail the answer.
bool CompletionQueue::score_prompt(Entry &answer) {
    if (answer.prompt_logprobs < 0 || answer.started) return false;
    const std::vector<TokenId> &tokens = answer.sequence.tokens();
    const decode::LogitRows &rows = answer.sequence.rows();
    for (size_t i = 0; i < rows.size(); ++i) {
        const size_t next = tokens.size() - rows.size() + i + 1;
        if (next == tokens.size() && answer.unread.empty()) break;
        try {
            decode::expect_finite(rows[i].whole());
        } catch (const DecodeError &error) {
            fail(answer, error);
            return false;
        }
        answer.done.prompt_logprobs.push_back(decode::log_probabilities(
            rows[i].whole(), next < tokens.size() ? tokens[next] : answer.unread.front(),
            answer.prompt_logprobs));
    }
    if (answer.unread.empty()) return false;
    read_prompt(answer);
    return true;
}

void CompletionQueue::count_token(Entry &answer) {
    ++counts_.sampled_tokens;
    const Clock::time_point now = Clock::now();
    Timings &timings = answer.done.timings;
    if (!std::exchange(answer.started, true)) {
        ++counts_.started;
        timings.first_token_seconds = seconds_between(answer.submitted, now);
        answer.busy_at_start = busy();
    } else {
        ++timings.decode_tokens;
        timings.token_seconds.push_back(static_cast<float>(seconds_between(answer.last_token, now)));
        timings.decode_seconds = busy() - answer.busy_at_start;
    }
    answer.last_token = now;
}

void CompletionQueue::fail(Entry &answer, const DecodeError &error) {
    answer.done.error = error.what();
    answer.done.kind = error.kind;
}

// True if the answer goes on; shifts a full context if the request allows it. Ends the answer otherwise.
bool CompletionQueue::go_on(Entry &answer) {
    if (answer.text.over()) return false;
    decode::Sequence &sequence = answer.sequence.sequence();
    if (!answer.text.complete() && sequence.free_cells() == 0) {
        const size_t dropped = answer.shift_keeping ? sequence.shift_context(*answer.shift_keeping) : 0;
        answer.done.usage.forgotten += static_cast<int64_t>(dropped);
        answer.sampler.drop(static_cast<int64_t>(dropped));
        answer.done.context_full = dropped == 0;
    }
    if (!answer.text.complete() && !answer.done.context_full) return true;
    end(answer, FinishReason::Length);
    return false;
}

// Reports a token exactly once, with or without text.
void CompletionQueue::report_text(Done &of, std::optional<text::ReasoningSplitter> &splitter,
                                  std::optional<text::ToolCallSplitter> &calls, TokenId token,
                                  const std::string &text, bool over) {
    const auto report = [&](Channel channel, std::string part) {
        if (calls && channel == Channel::Answer) part = calls->push(part);
        if (token == text::kNoToken && part.empty()) return;
        events_.push_back(Piece{of.id, of.sample, channel, part, std::exchange(token, text::kNoToken)});
    };
    if (!splitter) return report(Channel::Answer, text);
    const auto report_all = [&](const std::vector<text::ReasoningSplitter::Piece> &pieces) {
        for (const auto &[is_reasoning, part] : pieces)
            report(is_reasoning ? Channel::Reasoning : Channel::Answer, part);
    };
    report_all(splitter->push(text));
    if (over) report_all(splitter->flush());
    report(Channel::Answer, "");
    if (!over || !calls) return;
    text::ParsedAnswer rest = calls->flush();
    of.calls = std::move(rest.calls);
    of.note = std::move(rest.note);
    if (!rest.content.empty())
        events_.push_back(Piece{of.id, of.sample, Channel::Answer, rest.content, text::kNoToken});
}

void CompletionQueue::emit(Entry &answer, TokenId token, const std::string &text) {
    report_text(answer.done, answer.splitter, answer.calls, token, text, answer.text.over());
}

void CompletionQueue::end(Entry &answer, FinishReason reason) {
    std::string rest = answer.text.end(reason);
    if (const decode::Constraint *constraint = answer.sampler.constraint();
        constraint && answer.close && reason == FinishReason::Length) {
        const std::string ending = constraint->ending(answer.text.tokens());
        answer.closed = !ending.empty();
        rest += ending;
    }
    emit(answer, text::kNoToken, rest);
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
    for (Beams &beams : beams_) finish(beams, reason);
    beams_.clear();
    while (!answers_.empty()) {
        if (!answers_.front().text.over()) end(answers_.front(), reason);
        finish(answers_.begin());
    }
}

void CompletionQueue::advance_beams() {
    for (auto beams = beams_.begin(); beams != beams_.end();) {
        const auto next = std::next(beams);
        Timings &timings = beams->done.timings;
        const bool started = beams->search->started();
        if (!started && beams->search->computed() > 0 && timings.prefill_tokens == 0)
            timings.queued_seconds = seconds_between(beams->submitted, *step_began_);
        bool going = true;
        try {
            going = beams->search->advance();
        } catch (const DecodeError &error) {
            beams->done.error = error.what();
            beams->done.kind = error.kind;
            going = false;
        }
        const double seconds = seconds_since(beams->submitted);
        if (!started) {
            timings.prefill_tokens = beams->search->computed();
            timings.first_token_seconds = seconds;
            timings.prefill_seconds = seconds - timings.queued_seconds;
            const auto all = static_cast<int64_t>(beams->done.usage.prompt_tokens);
            const bool ready = beams->search->started();
            events_.push_back(Prefill{beams->id, ready ? all : std::min(all, timings.prefill_tokens), all,
                                      ready ? all - std::min(all, timings.prefill_tokens) : 0,
                                      beams->done.usage.left_out});
        }
        timings.decode_tokens = beams->search->computed() - timings.prefill_tokens;
        timings.decode_seconds = seconds - timings.first_token_seconds;
        if (!going) {
            finish(*beams, FinishReason::Length);
            beams_.erase(beams);
        }
        beams = next;
    }
}

void CompletionQueue::finish(Beams &beams, FinishReason reason) {
    if (!beams.done.error.empty()) {
        count(beams.done);
        events_.push_back(beams.done);
        return;
    }
    const std::vector<Hypothesis> found = beams.search->results(reason);
    for (size_t i = 0; i < found.size(); ++i) {
        Done done = beams.done;
        done.sample = static_cast<int32_t>(i);
        done.reason = found[i].reason;
        done.tokens = found[i].tokens;
        done.usage.completion_tokens = found[i].tokens.size();
        done.log_probability = found[i].log_probability;
        done.score = found[i].score;
        if (!may_be_text(beams.tools)) done.complete = found[i].complete;
        std::optional<text::ReasoningSplitter> splitter = beams.splitter;
        std::optional<text::ToolCallSplitter> calls = beams.calls;
        report_text(done, splitter, calls, text::kNoToken, found[i].text, true);
        count(done);
        events_.push_back(std::move(done));
    }
}

SequenceHandle CompletionQueue::keep(Entry &answer) {
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

void CompletionQueue::finish(Entries::iterator answer) {
    Done &done = answer->done;
    scheduler_.remove(answer->sequence);
    by_sequence_.erase(&answer->sequence);
    std::erase(going_on_, &*answer);
    if (answer->speculator) {
        done.speculation = answer->speculator->counts().since(answer->counted);
        speculation_.add(*done.speculation);
    }
    done.reason = answer->text.reason();
    done.tokens = answer->text.tokens();
    done.usage.completion_tokens = done.tokens.size();
    // With tool choice auto the answer may be plain text, so completeness is not reported.
    const decode::Constraint *constraint = answer->sampler.constraint();
    if (constraint && done.error.empty() && !may_be_text(answer->tools))
        done.complete = answer->closed || constraint->complete(done.tokens);
    if (answer->keep) done.kept = keep(*answer);
    for (int32_t i = 0; i < answer->samples; ++i) {
        count(done);
        events_.push_back(done);
        ++done.sample;
    }
    answers_.erase(answer);
}

}  // namespace runnel::completion
