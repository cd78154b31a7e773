#include "engine/commands/cli/shared_options.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>

#include "engine/commands/cache_types.h"
#include "engine/commands/json.h"
#include "engine/decode/device.h"
#include "engine/decode/sampling_settings.h"
#include "kernels/backend.h"

namespace runnel::commands {
namespace {

constexpr int64_t kMostLayers = int64_t{1} << 20, kMostExperts = 4096;

uint64_t seed_in(const std::string &text) {
    uint64_t seed = 0;
    const char *const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, seed);
    if (text == "-1") throw ValueError("a whole number below 2^64 (leave --seed out for a random one)");
    if (error != std::errc() || rest != end)
        throw ValueError("a whole number below 2^64 (the system prompt is --system or -sys)");
    return seed;
}

decode::SamplerOrder samplers_in(const std::string &text) {
    try {
        return decode::parse_samplers(text);
    } catch (const std::invalid_argument &error) {
        throw ValueError(error.what());
    }
}

// Also accepts llama.cpp's "none" and "CUDA0,CUDA1".
std::string device_in(std::string text) {
    if (text == "none") text = "cpu";
    for (size_t at = 0; (at = text.find("CUDA")) != std::string::npos;)
        text.replace(at, 4, at + 4 < text.size() && text[at + 4] != ',' ? "cuda:" : "cuda");
    if (!decode::is_device_name(text))
        throw ValueError("auto, cpu, cuda, cuda:N, or several GPUs: cuda:0,cuda:1");
    return text;
}

// "3,1" or, as in llama.cpp, "3/1".
std::vector<double> shares_in(const std::string &text) {
    constexpr double kMost = 1e9;
    constexpr size_t kMostShares = 128;
    const char *const expected = "the GPUs' shares of the layers, such as 3,1";
    std::vector<double> shares;
    for (const char *at = text.data(), *const end = at + text.size();; ++at) {
        double share = 0;
        const auto [rest, error] = std::from_chars(at, end, share);
        if (error != std::errc() || !(share >= 0 && share <= kMost)) throw ValueError(expected);
        shares.push_back(share);
        at = rest;
        if (at == end) break;
        if ((*at != ',' && *at != '/') || shares.size() == kMostShares) throw ValueError(expected);
    }
    if (std::ranges::all_of(shares, [](double share) { return share == 0; })) throw ValueError(expected);
    return shares;
}

// Also llama.cpp's "none" and "dio" (direct I/O), which read the file into memory.
std::string load_mode_in(const std::string &text) {
    if (text == "none" || text == "dio") return "copy";
    if (text != "auto" && text != "mmap" && text != "copy" && text != "mlock" && text != "mmap+mlock")
        throw ValueError("auto, mmap, copy, mlock or mmap+mlock");
    return text;
}

std::string layers_in(const std::string &text) {
    if (text != "auto" && text != "all" && !whole_numbers(-1, kMostLayers).parse(text))
        throw ValueError("a whole number, auto or all");
    return text;
}

// llama.cpp's --chat-template-kwargs: a JSON object of variables.
void add_variables(std::vector<std::string> &variables, const std::string &text) {
    Json object;
    try {
        object = parse_json(text);
    } catch (const JsonError &) {
        throw ValueError("a JSON object: {\"enable_thinking\": false}");
    }
    if (!object.is_object()) throw ValueError("a JSON object: {\"enable_thinking\": false}");
    for (const auto &[name, value] : object.items()) variables.push_back(name + "=" + value.dump());
}

}  // namespace

Command with_common_options(Command command, Common &common) {
    OptionTable &table = command.options;
    table.in_group(Group::General);
    if (command.model != Command::Model::None) {
        table.text("-m,--model", common.model, "the model: the same as the argument MODEL").takes("MODEL");
        table
            .text("-hf,-hfr,--hf-repo", common.hub_repo,
                  "a Hugging Face model in place of MODEL, downloaded if it is not in the cache")
            .takes("USER/REPO[:QUANT]");
        table.text("-hff,--hf-file", common.hub_file, "with -hf: the file of the repository")
            .takes("NAME")
            .rare();
        table.flag("--offline", common.is_offline, "download nothing").rare();
    }
    table.flag("-q,--quiet,--log-disable", common.quiet,
               "show errors only: no progress, notes or statistics");
    if (command.writes_files)
        table.flag("--overwrite", common.overwrite, "let outputs replace files that runnel did not write");
    table.text("--config", common.config, "read settings from another TOML file").takes("FILE").rare();
    table.flag("--version", common.version, "show the version and how it was built").rare();
    table.flag("-h,--help,--usage", common.help, "show this help");
    table.flag("--help-all", common.help_all, "show help with all options and all their spellings");
    return command;
}

Option &add_device_option(OptionTable &table, std::string_view names, std::string &device,
                          std::string_view help) {
    return table.add(names, "NAME", help, [&device](const std::string &text) { device = device_in(text); })
        .by_default(device);
}

void add_cache_options(OptionTable &table, decode::CacheOptions &o) {
    table.in_group(Group::Context);
    const std::vector<std::pair<std::string, kernels::CacheType>> types(std::begin(kCacheTypes),
                                                                        std::end(kCacheTypes));
    table.choice("-ctk,--cache-type-k", o.types.k, types, "type of the cached keys").takes("TYPE");
    table.choice("-ctv,--cache-type-v", o.types.v, types, "type of the cached values").takes("TYPE");
    table
        .number("--window", o.window, whole_numbers(0, 1 << 24),
                "attend only to the last N tokens and to the sinks; 0: as the model does")
        .rare();
    table.number("--sinks", o.sinks, whole_numbers(0, 512), "with --window: the first N tokens stay visible")
        .rare();
}

void add_model_options(OptionTable &table, ModelOptions &o) {
    table.in_group(Group::Context);
    table.number("-c,--ctx-size,--max-seq-len", o.context, whole_numbers(0, int64_t{1} << 40),
                 "context in tokens, such as 8192 or 8k; 0: the model's own, reduced to what fits");
    table.number("-b,--batch-size,-ub,--ubatch-size", o.batch, whole_numbers(1, 1 << 20),
                 "tokens per step of the prefill");
    add_cache_options(table, o.cache);
    table
        .add("--cache-size", "SIZE",
             "memory for keys and values, such as 800M or 4G; by default what -c needs",
             [&o](const std::string &text) { o.cache.size = byte_size(text, int64_t{1} << 50); })
        .rare();
    table.in_group(Group::Device);
    table.number("-t,--threads", o.threads, whole_numbers(0, 4096), "CPU threads; 0: the physical cores");
    add_device_option(table, "-dev,--device", o.device,
                      "device to run on: auto, cpu, cuda, cuda:N, or a list of GPUs: cuda:0,cuda:1");
    table
        .add("-ngl,--gpu-layers,--n-gpu-layers", "N",
             "layers on the GPU, from the last on; the output counts as one; auto, all, or 0 for none",
             [&o](const std::string &text) { o.gpu_layers = layers_in(text); })
        .by_default(o.gpu_layers);
    table
        .choice(
            "--split,-sm,--split-mode", o.split,
            {{"layer", decode::Split::Layer},
             {"tensor", decode::Split::Tensor},
             {"columns", decode::Split::Columns},
             {"context", decode::Split::Context},
             {"none", decode::Split::None}},
            "several GPUs: layer (each GPU runs some of the layers, if one cannot hold all), tensor (each "
            "computes some rows of every layer), columns (as tensor, with half as many exchanges, but more "
            "bytes), context (each also keeps some of the cells), none (one GPU); several processes: tensor "
            "or context")
        .takes("HOW")
        .rare();
    table
        .add("--tensor-split,-ts", "SHARES",
             "shares of the layers, by GPU: 3,1; otherwise the fastest GPU gets as many as fit, then the "
             "next; with --split "
             "tensor: of the rows",
             [&o](const std::string &text) { o.tensor_split = shares_in(text); })
        .rare();
    table
        .add("--load-mode,-lm", "HOW",
             "where the CPU's weights are: mmap (in the mapped file: nothing to load, shared with other "
             "programs), auto (there, and in Q1_0, Q2_0, PQ2_0 and PTQ1_0 also in memory, in an order from "
             "which up to three sequences are decoded faster, if that fits and -n is not below 16), copy (in "
             "this program's own memory, in pages of 2 MiB), mlock (a copy that is never swapped out), "
             "mmap+mlock",
             [&o](const std::string &text) { o.load_mode = load_mode_in(text); })
        .by_default(o.load_mode)
        .rare();
    table.flag("-cmoe,--cpu-moe", o.cpu_moe, "experts stay on the CPU").rare();
    table
        .number("-ncmoe,--n-cpu-moe", o.cpu_moe_layers, whole_numbers(0, kMostLayers),
                "experts of the first N layers stay on the CPU")
        .rare();
    table
        .add("--gpu-experts", "N",
             "a model with experts that the GPU cannot hold: it keeps N of each layer at a time, and fetches "
             "others from host memory when a token chooses them; auto: as many as fit",
             [&o](const std::string &text) {
                 const auto number = whole_numbers(1, kMostExperts).parse(text);
                 if (text != "auto" && text != "all" && !number)
                     throw ValueError("a number from 1 on, auto or all");
                 o.gpu_experts = number ? std::to_string(static_cast<int32_t>(*number)) : text;
             })
        .by_default(o.gpu_experts)
        .rare();
}

void add_draft_options(OptionTable &table, DraftFlags &o) {
    table.in_group(Group::Drafts);
    table
        .text("-md,--draft-model,--model-draft,--spec-draft-model", o.model,
              "a small model or a draft head (EAGLE-3, DFlash, Gemma 4 assistant) that drafts tokens; the "
              "text stays the same")
        .takes("MODEL");
    table.flag("--lookup", o.lookup, "draft from the text so far: for edits, quotes, repetitions");
    table
        .choice("--mtp", o.mtp,
                {{"auto", decode::Mtp::Auto}, {"on", decode::Mtp::On}, {"off", decode::Mtp::Off}},
                "draft with the file's own next-token-prediction block; auto: if it has one")
        .or_alone("on");
    table
        .number("--self-draft", o.self_layers, whole_numbers(0, 4096),
                "draft with the first N layers of the model itself; 0: off")
        .rare();
    table
        .number("--draft-max,--draft,--draft-n,--spec-draft-n-max,--num-draft-tokens", o.most,
                whole_numbers(0, decode::kMostDrafts),
                "maximum length of a draft; adapted to the measured speed")
        .rare();
    table
        .number("--draft-min,--draft-n-min,--spec-draft-n-min", o.least,
                whole_numbers(0, decode::kMostDrafts), "do not verify drafts shorter than this")
        .rare();
    table
        .number("--draft-branches", o.branches, whole_numbers(1, decode::kMostDrafts),
                "maximum number of draft branches; adapted to the speed; 1: no branching")
        .rare();
    table
        .number("--draft-p-min,--spec-draft-p-min", o.least_probability, NumberRange{0, 1, false, false},
                "minimum probability of a drafted token")
        .rare();
    table
        .choice("--draft-rule", o.rule,
                {{"same", decode::DraftRule::Same}, {"rejection", decode::DraftRule::Rejection}},
                "same: the same text as without drafts; rejection: the same distribution")
        .takes("RULE")
        .rare();
    table
        .add("--spec-type", "KIND",
             "llama.cpp's names for drafts: ngram-simple is --lookup; draft, draft-eagle3 and "
             "draft-dflash are -md; draft-mtp is --mtp",
             [&o](const std::string &text) {
                 if (text.starts_with("ngram-"))
                     o.lookup = true;
                 else if (text == "draft-mtp")
                     o.mtp = decode::Mtp::On;
                 else if (text == "draft-eagle3")
                     o.needs_head = model::HeadKind::Eagle3;
                 else if (text == "draft-dflash")
                     o.needs_head = model::HeadKind::DFlash;
                 else if (text != "none" && text != "draft" && text != "draft-simple")
                     throw ValueError("none, draft, draft-eagle3, draft-dflash, draft-mtp or ngram-simple");
             })
        .rare();
    add_device_option(table, "--draft-device,-devd,--device-draft,--spec-draft-device", o.device,
                      "device of the draft model, as for --device")
        .rare();
    table
        .add("-ngld,--gpu-layers-draft,--n-gpu-layers-draft,--spec-draft-ngl", "N",
             "layers of the draft model on the GPU, as --gpu-layers",
             [&o](const std::string &text) { o.gpu_layers = layers_in(text); })
        .by_default(o.gpu_layers)
        .rare();
}

void add_generation_options(OptionTable &table, GenerationFlags &o) {
    table.in_group(Group::Sampling);
    // llama.cpp's -2, "until the context is full", means -1 here.
    table
        .add("-n,--predict,--n-predict,--max-tokens", "N",
             "maximum number of tokens to generate; -1: until the model stops",
             [&o](const std::string &text) {
                 o.predict = text == "-2" ? -1 : static_cast<int64_t>(number_in(whole_numbers(-1), text));
             })
        .by_default("-1");
    table.add("-s,--seed", "N", "seed of the sampling; without it a random one, shown by --stats",
              [&o](const std::string &text) { o.seed = seed_in(text); });
    for (const decode::SamplingSetting &setting : decode::sampling_settings()) {
        std::string names = "--" + std::string(setting.name);
        if (!setting.aliases.empty()) names += "," + std::string(setting.aliases);
        Option &option = table.add(names, "N", setting.help, [&o, &setting](const std::string &text) {
            setting.set(o.sampling, number_in(setting.range, text));
            o.chosen.emplace(setting.name);
        });
        option.by_default(shown_number(setting.get(o.sampling)));
        if (setting.rare) option.rare();
    }
    table
        .list("--dry-sequence-breaker,--dry-breaker", o.dry_breakers,
              "DRY: a text that ends a repetition, in place of \\n : \" *; none: no such text; repeatable")
        .rare();
    table
        .add("--samplers,--sampling-seq,--sampler-seq", "ORDER",
             "the order of the sampling steps, as names with ; between them or as letters",
             [&o](const std::string &text) {
                 o.sampling.samplers = samplers_in(text);
                 o.chosen.emplace("samplers");
             })
        .by_default("edskypmxt")
        .rare();
    table.list("-r,--stop,--reverse-prompt", o.stops, "end the answer before this text; repeatable");
    table.list("--ban", o.bans, "the model never writes exactly this text; repeatable");
    table.flag("--ignore-eos", o.ignore_eos, "continue when the model ends its answer").rare();
    table.list("-l,--logit-bias", o.logit_bias, "add to a token's logit; repeatable")
        .takes("ID+B|ID-B")
        .rare();
    add_constraint_options(table, o.constraint);
    table
        .flag("--close", o.constraint.close, "if -n cuts a constrained answer, add its shortest valid ending")
        .rare();
    table
        .number("--deadline", o.deadline, NumberRange{0, NumberRange::kNone, false, false},
                "stop after this many seconds with the text so far")
        .rare();
}

void add_logprob_options(OptionTable &table, GenerationFlags &o) {
    const NumberRange range = whole_numbers(-1, 1000);
    table.number("--logprobs", o.logprobs, range,
                 "in JSON, the log-probability of each token in the model's own distribution (before biases, "
                 "masks and sampling) and the N most probable tokens; -1: off");
    table
        .number("--prompt-logprobs", o.prompt_logprobs, range,
                "the same for the prompt's tokens; -n 0 only scores a text")
        .rare();
}

void add_stats_options(OptionTable &table, StatsFlags &o) {
    table.in_group(Group::Output);
    table.flag("--stats,--verbose,-v,--show-timings,--perf", o.print,
               "print a summary of times and tokens on stderr");
    table.text("--stats-file", o.file, "write the summary as JSON to a file").takes("FILE").rare();
    table
        .add("--stats-fd", "N", "write the summary as JSON to a file descriptor",
             [&o](const std::string &text) {
                 o.fd = static_cast<int>(number_in(whole_numbers(0, 1 << 20), text));
             })
        .rare();
}

void add_system_options(OptionTable &table, std::optional<std::string> &text,
                        std::optional<std::string> &file) {
    table.in_group(Group::Prompt);
    table.text("-sys,--system,--system-prompt", text, "the system prompt");
    table.text("-sysf,--system-file,--system-prompt-file", file, "the system prompt from a file")
        .takes("FILE");
}

void add_template_options(OptionTable &table, TemplateFlags &o, std::optional<bool> &show_thinking) {
    table.in_group(Group::Prompt);
    table
        .add("--chat-template,--chat-template-file", "FILE",
             "a chat template (Jinja) in place of the model's",
             [&o](const std::string &text) {
                 o.file = text;
                 std::error_code error;
                 if (!std::filesystem::exists(text, error) && !error)
                     throw ValueError("a file with a Jinja template (without the option: the model's own)");
             })
        .rare();
    table.text("--template-name", o.name, "one of several templates of the model: tool_use")
        .takes("NAME")
        .rare();
    table.list("--template-var", o.variables, "a variable of the template: enable_thinking=false; repeatable")
        .takes("NAME=VALUE");
    table
        .add("--chat-template-kwargs", "JSON", "variables of the template as a JSON object",
             [&o](const std::string &text) { add_variables(o.variables, text); })
        .rare();
    using text::Thinking;
    table
        .choice(
            "--think", o.thinking,
            {{"auto", Thinking::Default},
             {"on", Thinking::On},
             {"off", Thinking::Off},
             {"low", Thinking::Low},
             {"medium", Thinking::Medium},
             {"high", Thinking::High},
             {"true", Thinking::On},
             {"false", Thinking::Off}},
            "how the model reasons before it answers, if its template supports it: on, off, low, medium or "
            "high")
        .takes("HOW")
        .or_alone("on");
    table
        .number("--thinking-budget,--reasoning-budget", o.thinking_budget,
                whole_numbers(-1, int64_t{1} << 31),
                "maximum tokens of reasoning before the answer; -1: no limit")
        .rare();
    table.text("--tools", o.tools, "a JSON file with definitions of tools that the model may call")
        .takes("FILE")
        .rare();
    table
        .text("--tool-choice", o.tool_choice,
              "with --tools: auto (the model decides), required, none, or the tool that must be called")
        .takes("auto|required|none|NAME")
        .rare();
    table.flag("--no-parallel-tool-calls", o.one_call, "at most one tool call in an answer").rare();
    table.in_group(Group::Output);
    table.add("--show-thinking", "", "print the model's reasoning on stdout, too",
              [&show_thinking](const std::string &text) { show_thinking = truth(text); });
    table
        .add("--hide-thinking,--hidethinking", "",
             "print no reasoning on stdout: the default, but a chat in a terminal folds it (Ctrl-T shows it)",
             [&show_thinking](const std::string &text) { show_thinking = !truth(text); })
        .rare();
}

void add_overflow_option(OptionTable &table, Overflow &overflow) {
    table.in_group(Group::Context);
    table
        .choice(
            "--on-overflow", overflow,
            {{"error", Overflow::Error}, {"shift", Overflow::Shift}, {"drop-middle", Overflow::DropMiddle}},
            "when text exceeds the context: error, shift (the oldest text goes, the system prompt "
            "stays) or drop-middle")
        .takes("WHAT");
}

}  // namespace runnel::commands
