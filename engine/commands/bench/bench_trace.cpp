// `bench --trace`: the KV cache of recorded requests with reservation and with pages, without computing anything.
#include <algorithm>
#include <cmath>

#include "engine/commands/bench/bench_exhibits.h"
#include "engine/commands/bench/request_trace.h"
#include "engine/commands/cache_types.h"
#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/json.h"
#include "engine/commands/paging_report.h"
#include "engine/commands/plot/plot_output.h"
#include "engine/measure/planner.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using measure::Allocation, measure::PageUse, measure::PagingMemory, measure::PagingReplay,
    measure::PagingRequest;

constexpr int64_t kPage = kernels::kBlockTokens;
constexpr double kMemories[] = {0.25, 0.5, 1, 2, 4};  // of the picture: times the memory given

struct Replayed {
    Allocation how;
    PagingReplay result;
    std::vector<double> running;  // mean, with each of kMemories
};

struct TraceReplay {
    PagingMemory memory;
    size_t cell_bytes = 0;
    double step_ms = 0;
    RequestTrace trace;
    int64_t too_long = 0;  // requests longer than the context, left out
    std::vector<PagingRequest> requests;
    std::vector<Replayed> replays;

    double seconds(double steps) const { return steps * step_ms / 1e3; }
    double mean_wait(const PagingReplay &r) const {
        const int64_t run = r.requests - r.too_large;
        return run > 0 ? seconds(static_cast<double>(r.waited) / static_cast<double>(run)) : 0;
    }
};

PagingMemory with_memory(PagingMemory memory, double times) {
    memory.cells =
        std::max(kPage, static_cast<int64_t>(static_cast<double>(memory.cells) * times) / kPage * kPage);
    return memory;
}

void make_requests(TraceReplay &all) {
    for (TracedRequest &one : all.trace.requests) {
        const int64_t needed = one.prompt + one.answer, context = all.memory.context;
        if (needed > context) {
            ++all.too_long;
            continue;
        }
        const int64_t limit = one.most < 0 ? context : std::clamp(one.prompt + one.most, needed, context);
        all.requests.push_back({one.prompt, one.answer, limit,
                                static_cast<int64_t>(one.arrival * 1e3 / all.step_ms),
                                std::move(one.beginning)});
    }
}

void replay_all(TraceReplay &all, Io &io, const std::function<void()> &look) {
    std::vector<Allocation> ways = {Allocation::Context, Allocation::Limit, Allocation::Pages};
    if (all.trace.has_beginnings) ways.push_back(Allocation::Shared);
    for (const Allocation how : ways) {
        show_progress(io, std::string("replay: ") + names_of(how).shown);
        Replayed one{how, measure::replay(all.requests, all.memory, how, look), {}};
        for (const double times : kMemories)
            one.running.push_back(
                times == 1 ? one.result.mean_running()
                           : measure::replay(all.requests, with_memory(all.memory, times), how, look)
                                 .mean_running());
        all.replays.push_back(std::move(one));
    }
    show_progress(io, "");
}

std::string map_of(const TraceReplay &all, const Replayed &one, bool ascii) {
    constexpr PageMarks kMarks = {{".", "o", "#", "S"},
                                  {"\u00b7", "\u2591", "\u2593", "\u2588"},
                                  {"free", "reserved, without a token", "with tokens", "shared by several"}};
    static_assert(static_cast<int>(PageUse::Shared) == 3);
    std::vector<uint8_t> pages;
    for (const PageUse use : one.result.fullest) pages.push_back(static_cast<uint8_t>(use));
    return "\n" + std::string(names_of(one.how).shown) + ": the memory when most of it was held\n" +
           page_map(pages, static_cast<size_t>(all.memory.cells / kPage), kMarks, ascii);
}

std::string table(const TraceReplay &all, const std::string &file) {
    const PagingMemory &m = all.memory;
    std::string text = format("%zu requests of ", all.requests.size()) + gguf::printable(file) +
                       format(", %d at a time, in a KV cache of\n%lld cells (%s); contexts of %lld\n",
                              m.parallel, static_cast<long long>(m.cells),
                              size_text(static_cast<uint64_t>(m.cells) * all.cell_bytes).c_str(),
                              static_cast<long long>(m.context));
    if (all.too_long > 0)
        text += format("%lld more are longer than a context and left out\n",
                       static_cast<long long>(all.too_long));
    if (all.trace.left_out > 0)
        text += format("%lld lines are errors and left out\n", static_cast<long long>(all.trace.left_out));
    text += "\n" + replay_header();
    for (const Replayed &one : all.replays) text += replay_row(one.how, one.result);
    text += replay_legend();
    text += format("\n%-22s%12s%15s%14s%12s\n", format("steps of %g ms", all.step_ms).c_str(), "busy, s",
                   "wait, mean s", "preemptions", "shared");
    for (const Replayed &one : all.replays)
        text +=
            format("%-22s%12.1f%15.2f%14lld%11.1f%%\n", names_of(one.how).shown,
                   all.seconds(static_cast<double>(one.result.steps)), all.mean_wait(one.result),
                   static_cast<long long>(one.result.preemptions), 100 * one.result.share(one.result.saved));
    text += "wait: from a request's arrival to its first step\n";
    text += "shared: further cells that it would hold without sharing, of the memory\n";
    const bool ascii = plot_size().ascii;
    for (const Replayed *one : {&all.replays.front(), &all.replays.back()}) text += map_of(all, *one, ascii);
    return text;
}

Plot plot_of(const TraceReplay &all) {
    Plot plot;
    plot.title = format("With %lld cells, pages run %.3g requests at a time, reserved contexts %.3g",
                        static_cast<long long>(all.memory.cells), all.replays.back().result.mean_running(),
                        all.replays.front().result.mean_running());
    plot.x = {"cells of the KV cache", true};
    plot.y = {"requests at a time, mean", false};
    for (const Replayed &one : all.replays) {
        Series series{names_of(one.how).shown, {}};
        for (size_t i = 0; i < std::size(kMemories); ++i)
            series.points.emplace_back(static_cast<double>(with_memory(all.memory, kMemories[i]).cells),
                                       one.running[i]);
        plot.series.push_back(std::move(series));
    }
    return plot;
}

Json json_of(const TraceReplay &all, const std::string &model, const std::string &file) {
    Json replays = Json::array();
    for (const Replayed &one : all.replays) {
        Json row = replay_json(one.how, one.result);
        row["busy_seconds"] = all.seconds(static_cast<double>(one.result.steps));
        row["wait_seconds"] = all.mean_wait(one.result);
        row["shared"] = one.result.share(one.result.saved);
        Json by_memory = Json::array();
        for (size_t i = 0; i < std::size(kMemories); ++i)
            by_memory.push_back(
                {{"cells", with_memory(all.memory, kMemories[i]).cells}, {"mean_running", one.running[i]}});
        row["by_memory"] = std::move(by_memory);
        replays.push_back(std::move(row));
    }
    return {{"model", model},
            {"trace", file},
            {"requests", all.requests.size()},
            {"too_long", all.too_long},
            {"errors", all.trace.left_out},
            {"has_arrivals", all.trace.has_arrivals},
            {"has_beginnings", all.trace.has_beginnings},
            {"cells", all.memory.cells},
            {"cell_bytes", all.cell_bytes},
            {"context", all.memory.context},
            {"parallel", all.memory.parallel},
            {"page", all.memory.page},
            {"step_ms", all.step_ms},
            {"replays", std::move(replays)}};
}

}  // namespace

int bench_trace(const BenchOptions &options, const ExhibitOptions &exhibit, Io &io) {
    check_exhibit(options, "--trace", {.both = false, .sequences = true});
    check_plot_file(exhibit.plot, io);
    if (options.sequences.size() > 1) throw UsageError("--trace replays one setting: give one --parallel");
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    const std::function<void()> look = [&] {
        if (stop.requested()) throw Interrupted{};
    };
    const gguf::File file = gguf::File::open(options.model.path);
    const model::Model model = model::build(file);
    TraceReplay all;
    all.cell_bytes = measure::cell_bytes(model.program, options.model.cache.types);
    if (all.cell_bytes == 0)
        throw UsageError("--trace: no layer of the model keeps K and V of a whole context");
    all.step_ms = exhibit.step_ms;
    all.memory = {.cells = 0,
                  .context = options.model.context > 0 ? options.model.context : model.hyper.context_length,
                  .parallel = options.sequences.empty() ? 16 : options.sequences[0],
                  .page = static_cast<int32_t>(kPage)};
    const int64_t size = options.model.cache.size;
    all.memory.cells =
        (size > 0 ? size / static_cast<int64_t>(all.cell_bytes) : 8 * all.memory.context + kPage - 1) /
        kPage * kPage;
    if (all.memory.cells < kPage)
        throw UsageError(format("--cache-size is less than a page of %lld cells: %s",
                                static_cast<long long>(kPage),
                                size_text(static_cast<uint64_t>(kPage) * all.cell_bytes).c_str()));
    std::optional<text::Tokenizer> tokenizer;
    const EncodePrompt encode = [&](std::string_view text) {
        if (!tokenizer) tokenizer.emplace(text::Tokenizer::load(file));
        return tokenizer->encode(text, {.parse_special = true});
    };
    show_progress(io, "reading the trace");
    all.trace =
        parse_trace(read_all(exhibit.trace, io.in, &stop), exhibit.trace, all.memory.page, encode, look);
    make_requests(all);
    if (all.requests.empty())
        throw InputError("every request of the trace is longer than the context of " +
                         std::to_string(all.memory.context) + " tokens");
    replay_all(all, io, look);
    const Plot picture = plot_of(all);
    write_plot_file(exhibit.plot, picture, io);
    io.out.write(options.json() ? dump(json_of(all, options.model.path, exhibit.trace), 2)
                                : table(all, exhibit.trace) + "\n" + terminal_plot(picture, plot_size()));
    return exit_code::kDone;
}

}  // namespace runnel::commands
