#include "engine/decode/generator.h"

#include <cassert>

#include "engine/decode/next_token.h"

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
                     StopRequest *stop, Speculator *speculator)
    : session_(&session),
      sampler_(&sampler),
      answer_(std::move(vocabulary), options),
      stop_(stop),
      speculator_(speculator),
      shift_keeping_(options.shift_keeping) {}

void Generator::start(std::span<const TokenId> prompt) {
    assert(!prompt.empty());
    started_ = Clock::now();
    if (speculator_) speculator_->forget();
    const size_t known = session_->reuse(prompt);
    prepare_next(*session_, *sampler_);
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
    const Continuation continuation{session_, &answer_, speculator_, sampler_};
    prepare_next(*session_, *sampler_);
    append_with_drafts({&continuation, 1}, 1, stop_);
    const auto tokens = static_cast<int32_t>(session_->pending() + session_->branch_tokens());
    const auto drafted = Clock::now();
    fed_ = session_->compute(stop_);
    if (speculator_ && fed_) account_for_pass({tokens, seconds_since(drafted)});
    timings_.decode_seconds += seconds_since(start);
    timings_.decode_steps += fed_;
    return fed_;
}

void Generator::account_for_pass(const Pass &pass) {
    if (speculator_->costs()) speculator_->costs()->observe(pass);
    speculator_->passed(pass.seconds);
}

// feed_last() computes what is left, too.
bool Generator::make_room() {
    const size_t dropped = shift_keeping_ ? session_->make_room(*shift_keeping_) : 0;
    forgotten_ += static_cast<int64_t>(dropped);
    sampler_->drop(static_cast<int64_t>(dropped));
    return dropped > 0;
}

// The session keeps what it would without drafts: the answer without its last token.
void Generator::settle() {
    session_->truncate(session_->tokens().size() - (ahead_.size() - next_));
    next_ = ahead_.size();
}

std::string Generator::end(FinishReason reason) {
    settle();
    return answer_.end(reason);
}

std::optional<std::string> Generator::next() {
    if (answer_.over()) return std::nullopt;
    if (answer_.complete()) return end(FinishReason::Length);
    if (!fed_ && session_->room() == 0 && !make_room()) {
        context_full_ = true;
        return end(FinishReason::Length);
    }
    if ((stop_ && stop_->requested()) || !feed_last()) return end(reason_of(*stop_));
    if (next_ == ahead_.size()) {
        ahead_ = take_tokens(*session_, session_->rows(), speculator_, *sampler_).tokens;
        timings_.decode_steps += static_cast<int64_t>(ahead_.size()) - 1;
        next_ = 0;
    }
    const TokenId id = ahead_[next_++];
    if (answer_.tokens().empty()) timings_.first_token_seconds = seconds_since(started_);
    std::string text = answer_.take(id);
    if (answer_.over()) settle();
    fed_ = answer_.over() || next_ < ahead_.size();
    return text;
}

}  // namespace runnel::decode
