#include "engine/measure/naive.h"

#include <algorithm>
#include <cmath>

#include "gguf/base/interrupted.h"
#include "gguf/base/timer.h"

namespace runnel::measure {
namespace {

using text::TokenId;

TokenId most_likely(std::span<const float> logits) {
    return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

// Computes the cells of `text` that `cache` lacks and appends the next token. Calls the executor directly,
// because a scheduler would reuse cached blocks of another sequence with the same text. Returns the seconds
// it took.
double next(decode::Executor &executor, decode::SequenceCache &cache, std::vector<TokenId> &text,
            const decode::StopRequest &stop) {
    std::vector<float> logits;
    const auto start = base::Clock::now();
    while (cache.length() < static_cast<int32_t>(text.size())) {
        const auto rest = std::span<const TokenId>(text).subspan(static_cast<size_t>(cache.length()));
        const decode::StepInput input{
            &cache, rest.first(std::min(rest.size(), static_cast<size_t>(executor.batch_size()))), 1};
        if (!executor.step({&input, 1}, logits, stop.flag()) || stop.requested()) throw base::Interrupted{};
    }
    const double seconds = base::seconds_since(start);
    text.push_back(most_likely(logits));
    return seconds;
}

double exponent_of(const std::vector<NaiveStep> &steps, double NaiveStep::*time) {
    std::vector<double> x, y;
    for (size_t i = steps.size() / 2; i < steps.size(); ++i)
        x.push_back(static_cast<double>(steps[i].length)), y.push_back(steps[i].*time);
    return x.size() < 2 ? 0 : growth_exponent(x, y);
}

double sum_of(const std::vector<NaiveStep> &steps, double NaiveStep::*time) {
    double sum = 0;
    for (const NaiveStep &step : steps) sum += step.*time;
    return sum;
}

}  // namespace

double growth_exponent(const std::vector<double> &x, const std::vector<double> &y) {
    const auto n = static_cast<double>(x.size());
    double mean_x = 0, mean_y = 0, over = 0, under = 0;
    for (size_t i = 0; i < x.size(); ++i) mean_x += std::log(x[i]) / n, mean_y += std::log(y[i]) / n;
    for (size_t i = 0; i < x.size(); ++i) {
        const double dx = std::log(x[i]) - mean_x;
        over += dx * (std::log(y[i]) - mean_y), under += dx * dx;
    }
    return over / under;
}

double NaiveComparison::cached_seconds() const {
    return sum_of(steps, &NaiveStep::cached);
}
double NaiveComparison::naive_seconds() const {
    return sum_of(steps, &NaiveStep::naive);
}
double NaiveComparison::cached_exponent() const {
    return exponent_of(steps, &NaiveStep::cached);
}
double NaiveComparison::naive_exponent() const {
    return exponent_of(steps, &NaiveStep::naive);
}

int64_t NaiveComparison::slower_from(double factor) const {
    int64_t from = 0;
    for (auto step = steps.rbegin(); step != steps.rend() && step->naive > factor * step->cached; ++step)
        from = step->length;
    return from;
}

NaiveComparison compare_naive(decode::Engine &engine, int32_t tokens, decode::CacheTypes types,
                              const decode::StopRequest &stop, const std::function<void(int64_t)> &show) {
    NaiveComparison result;
    const std::vector<TokenId> start = engine.tokenizer().encode("");
    const TokenId first = start.empty() ? 0 : start.front();
    result.cached_text = result.naive_text = {first};
    decode::Executor &executor = engine.executor();
    decode::SequenceCache cached = executor.new_sequence();
    const kernels::Program &program = engine.model().program;
    for (int64_t length = 1; length <= tokens; ++length) {
        NaiveStep step{length, 0, 0, pass_cost(program, length - 1, 1, types),
                       pass_cost(program, 0, length, types)};
        step.cached = next(executor, cached, result.cached_text, stop);
        decode::SequenceCache naive = executor.new_sequence();
        step.naive = next(executor, naive, result.naive_text, stop);
        result.steps.push_back(step);
        if (show) show(length);
    }
    return result;
}

}  // namespace runnel::measure
