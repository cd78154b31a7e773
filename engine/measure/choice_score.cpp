#include "engine/measure/choice_score.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <ranges>
#include <string>

#include "engine/decode/error.h"
#include "engine/decode/log_probabilities.h"
#include "engine/measure/perplexity.h"

namespace runnel::measure {
namespace {

using decode::DecodeError, decode::Executor, decode::SequenceCache, decode::StepInput, decode::StopRequest;
using text::TokenId;
using Tokens = std::span<const TokenId>;

constexpr size_t kRowMemory = size_t{64} << 20;

size_t common_prefix(const TokenizedTask &task) {
    const std::vector<TokenId> &first = task.answers.front().tokens;
    size_t length = first.size();
    for (const TokenizedTask::Answer &answer : task.answers)
        length = static_cast<size_t>(
            std::ranges::mismatch(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(length),
                                  answer.tokens.begin(), answer.tokens.end())
                .in1 -
            first.begin());
    return length;
}

// Tokens for a sequence. The row of logits after token i goes to take(i, row), for i >= first_row.
struct Feed {
    SequenceCache *cache;
    Tokens tokens;
    size_t first_row;
    std::function<void(size_t, std::span<const float>)> take;
};

// Runs the feeds in as few steps as batch size and memory for logits allow.
bool run_feeds(Executor &executor, std::span<const Feed> feeds, const StopRequest *stop) {
    const size_t vocab = static_cast<size_t>(executor.vocab()),
                 batch = static_cast<size_t>(executor.batch_size()),
                 most_rows = std::max<size_t>(kRowMemory / (vocab * sizeof(float)), 1);
    std::vector<float> logits;
    size_t feed = 0, at = 0;  // the next token is feeds[feed].tokens[at]
    while (feed < feeds.size()) {
        struct Part {
            const Feed *feed;
            size_t first_row, end;
        };
        std::vector<StepInput> inputs;
        std::vector<Part> parts;
        size_t tokens = 0, rows = 0;
        while (feed < feeds.size() && tokens < batch && rows < most_rows) {
            const Feed &one = feeds[feed];
            size_t count = std::min(one.tokens.size() - at, batch - tokens);
            const size_t before = one.first_row > at ? one.first_row - at : 0;  // tokens without a row
            if (count > before) count = std::min(count, before + (most_rows - rows));
            const size_t own_rows = count > before ? count - before : 0;
            if (count > 0) {
                inputs.push_back({one.cache, one.tokens.subspan(at, count), static_cast<int32_t>(own_rows)});
                parts.push_back({&one, at + count - own_rows, at + count});
            }
            tokens += count, rows += own_rows, at += count;
            if (at == one.tokens.size()) ++feed, at = 0;
        }
        if (inputs.empty()) break;
        if ((stop && stop->requested()) || !executor.step(inputs, logits, stop ? stop->flag() : nullptr))
            return false;
        size_t row = 0;
        for (const Part &part : parts)
            for (size_t i = part.first_row; i < part.end; ++i, ++row)
                part.feed->take(i, std::span(logits).subspan(row * vocab, vocab));
    }
    return true;
}

double log_probability(std::span<const float> logits, TokenId id) {
    const double value = decode::log_probabilities(logits, id, 0).token.log_probability;
    if (!std::isfinite(value)) fail_not_finite();
    return value;
}

}  // namespace

size_t TokenizedTask::longest() const {
    return std::ranges::max(answers | std::views::transform([](const Answer &a) { return a.tokens.size(); }));
}

TokenizedTask tokenize(const ChoiceTask &task, ChoiceFormat format, const text::Tokenizer &tokenizer) {
    TokenizedTask result;
    for (const ChoiceTask::Answer &answer : task.answers) {
        std::vector<TokenId> tokens = tokenizer.encode(answer.text);
        if (tokens.size() < 2)
            throw DecodeError(DecodeError::Kind::BadInput, "a text of a task has fewer than two tokens");
        const size_t count = tokens.size();
        result.answers.push_back({std::move(tokens), 0, count, answer.is_right});
    }
    const size_t shortest = std::ranges::min(
        result.answers | std::views::transform([](const auto &a) { return a.tokens.size(); }));
    const size_t differ = common_prefix(result);
    constexpr size_t kFewTokens = 3;
    const bool after_word = format == ChoiceFormat::Winogrande && shortest > differ + kFewTokens;
    for (size_t i = 0; i < result.answers.size(); ++i) {
        TokenizedTask::Answer &answer = result.answers[i];
        const std::string_view whole = task.answers[i].text;
        answer.first =
            after_word ? tokenizer.encode(whole.substr(0, task.answers[i].answer_end)).size() : differ;
        answer.first = std::clamp<size_t>(answer.first, 1, answer.last - 1);
        if (format == ChoiceFormat::Winogrande && answer.last - answer.first > 1) --answer.last;
    }
    result.shared = std::max<size_t>(std::min(differ, shortest - 1), 1);
    for (const TokenizedTask::Answer &answer : result.answers)
        result.shared = std::min(result.shared, answer.first);
    return result;
}

std::pair<double, double> ChoiceScore::interval() const {
    if (tasks == 0) return {0, 1};
    constexpr double kZ = 1.959963984540054;  // the normal distribution's 97.5% point
    const double n = static_cast<double>(tasks), z = kZ * kZ / n;
    const double middle = accuracy() + z / 2;
    const double half = kZ * std::sqrt(accuracy() * (1 - accuracy()) / n + z / (4 * n));
    return {std::max(0.0, (middle - half) / (1 + z)), std::min(1.0, (middle + half) / (1 + z))};
}

ChoiceRun::ChoiceRun(Executor &executor, std::span<const TokenizedTask> tasks, size_t sequences)
    : executor_(executor), tasks_(tasks), sequences_(sequences) {
    for (const TokenizedTask &task : tasks)
        assert(task.answers.size() < sequences && task.longest() <= static_cast<size_t>(executor.context()));
}

bool ChoiceRun::step(const StopRequest *stop) {
    // As many tasks as have room: each needs a sequence for the shared tokens and one for each answer.
    size_t end = done_, sequences = 0, tokens = 0;
    while (end < tasks_.size()) {
        const TokenizedTask &task = tasks_[end];
        const size_t needed = 1 + task.answers.size();
        if (end > done_ &&
            (sequences + needed > sequences_ || tokens >= static_cast<size_t>(executor_.batch_size())))
            break;
        sequences += needed;
        tokens += task.shared;
        ++end;
    }
    const std::span<const TokenizedTask> tasks = tasks_.subspan(done_, end - done_);

    std::vector<SequenceCache> beginnings, texts;
    beginnings.reserve(tasks.size());
    texts.reserve(sequences);
    std::vector<std::vector<double>> sums(tasks.size());
    std::vector<Feed> feeds;
    for (size_t t = 0; t < tasks.size(); ++t) {
        const TokenizedTask &task = tasks[t];
        sums[t].assign(task.answers.size(), 0);
        beginnings.push_back(executor_.new_sequence());
        feeds.push_back({&beginnings.back(), Tokens(task.answers[0].tokens).first(task.shared),
                         task.shared - 1, [&task, &sum = sums[t]](size_t, std::span<const float> row) {
                             for (size_t a = 0; a < task.answers.size(); ++a)
                                 if (const auto &answer = task.answers[a]; answer.first == task.shared)
                                     sum[a] += log_probability(row, answer.tokens[task.shared]);
                         }});
    }
    if (!run_feeds(executor_, feeds, stop)) return false;

    feeds.clear();
    for (size_t t = 0; t < tasks.size(); ++t) {
        const TokenizedTask &task = tasks[t];
        for (size_t a = 0; a < task.answers.size(); ++a) {
            const TokenizedTask::Answer &answer = task.answers[a];
            const size_t first_fed = task.shared;
            if (answer.last - 1 <= first_fed) continue;  // only the token after the shared ones is scored
            texts.push_back(executor_.fork(beginnings[t]));
            const size_t first_row = std::max(answer.first, first_fed + 1) - 1 - first_fed;
            feeds.push_back({&texts.back(),
                             Tokens(answer.tokens).subspan(first_fed, answer.last - 1 - first_fed), first_row,
                             [&answer, &sum = sums[t][a], first_fed](size_t i, auto row) {
                                 sum += log_probability(row, answer.tokens[first_fed + i + 1]);
                             }});
        }
    }
    if (!run_feeds(executor_, feeds, stop)) return false;

    for (size_t t = 0; t < tasks.size(); ++t) {
        const std::vector<TokenizedTask::Answer> &answers = tasks[t].answers;
        for (size_t a = 0; a < answers.size(); ++a)
            sums[t][a] /= static_cast<double>(answers[a].last - answers[a].first);
        const auto best = static_cast<size_t>(std::ranges::max_element(sums[t]) - sums[t].begin());
        right_ += answers[best].is_right;
        chances_ += static_cast<double>(std::ranges::count_if(answers, &TokenizedTask::Answer::is_right)) /
                    static_cast<double>(answers.size());
    }
    scores_ = std::move(sums);
    done_ = end;
    return true;
}

ChoiceScore ChoiceRun::result() const {
    return {.tasks = static_cast<int64_t>(done_),
            .right = right_,
            .chance = done_ ? chances_ / static_cast<double>(done_) : 0};
}

}  // namespace runnel::measure
