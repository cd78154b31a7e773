#include "engine/measure/speculation_bench.h"

#include <algorithm>
#include <memory>

#include "engine/decode/speculation/lookup_draft.h"
#include "engine/decode/speculation/speculator.h"

namespace runnel::measure {
namespace {

using decode::DraftSource, decode::LookupDraft, decode::SpeculationOptions, decode::Speculator;

constexpr int32_t kChangeEvery = 25;    // tokens between changes, on average, in the editing task
constexpr int32_t kTokensPerTurn = 16;  // tokens per turn of plain or speculative decoding
constexpr int32_t kRepetitions = 5;     // repetitions per text

// Decodes both completions from their second token up to token number `tokens`, alternating in turns. Divides
// pass times by the median plain step of the same turn.
void take_turns(TimedAnswer &plain, TimedAnswer &drafted, int32_t tokens, SpeedComparison &out) {
    PassTimes plain_seconds, drafted_seconds, relative;
    int32_t turn = 0;
    for (int32_t done = 1; done < tokens; done += turn) {
        turn = std::min(kTokensPerTurn, tokens - done);
        const PassTimes with = drafted.advance(turn), without = plain.advance(turn);
        plain_seconds.add(without, 1);
        drafted_seconds.add(with, 1);
        relative.add(with, without.median());
    }
    out.plain.push_back((tokens - 1) / plain_seconds.total());
    out.drafted.push_back((tokens - 1) / drafted_seconds.total());
    out.gains.push_back((tokens - 1) / relative.total());
    out.same = out.same && plain.tokens() == drafted.tokens();
}

}  // namespace

SpeculationBench::SpeculationBench(const Options &options, Engine &engine, StopRequest &stop)
    : options_(options),
      engine_(engine),
      stop_(stop),
      forced_(engine),
      synthetic_(engine, forced_, options.repetitions,
                 {.least = options.length.least, .most = options.length.most}, stop) {}

int32_t SpeculationBench::texts() const {
    return (options_.repetitions + kRepetitions - 1) / kRepetitions;
}

SpeedComparison SpeculationBench::compare(const std::string &name, const std::vector<TokenId> &prompt,
                                          float temperature, const MakeSpeculator &speculators) {
    SpeedComparison out{name, {}, {}, {}};
    SamplingOptions how;
    how.temperature = temperature;
    for (int32_t i = 0; i < texts(); ++i) {
        how.seed = static_cast<uint64_t>(i);
        run(engine_.executor(), how, prompt, options_.tokens, speculators, out);
    }
    return out;
}

SpeedComparison SpeculationBench::edit() {
    SpeedComparison out{"editing", {}, {}, {}};
    const SamplingOptions greedy{.temperature = 0, .logit_bias = {}};
    for (int32_t i = 0; i < texts(); ++i) {
        const std::vector<TokenId> prompt = forced_.random_text(options_.tokens), answer = edited(prompt);
        std::vector<TokenId> text = prompt;
        text.insert(text.end(), answer.begin(), answer.end());
        forced_.set_text(text);
        const auto speculator = [this] {
            std::vector<std::unique_ptr<DraftSource>> sources;
            sources.push_back(std::make_unique<LookupDraft>());
            return std::make_unique<Speculator>(
                std::move(sources), SpeculationOptions{.length = options_.length}, synthetic_.costs());
        };
        run(forced_.executor(), greedy, prompt, static_cast<int32_t>(answer.size()), speculator, out);
    }
    return out;
}

std::vector<double> SpeculationBench::pass_costs(const std::vector<int32_t> &tokens) const {
    const PassCosts costs = synthetic_.passes();
    std::vector<double> steps;
    for (const int32_t count : tokens) steps.push_back(costs.seconds(count) / costs.seconds(1));
    return steps;
}

void SpeculationBench::run(Executor &executor, const SamplingOptions &how, const std::vector<TokenId> &prompt,
                           int32_t tokens, const MakeSpeculator &speculators, SpeedComparison &out) {
    TimedAnswer plain(executor, engine_, how, prompt, tokens, nullptr, stop_);
    TimedAnswer drafted(executor, engine_, how, prompt, tokens, speculators, stop_);
    take_turns(plain, drafted, tokens, out);
    out.counts.add(drafted.speculation());
}

// The text with a change every kChangeEvery tokens on average: a token replaced, removed or inserted.
std::vector<TokenId> SpeculationBench::edited(const std::vector<TokenId> &original) {
    std::vector<TokenId> text;
    for (const TokenId token : original) {
        const bool changed = forced_.random()() % kChangeEvery == 0;
        const auto kind = changed ? forced_.random()() % 3 : 3;
        if (kind != 1) text.push_back(kind == 0 ? forced_.random_text(1)[0] : token);
        if (kind == 2) text.push_back(forced_.random_text(1)[0]);
    }
    return text;
}

}  // namespace runnel::measure
