#include "engine/decode/answer_batch.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "engine/decode/error.h"

namespace runnel::decode {

void AnswerBatch::submit(Job job) {
    assert(!job.prompt.empty());
    entries_.push_back({job.key,
                        job.prompt.size(),
                        Session(*executor_),
                        std::move(job.sampler),
                        {vocabulary_, std::move(job.options)}});
    const Entries::iterator entry = std::prev(entries_.end());
    by_session_[&entry->session] = entry;
    try {
        entry->session.append(job.prompt);
    } catch (const DecodeError &error) {
        entry->error = error.what();
    }
    if (entry->error.empty() && go_on(*entry))
        scheduler_.add(entry->session);
    else
        finish(entry);
}

bool AnswerBatch::cancel(uint64_t key) {
    const auto entry =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry &e) { return e.key == key; });
    if (entry == entries_.end()) return false;
    scheduler_.remove(entry->session);
    by_session_.erase(&entry->session);
    entries_.erase(entry);
    return true;
}

bool AnswerBatch::step(const StopRequest *stop) {
    if (!scheduler_.step(stop)) return false;
    const std::vector<Session *> ready(scheduler_.ready().begin(), scheduler_.ready().end());
    for (Session *session : ready) {
        const Entries::iterator entry = by_session_.at(session);
        sample(*entry);
        if (entry->error.empty() && go_on(*entry)) {
            session->append({&entry->answer.tokens().back(), 1});
        } else {
            scheduler_.remove(*session);
            finish(entry);
        }
    }
    return true;
}

void AnswerBatch::sample(Entry &entry) {
    try {
        const TokenId id = entry.sampler.sample(entry.session.logits(), entry.session.tokens());
        counts_.started += entry.answer.tokens().empty();
        ++counts_.sampled_tokens;
        entry.text += entry.answer.take(id);
    } catch (const DecodeError &error) {
        entry.error = error.what();
    }
}

// Another token is wanted, and there is room to ask for it.
bool AnswerBatch::go_on(Entry &entry) {
    if (entry.answer.over()) return false;
    const bool started = !entry.answer.tokens().empty();
    entry.context_full = started && !entry.answer.complete() && entry.session.room() == 0;
    if (!entry.answer.complete() && !entry.context_full) return true;
    entry.text += entry.answer.end(FinishReason::Length);
    return false;
}

void AnswerBatch::finish(Entries::iterator entry) {
    const bool failed = !entry->error.empty();
    ++(failed ? counts_.failed : counts_.finished);
    if (!failed) {
        counts_.prompt_tokens += static_cast<int64_t>(entry->prompt_tokens);
        counts_.generated_tokens += static_cast<int64_t>(entry->answer.tokens().size());
    }
    finished_.push_back({entry->key, std::move(entry->text), entry->answer.tokens(), entry->prompt_tokens,
                         entry->answer.reason(), entry->context_full, std::move(entry->error)});
    by_session_.erase(&entry->session);
    entries_.erase(entry);
}

}  // namespace runnel::decode
