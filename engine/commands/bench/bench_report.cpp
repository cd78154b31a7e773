#include "engine/commands/bench/bench_report.h"

#include <algorithm>

#include "engine/commands/cache_types.h"
#include "engine/commands/figures.h"
#include "engine/commands/json.h"
#include "engine/measure/median.h"

namespace runnel::commands {
namespace {

using measure::median, measure::SpeedRow;
using Kind = SpeedRow::Kind;

const char *kind_name(Kind kind) {
    switch (kind) {
        case Kind::Prefill:
            return "prefill";
        case Kind::Decode:
            return "decode";
        case Kind::Both:
            return "both";
        case Kind::Sequences:
            break;
    }
    return "sequences";
}

// The values of the options that may be lists, by name.
std::vector<std::pair<std::string, std::string>> settings_of(const BenchRun &run) {
    return {{"gpu_layers", run.model.gpu_layers},         {"threads", std::to_string(run.threads)},
            {"batch", std::to_string(run.model.batch)},   {"type_k", name_of(run.model.cache.types.k)},
            {"type_v", name_of(run.model.cache.types.v)}, {"load_mode", run.model.load_mode}};
}

// The settings in which this run differs from another: "threads 2, type_k f16".
std::string differences(const BenchRun &run, const std::vector<BenchRun> &runs) {
    std::string text;
    const auto own = settings_of(run);
    for (size_t i = 0; i < own.size(); ++i) {
        const bool differs = std::ranges::any_of(
            runs, [&](const BenchRun &other) { return settings_of(other)[i].second != own[i].second; });
        if (differs) text += (text.empty() ? "" : ", ") + own[i].first + " " + own[i].second;
    }
    return text;
}

// The columns after the speed.
std::string remark(const SpeedRow &row, const BenchRun &run) {
    const auto tensors = row.operations > 0 && run.tensor_rate > 0
                             ? format(" %28.1f%% of multiply rate", 100 * row.operations / run.tensor_rate)
                             : "";
    switch (row.kind) {
        case Kind::Prefill:
            return format(" %10.1f ms", row.first_token * 1e3) + tensors;
        case Kind::Sequences:
            return format(" %30.2f times one sequence", median(row.gains));
        case Kind::Both:
            return "";
        case Kind::Decode:
            break;
    }
    const std::string moved = format(" %13s %10.1f", "", row.bytes_per_token / 1e6);
    if (row.in_cache) return moved + format(" %14s", "in the cache");
    if (!row.share()) return moved + format(" %14s", "-");
    return moved + format(" %13.1f%%", 100 * *row.share());
}

std::string table(const std::vector<BenchRun> &runs) {
    std::string text;
    for (const BenchRun &run : runs) {
        if (!text.empty()) text += '\n';
        if (const std::string differs = differences(run, runs); !differs.empty()) text += differs + "\n";
        text +=
            format("%s: %.1f GB/s (%s)", run.device.c_str(), run.bandwidth / 1e9, run.bandwidth_of.c_str());
        if (run.tensor_rate > 0)
            text += format(", %.0f TFLOP/s in 16-bit multiplications", run.tensor_rate / 1e12);
        if (std::ranges::any_of(run.rows, &SpeedRow::in_cache))
            text += format("\na token's bytes fit in the CPU's cache (%.0f MiB): memory is not the limit",
                           static_cast<double>(run.cache) / 0x1p20);
        text += "\n\ntest              tokens/s      +/-   first token   MB/token   of bandwidth\n";
        for (const SpeedRow &row : run.rows)
            text += format("%-15s %10.2f %8.2f", row.test.c_str(), row.mean(), row.deviation()) +
                    remark(row, run) + "\n";
    }
    return text;
}

Json optional(bool present, double value) {
    return present ? Json(value) : Json();
}

Json json_of(const SpeedRow &row, const BenchRun &run) {
    const bool prefill = row.kind == Kind::Prefill, decode = row.kind == Kind::Decode;
    Json json = {
        {"test", row.test},
        {"kind", kind_name(row.kind)},
        {"tokens", row.prompt + row.generate},
        {"prompt", row.prompt},
        {"generate", row.generate},
        {"depth", row.depth},
        {"sequences", row.sequences},
        {"gain", row.gains.empty() ? Json() : Json(median(row.gains))},
        {"tps_mean", row.mean()},
        {"tps_sd", row.deviation()},
        {"tps", row.rates},
        {"ttft_ms", optional(prefill, row.first_token * 1e3)},
        {"bytes_per_token", optional(decode, row.bytes_per_token)},
        {"bandwidth_share", row.share() ? Json(*row.share()) : Json()},
        {"fits_cache", decode ? Json(row.in_cache) : Json()},
        {"launches_per_token", optional(row.launches > 0, row.launches)},
        {"operations_per_second", optional(row.operations > 0, row.operations)},
        {"tensor_share",
         row.operations > 0 && run.tensor_rate > 0 ? Json(row.operations / run.tensor_rate) : Json()}};
    json["threads"] = run.threads;
    json["batch"] = run.model.batch;
    json["gpu_layers"] = run.model.gpu_layers;
    json["type_k"] = name_of(run.model.cache.types.k);
    json["type_v"] = name_of(run.model.cache.types.v);
    json["load_mode"] = run.model.load_mode;
    return json;
}

Json json_of(const BenchRun &run) {
    return {{"model", run.model.path},
            {"device", run.device},
            {"placement", run.placement},
            {"bandwidth_bytes_per_second", run.bandwidth},
            {"bandwidth_of", run.bandwidth_of},
            {"cache_bytes", run.cache > 0 ? Json(run.cache) : Json()},
            {"tensor_operations_per_second", optional(run.tensor_rate > 0, run.tensor_rate)},
            {"load_ms", run.load_seconds * 1e3}};
}

// Values of the whole run are fields of the top object. With lists, they are those of the first run, and
// every test has its own settings.
std::string json_text(const std::vector<BenchRun> &runs, const BenchOptions &options) {
    Json json = json_of(runs.front());
    json["repetitions"] = options.repetitions;
    json["tests"] = Json::array();
    for (const BenchRun &run : runs)
        for (const SpeedRow &row : run.rows) json["tests"].push_back(json_of(row, run));
    return dump(json, 2);
}

std::string json_lines(const std::vector<BenchRun> &runs) {
    std::string text;
    for (const BenchRun &run : runs)
        for (const SpeedRow &row : run.rows) {
            Json json = json_of(run);
            json.update(json_of(row, run));
            text += dump(json);
        }
    return text;
}

// A cell of Markdown or CSV.
std::string plain(const Json &value) {
    if (value.is_null()) return "";
    return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string quoted(const std::string &text) {
    if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
    std::string result = "\"";
    for (const char c : text) result += c == '"' ? "\"\"" : std::string(1, c);
    return result + "\"";
}

constexpr const char *kCsvColumns[] = {"model",
                                       "device",
                                       "gpu_layers",
                                       "threads",
                                       "batch",
                                       "type_k",
                                       "type_v",
                                       "test",
                                       "kind",
                                       "prompt",
                                       "generate",
                                       "depth",
                                       "sequences",
                                       "tps_mean",
                                       "tps_sd",
                                       "ttft_ms",
                                       "bytes_per_token",
                                       "bandwidth_bytes_per_second",
                                       "bandwidth_share",
                                       "fits_cache",
                                       "gain",
                                       "load_mode"};

std::string csv(const std::vector<BenchRun> &runs) {
    std::string text;
    for (const char *column : kCsvColumns) text += (text.empty() ? "" : ",") + std::string(column);
    text += '\n';
    for (const BenchRun &run : runs)
        for (const SpeedRow &row : run.rows) {
            Json json = json_of(run);
            json.update(json_of(row, run));
            std::string line;
            for (const char *column : kCsvColumns)
                line += (column == kCsvColumns[0] ? "" : ",") + quoted(plain(json[column]));
            text += line + "\n";
        }
    return text;
}

std::string cell(std::string text) {
    for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.replace(at, 1, "\\|");
    std::ranges::replace(text, '\n', ' ');
    return text;
}

std::string markdown(const std::vector<BenchRun> &runs) {
    const auto settings = settings_of(runs.front());
    std::string head = "| model | device |", rule = "|---|---|";
    for (size_t i = 0; i < settings.size(); ++i) head += " " + settings[i].first + " |", rule += "---|";
    std::string text =
        head + " test | tokens/s | MB/token | of bandwidth |\n" + rule + "---|---:|---:|---:|\n";
    for (const BenchRun &run : runs)
        for (const SpeedRow &row : run.rows) {
            text += "| " + cell(run.model.path) + " | " + cell(run.device) + " |";
            for (const auto &[name, value] : settings_of(run)) text += " " + value + " |";
            text += " " + row.test + " | " + format("%.2f ± %.2f", row.mean(), row.deviation()) + " | ";
            if (row.kind == Kind::Decode) text += format("%.1f", row.bytes_per_token / 1e6);
            text += " | ";
            if (row.in_cache) text += "in the cache";
            if (row.share()) text += format("%.1f%%", 100 * *row.share());
            text += " |\n";
        }
    return text;
}

}  // namespace

std::string report(const std::vector<BenchRun> &runs, const BenchOptions &options) {
    switch (options.output) {
        case BenchOptions::Output::Table:
            return table(runs);
        case BenchOptions::Output::Markdown:
            return markdown(runs);
        case BenchOptions::Output::Csv:
            return csv(runs);
        case BenchOptions::Output::JsonLines:
            return json_lines(runs);
        case BenchOptions::Output::JsonObject:
            break;
    }
    return json_text(runs, options);
}

}  // namespace runnel::commands
