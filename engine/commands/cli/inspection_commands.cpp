// The options of the commands that examine files and machines.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/commands/cli/shared_options.h"
#include "engine/commands/commands.h"
#include "engine/commands/inspect_plan.h"
#include "engine/commands/sandbox/sandbox_option.h"

namespace runnel::commands {
namespace {

// "4x80G@3350,24G": sizes, each with the number of devices before it and GB/s behind it, if given.
std::vector<measure::PlannedDevice> devices_in(const std::string &text) {
    constexpr size_t kMostDevices = 64;
    const ValueError bad("devices as 4x80G, 24G,24G,16G or, with GB/s, 4x80G@3350; at most 64");
    std::vector<measure::PlannedDevice> devices;
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        std::string one = text.substr(at, end - at);
        at = end + 1;
        size_t count = 1;
        if (const size_t times = one.find('x'); times != std::string::npos) {
            count = static_cast<size_t>(
                number_in(whole_numbers(1, static_cast<int64_t>(kMostDevices)), one.substr(0, times)));
            one.erase(0, times + 1);
        }
        measure::PlannedDevice device;
        if (const size_t sign = one.find('@'); sign != std::string::npos) {
            device.bandwidth = 1e9 * number_in(NumberRange{1, 1e6, false, false}, one.substr(sign + 1));
            one.resize(sign);
        }
        device.memory = byte_size(one, int64_t{1} << 50);
        if (device.memory == 0 || devices.size() + count > kMostDevices) throw bad;
        devices.insert(devices.end(), count, device);
    }
    return devices;
}

measure::Link link_in(const std::string &text) {
    std::vector<std::string> names;
    for (const measure::Link &link : measure::kLinks) {
        if (link.name == text) return link;
        names.emplace_back(link.name);
    }
    throw ValueError(listed(names));
}

}  // namespace

Command perplexity_command() {
    Command command{.name = "perplexity",
                    .usage = "MODEL -f FILE",
                    .summary = "perplexity, divergence from saved logits, multiple choice",
                    .description =
                        "Perplexity of a text as llama-perplexity defines it, and the KL divergence from "
                        "logits that another run, or llama-perplexity, has saved. Or the share of "
                        "multiple-choice tasks that the model solves.",
                    .examples = {"perplexity model.gguf -f text.txt",
                                 "perplexity model-f16.gguf -f text.txt --save-logits base.kld",
                                 "perplexity model-q4.gguf --kl-base base.kld --json",
                                 "perplexity model.gguf -f hellaswag_val_full.txt --hellaswag"}};
    auto o = std::make_shared<PerplexityOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    table.text("-f,--file", o->file, "the text, or the tasks; -: standard input").takes("FILE");
    table
        .add("--chunks", "N", "number of chunks to use; -1: all",
             [o = o.get()](const std::string &text) {
                 o->chunks = static_cast<int64_t>(number_in(whole_numbers(-1), text));
             })
        .by_default("-1");
    table.text("--kl-base", o->base, "compare with saved log-probabilities; the text is in that file")
        .takes("FILE");
    table.number("--ppl-stride", o->stride, whole_numbers(0, 1 << 24),
                 "begin a chunk every N tokens, and score only its last N; 0: chunks do not overlap");
    table.flag("--hellaswag", o->hellaswag,
               "the file has HellaSwag tasks: six lines each, with the context, the number of the right "
               "ending (0 to 3), four endings");
    table.flag("--winogrande", o->winogrande,
               "the file has Winogrande tasks: CSV with number, sentence with _, two words, the right one");
    table.flag("--multiple-choice", o->multiple_choice,
               "the file has questions in llama-perplexity's binary format: MMLU, ARC, TruthfulQA");
    table.number("--tasks,--hellaswag-tasks,--winogrande-tasks,--multiple-choice-tasks", o->tasks,
                 whole_numbers(0, 1 << 30),
                 "most tasks, drawn as llama-perplexity draws them; 0: all; not given: 400 with --hellaswag, "
                 "otherwise all");
    add_model_options(table, o->model);
    table.in_group(Group::Output);
    table.text("--save-logits", o->save_logits, "save the log-probabilities to a file").takes("FILE");
    table.flag("--json", o->json, "the result as JSON");
    command.writes_files = true;
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        o->model.path = words.model;
        o->model.several_processes = true;
        if (on_several_processes(o->model))
            stay_outside("several processes run the model");
        else
            confine({{o->model.path, o->file, o->base}, {o->save_logits}}, o->model.device);
        return o->has_tasks() ? choice_scores(*o, io) : perplexity(*o, io);
    };
    return command;
}

Command inspect_command() {
    Command command{.name = "inspect",
                    .usage = "MODEL",
                    .summary = "metadata, tensors, memory plan",
                    .description = "What a model file holds, and the memory it needs.",
                    .examples = {"inspect model.gguf", "inspect model.gguf --tensors -c 32k",
                                 "inspect --supported", "inspect model.gguf --plan --memory 80G -c 8k",
                                 "inspect model.gguf --plan --devices 4x80G@3350 --link nvlink",
                                 "inspect --plan --shape layers=8,width=512,heads=8,ff=1376,vocab=8192"}};
    auto o = std::make_shared<InspectOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Output);
    table.flag("--json", o->json, "one JSON object");
    table.flag("--tensors", o->tensors, "list the tensors (JSON always does)");
    table.flag("--arrays", o->arrays, "metadata arrays in full length");
    table.flag("--supported", o->supported,
               "without MODEL: the supported families and formats, and how they were checked");
    auto other = std::make_shared<std::string>();
    table.text("--diff", *other, "differences from MODEL to this file: metadata, types, values")
        .takes("FILE");
    table.in_group(Group::Context);
    table.number("-c,--ctx-size", o->context, whole_numbers(0, 1 << 30),
                 "context of the memory plan; 0: the model's own");
    table.number("--sequences", o->sequences, whole_numbers(1, 1 << 16),
                 "sequences of that length in the memory plan");
    table
        .number("-b,--batch-size,-ub,--ubatch-size", o->batch, whole_numbers(1, 1 << 20),
                "tokens per step of the prefill, in the memory plan")
        .rare();
    add_cache_options(table, o->cache);
    auto plan = std::make_shared<PlanOptions>();
    table.flag("--plan", plan->plan,
               "the memory for other formats and cache types, and how the size of K and V is computed");
    table.add("--memory", "SIZE", "with --plan: how many sequences fit in this much memory, such as 80G",
              [plan](const std::string &text) { plan->memory = byte_size(text, int64_t{1} << 50); });
    table
        .text("--shape", plan->shape,
              "with --plan: a hypothetical model, by layers, width, heads, ff and vocab; also kv-heads, "
              "head-dim, window, window-layers, latent, tied")
        .takes("NAME=N,...")
        .rare();
    table
        .add("--devices", "NxSIZE[@GB/s],...",
             "with --plan: which layers and context fit on these devices, such as 4x80G or 24G,24G,16G; with "
             "the bandwidth of their memory, as in 4x80G@3350, a predicted speed",
             [plan](const std::string &text) { plan->devices = devices_in(text); })
        .rare();
    table
        .add("--link", "NAME", "with --devices: what joins them: pcie4, pcie5, nvlink, 100g or 400g",
             [plan](const std::string &text) { plan->link = link_in(text); })
        .by_default(measure::kLinks[0].name)
        .rare();
    table.text("--plot", plan->plot, "with --plan: write the plot to this SVG file").takes("FILE.svg");
    command.writes_files = true;
    const Confine confine = add_sandbox_option(table);
    command.needs_no_model = [o, plan] { return o->supported || !plan->shape.empty(); };
    command.call = [o, other, plan, confine](const Words &words, Io &io) {
        o->path = words.model;
        confine({{o->path, *other}, {plan->plot}}, "auto");
        if (plan->plan) return inspect_plan(*o, *plan, io);
        if (plan->memory > 0 || !plan->shape.empty() || !plan->plot.empty() || !plan->devices.empty())
            throw UsageError("--memory, --shape, --devices and --plot need --plan");
        if (!other->empty()) return inspect_difference(o->path, *other, o->json, io);
        return inspect(*o, io);
    };
    return command;
}

Command tokenize_command() {
    Command command{
        .name = "tokenize",
        .usage = "MODEL [TEXT]",
        .summary = "text to token ids and back",
        .description = "Prints a line per token, id and text, of the argument, -f FILE or standard input.",
        .examples = {"tokenize model.gguf \"Hello world\"", "tokenize model.gguf --ids -f text.txt",
                     "tokenize model.gguf --decode \"15043 3186\""},
        .takes_text = true};
    auto o = std::make_shared<TokenizeOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    table.text("-f,--file", o->file, "the text from a file; -: standard input").takes("FILE");
    table.flag("--no-bos", o->no_bos, "without the tokens that the model adds");
    table.flag("--special", o->special, "text of special tokens is read as these tokens");
    table.flag("--decode", o->decode, "ids to text");
    table.flag("--llama-compatible", o->llama_compatible,
               "split words as llama.cpp does where it differs from the model's own tokenizer");
    table.in_group(Group::Output);
    table.flag("--ids", o->ids, "the ids as one list");
    table.flag("--jsonl", o->jsonl, "a JSON string per line in, a list of ids per line out");
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        o->path = words.model;
        o->text = words.text;
        confine({{o->path, o->file.value_or("")}, {}}, "cpu");
        return tokenize(*o, io);
    };
    return command;
}

Command template_command() {
    Command command{.name = "template",
                    .usage = "FILE",
                    .summary = "render a chat template",
                    .description =
                        "Renders the chat template of a GGUF file, or a .jinja file, with the JSON object "
                        "on standard input as its variables.",
                    .examples = {"template model.gguf < conversation.json",
                                 "template chat.jinja --at 2025-06-01 < conversation.json",
                                 "template model.gguf --jsonl < conversations.jsonl"}};
    auto o = std::make_shared<TemplateOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    table.text("--at", o->at, "the date for the template: 2025-06-01, 2025-06-01T12:30:00").takes("DATE");
    table.text("--template-name", o->name, "one of several templates in the file: tool_use").takes("NAME");
    table.in_group(Group::Output);
    table.flag("--jsonl", o->jsonl,
               "an object per line in; a JSON string, or {\"error\": ...}, per line out");
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        o->path = words.model;
        confine({{o->path}, {}}, "cpu");
        return render_template(*o, io);
    };
    return command;
}

Command devices_command() {
    Command command{.name = "devices",
                    .usage = "",
                    .summary = "the CPU and GPUs of this machine",
                    .description = "Lists the CPU and GPUs of this machine.",
                    .examples = {"devices", "devices --json"},
                    .model = Command::Model::None};
    auto o = std::make_shared<DevicesOptions>();
    command.options.in_group(Group::Output);
    command.options.flag("--json", o->json, "as JSON");
    command.call = [o](const Words &, Io &io) { return devices(*o, io); };
    return command;
}

Command doctor_command() {
    Command command{
        .name = "doctor",
        .usage = "[MODEL]",
        .summary = "finds the cause of wrong output: file, CPU, GPU or driver",
        .description =
            "Checks every step of the model on every device against plain arithmetic in double "
            "precision, a line each, and gives a verdict. Without MODEL: matrices of the formats that "
            "runnel writes, attention, experts.",
        .examples = {"doctor", "doctor model.gguf", "doctor model.gguf --device cuda --quick"},
        .model = Command::Model::Optional};
    auto o = std::make_shared<DoctorOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Device);
    table.number("-t,--threads", o->threads, whole_numbers(0, 4096), "CPU threads; 0: the physical cores");
    add_device_option(table, "-dev,--device", o->device, "what to check: auto (all), cpu, cuda or cuda:N");
    table.in_group(Group::Output);
    table.flag("--quick", o->quick, "check correctness only, without speeds");
    table.flag("--json", o->json, "as JSON");
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        o->path = words.model;
        confine({{o->path}, {}}, o->device);
        return doctor(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
