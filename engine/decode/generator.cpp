#include "engine/decode/generator.h"

#include <algorithm>
#include <cassert>

namespace runnel::decode {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Vocabulary vocabulary_of(const text::Tokenizer &tokenizer) {
    return {[&tokenizer](TokenId id) { return id < tokenizer.size() ? tokenizer.decode(id) : std::string(); },
            [&tokenizer](TokenId id) { return id < tokenizer.size() && tokenizer.is_end_of_generation(id); }};
}

std::string_view name(FinishReason reason) {
    switch (reason) {
        case FinishReason::Stop:
            return "stop";
        case FinishReason::Length:
            return "length";
        case FinishReason::Interrupt:
            return "interrupt";
    }
    return {};
}

Generator::Generator(Session &session, Sampler &sampler, Vocabulary vocabulary, GenerationOptions options,
                     StopRequest *stop)
    : session_(&session),
      sampler_(&sampler),
      vocabulary_(std::move(vocabulary)),
      options_(std::move(options)),
      stop_(stop),
      matcher_(options_.stops) {}

void Generator::start(std::span<const TokenId> prompt) {
    assert(!prompt.empty());
    started_ = Clock::now();
    const size_t known = session_->reuse(prompt);
    const bool finished = session_->feed(prompt.subspan(known), stop_);
    timings_.prompt_tokens = static_cast<int64_t>(prompt.size());
    timings_.prefill_tokens = static_cast<int64_t>(session_->tokens().size() - known);
    timings_.prefill_seconds = seconds_since(started_);
    if (!finished) finish(stop_reason());
}

FinishReason Generator::stop_reason() const {
    return stop_ && stop_->reason() == StopRequest::Reason::Deadline ? FinishReason::Length
                                                                     : FinishReason::Interrupt;
}

std::optional<std::string> Generator::finish(FinishReason reason) {
    over_ = true;
    reason_ = reason;
    std::string rest = characters_.push(matcher_.flush());
    rest += characters_.flush();
    return rest;
}

bool Generator::is_end(TokenId id) const {
    const auto &ends = options_.end_tokens;
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) return true;
    return !options_.ignore_end && vocabulary_.is_end(id);
}

// The token sampled last goes to the model only when another one is wanted: the last costs no step.
bool Generator::feed_last() {
    if (fed_) return true;
    const auto start = Clock::now();
    fed_ = session_->feed({&tokens_.back(), 1}, stop_);
    timings_.decode_seconds += seconds_since(start);
    timings_.decode_steps += fed_;
    return fed_;
}

std::optional<std::string> Generator::next() {
    if (over_) return std::nullopt;
    const int64_t made = static_cast<int64_t>(tokens_.size());
    if (options_.max_tokens >= 0 && made >= options_.max_tokens) return finish(FinishReason::Length);
    if (!fed_ && session_->room() == 0) {
        context_full_ = true;
        return finish(FinishReason::Length);
    }
    if ((stop_ && stop_->requested()) || !feed_last()) return finish(stop_reason());

    const TokenId id = sampler_->sample(session_->logits(), session_->tokens());
    if (made == 0) timings_.first_token_seconds = seconds_since(started_);
    if (is_end(id)) return finish(FinishReason::Stop);
    tokens_.push_back(id);
    fed_ = false;
    std::string text = characters_.push(matcher_.push(vocabulary_.text(id)));
    if (matcher_.stopped()) text += *finish(FinishReason::Stop);
    return text;
}

}  // namespace runnel::decode
