#include "engine/decode/generator.h"

#include <cassert>

namespace runnel::decode {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// A deadline is a limit like others.
FinishReason reason_of(const StopRequest &stop) {
    return stop.reason() == StopRequest::Reason::Deadline ? FinishReason::Length : FinishReason::Interrupt;
}

}  // namespace

Generator::Generator(Session &session, Sampler &sampler, Vocabulary vocabulary, GenerationOptions options,
                     StopRequest *stop)
    : session_(&session),
      sampler_(&sampler),
      answer_(std::move(vocabulary), options),
      stop_(stop),
      shift_keeping_(options.shift_keeping) {}

void Generator::start(std::span<const TokenId> prompt) {
    assert(!prompt.empty());
    started_ = Clock::now();
    const size_t known = session_->reuse(prompt);
    const bool finished = session_->feed(prompt.subspan(known), stop_);
    timings_.prompt_tokens = static_cast<int64_t>(prompt.size());
    timings_.prefill_tokens = static_cast<int64_t>(session_->tokens().size() - known);
    timings_.prefill_seconds = seconds_since(started_);
    if (!finished) answer_.end(reason_of(*stop_));
}

// The token sampled last goes to the model only when another one is wanted: the last costs no step.
bool Generator::feed_last() {
    if (fed_) return true;
    const auto start = Clock::now();
    fed_ = session_->feed({&answer_.tokens().back(), 1}, stop_);
    timings_.decode_seconds += seconds_since(start);
    timings_.decode_steps += fed_;
    return fed_;
}

// feed_last() computes what is left, too.
bool Generator::make_room() {
    const size_t dropped = shift_keeping_ ? session_->make_room(*shift_keeping_) : 0;
    forgotten_ += static_cast<int64_t>(dropped);
    return dropped > 0;
}

std::optional<std::string> Generator::next() {
    if (answer_.over()) return std::nullopt;
    if (answer_.complete()) return answer_.end(FinishReason::Length);
    if (!fed_ && session_->room() == 0 && !make_room()) {
        context_full_ = true;
        return answer_.end(FinishReason::Length);
    }
    if ((stop_ && stop_->requested()) || !feed_last()) return answer_.end(reason_of(*stop_));
    const TokenId id = sampler_->sample(session_->logits(), session_->tokens());
    if (answer_.tokens().empty()) timings_.first_token_seconds = seconds_since(started_);
    std::string text = answer_.take(id);
    fed_ = answer_.over();
    return text;
}

}  // namespace runnel::decode
