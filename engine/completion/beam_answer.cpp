#include "engine/completion/beam_answer.h"

#include <algorithm>
#include <utility>

namespace runnel::completion {

bool BeamAnswer::advance(base::Clock::time_point step_began, std::vector<Event> &events) {
    Timings &timings = done.timings;
    const bool started = search->started();
    if (!started && search->computed() > 0 && timings.prefill_tokens == 0)
        timings.queued_seconds = base::seconds_between(submitted, step_began);
    bool going = true;
    try {
        going = search->advance();
    } catch (const decode::DecodeError &error) {
        done.error = error.what();
        done.kind = error.kind;
        going = false;
    }
    const double seconds = base::seconds_since(submitted);
    if (!started) {
        timings.prefill_tokens = search->computed();
        timings.first_token_seconds = seconds;
        timings.prefill_seconds = seconds - timings.queued_seconds;
        const auto all = static_cast<int64_t>(done.usage.prompt_tokens);
        const bool ready = search->started();
        events.push_back(Prefill{id, ready ? all : std::min(all, timings.prefill_tokens), all,
                                 ready ? all - std::min(all, timings.prefill_tokens) : 0,
                                 done.usage.left_out});
    }
    timings.decode_tokens = search->computed() - timings.prefill_tokens;
    timings.decode_seconds = seconds - timings.first_token_seconds;
    return going;
}

void BeamAnswer::finish(FinishReason reason, std::vector<Event> &events) const {
    if (!done.error.empty()) {
        events.push_back(done);
        return;
    }
    const std::vector<Hypothesis> found = search->results(reason);
    for (size_t i = 0; i < found.size(); ++i) {
        Done one = done;
        one.sample = static_cast<int32_t>(i);
        one.reason = found[i].reason;
        one.tokens = found[i].tokens;
        one.usage.completion_tokens = found[i].tokens.size();
        one.log_probability = found[i].log_probability;
        one.score = found[i].score;
        if (!channels.may_be_text()) one.complete = found[i].complete;
        TextChannels text = channels;
        text.push(one, text::kNoToken, found[i].text, true, events);
        events.push_back(std::move(one));
    }
}

}  // namespace runnel::completion
