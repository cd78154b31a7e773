#include "engine/commands/bench/bench_dial.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <variant>

#include "engine/commands/bench/median.h"
#include "engine/commands/generation.h"
#include "engine/commands/io.h"
#include "engine/decode/error.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/dial_draft.h"
#include "engine/decode/speculation/pass_trial.h"

namespace runnel::commands {
namespace {

using decode::PassCosts;
using decode::SingleSequence;
using text::TokenId;
using Clock = std::chrono::steady_clock;

constexpr int32_t kPrompt = 64;       // tokens in front of a forced text
constexpr int32_t kTurn = 12;         // tokens with drafts between two looks at plain ones,
constexpr int32_t kPlain = 2;         // of so many tokens each time
constexpr int32_t kTurns = 2;         // for one repetition
constexpr int32_t kFixedTokens = 12;  // for a fixed length
constexpr double kCostSteps = 40;     // for measuring the costs of passes at first
constexpr std::array<int32_t, 5> kTimed{2, 8, 4, 16, 32};  // passes, one in a turn

// Tokens per plain step of drafts that are always `length` long. right[i]: the draft of token i is; token 0
// is there before the first pass.
double bound_of(const PassCosts &costs, const std::vector<bool> &right, size_t length) {
    double steps = 0;
    for (size_t at = 1; at < right.size();) {
        const size_t drafted = std::min(length, right.size() - 1 - at);
        size_t accepted = 0;
        while (accepted < drafted && right[at + accepted]) ++accepted;
        at += accepted + 1;
        steps += costs.seconds(static_cast<int32_t>(1 + drafted)) / costs.seconds(1);
    }
    return static_cast<double>(right.size() - 1) / steps;
}
double best_bound(const PassCosts &costs, const std::vector<bool> &right, int32_t most) {
    double best = 0;
    for (int32_t k = 0; k <= most; ++k) best = std::max(best, bound_of(costs, right, static_cast<size_t>(k)));
    return best;
}

}  // namespace

ForcedModel::ForcedModel(decode::Engine &engine) : engine_(engine) {
    const decode::Executor &own = engine.executor();
    try {
        executor_ = std::make_unique<decode::Executor>(
            decode::forced(engine.another_backend(), text_), engine.model().program,
            decode::ExecutorOptions{
                .context = own.context(), .batch = own.batch_size(), .sequences = 3, .types = own.types()});
    } catch (const kernels::BackendError &error) {
        if (error.kind != kernels::BackendError::Kind::OutOfMemory) throw;
        throw decode::DecodeError(
            decode::DecodeError::Kind::OutOfMemory,
            std::string("texts that are given need the model a second time: ") + error.what());
    }
}

std::vector<TokenId> ForcedModel::made_up(int32_t count) {
    const auto vocab = static_cast<double>(executor_->vocab());
    std::uniform_real_distribution<double> uniform;
    std::vector<TokenId> tokens;
    while (tokens.size() < static_cast<size_t>(count)) {
        const auto id = static_cast<TokenId>(std::pow(vocab, uniform(random_)));
        if (id < executor_->vocab() && engine_.tokenizer().is_sampleable(id) &&
            !engine_.tokenizer().is_control(id))
            tokens.push_back(id);
    }
    return tokens;
}

namespace {

// The options of the engine's sampler, which exclude the ids that are no tokens.
decode::SamplingOptions options_of(const decode::Engine &engine, const decode::SamplingOptions &how) {
    return engine.sampler(how).options();
}

}  // namespace

TimedAnswer::TimedAnswer(decode::Executor &executor, decode::Engine &engine,
                         const decode::SamplingOptions &how, std::span<const TokenId> prompt, int32_t tokens,
                         decode::MakeSpeculator speculators, decode::StopRequest &stop)
    : drafts_(speculators != nullptr),
      queue_(executor, completion::vocabulary_of(engine.tokenizer()), {.drafts = std::move(speculators)}),
      stop_(stop) {
    id_ = queue_.submit({.input = completion::Tokens{{prompt.begin(), prompt.end()}},
                         .sampling = options_of(engine, how),
                         .limits = {.max_tokens = tokens, .ignore_end = true}});
    advance(1);
}

void TimedAnswer::step(PassTimes &times) {
    const decode::SpeculationCounts before = queue_.speculation();
    const auto start = Clock::now();
    if (!queue_.step(&stop_)) throw Interrupted{};
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    bool first = true;  // further tokens of the same pass take no time
    for (const completion::Event &event : queue_.events()) {
        if (const auto *done = std::get_if<completion::Done>(&event)) expect_answer(*done);
        const auto *piece = std::get_if<completion::Piece>(&event);
        if (!piece || piece->token == text::kNoToken) continue;
        tokens_.push_back(piece->token);
        if (!std::exchange(first, false)) continue;
        const decode::SpeculationCounts done = queue_.speculation().since(before);
        if (!drafts_ || done.passes + done.plain_passes > 0)
            times.add(1 + static_cast<int32_t>(done.drafted), done.draft_seconds > 0, seconds);
    }
}

PassTimes TimedAnswer::advance(int32_t tokens) {
    PassTimes times;
    const size_t wanted = counted_ + static_cast<size_t>(tokens);
    while (tokens_.size() < wanted && queue_.unfinished() > 0) step(times);
    if (stop_.requested()) throw Interrupted{};
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
        sum += static_cast<double>(times.size()) * commands::median(times);
    return sum;
}

double PassTimes::median() const {
    std::vector<double> all;
    for (const auto &[kind, times] : times_) all.insert(all.end(), times.begin(), times.end());
    return commands::median(std::move(all));
}

int64_t dial_context(const BenchOptions &options) {
    return kPrompt + 2 + int64_t{kTurns} * kTurn * options.repetitions + kTimed.back();
}

// One text, decoded with drafts and, beside it, plainly.
class DialBench::Run {
  public:
    Run(DialBench &bench, double acceptance, int32_t tokens, std::optional<int32_t> fixed)
        : bench_(bench),
          text_(bench.model_.made_up(kPrompt + tokens)),
          source_(text_, acceptance, bench.texts_++, bench.engine_.executor().vocab()) {
        bench_.model_.say(text_);
        const auto prompt = std::span(text_).first(kPrompt);
        plain_.emplace(bench_.model_.executor(), bench_.engine_, greedy(), prompt, tokens, nullptr,
                       bench_.stop_);
        const auto speculator = [this, fixed] {
            return std::make_unique<decode::Speculator>(sources(), how(fixed), bench_.costs_);
        };
        drafted_.emplace(bench_.model_.executor(), bench_.engine_, greedy(), prompt, tokens, speculator,
                         bench_.stop_);
    }

    PassTimes plain() { return plain_->advance(kPlain); }
    PassTimes drafted(int32_t tokens) { return drafted_->advance(tokens); }
    // nullopt where there is no room for so many.
    std::optional<double> pass(int32_t tokens) {
        const decode::Sequence *sequence = drafted_->sequence();
        if (!sequence) return std::nullopt;
        const auto seconds = decode::PassTrial(*sequence).seconds_of(tokens, &bench_.stop_);
        if (bench_.stop_.requested()) throw Interrupted{};
        return seconds;
    }
    // Which drafts of the text are right.
    std::vector<bool> right() {
        decode::Sampler sampler = bench_.engine_.sampler(greedy());
        const decode::Draft draft = source_.draft(std::span(text_).first(kPrompt), INT32_MAX, 0, sampler);
        std::vector<bool> right;
        for (size_t i = 0; i < draft.tokens.size(); ++i)
            right.push_back(draft.tokens[i] == text_[kPrompt + i]);
        return right;
    }

  private:
    static decode::SamplingOptions greedy() {
        decode::SamplingOptions how;
        how.temperature = 0;
        return how;
    }
    std::vector<std::unique_ptr<decode::DraftSource>> sources() const {
        std::vector<std::unique_ptr<decode::DraftSource>> all;
        all.push_back(std::make_unique<decode::DialDraft>(source_));
        return all;
    }
    decode::SpeculationOptions how(std::optional<int32_t> fixed) const {
        decode::SpeculationOptions how;
        how.length = {.least = bench_.options_.draft.least, .most = bench_.options_.draft.most};
        if (fixed) how.length = {.least = 0, .most = *fixed, .fixed = true};
        return how;
    }

    DialBench &bench_;
    std::vector<TokenId> text_;
    decode::DialDraft source_;
    std::optional<TimedAnswer> plain_, drafted_;
};

DialBench::DialBench(const BenchOptions &options, decode::Engine &engine, ForcedModel &model,
                     decode::StopRequest &stop)
    : options_(options), engine_(engine), model_(model), stop_(stop) {
    SingleSequence session(model_.executor());
    if (!session.feed(model_.made_up(kPrompt), &stop_)) throw Interrupted{};
    costs_ = std::make_shared<decode::SharedCosts>(
        decode::measure_pass_costs(session.sequence(), kCostSteps, &stop_));
    if (stop_.requested()) throw Interrupted{};
}

DialRow DialBench::measure(double acceptance) {
    const int32_t turns = kTurns * options_.repetitions;
    Run run(*this, acceptance, 1 + turns * kTurn, std::nullopt);
    PassTimes steps;
    for (int32_t turn = 0; turn < turns; ++turn) {
        PassTimes plain = run.plain();
        const PassTimes drafted = run.drafted(kTurn);
        const int32_t size = kTimed[static_cast<size_t>(turn) % kTimed.size()];
        const auto one = run.pass(1), more = run.pass(size);
        plain.add(run.plain(), 1);
        steps.add(drafted, plain.median());
        passes_.push_back({1, 1});
        if (one && more) passes_.push_back({size, *more / *one});
    }
    DialRow row{acceptance,
                turns * kTurn / steps.total(),
                best_bound(passes(), run.right(), options_.draft.most),
                {}};
    for (size_t i = 0; i < kDialLengths.size(); ++i) row.fixed[i] = fixed_gain(acceptance, kDialLengths[i]);
    return row;
}

double DialBench::fixed_gain(double acceptance, int32_t length) {
    Run run(*this, acceptance, 1 + kFixedTokens, length);
    PassTimes plain = run.plain();
    const PassTimes drafted = run.drafted(kFixedTokens);
    plain.add(run.plain(), 1);
    return kFixedTokens * plain.median() / drafted.total();
}

}  // namespace runnel::commands
