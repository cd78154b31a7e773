#include "engine/commands/bench/bench_speculation.h"

#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/generation.h"
#include "engine/measure/block_cost.h"
#include "engine/measure/median.h"
#include "engine/measure/speculation_bench.h"

namespace runnel::commands {
namespace {

using decode::Engine;
using measure::AcceptanceRow, measure::median, measure::SpeedComparison;
using text::TokenId;

const std::vector<int32_t> kShownPasses{2, 4, 8, 16, 32};

constexpr int32_t kBlockTurns = 8;  // of each repetition

constexpr const char *kPassage =
    "The old clockmaker lived at the end of the lane, in a house with eleven windows and one door. Every "
    "morning he wound the clocks in the front room, one after the other, and every evening he listened to "
    "them strike, one after the other, because no two of them agreed about the time. One winter a letter "
    "came";

struct Results {
    std::vector<SpeedComparison> comparisons;
    std::vector<double> passes;  // costs of kShownPasses
    std::vector<AcceptanceRow> acceptances;
    std::optional<measure::BlockCost> block;  // with a draft block
};

std::string side_by_side(const std::vector<SpeedComparison> &comparisons) {
    std::string text = "text               plain   with drafts      gain   accepted   a pass\n";
    char line[160];
    for (const SpeedComparison &c : comparisons) {
        std::snprintf(line, sizeof line, "%-15s %8.2f %13.2f %8.2fx %9.0f%% %8.2f%s\n", c.text.c_str(),
                      median(c.plain), median(c.drafted), median(c.gains), 100 * c.counts.acceptance_rate(),
                      c.counts.mean_accepted(), c.same ? "" : "  (different text!)");
        text += line;
    }
    return text;
}

std::string acceptance_table(const Results &results) {
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
    text += " plain steps\n\ngain by acceptance rate and draft length\n";
    text += "accepted   chosen    bound  reached";
    for (const int32_t length : measure::kDraftLengths) {
        std::snprintf(part, sizeof part, "%8d", length);
        text += part;
    }
    text += '\n';
    for (const AcceptanceRow &row : results.acceptances) {
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

std::string block_table(const measure::BlockCost &cost) {
    char part[160];
    std::snprintf(part, sizeof part,
                  "\na plain step takes %.2f ms, a step of the draft block %.2f ms; in plain steps:\n",
                  1000 * cost.plain_seconds, 1000 * cost.step_seconds);
    std::string text = part;
    text += cost.at_once ? "tokens        pass   catching up   draft block, all tokens\n"
                         : "tokens        pass   catching up   draft block, one token\n";
    for (size_t n = 0; n < cost.passes.size(); ++n) {
        std::snprintf(part, sizeof part, "%6zu %11.2f %13.2f", n + 1, cost.passes[n], cost.catch_up[n]);
        text += part;
        std::snprintf(part, sizeof part, "%25.2f", cost.step);
        text += (n == 0 ? part : "") + std::string("\n");
    }
    text += "\nbound of the gain with the draft block, by acceptance rate and draft length\naccepted";
    for (int32_t length = 1; length < measure::kBlockRows; ++length) {
        std::snprintf(part, sizeof part, "%8d", length);
        text += part;
    }
    text += '\n';
    for (const double acceptance : measure::kAcceptances) {
        std::snprintf(part, sizeof part, "%7.0f%%", 100 * acceptance);
        text += part;
        for (int32_t length = 1; length < measure::kBlockRows; ++length) {
            std::snprintf(part, sizeof part, "%7.2fx", measure::block_gain(cost, acceptance, length));
            text += part;
        }
        text += '\n';
    }
    return text;
}

Json block_json(const measure::BlockCost &cost) {
    Json json = {{"plain_seconds", cost.plain_seconds},
                 {"step_seconds", cost.step_seconds},
                 {"step", cost.step},
                 {"at_once", cost.at_once},
                 {"passes", cost.passes},
                 {"catch_up", cost.catch_up},
                 {"bounds", Json::array()}};
    for (const double acceptance : measure::kAcceptances)
        for (int32_t length = 1; length < measure::kBlockRows; ++length)
            json["bounds"].push_back({{"acceptance", acceptance},
                                      {"length", length},
                                      {"gain", measure::block_gain(cost, acceptance, length)}});
    return json;
}

Json json_of(const Results &results) {
    Json json = {{"texts", Json::array()}, {"pass_costs", Json::array()}, {"dial", Json::array()}};
    for (const SpeedComparison &c : results.comparisons)
        json["texts"].push_back({{"text", c.text},
                                 {"plain_tps", c.plain},
                                 {"draft_tps", c.drafted},
                                 {"gain", median(c.gains)},
                                 {"same_text", c.same},
                                 {"speculation", speculation_json(c.counts)}});
    for (size_t i = 0; i < kShownPasses.size(); ++i)
        json["pass_costs"].push_back({{"tokens", kShownPasses[i]}, {"plain_steps", results.passes[i]}});
    for (const AcceptanceRow &row : results.acceptances) {
        Json lengths = Json::array();
        for (size_t i = 0; i < measure::kDraftLengths.size(); ++i)
            lengths.push_back({{"length", measure::kDraftLengths[i]}, {"gain", row.fixed[i]}});
        json["dial"].push_back({{"acceptance", row.acceptance},
                                {"gain", row.gain},
                                {"bound", row.bound},
                                {"reached", row.reached()},
                                {"lengths", std::move(lengths)}});
    }
    if (results.block) json["draft_block"] = block_json(*results.block);
    return json;
}

}  // namespace

int bench_speculation(const BenchOptions &options, Io &io) {
    if (options.generates.size() > 1 || options.variants.size() > 1 || !options.both.empty())
        throw UsageError("drafts are measured with one value of each option: give no lists");
    const int32_t generate = options.generates.empty() ? 128 : options.generates.front();
    if (generate < 8) throw UsageError("drafts are measured while decoding: -n must be 8 or more");
    if (!options.sequences.empty() || (!options.depths.empty() && options.depths != std::vector<int32_t>{0}))
        throw UsageError("drafts are measured for one sequence, from its beginning: omit --sequences and -d");
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    decode::EngineOptions engine_flags = engine_options(options.model, io, stop);
    leave_room(engine_flags, options.draft);
    const int64_t passage = static_cast<int64_t>(std::string_view(kPassage).size()) + 8;  // tokens, at most
    const int64_t needed = std::max({int64_t{2} * generate + 256, passage + generate,
                                     measure::acceptance_context(options.repetitions),
                                     passage + int64_t{10} * kBlockTurns * options.repetitions});
    engine_flags.sequences = 2;  // plain and drafted take turns
    if (engine_flags.context == 0) engine_flags.context = needed;
    if (engine_flags.context < needed)
        throw UsageError("the tests need a context of " + std::to_string(needed) + " tokens: omit -c");
    Engine engine(engine_flags);
    for (const std::string &note : engine.notes()) io.note(note);
    const auto drafts = drafting(options.draft, options.model, engine, 1, io, stop);

    io.note("measuring the cost of passes");
    measure::SpeculationBench bench({.tokens = generate,
                                     .repetitions = options.repetitions,
                                     .length = {.least = options.draft.least,
                                                .most = options.draft.most,
                                                .branches = options.draft.branches}},
                                    engine, stop);
    Results results;
    const std::vector<TokenId> prompt = engine.tokenizer().encode(kPassage);
    io.note("measuring a text that the model generates");
    results.comparisons.push_back(bench.compare("greedy", prompt, 0, speculators(drafts.get())));
    io.note("measuring the same at temperature 0.8");
    results.comparisons.push_back(bench.compare("temperature 0.8", prompt, 0.8f, speculators(drafts.get())));
    if (options.draft.lookup) {
        io.note("measuring an edited text");
        results.comparisons.push_back(bench.edit());
    }
    for (const double acceptance : measure::kAcceptances) {
        io.note("measuring synthetic drafts with an acceptance rate of " +
                std::to_string(std::lround(100 * acceptance)) + "%");
        results.acceptances.push_back(bench.measure(acceptance));
    }
    results.passes = bench.pass_costs(kShownPasses);
    if (!engine.draft_blocks().empty() && engine.executor().batch_size() >= measure::kBlockRows) {
        io.note("measuring the draft block");
        results.block = measure::measure_block(engine, prompt, kBlockTurns * options.repetitions, stop);
    }

    const std::string device = engine.executor().device().name;
    Json json = {{"model", options.model.path}, {"device", device}, {"tokens", generate}};
    json["speculation"] = json_of(results);
    io.out.write(options.json()
                     ? dump(json, 2)
                     : device + "\n\n" + side_by_side(results.comparisons) + acceptance_table(results) +
                           (results.block ? block_table(*results.block) : ""));
    return exit_code::kDone;
}

}  // namespace runnel::commands
