// The options of `bench`.
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "engine/commands/bench/bench_exhibits.h"
#include "engine/commands/cli/shared_options.h"
#include "engine/commands/commands.h"
#include "engine/commands/generation.h"
#include "engine/commands/sandbox/sandbox_option.h"

namespace runnel::commands {
namespace {

// Model options that take a list; every combination is measured.
struct Axis {
    std::vector<std::string> values;
    std::function<void(const std::string &)> set;
};
using Axes = std::vector<Axis>;

constexpr std::string_view kLists[] = {"-ngl", "-t", "-b", "-ctk", "-ctv", "-lm"};
constexpr size_t kMostVariants = 1024;
constexpr std::string_view kModes =
    "--roofline, --naive, --profile, --batching, --attention, --experts, --compare, --trace";

std::shared_ptr<Axes> add_axes(OptionTable &table) {
    auto axes = std::make_shared<Axes>(std::size(kLists));
    for (size_t i = 0; i < axes->size(); ++i) (*axes)[i].set = table.take_list(kLists[i], (*axes)[i].values);
    return axes;
}

// All combinations; the last list varies fastest. `model`: the options that are not lists.
std::vector<ModelOptions> variants(const Axes &axes, const ModelOptions &model) {
    size_t count = 1;
    for (const Axis &axis : axes) {
        count *= std::max<size_t>(axis.values.size(), 1);
        if (count > kMostVariants)
            throw UsageError("more than " + std::to_string(kMostVariants) +
                             " combinations: shorten the lists");
    }
    std::vector<ModelOptions> all;
    for (size_t index = 0; index < count; ++index) {
        size_t rest = index;
        for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
            if (axis->values.empty()) continue;
            axis->set(axis->values[rest % axis->values.size()]);
            rest /= axis->values.size();
        }
        all.push_back(model);
    }
    return all;
}

BenchOptions::PromptAndAnswer prompt_and_answer(const std::string &text) {
    const size_t comma = text.find(',');
    if (comma == std::string::npos) throw ValueError("two numbers: 512,128");
    const NumberRange range = whole_numbers(1, 1 << 24);
    return {static_cast<int32_t>(number_in(range, text.substr(0, comma))),
            static_cast<int32_t>(number_in(range, text.substr(comma + 1)))};
}

}  // namespace

void add_prompt_and_answer(OptionTable &table, BenchOptions &options, std::string_view help) {
    Option &both = table.add("-pg", "P,G", help, [&options](const std::string &text) {
        options.both.push_back(prompt_and_answer(text));
    });
    both.is_repeatable = true;
    both.clear = [&options] { options.both.clear(); };
}

Command bench_command() {
    Command command{
        .name = "bench",
        .usage = "MODEL",
        .summary = "prefill and decode speed, compared with the hardware's limits",
        .description =
            "Measures prefill and decode, and the memory bandwidth in the same run. With draft "
            "options, measures the gain from speculative decoding. -p, -n, -d, -t, -b, -ngl, -ctk, "
            "-ctv and -lm take lists: every combination is measured.",
        .examples = {"bench model.gguf", "bench model.gguf -p 512 -n 128 -d 0,4096 --json",
                     "bench model.gguf -t 1,2,4 -ctk f16,q8_0 -o md",
                     "bench model.gguf --sequences 16,32 -p 0",
                     "bench model.gguf --roofline --plot roofline.svg", "bench model.gguf --naive -n 256",
                     "bench model.gguf --attention -d 1024,4096,16384",
                     "bench model.gguf --batching --parallel 1,4,16 --rate 10,20",
                     "bench mixture.gguf --experts -f text.txt",
                     "bench model.gguf --trace requests.csv -c 8k --cache-size 4G"}};
    auto o = std::make_shared<BenchOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    table
        .numbers("-p,--n-prompt", o->prompts, whole_numbers(0, 1 << 24),
                 "tokens of the prefill test; 0: none; a list: 128,512")
        .by_default("512");
    table
        .numbers("-n,--n-gen", o->generates, whole_numbers(0, 1 << 24),
                 "tokens of the decode test; 0: none; a list: 32,128")
        .by_default("128");
    add_prompt_and_answer(table, *o, "also prefill P tokens and decode G, timed together; repeatable");
    table.number("-r,--repetitions", o->repetitions, whole_numbers(1, 10000), "repetitions of each test");
    table
        .numbers("-d,--depth,--n-depth", o->depths, whole_numbers(0, 1 << 24),
                 "tokens in the KV cache before each test; a list: 0,4096")
        .by_default("0");
    table.numbers("--sequences,-npl,--parallel", o->sequences, whole_numbers(1, 4096),
                  "also decode N sequences at a time, compared with one; a list: 16,32");
    auto exhibit = std::make_shared<ExhibitOptions>();
    table.flag("--roofline", exhibit->roofline,
               "whether memory or arithmetic limits prefill and decode; -pg P,G is the request (500,200)");
    table.flag("--naive", exhibit->naive,
               "decode -n tokens with and without a KV cache, and compare the times");
    table.flag("--profile", exhibit->profile,
               "time of prefill and decode by kind of step and by layer; -pg P,G is the request (512,128)");
    table.flag("--batching", exhibit->batching,
               "throughput against latency of N requests at a time (--parallel, a list); -pg P,G is a "
               "request (64,32); after Ctrl-C, the rows so far are shown");
    table.flag("--attention", exhibit->attention,
               "cost of the CPU's attention by depth (-d, a list): full, with a window (--window), unfused, "
               "and with as many K/V heads as heads (MHA), fewer (GQA) or one (MQA)");
    table.flag("--experts", exhibit->experts,
               "what a GPU would fetch that holds some experts of each layer (run --gpu-experts N), from the "
               "choices for the text of -f, computed on the CPU");
    table.numbers("--rate", exhibit->rates, decode::NumberRange{0.001, 1e6},
                  "with --batching: requests arrive at random, this many per second; a list: 10,20");
    table
        .number("--requests", exhibit->requests, whole_numbers(0, 1 << 20),
                "with --batching: requests of each row; 0: by the number of sequences and the rate")
        .rare();
    table
        .number("--arrival-seed", exhibit->seed, whole_numbers(0, 1 << 30),
                "with --rate: seed of the arrivals and of the prompts")
        .rare();
    table
        .list("--compare", exhibit->compare,
              "compare MODEL with this one in speed, taking turns, and with -f in quality; repeatable. Files "
              "with the attention alone or the MLP alone in another format are made by quantize "
              "--tensor-type")
        .takes("FILE");
    table.flag("--compare-lists", exhibit->compare_lists,
               "compare the combinations of -ctk, -ctv, -t, -b, -ngl and -lm (-ctk f16,q8_0) as --compare "
               "does models");
    table
        .text("--trace", exhibit->trace,
              "replay the requests of a file, without computing anything: the memory that their K and V take "
              "with "
              "reservation and with pages. CSV with TIMESTAMP,ContextTokens,GeneratedTokens, or JSON lines "
              "with "
              "prompt_tokens and completion_tokens, such as the answers of batch; -c is the context, "
              "--parallel "
              "the requests at a time (16), --cache-size the memory (8 contexts)")
        .takes("FILE");
    table
        .number("--step-time", exhibit->step_ms, decode::NumberRange{0.001, 1e6},
                "with --trace: milliseconds of a step, in which each running request gets a token")
        .rare();
    table.flag("--text", o->text, "measure the tokenizer and the chat template instead of the model").rare();
    table
        .text("-f,--file", o->file,
              "with --text: also the text of a file; with --compare or --compare-lists: perplexity and KL "
              "divergence on it; with --experts: the text")
        .takes("FILE")
        .rare();
    add_model_options(table, o->model);
    const auto axes = add_axes(table);
    add_draft_options(table, o->draft);
    table.in_group(Group::Output);
    using Format = BenchOptions::Output;
    table
        .choice("-o,--output", o->output,
                {{"table", Format::Table},
                 {"md", Format::Markdown},
                 {"csv", Format::Csv},
                 {"json", Format::JsonObject},
                 {"jsonl", Format::JsonLines}},
                "print a table, Markdown, CSV, JSON, or one JSON object per test")
        .takes("FORMAT");
    table.add("--json", "", "the result as JSON", [o = o.get()](const std::string &text) {
        if (truth(text)) o->output = Format::JsonObject;
    });
    table
        .text("--plot", exhibit->plot,
              "with one of these modes (--roofline ... --trace): write the plot to this SVG file")
        .takes("FILE.svg");
    command.writes_files = true;
    const Confine confine = add_sandbox_option(table);
    command.call = [o, axes, exhibit, confine](const Words &words, Io &io) {
        o->model.path = words.model;
        o->variants = variants(*axes, o->model);
        if (o->file && !o->text && !exhibit->compares() && !exhibit->experts)
            throw UsageError("-f needs --text, --compare or --experts");
        if (exhibit->chosen() + o->text > 1)
            throw UsageError(std::string(kModes) + " and --text exclude each other: choose one");
        if (exhibit->chosen() > 0 && drafting_options(o->draft, o->model))
            throw UsageError(std::string(kModes) + " measure plain decoding: omit the draft options");
        if (!exhibit->plot.empty() && exhibit->chosen() == 0)
            throw UsageError("--plot needs one of " + std::string(kModes));
        const bool has_arrivals =
            !exhibit->rates.empty() || exhibit->requests > 0 || exhibit->seed != ExhibitOptions().seed;
        if (has_arrivals && !exhibit->batching)
            throw UsageError("--rate, --requests and --arrival-seed need --batching");
        if (exhibit->step_ms != ExhibitOptions().step_ms && exhibit->trace.empty())
            throw UsageError("--step-time needs --trace");
        std::vector<std::string> inputs = {o->model.path, o->draft.model, o->file.value_or(""),
                                           exhibit->trace};
        inputs.insert(inputs.end(), exhibit->compare.begin(), exhibit->compare.end());
        confine({inputs, {exhibit->plot}}, gpu_wish(o->model, o->draft));
        if (exhibit->roofline) return bench_roofline(*o, exhibit->plot, io);
        if (exhibit->profile) return bench_profile(*o, exhibit->plot, io);
        if (exhibit->attention) return bench_attention(*o, exhibit->plot, io);
        if (exhibit->experts) return bench_experts(*o, exhibit->plot, io);
        if (exhibit->naive) return bench_naive(*o, exhibit->plot, io);
        if (exhibit->compares()) return bench_compare(*o, *exhibit, io);
        if (!exhibit->trace.empty()) return bench_trace(*o, *exhibit, io);
        if (exhibit->batching) return bench_batching(*o, *exhibit, io);
        return o->text ? bench_text(*o, io) : bench(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
