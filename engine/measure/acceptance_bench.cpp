#include "engine/measure/acceptance_bench.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/decode/error.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/pass_trial.h"
#include "engine/measure/synthetic_draft.h"
#include "engine/measure/timed_answer.h"
#include "gguf/base/interrupted.h"

namespace runnel::measure {
namespace {

using decode::DecodeError, decode::ExecutorOptions, decode::SamplingOptions, decode::SingleSequence;
using decode::Draft, decode::DraftSource, decode::PassTrial, decode::Sampler, decode::Sequence;
using decode::SpeculationOptions, decode::Speculator;

constexpr int32_t kPrompt = 64;       // tokens of the prompt before each text
constexpr int32_t kTurn = 12;         // drafted tokens per turn
constexpr int32_t kPlain = 2;         // plain tokens before and after each turn
constexpr int32_t kTurns = 2;         // turns per repetition
constexpr int32_t kFixedTokens = 12;  // drafted tokens per fixed draft length
constexpr double kCostSteps = 40;     // length of the first measurement of pass costs, in plain steps
constexpr std::array<int32_t, 5> kTimed{2, 8, 4, 16, 32};  // tokens of the timed pass, a size per turn

// The number of tokens decoded in the time of one plain step, if every draft has `length` tokens. right[i]: the draft
// of token i is right. Token 0 is known before the first pass.
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

ForcedModel::ForcedModel(Engine &engine) : engine_(engine) {
    const Executor &own = engine.executor();
    try {
        executor_ = std::make_unique<Executor>(
            forced(engine.another_backend(), text_), engine.model().program,
            ExecutorOptions{
                .context = own.context(), .batch = own.batch_size(), .sequences = 3, .types = own.types()});
    } catch (const kernels::BackendError &error) {
        if (error.kind != kernels::BackendError::Kind::OutOfMemory) throw;
        throw DecodeError(
            DecodeError::Kind::OutOfMemory,
            std::string("measuring on given texts loads the model a second time: ") + error.what());
    }
}

std::vector<TokenId> ForcedModel::random_text(int32_t count) {
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

int64_t acceptance_context(int32_t repetitions) {
    return kPrompt + 2 + int64_t{kTurns} * kTurn * repetitions + kTimed.back();
}

// One text, decoded twice in alternation: with drafts and plainly.
class AcceptanceBench::Run {
  public:
    Run(AcceptanceBench &bench, double acceptance, int32_t tokens, std::optional<int32_t> fixed)
        : bench_(bench),
          text_(bench.model_.random_text(kPrompt + tokens)),
          source_(text_, acceptance, bench.texts_++, bench.engine_.executor().vocab()) {
        bench_.model_.set_text(text_);
        const auto prompt = std::span(text_).first(kPrompt);
        plain_.emplace(bench_.model_.executor(), bench_.engine_, greedy(), prompt, tokens, nullptr,
                       bench_.stop_);
        const auto speculator = [this, fixed] {
            return std::make_unique<Speculator>(sources(), how(fixed), bench_.costs_);
        };
        drafted_.emplace(bench_.model_.executor(), bench_.engine_, greedy(), prompt, tokens, speculator,
                         bench_.stop_);
    }

    PassTimes plain() { return plain_->advance(kPlain); }
    PassTimes drafted(int32_t tokens) { return drafted_->advance(tokens); }
    // Seconds of a pass of `tokens` tokens; nullopt if they do not fit.
    std::optional<double> pass(int32_t tokens) {
        const Sequence *sequence = drafted_->sequence();
        if (!sequence) return std::nullopt;
        const auto seconds = PassTrial(*sequence).seconds_of(tokens, &bench_.stop_);
        if (bench_.stop_.requested()) throw base::Interrupted{};
        return seconds;
    }
    // For each token of the text, whether its draft is right.
    std::vector<bool> right() {
        Sampler sampler = bench_.engine_.sampler(greedy());
        const Draft draft = source_.draft(std::span(text_).first(kPrompt), INT32_MAX, 0, sampler);
        std::vector<bool> right;
        for (size_t i = 0; i < draft.tokens.size(); ++i)
            right.push_back(draft.tokens[i] == text_[kPrompt + i]);
        return right;
    }

  private:
    static SamplingOptions greedy() {
        SamplingOptions how;
        how.temperature = 0;
        return how;
    }
    std::vector<std::unique_ptr<DraftSource>> sources() const {
        std::vector<std::unique_ptr<DraftSource>> all;
        all.push_back(std::make_unique<SyntheticDraft>(source_));
        return all;
    }
    SpeculationOptions how(std::optional<int32_t> fixed) const {
        SpeculationOptions how;
        how.length = bench_.length_;
        if (fixed) how.length = {.least = 0, .most = *fixed, .fixed = true};
        return how;
    }

    AcceptanceBench &bench_;
    std::vector<TokenId> text_;
    SyntheticDraft source_;
    std::optional<TimedAnswer> plain_, drafted_;
};

AcceptanceBench::AcceptanceBench(Engine &engine, ForcedModel &model, int32_t repetitions,
                                 DraftLengthOptions length, StopRequest &stop)
    : engine_(engine), model_(model), repetitions_(repetitions), length_(length), stop_(stop) {
    SingleSequence session(model_.executor());
    if (!session.feed(model_.random_text(kPrompt), &stop_)) throw base::Interrupted{};
    costs_ = std::make_shared<SharedCosts>(measure_pass_costs(session.sequence(), kCostSteps, &stop_));
    if (stop_.requested()) throw base::Interrupted{};
}

AcceptanceRow AcceptanceBench::measure(double acceptance) {
    const int32_t turns = kTurns * repetitions_;
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
    AcceptanceRow row{
        acceptance, turns * kTurn / steps.total(), best_bound(passes(), run.right(), length_.most), {}};
    for (size_t i = 0; i < kDraftLengths.size(); ++i) row.fixed[i] = fixed_gain(acceptance, kDraftLengths[i]);
    return row;
}

double AcceptanceBench::fixed_gain(double acceptance, int32_t length) {
    Run run(*this, acceptance, 1 + kFixedTokens, length);
    PassTimes plain = run.plain();
    const PassTimes drafted = run.drafted(kFixedTokens);
    plain.add(run.plain(), 1);
    return kFixedTokens * plain.median() / drafted.total();
}

}  // namespace runnel::measure
