#include "engine/commands/bench_speculation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/commands/generation.h"
#include "engine/decode/generator.h"
#include "engine/decode/speculation/dial_draft.h"
#include "engine/decode/speculation/drafting.h"
#include "engine/decode/speculation/forced_text.h"
#include "engine/decode/speculation/lookup_draft.h"
#include "engine/decode/speculation/pass_costs.h"

namespace runnel::commands {
namespace {

using decode::Engine;
using decode::PassCosts;
using decode::Session;
using text::TokenId;

constexpr std::array kAcceptances{0.0, 0.5, 0.8, 0.95, 1.0};
constexpr std::array<int32_t, 5> kLengths{1, 2, 4, 8, 16};
constexpr std::array<int32_t, 5> kShownPasses{2, 4, 8, 16, 32};
constexpr int32_t kPrompt = 64;       // tokens in front of a forced text
constexpr int32_t kChangeEvery = 25;  // tokens, in the editing task
constexpr int32_t kMostDialTokens = 64;
constexpr double kCostSteps = 60;  // for measuring the costs of passes once

constexpr const char *kPassage =
    "The old clockmaker lived at the end of the lane, in a house with eleven windows and one door. Every "
    "morning he wound the clocks in the front room, one after the other, and every evening he listened to "
    "them strike, one after the other, because no two of them agreed about the time. One winter a letter "
    "came";

double median(std::vector<double> values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
}

// Tokens per second, against plain steps, of drafts that are always `length` long, if a pass costs what it
// costs and nothing else takes time. right[i]: the draft of token i is; token 0 is there before the first
// pass.
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

// One way of decoding against another.
struct Comparison {
    std::string text;           // what was decoded
    std::vector<double> plain;  // tokens per second, one per repetition
    std::vector<double> drafted;
    std::vector<double> gains;  // of the same repetition
    decode::SpeculationCounts counts{};
    bool same = true;  // the texts
};

struct DialRow {
    double acceptance;
    std::vector<double> gains, bounds, reached;   // length chosen, one per repetition
    std::array<double, kLengths.size()> fixed{};  // gain with kLengths
};

class SpeculationBench {
  public:
    SpeculationBench(const BenchOptions &options, Engine &engine, decode::StopRequest &stop)
        : options_(options), engine_(engine), stop_(stop) {}

    // What was asked for, on a text that the model itself writes.
    Comparison compare(const std::string &name, const std::vector<TokenId> &prompt, float temperature,
                       decode::Drafting &drafting) {
        Comparison out{name, {}, {}, {}};
        decode::SamplingOptions how;
        how.temperature = temperature;
        decode_text(engine_.executor(), prompt, options_.generate, how, drafting.speculator().get());
        for (int32_t i = 0; i < options_.repetitions; ++i) {
            how.seed = static_cast<uint64_t>(i);
            const Answer plain = decode_text(engine_.executor(), prompt, options_.generate, how, nullptr);
            const auto speculator = drafting.speculator();
            const Answer drafted =
                decode_text(engine_.executor(), prompt, options_.generate, how, speculator.get());
            add(out, plain, drafted, speculator->counts());
            out.same = out.same && plain.tokens == drafted.tokens;
        }
        return out;
    }

    // The text is given: `prompt` once more, with changes.
    Comparison edit(const std::vector<TokenId> &prompt) {
        Comparison out{"editing", {}, {}, {}};
        use_forced_model();
        std::shared_ptr<decode::SharedCosts> costs;
        for (int32_t i = 0; i < options_.repetitions; ++i) {
            const std::vector<TokenId> answer = edited(prompt);
            const auto length = static_cast<int32_t>(answer.size());
            forced_->tokens = prompt;
            forced_->tokens.insert(forced_->tokens.end(), answer.begin(), answer.end());
            if (i == 0) costs = std::make_shared<decode::SharedCosts>(measure(prompt));
            const Answer plain = decode_text(*forced_model_, prompt, length, kGreedy, nullptr);
            decode::Speculator lookup = speculator(std::make_unique<decode::LookupDraft>(), costs, {});
            const Answer drafted = decode_text(*forced_model_, prompt, length, kGreedy, &lookup);
            add(out, plain, drafted, lookup.counts());
            out.same = out.same && plain.tokens == answer && drafted.tokens == answer;
        }
        return out;
    }

    DialRow dial(double acceptance) {
        DialRow row{acceptance, {}, {}, {}};
        use_forced_model();
        std::shared_ptr<decode::SharedCosts> costs;  // for all repetitions, as for all answers of a program
        for (int32_t i = 0; i < options_.repetitions; ++i) {
            std::vector<TokenId> prompt = made_up(kPrompt + dial_tokens());
            forced_->tokens = prompt;
            prompt.resize(kPrompt);
            const PassCosts costs_before = measure(prompt);
            const auto seed = static_cast<uint64_t>(i);
            if (i == 0) costs = std::make_shared<decode::SharedCosts>(costs_before);
            const double before = dial_rate(prompt, acceptance, seed, costs, 0);
            const double chosen = dial_rate(prompt, acceptance, seed, costs, -1);
            const double plain = (before + dial_rate(prompt, acceptance, seed, costs, 0)) / 2;
            row.gains.push_back(chosen / plain);
            const std::vector<bool> right = right_drafts(acceptance, seed);
            row.bounds.push_back((best_bound(costs_before, right, options_.draft.most) +
                                  best_bound(measure(prompt), right, options_.draft.most)) /
                                 2);
            row.reached.push_back(row.gains.back() / row.bounds.back());
            if (i > 0) continue;
            for (size_t l = 0; l < kLengths.size(); ++l)
                row.fixed[l] = dial_rate(prompt, acceptance, seed, costs, kLengths[l]) / plain;
        }
        return row;
    }

    // In plain steps.
    std::vector<double> pass_costs() {
        use_forced_model();
        const PassCosts costs = measure(made_up(kPrompt));
        std::vector<double> steps;
        for (const int32_t tokens : kShownPasses) steps.push_back(costs.seconds(tokens) / costs.seconds(1));
        return steps;
    }

    // Tokens as frequent as words are: the n-th in proportion to 1 / n.
    std::vector<TokenId> made_up(int32_t count) {
        const auto vocab = static_cast<double>(engine_.executor().vocab());
        std::uniform_real_distribution<double> uniform;
        std::vector<TokenId> tokens;
        while (tokens.size() < static_cast<size_t>(count)) {
            const auto id = static_cast<TokenId>(std::pow(vocab, uniform(random_)));
            if (id < engine_.executor().vocab() && engine_.tokenizer().is_sampleable(id) &&
                !engine_.tokenizer().is_control(id))
                tokens.push_back(id);
        }
        return tokens;
    }

  private:
    struct Answer {
        double rate;  // tokens per second
        std::vector<TokenId> tokens;
    };
    static inline const decode::SamplingOptions kGreedy{.temperature = 0, .logit_bias = {}};

    static void add(Comparison &to, const Answer &plain, const Answer &drafted,
                    const decode::SpeculationCounts &counts) {
        to.plain.push_back(plain.rate);
        to.drafted.push_back(drafted.rate);
        to.gains.push_back(drafted.rate / plain.rate);
        to.counts.add(counts);
    }

    Answer decode_text(decode::Executor &executor, const std::vector<TokenId> &prompt, int32_t count,
                       const decode::SamplingOptions &how, decode::Speculator *speculator) {
        Session session(executor);
        decode::Sampler sampler = engine_.sampler(how);
        decode::Generator generator(session, sampler, engine_.vocabulary(),
                                    {.max_tokens = count, .ignore_end = true}, &stop_, speculator);
        generator.start(prompt);
        while (generator.next()) {
        }
        if (stop_.requested()) throw Interrupted{};
        return {generator.timings().decode_rate(), generator.tokens()};
    }

    void use_forced_model() {
        if (forced_model_) return;
        const decode::Executor &model = engine_.executor();
        forced_model_ = std::make_unique<decode::Executor>(
            decode::forced(engine_.another_backend(), forced_), engine_.model().program,
            decode::ExecutorOptions{
                .context = model.context(), .batch = model.batch_size(), .types = model.types()});
    }

    PassCosts measure(const std::vector<TokenId> &prompt) {
        Session session(*forced_model_);
        if (!session.feed(prompt, &stop_)) throw Interrupted{};
        PassCosts costs = decode::measure_pass_costs(session, kCostSteps, &stop_);
        if (stop_.requested()) throw Interrupted{};
        return costs;
    }

    decode::Speculator speculator(std::unique_ptr<decode::DraftSource> source,
                                  std::shared_ptr<decode::SharedCosts> costs,
                                  std::optional<int32_t> fixed) const {
        std::vector<std::unique_ptr<decode::DraftSource>> sources;
        sources.push_back(std::move(source));
        decode::SpeculationOptions how;
        how.length = {.least = options_.draft.least, .most = options_.draft.most};
        if (fixed) how.length = {.least = 0, .most = *fixed, .fixed = true};
        return decode::Speculator(std::move(sources), how, std::move(costs));
    }

    // Of each of the many texts behind the table.
    int32_t dial_tokens() const { return std::min(options_.generate, kMostDialTokens); }

    decode::DialDraft dial_draft(double acceptance, uint64_t seed) const {
        return decode::DialDraft(forced_->tokens, acceptance, seed, engine_.executor().vocab());
    }

    // Which of the drafts will be right, on the text at hand.
    std::vector<bool> right_drafts(double acceptance, uint64_t seed) {
        const std::span<const TokenId> whole = forced_->tokens;
        decode::Sampler sampler = engine_.sampler(kGreedy);
        const decode::Draft draft =
            dial_draft(acceptance, seed).draft(whole.first(kPrompt), dial_tokens(), 0, sampler);
        std::vector<bool> right;
        for (size_t i = 0; i < draft.tokens.size(); ++i)
            right.push_back(draft.tokens[i] == whole[kPrompt + i]);
        return right;
    }

    // length: 0: no drafts; -1: chosen.
    double dial_rate(const std::vector<TokenId> &prompt, double acceptance, uint64_t seed,
                     const std::shared_ptr<decode::SharedCosts> &costs, int32_t length) {
        if (length == 0) return decode_text(*forced_model_, prompt, dial_tokens(), kGreedy, nullptr).rate;
        decode::Speculator dial =
            speculator(std::make_unique<decode::DialDraft>(dial_draft(acceptance, seed)), costs,
                       length > 0 ? std::optional(length) : std::nullopt);
        return decode_text(*forced_model_, prompt, dial_tokens(), kGreedy, &dial).rate;
    }

    // With one change in so many tokens: another token instead, none, or one more.
    std::vector<TokenId> edited(const std::vector<TokenId> &original) {
        std::vector<TokenId> text;
        for (const TokenId token : original) {
            const bool changed = random_() % kChangeEvery == 0;
            const auto kind = changed ? random_() % 3 : 3;
            if (kind != 1) text.push_back(kind == 0 ? made_up(1)[0] : token);
            if (kind == 2) text.push_back(made_up(1)[0]);
        }
        return text;
    }

    const BenchOptions &options_;
    Engine &engine_;
    decode::StopRequest &stop_;
    std::shared_ptr<decode::ForcedText> forced_ = std::make_shared<decode::ForcedText>();
    std::unique_ptr<decode::Executor> forced_model_;
    std::mt19937 random_{1};
};

struct Results {
    std::vector<Comparison> comparisons;
    std::vector<double> passes;  // costs of kShownPasses
    std::vector<DialRow> dial;
};

std::string side_by_side(const std::vector<Comparison> &comparisons) {
    std::string text = "text               plain   with drafts      gain   accepted   a pass\n";
    char line[160];
    for (const Comparison &c : comparisons) {
        std::snprintf(line, sizeof line, "%-15s %8.2f %13.2f %8.2fx %9.0f%% %8.2f%s\n", c.text.c_str(),
                      median(c.plain), median(c.drafted), median(c.gains), 100 * c.counts.acceptance_rate(),
                      c.counts.mean_accepted(), c.same ? "" : "  (another text!)");
        text += line;
    }
    return text;
}

std::string dial_table(const Results &results) {
    std::string text = "\na pass of";
    char part[96];
    for (size_t i = 0; i < kShownPasses.size(); ++i) {
        std::snprintf(part, sizeof part, "%s%d", i == 0 ? " " : ", ", kShownPasses[i]);
        text += part;
    }
    text += " tokens costs";
    for (size_t i = 0; i < kShownPasses.size(); ++i) {
        std::snprintf(part, sizeof part, "%s%.2f", i == 0 ? " " : ", ", results.passes[i]);
        text += part;
    }
    text += " plain steps\n\ngain if so many tokens are accepted, by the length of the drafts\n";
    text += "accepted   chosen    bound  reached";
    for (const int32_t length : kLengths) {
        std::snprintf(part, sizeof part, "%8d", length);
        text += part;
    }
    text += '\n';
    for (const DialRow &row : results.dial) {
        std::snprintf(part, sizeof part, "%7.0f%% %7.2fx %7.2fx %7.0f%%", 100 * row.acceptance,
                      median(row.gains), median(row.bounds), 100 * median(row.reached));
        text += part;
        for (const double gain : row.fixed) {
            std::snprintf(part, sizeof part, "%7.2fx", gain);
            text += part;
        }
        text += '\n';
    }
    return text;
}

Json json_of(const Results &results) {
    Json json = {{"texts", Json::array()}, {"pass_costs", Json::array()}, {"dial", Json::array()}};
    for (const Comparison &c : results.comparisons)
        json["texts"].push_back({{"text", c.text},
                                 {"plain_tps", c.plain},
                                 {"draft_tps", c.drafted},
                                 {"gain", median(c.gains)},
                                 {"same_text", c.same},
                                 {"speculation", speculation_json(c.counts)}});
    for (size_t i = 0; i < kShownPasses.size(); ++i)
        json["pass_costs"].push_back({{"tokens", kShownPasses[i]}, {"plain_steps", results.passes[i]}});
    for (const DialRow &row : results.dial) {
        Json lengths = Json::array();
        for (size_t i = 0; i < kLengths.size(); ++i)
            lengths.push_back({{"length", kLengths[i]}, {"gain", row.fixed[i]}});
        json["dial"].push_back({{"acceptance", row.acceptance},
                                {"gain", median(row.gains)},
                                {"bound", median(row.bounds)},
                                {"reached", median(row.reached)},
                                {"lengths", std::move(lengths)}});
    }
    return json;
}

}  // namespace

int bench_speculation(const BenchOptions &options, Io &io) {
    if (options.generate < 1) throw UsageError("drafts are measured while decoding: -n must be above 0");
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    decode::EngineOptions engine_flags = engine_options(options.model, io, stop);
    const int64_t needed = int64_t{2} * std::max(options.generate, kPrompt) + 256;
    if (engine_flags.context == 0) engine_flags.context = needed;
    if (engine_flags.context < needed)
        throw UsageError("the tests need a context of " + std::to_string(needed) + " tokens: leave -c away");
    Engine engine(engine_flags);
    for (const std::string &note : engine.notes()) io.note(note);
    const auto drafts = drafting(options.draft, options.model, engine, 1, io);

    SpeculationBench bench(options, engine, stop);
    Results results;
    const std::vector<TokenId> prompt = engine.tokenizer().encode(kPassage);
    results.comparisons.push_back(bench.compare("greedy", prompt, 0, *drafts));
    results.comparisons.push_back(bench.compare("temperature 0.8", prompt, 0.8f, *drafts));
    if (options.draft.lookup) results.comparisons.push_back(bench.edit(bench.made_up(options.generate)));
    results.passes = bench.pass_costs();
    for (const double acceptance : kAcceptances) {
        io.note("measuring drafts that are right in " + std::to_string(std::lround(100 * acceptance)) +
                "% of places");
        results.dial.push_back(bench.dial(acceptance));
    }

    const std::string device = engine.executor().device().name;
    Json json = {{"model", options.model.path}, {"device", device}, {"tokens", options.generate}};
    json["speculation"] = json_of(results);
    io.out.write(options.json ? dump(json, 2)
                              : device + "\n\n" + side_by_side(results.comparisons) + dial_table(results));
    return exit_code::kDone;
}

}  // namespace runnel::commands
