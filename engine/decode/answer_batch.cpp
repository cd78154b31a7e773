#include "engine/decode/answer_batch.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>

#include "engine/decode/error.h"
#include "engine/decode/next_token.h"

namespace runnel::decode {

AnswerBatch::Entries::iterator AnswerBatch::insert(Entry entry) {
    entries_.push_back(std::move(entry));
    const Entries::iterator at = std::prev(entries_.end());
    by_session_[&at->session] = at;
    return at;
}

void AnswerBatch::submit(Job job) {
    assert(!job.prompt.empty() && job.samples >= 1);
    const std::optional<size_t> keeping = job.options.shift_keeping;
    const Vocabulary &vocabulary = job.vocabulary.text ? job.vocabulary : vocabulary_;
    const Entries::iterator entry = insert({.key = job.key,
                                            .prompt_tokens = job.prompt.size(),
                                            .session = Session(*executor_),
                                            .sampler = std::move(job.sampler),
                                            .answer = {vocabulary, std::move(job.options)},
                                            .shift_keeping = keeping,
                                            .samples = job.samples,
                                            .scored = job.scored});
    try {
        entry->session.append(job.prompt);
        if (!entry->scored) prepare_next(entry->session, entry->sampler);
    } catch (const DecodeError &error) {
        entry->error = error.what();
        entry->bad_input = error.kind == DecodeError::Kind::BadInput;
    }
    if (entry->error.empty() && go_on(*entry))
        scheduler_.add(entry->session);
    else
        finish(entry);
}

bool AnswerBatch::cancel(uint64_t key) {
    const size_t before = entries_.size();
    for (auto entry = entries_.begin(); entry != entries_.end();) {
        const auto next = std::next(entry);
        if (entry->key == key) {
            scheduler_.remove(entry->session);
            by_session_.erase(&entry->session);
            entries_.erase(entry);
        }
        entry = next;
    }
    return entries_.size() < before;
}

void AnswerBatch::end_all(FinishReason reason) {
    while (!entries_.empty()) {
        Entry &entry = entries_.front();
        scheduler_.remove(entry.session);
        entry.text += entry.answer.end(reason);
        finish(entries_.begin());
    }
}

bool AnswerBatch::step(const StopRequest *stop) {
    const auto start = std::chrono::steady_clock::now();
    const int64_t computed = scheduler_.counts().tokens;
    if (!scheduler_.step(stop)) return false;
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    const auto tokens = static_cast<int32_t>(scheduler_.counts().tokens - computed);
    bool observed = false;  // by one of the sequences, for all
    const std::vector<Session *> ready(scheduler_.ready().begin(), scheduler_.ready().end());
    for (Session *session : ready) {
        const Entries::iterator entry = by_session_.at(session);
        if (entry->speculator) {
            SharedCosts *costs = entry->speculator->costs();
            if (costs && !std::exchange(observed, true)) costs->observe({tokens, time.count()});
            entry->speculator->passed(time.count() / static_cast<double>(ready.size()));
        }
        if (entry->samples > 1) split(*entry);
        advance(entry, *session);
    }
    ask_for_more(stop);
    return true;
}

// The prompt of several answers is computed: from here on each has a sequence of its own.
void AnswerBatch::split(Entry &entry) {
    for (int32_t i = 1; i < entry.samples; ++i) {
        Entry more{.key = entry.key,
                   .prompt_tokens = entry.prompt_tokens,
                   .session = entry.session.fork(),
                   .sampler = entry.sampler,
                   .answer = entry.answer,
                   .shift_keeping = entry.shift_keeping,
                   .sample = i,
                   .scored = entry.scored};
        more.sampler.set_stream(entry.sampler.stream() + static_cast<uint32_t>(i));
        const Entries::iterator at = insert(std::move(more));
        scheduler_.add(at->session);
        advance(at, entry.session);
    }
    entry.samples = 1;
}

// Takes what comes next, by the rows of a session with the same tokens; the sequence goes on or ends.
void AnswerBatch::advance(Entries::iterator entry, const Session &computed) {
    take(*entry, computed);
    if (entry->error.empty() && go_on(*entry)) {
        going_on_.push_back(&*entry);
    } else {
        scheduler_.remove(entry->session);
        finish(entry);
    }
}

void AnswerBatch::take(Entry &entry, const Session &computed) {
    try {
        const auto [tokens, rows, branch] =
            take_tokens(entry.session, computed.rows(), entry.speculator.get(), entry.sampler);
        for (size_t i = 0; i < tokens.size() && !entry.answer.over() && !entry.answer.complete(); ++i) {
            if (entry.scored) entry.log_probability += decode::log_probability(rows[i].whole(), tokens[i]);
            counts_.started += entry.answer.tokens().empty();
            ++counts_.sampled_tokens;
            entry.text += entry.answer.take(tokens[i]);
        }
    } catch (const DecodeError &error) {
        entry.error = error.what();
        entry.bad_input = error.kind == DecodeError::Kind::BadInput;
    }
}

void AnswerBatch::ask_for_more(const StopRequest *stop) {
    std::vector<Continuation> continuations;
    for (Entry *entry : std::exchange(going_on_, {})) {
        if (make_speculator_ && !entry->speculator) entry->speculator = make_speculator_();
        continuations.push_back({&entry->session, &entry->answer, entry->speculator.get(), &entry->sampler});
        if (!entry->scored) prepare_next(entry->session, entry->sampler);
    }
    const auto sequences = static_cast<int32_t>(std::max<size_t>(1, scheduler_.running()));
    append_with_drafts(continuations, sequences, stop);
}

// Another token is wanted, and there is room to ask for it.
bool AnswerBatch::go_on(Entry &entry) {
    if (entry.answer.over()) return false;
    const bool started = !entry.answer.tokens().empty();
    entry.context_full =
        started && !entry.answer.complete() && entry.session.room() == 0 && !make_room(entry);
    if (!entry.answer.complete() && !entry.context_full) return true;
    entry.text += entry.answer.end(FinishReason::Length);
    return false;
}

bool AnswerBatch::make_room(Entry &entry) {
    const size_t dropped = entry.shift_keeping ? entry.session.make_room(*entry.shift_keeping) : 0;
    entry.forgotten += static_cast<int64_t>(dropped);
    entry.sampler.drop(static_cast<int64_t>(dropped));
    return dropped > 0;
}

// An entry that was not split yet is the answer of all its samples.
void AnswerBatch::finish(Entries::iterator entry) {
    const bool failed = !entry->error.empty();
    (failed ? counts_.failed : counts_.finished) += entry->samples;
    if (!failed) {
        counts_.prompt_tokens += static_cast<int64_t>(entry->prompt_tokens);
        counts_.generated_tokens += static_cast<int64_t>(entry->answer.tokens().size());
    }
    for (int32_t i = 0; i < entry->samples; ++i)
        finished_.push_back({.key = entry->key,
                             .text = entry->text,
                             .tokens = entry->answer.tokens(),
                             .prompt_tokens = entry->prompt_tokens,
                             .reason = entry->answer.reason(),
                             .context_full = entry->context_full,
                             .error = entry->error,
                             .bad_input = entry->bad_input,
                             .sample = entry->sample + i,
                             .log_probability = entry->log_probability,
                             .forgotten = entry->forgotten});
    if (entry->speculator) speculation_.add(entry->speculator->counts());
    by_session_.erase(&entry->session);
    entries_.erase(entry);
}

}  // namespace runnel::decode
