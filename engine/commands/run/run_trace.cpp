#include "engine/commands/run/run_trace.h"

#include <cmath>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>

#include "engine/commands/arguments.h"
#include "engine/commands/json.h"
#include "engine/measure/pass_cost.h"
#include "gguf/output_file.h"

namespace runnel::commands {
namespace {

// Every trace begins with this, so that a later run may replace it.
constexpr std::string_view kBegin = R"({"otherData":{"program":"runnel")";

gguf::OutputOptions trace_output(const Io &io) {
    return {.overwrite = io.overwrite, .own = kBegin};
}

std::optional<int64_t> noted(const base::Trace::Event &event, std::string_view key) {
    for (const auto &[name, value] : event.notes)
        if (name == key) return value;
    return std::nullopt;
}

void add_cost(const base::Trace::Event &pass, decode::Engine &engine, Json &numbers) {
    const auto depth = noted(pass, "depth"), tokens = noted(pass, "tokens"), rows = noted(pass, "logits");
    if (!depth || !tokens || *tokens < 1) return;
    const measure::PassCost cost = measure::pass_cost(engine.model().program, *depth, *tokens,
                                                      engine.executor().types(), rows.value_or(1));
    numbers["weight_bytes"] = std::llround(cost.weights);
    numbers["cache_bytes"] = std::llround(cost.cache_read);
    numbers["operations"] = std::llround(cost.operations());
    if (pass.seconds > 0) numbers["megabytes_per_second"] = std::llround(cost.bytes() / pass.seconds / 1e6);
}

}  // namespace

void check_trace_file(const std::string &path, const std::optional<std::string> &prompt_cache, const Io &io) {
    std::error_code error;
    if (prompt_cache && std::filesystem::weakly_canonical(path, error) ==
                            std::filesystem::weakly_canonical(*prompt_cache, error))
        throw UsageError("--trace and --prompt-cache name the same file: choose another --trace");
    if (path == "-") throw UsageError("--trace writes to a file, not to standard output");
    gguf::check_output(path, trace_output(io));
}

void write_trace(const std::string &path, const base::Trace &trace, decode::Engine &engine, Io &io) {
    Json events = Json::array();
    events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", "runnel run"}}}});
    for (const base::Trace::Event &event : trace.events()) {
        Json numbers = Json::object();
        for (const auto &[key, value] : event.notes) numbers[key] = value;
        const bool is_point = event.seconds < 0;
        if (event.name == std::string_view("pass")) add_cost(event, engine, numbers);
        Json entry = {{"name", event.name}, {"ph", is_point ? "i" : "X"}, {"ts", event.begin * 1e6}};
        if (is_point)
            entry["s"] = "t";
        else
            entry["dur"] = event.seconds * 1e6;
        entry["pid"] = entry["tid"] = 1;
        entry["args"] = std::move(numbers);
        events.push_back(std::move(entry));
    }
    const std::string text =
        dump({{"otherData", {{"program", "runnel"}, {"omitted_events", trace.omitted()}}},
              {"displayTimeUnit", "ms"},
              {"traceEvents", std::move(events)}});
    gguf::OutputFile file(path, trace_output(io));
    file.write(std::as_bytes(std::span(text)));
    file.commit();
}

}  // namespace runnel::commands
