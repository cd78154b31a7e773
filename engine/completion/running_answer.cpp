#include "engine/completion/running_answer.h"

#include <algorithm>

namespace runnel::completion {

using base::seconds_between, base::seconds_since;
using decode::DecodeError;
using decode::ScheduledSequence;

RunningAnswer RunningAnswer::sample(int32_t number) const {
    RunningAnswer more(id, ScheduledSequence(sequence.sequence().fork()), sampler, text, channels);
    more.shift_keeping = shift_keeping;
    more.logprobs = logprobs;
    more.top_logprobs = top_logprobs;
    more.drafts = drafts;
    more.log_drafts = log_drafts;
    more.keep = keep;
    more.close = close;
    more.mark = mark;
    more.done = done;
    more.dropped = dropped;
    more.computing = true;
    more.submitted = submitted;
    more.began = began;
    more.done.sample = number;
    more.sampler.set_stream(sampler.stream() + static_cast<uint32_t>(number));
    return more;
}

void RunningAnswer::report_prefill(const BusyTime &busy, std::vector<Event> &events) {
    Timings &timings = done.timings;
    if (started || sequence.computed() == timings.prefill_tokens) return;
    if (!std::exchange(computing, true)) {
        began = busy.step_began();
        timings.queued_seconds = seconds_between(submitted, began);
    }
    timings.prefill_tokens = sequence.computed();
    timings.prefill_seconds = seconds_since(began);
    const int64_t length = sequence.sequence().cache().length();
    events.push_back(Prefill{id, length, static_cast<int64_t>(done.usage.prompt_tokens),
                             std::max<int64_t>(0, length - timings.prefill_tokens), done.usage.left_out});
}

bool RunningAnswer::score_prompt() {
    if (!scorer || started) return false;
    try {
        if (!scorer->score(sequence, done.prompt_logprobs)) return false;
    } catch (const DecodeError &error) {
        fail(error);
        return false;
    }
    scorer->append_part(sequence);
    return true;
}

int64_t RunningAnswer::take(const ScheduledSequence &computed, const BusyTime &busy,
                            std::vector<Event> &events) {
    int64_t taken = 0;
    try {
        const decode::LogitRows &all = computed.rows();
        const auto [tokens, rows, branch] = decode::take_tokens(
            sequence, started ? all : all.part(all.size() - 1, 1), speculator.get(), sampler);
        unused = tokens.size();
        for (size_t i = 0; i < tokens.size() && !text.over() && !text.complete(); ++i) {
            if (logprobs) {
                done.logprobs.push_back(decode::log_probabilities(rows[i].whole(), tokens[i], top_logprobs));
                done.log_probability += done.logprobs.back().token.log_probability;
            }
            count_token(busy);
            ++taken;
            --unused;
            const size_t before = text.tokens().size();
            const std::string piece = text.take(tokens[i]);
            const bool is_token = text.tokens().size() > before;  // not an end
            if (logprobs && !is_token) done.logprobs.pop_back();
            emit(is_token ? tokens[i] : text::kNoToken, piece, events);
        }
    } catch (const DecodeError &error) {
        fail(error);
    }
    return taken;
}

void RunningAnswer::count_token(const BusyTime &busy) {
    const Clock::time_point now = Clock::now();
    Timings &timings = done.timings;
    if (!std::exchange(started, true)) {
        timings.first_token_seconds = seconds_between(submitted, now);
        busy_at_start = busy.seconds();
    } else {
        ++timings.decode_tokens;
        timings.token_seconds.push_back(static_cast<float>(seconds_between(last_token, now)));
        timings.decode_seconds = busy.seconds() - busy_at_start;
    }
    last_token = now;
}

void RunningAnswer::fail(const DecodeError &error) {
    done.error = error.what();
    done.kind = error.kind;
}

bool RunningAnswer::go_on(std::vector<Event> &events) {
    if (text.over()) return false;
    decode::Sequence &cached = sequence.sequence();
    if (!text.complete() && cached.free_cells() == 0) {
        const size_t shifted = shift_keeping ? cached.shift_context(*shift_keeping) : 0;
        done.usage.forgotten += static_cast<int64_t>(shifted);
        if (shifted > 0) sampler.drop(static_cast<int64_t>(shifted), *shift_keeping);
        done.context_full = shifted == 0;
    }
    if (!text.complete() && !done.context_full) return true;
    end(FinishReason::Length, events);
    return false;
}

void RunningAnswer::emit(TokenId token, const std::string &piece, std::vector<Event> &events) {
    channels.push(done, token, piece, text.over(), events);
}

void RunningAnswer::end(FinishReason reason, std::vector<Event> &events) {
    std::string ending;
    if (const decode::Constraint *constraint = sampler.constraint();
        constraint && close && reason == FinishReason::Length)
        ending = constraint->ending(text.tokens());
    closed = !ending.empty();
    emit(text::kNoToken, text.end(reason, ending), events);
}

void RunningAnswer::conclude() {
    if (speculator) done.speculation = speculator->counts().since(counted);
    if (speculator && log_drafts) done.draft_passes = speculator->take_log();
    done.reason = text.reason();
    done.tokens = text.tokens();
    done.usage.completion_tokens = done.tokens.size();
    if (keep && mark.bytes > 0) done.written = {mark, text.written()};
    // With tool choice auto the answer may be plain text, so completeness is not reported.
    const decode::Constraint *constraint = sampler.constraint();
    if (constraint && constraint->has_grammar() && done.error.empty() && !channels.may_be_text())
        done.complete = closed || constraint->complete(done.tokens);
}

}  // namespace runnel::completion
