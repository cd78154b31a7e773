#include "engine/commands/bench/bench_speculation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/commands/bench/bench_dial.h"
#include "engine/commands/bench/median.h"
#include "engine/commands/generation.h"
#include "engine/decode/speculation/drafting.h"
#include "engine/decode/speculation/lookup_draft.h"

namespace runnel::commands {
namespace {

using decode::Engine;
using text::TokenId;

constexpr std::array<int32_t, 5> kShownPasses{2, 4, 8, 16, 32};
constexpr int32_t kChangeEvery = 25;  // tokens, in the editing task
constexpr int32_t kTurn = 16;         // tokens of one way of decoding before it is the other's turn
constexpr int32_t kRepetitions = 5;   // that one text of each kind stands for

constexpr const char *kPassage =
    "The old clockmaker lived at the end of the lane, in a house with eleven windows and one door. Every "
    "morning he wound the clocks in the front room, one after the other, and every evening he listened to "
    "them strike, one after the other, because no two of them agreed about the time. One winter a letter "
    "came";

// One way of decoding against another.
struct Comparison {
    std::string text;           // what was decoded
    std::vector<double> plain;  // tokens per second, one per repetition
    std::vector<double> drafted;
    std::vector<double> gains;  // of the same repetition
    decode::SpeculationCounts counts{};
    bool same = true;  // the texts
};

// Both answers, of `tokens`, from their second token on. They take turns; what passes take is compared with
// plain steps of the same turn.
void take_turns(TimedAnswer &plain, TimedAnswer &drafted, int32_t tokens, Comparison &out) {
    PassTimes plain_seconds, drafted_seconds, relative;
    int32_t turn = 0;
    for (int32_t done = 1; done < tokens; done += turn) {
        turn = std::min(kTurn, tokens - done);
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

class SpeculationBench {
  public:
    SpeculationBench(const BenchOptions &options, Engine &engine, decode::StopRequest &stop)
        : options_(options),
          engine_(engine),
          stop_(stop),
          forced_(engine),
          dial_(options, engine, forced_, stop) {}

    // What was asked for, on a text that the model itself writes.
    Comparison compare(const std::string &name, const std::vector<TokenId> &prompt, float temperature,
                       decode::Drafting &drafting) {
        Comparison out{name, {}, {}, {}};
        decode::SamplingOptions how;
        how.temperature = temperature;
        for (int32_t i = 0; i < texts(); ++i) {
            how.seed = static_cast<uint64_t>(i);
            run(engine_.executor(), how, prompt, options_.generate, speculators(&drafting), out);
        }
        return out;
    }

    // The text is given: `prompt` once more, with changes.
    Comparison edit() {
        Comparison out{"editing", {}, {}, {}};
        for (int32_t i = 0; i < texts(); ++i) {
            const std::vector<TokenId> prompt = forced_.made_up(options_.generate), answer = edited(prompt);
            std::vector<TokenId> text = prompt;
            text.insert(text.end(), answer.begin(), answer.end());
            forced_.say(text);
            const auto speculator = [this] {
                std::vector<std::unique_ptr<decode::DraftSource>> sources;
                sources.push_back(std::make_unique<decode::LookupDraft>());
                const decode::SpeculationOptions how{.length = {.least = options_.draft.least,
                                                                .most = options_.draft.most,
                                                                .branches = options_.draft.branches}};
                return std::make_unique<decode::Speculator>(std::move(sources), how, dial_.costs());
            };
            run(forced_.executor(), kGreedy, prompt, static_cast<int32_t>(answer.size()), speculator, out);
        }
        return out;
    }

    DialBench &dial() { return dial_; }

  private:
    static inline const decode::SamplingOptions kGreedy{.temperature = 0, .logit_bias = {}};

    int32_t texts() const { return (options_.repetitions + kRepetitions - 1) / kRepetitions; }

    void run(decode::Executor &executor, const decode::SamplingOptions &how,
             const std::vector<TokenId> &prompt, int32_t tokens, decode::MakeSpeculator speculators,
             Comparison &out) {
        TimedAnswer plain(executor, engine_, how, prompt, tokens, nullptr, stop_);
        TimedAnswer drafted(executor, engine_, how, prompt, tokens, std::move(speculators), stop_);
        take_turns(plain, drafted, tokens, out);
        out.counts.add(drafted.speculation());
    }

    // With one change in so many tokens: another token instead, none, or one more.
    std::vector<TokenId> edited(const std::vector<TokenId> &original) {
        std::vector<TokenId> text;
        for (const TokenId token : original) {
            const bool changed = forced_.random()() % kChangeEvery == 0;
            const auto kind = changed ? forced_.random()() % 3 : 3;
            if (kind != 1) text.push_back(kind == 0 ? forced_.made_up(1)[0] : token);
            if (kind == 2) text.push_back(forced_.made_up(1)[0]);
        }
        return text;
    }

    const BenchOptions &options_;
    Engine &engine_;
    decode::StopRequest &stop_;
    ForcedModel forced_;
    DialBench dial_;
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
    for (const int32_t length : kDialLengths) {
        std::snprintf(part, sizeof part, "%8d", length);
        text += part;
    }
    text += '\n';
    for (const DialRow &row : results.dial) {
        std::snprintf(part, sizeof part, "%7.0f%% %7.2fx %7.2fx %7.0f%%", 100 * row.acceptance, row.gain,
                      row.bound, 100 * row.reached());
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
        for (size_t i = 0; i < kDialLengths.size(); ++i)
            lengths.push_back({{"length", kDialLengths[i]}, {"gain", row.fixed[i]}});
        json["dial"].push_back({{"acceptance", row.acceptance},
                                {"gain", row.gain},
                                {"bound", row.bound},
                                {"reached", row.reached()},
                                {"lengths", std::move(lengths)}});
    }
    return json;
}

}  // namespace

int bench_speculation(const BenchOptions &options, Io &io) {
    if (options.generate < 8) throw UsageError("drafts are measured while decoding: -n must be 8 or more");
    if (!options.sequences.empty() || options.depths != std::vector<int32_t>{0})
        throw UsageError(
            "drafts are measured for one sequence, from its beginning: leave --sequences and -d away");
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    decode::EngineOptions engine_flags = engine_options(options.model, io, stop);
    leave_room(engine_flags, options.draft);
    const int64_t passage = static_cast<int64_t>(std::string_view(kPassage).size()) + 8;  // tokens, at most
    const int64_t needed =
        std::max({int64_t{2} * options.generate + 256, passage + options.generate, dial_context(options)});
    engine_flags.sequences = 2;  // plain and drafted take turns
    if (engine_flags.context == 0) engine_flags.context = needed;
    if (engine_flags.context < needed)
        throw UsageError("the tests need a context of " + std::to_string(needed) + " tokens: leave -c away");
    Engine engine(engine_flags);
    for (const std::string &note : engine.notes()) io.note(note);
    const auto drafts = drafting(options.draft, options.model, engine, 1, io, stop);

    io.note("measuring what passes cost");
    SpeculationBench bench(options, engine, stop);
    Results results;
    const std::vector<TokenId> prompt = engine.tokenizer().encode(kPassage);
    io.note("a text of the model's own");
    results.comparisons.push_back(bench.compare("greedy", prompt, 0, *drafts));
    io.note("the same at temperature 0.8");
    results.comparisons.push_back(bench.compare("temperature 0.8", prompt, 0.8f, *drafts));
    if (options.draft.lookup) {
        io.note("a text that is edited");
        results.comparisons.push_back(bench.edit());
    }
    for (const double acceptance : kDialAcceptances) {
        io.note("drafts that are right in " + std::to_string(std::lround(100 * acceptance)) + "% of places");
        results.dial.push_back(bench.dial().measure(acceptance));
    }
    const decode::PassCosts passes = bench.dial().passes();
    for (const int32_t tokens : kShownPasses)
        results.passes.push_back(passes.seconds(tokens) / passes.seconds(1));

    const std::string device = engine.executor().device().name;
    Json json = {{"model", options.model.path}, {"device", device}, {"tokens", options.generate}};
    json["speculation"] = json_of(results);
    io.out.write(options.json ? dump(json, 2)
                              : device + "\n\n" + side_by_side(results.comparisons) + dial_table(results));
    return exit_code::kDone;
}

}  // namespace runnel::commands
