#include "engine/measure/timed_answer.h"

#include <algorithm>
#include <variant>

#include "engine/measure/median.h"
#include "gguf/base/interrupted.h"
#include "gguf/base/timer.h"

namespace runnel::measure {

TimedAnswer::TimedAnswer(Executor &executor, Engine &engine, const SamplingOptions &how,
                         std::span<const TokenId> prompt, int32_t tokens, MakeSpeculator speculators,
                         StopRequest &stop)
    : drafts_(speculators != nullptr),
      queue_(executor, completion::vocabulary_of(engine.tokenizer()), {.drafts = std::move(speculators)}),
      stop_(stop) {
    id_ = queue_.submit({.input = completion::Tokens{{prompt.begin(), prompt.end()}},
                         .sampling = engine.sampler(how).options(),  // excludes ids without a token
                         .limits = {.max_tokens = tokens, .ignore_end = true}});
    advance(1);
}

void TimedAnswer::step(PassTimes &times) {
    const SpeculationCounts before = queue_.speculation();
    const auto start = base::Clock::now();
    if (!queue_.step(&stop_)) throw base::Interrupted{};
    const double seconds = base::seconds_since(start);
    bool first = true;  // a pass's time counts once, however many tokens it gave
    for (const completion::Event &event : queue_.events()) {
        if (const auto *done = std::get_if<completion::Done>(&event)) completion::expect_answer(*done);
        const auto *piece = std::get_if<completion::Piece>(&event);
        if (!piece || piece->token == text::kNoToken) continue;
        tokens_.push_back(piece->token);
        if (!std::exchange(first, false)) continue;
        const SpeculationCounts done = queue_.speculation().since(before);
        if (!drafts_ || done.passes + done.plain_passes > 0)
            times.add(1 + static_cast<int32_t>(done.drafted), done.draft_seconds > 0, seconds);
    }
}

PassTimes TimedAnswer::advance(int32_t tokens) {
    PassTimes times;
    const size_t wanted = counted_ + static_cast<size_t>(tokens);
    while (tokens_.size() < wanted && queue_.unfinished() > 0) step(times);
    if (stop_.requested()) throw base::Interrupted{};
    counted_ = std::min(wanted, tokens_.size());
    return times;
}

void PassTimes::add(const PassTimes &other, double unit) {
    for (const auto &[kind, times] : other.times_)
        for (const double time : times) times_[kind].push_back(time / unit);
}

double PassTimes::total() const {
    double sum = 0;
    for (const auto &[kind, times] : times_)
        sum += static_cast<double>(times.size()) * measure::median(times);
    return sum;
}

double PassTimes::median() const {
    std::vector<double> all;
    for (const auto &[kind, times] : times_) all.insert(all.end(), times.begin(), times.end());
    return measure::median(std::move(all));
}

}  // namespace runnel::measure
