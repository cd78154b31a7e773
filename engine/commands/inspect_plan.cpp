#include "engine/commands/inspect_plan.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "engine/commands/cache_types.h"
#include "engine/commands/figures.h"
#include "engine/commands/inspect_devices.h"
#include "engine/commands/json.h"
#include "engine/commands/plot/plot_output.h"
#include "engine/measure/planner.h"
#include "engine/model/model.h"
#include "engine/model/window.h"
#include "gguf/printable.h"
#include "kernels/steps.h"

namespace runnel::commands {
namespace {

using decode::CacheTypes;
using gguf::Type;
using kernels::CacheType, kernels::Program;
using measure::CellGroup;

constexpr Type kFormats[] = {Type::F16,  Type::Q8_0, Type::Q6_K, Type::Q5_K,  Type::Q4_K,
                             Type::Q4_0, Type::Q3_K, Type::Q2_K, Type::IQ2_XS};
constexpr CacheType kTypes[] = {CacheType::F16, CacheType::Q8_0, CacheType::Q4_0};

std::string upper(std::string_view name) {
    std::string text(name);
    for (char &c : text)
        if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    return text;
}

// A row of the table: one weight format.
struct Row {
    std::string format;
    double bits, weights;           // bits per weight; bytes
    std::optional<Type> type = {};  // none: the file's own
};

struct Planned {
    std::string name;
    Program program;
    int64_t context;
    int32_t sequences, batch;
    std::vector<Row> rows;  // the file's own formats come first

    double cache(CacheTypes types) const {
        const int64_t cells = decode::cells_for(context, sequences);
        return static_cast<double>(decode::cache_bytes(
            program, {.cells = cells, .sequences = sequences, .batch = batch, .types = types}));
    }
    int64_t fitting(const Row &row, CacheType type, int64_t memory) const {
        return measure::sequences_that_fit(program, row.weights, static_cast<double>(memory), context,
                                           {type, type});
    }
};

Planned planned(const InspectOptions &file, const PlanOptions &options, std::optional<gguf::File> &opened) {
    Planned plan;
    plan.sequences = file.sequences, plan.batch = file.batch, plan.context = file.context;
    if (!options.shape.empty()) {
        try {
            plan.program = measure::program_of(measure::parse_shape(options.shape));
        } catch (const std::invalid_argument &error) {
            throw UsageError(std::string("--shape: ") + error.what());
        }
        plan.name = options.shape;
        if (plan.context == 0) plan.context = 4096;
    } else {
        opened = gguf::File::open(file.path);
        model::Model model = model::build(*opened, file.context);
        plan.program = std::move(model.program);
        plan.name = file.path;
        if (plan.context == 0) plan.context = model.hyper.context_length;
        const double bytes = measure::weight_bytes(plan.program);
        plan.rows.push_back({"the file", 8 * bytes / measure::parameters_of(plan.program).all(), bytes});
    }
    if (file.cache.sinks > 0 && file.cache.window == 0) throw UsageError("--sinks needs --window");
    if (file.cache.window > 0) model::impose_window(plan.program, file.cache.window, file.cache.sinks);
    plan.context = std::clamp<int64_t>(plan.context, 1, decode::kMostContext);
    for (const Type type : kFormats)
        plan.rows.push_back({upper(gguf::traits(type).name), measure::bits_per_weight(type),
                             measure::weight_bytes(plan.program, type), type});
    return plan;
}

// The cache size if the layers used multi-head, grouped-query or multi-query attention.
struct Heads {
    std::string name;
    double cell_bytes;  // K and V of a token in all layers, ignoring windows
};
std::vector<Heads> heads_of(const Program &program, CacheTypes types) {
    int32_t heads = 0, kv_heads = 0;
    bool same = true;
    kernels::for_each_step<kernels::Attention>(program, [&](const kernels::Attention &attention) {
        same = same && (heads == 0 || (attention.heads == heads && attention.kv_heads == kv_heads)) &&
               attention.v != kernels::kNoSlot;
        heads = attention.heads, kv_heads = attention.kv_heads;
    });
    if (heads == 0 || !same) return {};  // layers differ, or cache a latent vector
    double of_one = 0;
    for (const CellGroup &group : measure::cell_groups(program))
        of_one += static_cast<double>(group.layers) * static_cast<double>(group.bytes(types)) / kv_heads;
    std::vector<Heads> all = {{format("MHA (%d)", heads), heads * of_one}};
    if (kv_heads > 1 && kv_heads < heads) all.push_back({format("GQA (%d)", kv_heads), kv_heads * of_one});
    all.push_back({"MQA (1)", of_one});
    return all;
}

struct Unit {
    const char *name;
    double bytes;
};
Unit unit_of(const Planned &plan) {
    return plan.rows.front().weights < 1e9 ? Unit{"MB", 1e6} : Unit{"GB", 1e9};
}

// The first format that leaves memory for a short sequence.
const Row &shown_row(const Planned &plan, int64_t memory) {
    for (const Row &row : plan.rows)
        if (memory > 0 &&
            measure::sequences_that_fit(plan.program, row.weights, static_cast<double>(memory), 256, {}) > 0)
            return row;
    return plan.rows.front();
}

std::string windows_text(const Program &program) {
    std::string text;
    for (const CellGroup &group : measure::cell_groups(program))
        if (group.window > 0)
            text +=
                format("%lld layers keep the last %d tokens%s\n", static_cast<long long>(group.layers),
                       group.window, group.sinks > 0 ? format(" and the first %d", group.sinks).c_str() : "");
    return text;
}

std::string table(const Planned &plan, CacheTypes types, int64_t memory) {
    const measure::Parameters parameters = measure::parameters_of(plan.program);
    const Unit unit = unit_of(plan);
    const auto percent = [&](double part) { return 100 * part / parameters.all(); };
    std::string text = gguf::printable(plan.name, 4096) + "\n";
    text += format("%.2f %s parameters: %.1f%% attention, %.1f%% MLP, %.1f%% embeddings\n",
                   parameters.all() / (parameters.all() < 1e9 ? 1e6 : 1e9),
                   parameters.all() < 1e9 ? "million" : "billion", percent(parameters.attention),
                   percent(parameters.feed_forward), percent(parameters.embedding));
    text += format("K and V of a token (%s, %s): ", name_of(types.k), name_of(types.v)) +
            measure::cell_formula(plan.program, types) +
            format(" = %zu bytes\n", measure::cell_bytes(plan.program, types));
    text += windows_text(plan.program);
    if (const auto heads = heads_of(plan.program, types); !heads.empty()) {
        text += "K and V of a token by number of K/V heads:";
        for (const Heads &kind : heads)
            text += format("%s %s %.0f bytes", &kind == &heads.front() ? "" : ",", kind.name.c_str(),
                           kind.cell_bytes);
        text += '\n';
    }
    text += format("\n%s with K and V of %d x %lld tokens", unit.name, plan.sequences,
                   static_cast<long long>(plan.context));
    if (memory > 0)
        text += format("; sequences that fit in %s", size_text(static_cast<uint64_t>(memory), 1).c_str());
    text += "\n\nformat      bits   weights";
    for (const CacheType type : kTypes) text += format(" %9s", ("+ " + std::string(name_of(type))).c_str());
    if (memory > 0)
        for (const CacheType type : kTypes) text += format(" %7s", name_of(type));
    text += '\n';
    for (const Row &row : plan.rows) {
        text += format("%-9s %6.2f %9.2f", row.format.c_str(), row.bits, row.weights / unit.bytes);
        for (const CacheType type : kTypes)
            text += format(" %9.2f", (row.weights + plan.cache({type, type})) / unit.bytes);
        if (memory > 0)
            for (const CacheType type : kTypes)
                text += format(" %7lld", static_cast<long long>(plan.fitting(row, type, memory)));
        text += '\n';
    }
    return text;
}

Plot plot_of(const Planned &plan, int64_t memory) {
    const Row &row = shown_row(plan, memory);
    const Unit unit = unit_of(plan);
    Plot plot;
    plot.x = {"context, tokens", true};
    Planned at{plan.name, plan.program, 0, plan.sequences, plan.batch, {}};
    for (const CacheType type : kTypes) {
        Series series{std::string("K and V in ") + name_of(type), {}};
        for (int64_t context = 256; context <= std::max<int64_t>(plan.context, 4096); context *= 2) {
            at.context = context;
            const double y = memory > 0 ? static_cast<double>(at.fitting(row, type, memory))
                                        : (row.weights + at.cache({type, type})) / unit.bytes;
            series.points.emplace_back(static_cast<double>(context), y);
        }
        plot.series.push_back(std::move(series));
    }
    if (memory > 0) {
        plot.title = format("Sequences that fit in %s with %.1f %s of weights (%s)",
                            size_text(static_cast<uint64_t>(memory), 1).c_str(), row.weights / unit.bytes,
                            unit.name, row.format.c_str());
        plot.y = {"sequences", true};
    } else {
        plot.title =
            format("Memory of %d sequence%s with %.1f %s of weights (%s)", plan.sequences,
                   plan.sequences == 1 ? "" : "s", row.weights / unit.bytes, unit.name, row.format.c_str());
        plot.y = {unit.name, false};
    }
    return plot;
}

Json json_of(const Planned &plan, CacheTypes types, int64_t memory) {
    const measure::Parameters parameters = measure::parameters_of(plan.program);
    Json heads = Json::array(), groups = Json::array(), rows = Json::array();
    for (const Heads &kind : heads_of(plan.program, types))
        heads.push_back({{"kind", kind.name}, {"bytes_per_token", kind.cell_bytes}});
    for (const CellGroup &g : measure::cell_groups(plan.program))
        groups.push_back({{"layers", g.layers},
                          {"kv_heads", g.kv_heads},
                          {"head_dim_k", g.head_dim_k},
                          {"head_dim_v", g.head_dim_v},
                          {"window", g.window},
                          {"sinks", g.sinks},
                          {"bytes_per_token_and_layer", g.bytes(types)}});
    for (const Row &row : plan.rows)
        for (const CacheType type : kTypes) {
            const double cache = plan.cache({type, type});
            rows.push_back(
                {{"format", row.format},
                 {"bits_per_weight", row.bits},
                 {"weight_bytes", row.weights},
                 {"cache_type", name_of(type)},
                 {"cache_bytes", cache},
                 {"bytes", row.weights + cache},
                 {"sequences_that_fit", memory > 0 ? Json(plan.fitting(row, type, memory)) : Json()}});
        }
    return {{"model", plan.name},
            {"parameters",
             {{"all", parameters.all()},
              {"attention", parameters.attention},
              {"feed_forward", parameters.feed_forward},
              {"embedding", parameters.embedding},
              {"other", parameters.other}}},
            {"context", plan.context},
            {"sequences", plan.sequences},
            {"memory", memory > 0 ? Json(memory) : Json()},
            {"cell",
             {{"type_k", name_of(types.k)},
              {"type_v", name_of(types.v)},
              {"formula", measure::cell_formula(plan.program, types)},
              {"bytes_per_token", measure::cell_bytes(plan.program, types)},
              {"layers", std::move(groups)},
              {"by_heads", std::move(heads)}}},
            {"rows", std::move(rows)}};
}

}  // namespace

int inspect_plan(const InspectOptions &file, const PlanOptions &options, Io &io) {
    check_plot_file(options.plot, io);
    std::optional<gguf::File> opened;  // keeps alive what the program's names and constants point into
    const Planned plan = planned(file, options, opened);
    const Plot picture = plot_of(plan, options.memory);
    write_plot_file(options.plot, picture, io);
    std::vector<PlannedFormat> formats;
    for (const Row &row : plan.rows) formats.push_back({row.format, row.type});
    const measure::DevicePlanRequest on_devices{.devices = options.devices,
                                                .link = options.link,
                                                .types = file.cache.types,
                                                .sequences = file.sequences,
                                                .batch = file.batch,
                                                .context = file.context,
                                                .filled = plan.context};
    const bool has_devices = !options.devices.empty();
    if (file.json) {
        Json json = json_of(plan, file.cache.types, options.memory);
        if (has_devices) json["split"] = devices_json(plan.program, formats, on_devices);
        io.out.write(dump(json, 2));
        return exit_code::kDone;
    }
    io.out.write(table(plan, file.cache.types, options.memory) +
                 (has_devices ? devices_text(plan.program, formats, on_devices) : "") + "\n" +
                 terminal_plot(picture, plot_size()));
    return exit_code::kDone;
}

}  // namespace runnel::commands
