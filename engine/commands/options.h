// The values of the commands' options. Set by the tables in cli/; names and meaning as in help.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/commands/arguments.h"
#include "engine/commands/constraint_flags.h"
#include "engine/completion/request.h"
#include "engine/decode/engine.h"
#include "engine/decode/speculation/drafting.h"
#include "engine/text/reasoning.h"

namespace runnel::commands {

struct ModelOptions {
    std::string path;
    int threads = 0;
    int64_t context = 0;
    int32_t batch = 512;
    std::string device = "auto";            // "cpu", "cuda", "cuda:N", "cuda:0,cuda:2"
    std::string gpu_layers = "auto";        // "all" or a number
    bool cpu_moe = false;                   // all experts on the CPU
    std::optional<int64_t> cpu_moe_layers;  // only the experts of the first N layers on the CPU
    std::string gpu_experts = "all";        // of each layer, in GPU memory at a time: "auto" or a number
    decode::Split split = decode::Split::Layer;
    bool several_processes = false;    // whether the command works in processes that were started together
    std::vector<double> tensor_split;  // shares of the GPUs; empty: as many layers on each as fit
    std::string load_mode = "auto";    // of the CPU's weights: "mmap", "copy", "mlock", "mmap+mlock"
    decode::CacheOptions cache;
};

struct GenerationFlags {
    decode::SamplingOptions sampling;  // without seed and logit_bias, which follow
    // Names of the sampling settings that the user chose; the model's file gives the others (file_sampling.h).
    std::set<std::string, std::less<>> chosen;
    std::optional<uint64_t> seed;
    std::vector<std::string> dry_breakers;  // empty: the default ones; "none": none
    std::vector<std::string> logit_bias;    // "ID+B", "ID-B", "ID-inf"
    int64_t predict = -1;
    std::vector<std::string> stops, bans;
    bool ignore_eos = false;
    std::optional<double> deadline;  // seconds
    ConstraintFlags constraint;
    int32_t logprobs = -1, prompt_logprobs = -1;  // number of alternatives for each token; -1: off
};

struct TemplateFlags {
    std::optional<std::string> file, name;   // a template file, or the name of a template in the model file
    std::optional<std::string> tools;        // a file with a JSON list of tool definitions
    std::optional<std::string> tool_choice;  // "auto", "required", "none" or a tool's name
    bool one_call = false;                   // no more than one tool call in an answer
    std::vector<std::string> variables;      // "NAME=VALUE"
    text::Thinking thinking = text::Thinking::Default;
    int64_t thinking_budget = -1;  // tokens; -1: no limit
    bool given() const {
        return file || name || tools || tool_choice || one_call || !variables.empty() ||
               thinking != text::Thinking::Default || thinking_budget >= 0;
    }
};

using Overflow = completion::OverflowPolicy;

// --prompt-cache auto|off (stored_prompts.h)
struct PromptStoreFlags {
    bool is_on = true;
    int64_t most_bytes = int64_t{4} << 30;
};
// What a store of prompts did in a run.
struct StoredReport {
    std::string folder;
    size_t found, saved;      // tokens
    size_t damaged, removed;  // files
    std::string problem;      // empty: none
};

struct StatsFlags {
    bool print = false;
    std::string file;
    int fd = -1;
};

struct DraftFlags {
    std::string model = {};  // the file of a draft model or of a draft head; empty: none
    std::optional<model::HeadKind> needs_head = {};  // the file must be such a head
    std::string device = "auto";                     // the draft model's --device
    std::string gpu_layers = "auto";                 // the draft model's --gpu-layers
    bool lookup = false;
    int32_t self_layers = 0;
    decode::Mtp mtp = decode::Mtp::Off;
    int32_t most = 16, least = 0;
    int32_t branches = 4;  // maximum number of draft branches
    float least_probability = 0;
    decode::DraftRule rule = decode::DraftRule::Same;
};

struct RunOptions {
    ModelOptions model;
    DraftFlags draft;
    bool verify_drafts = false;
    GenerationFlags generation;
    StatsFlags stats;
    std::optional<std::string> prompt;
    std::optional<std::string> file;    // "-": stdin
    std::optional<std::string> suffix;  // "@FILE": from a file
    std::optional<std::string> system, system_file;
    TemplateFlags chat;
    bool raw = false, echo = false, json = false;
    std::optional<bool> show_thinking;  // default: no
    Overflow overflow = Overflow::Error;
    std::optional<std::string> prompt_cache;   // file for a prefilled prompt
    std::optional<std::string> trace;          // file for a timeline
    std::optional<std::string> spec_trace;     // file for the picture of the passes with drafts; "-": stderr
    std::optional<std::string> attention_map;  // file for the attention map; "-": stderr
    std::optional<int32_t> layer, head;        // shown in the attention map
    PromptStoreFlags store{.is_on = false};
    int32_t samples = 1, beams = 1;  // not both above 1
};

struct BatchOptions {
    ModelOptions model;
    DraftFlags draft;
    GenerationFlags generation;  // defaults of rows
    StatsFlags stats;
    std::optional<std::string> input, output;  // stdin and stdout
    std::optional<std::string> system, system_file;
    TemplateFlags chat;
    bool lines = false;  // every line is a prompt instead of JSON
    bool raw = false, unordered = false;
    bool resume = false,
         force = false;  // --resume, --force: continue the output file; even if settings differ
    std::optional<bool> show_thinking;  // default: no
    Overflow overflow = Overflow::Error;
    bool timings = false;  // add timings to every answer
    bool explain = false;  // the cache of the run, compared with reservation
    int32_t parallel = 32;
    Shard shard{1, 1};  // the lines to answer: part, part + parts, part + 2 * parts ...
    PromptStoreFlags store;
};

struct ChatOptions {
    ModelOptions model;
    DraftFlags draft;
    GenerationFlags generation;
    StatsFlags stats;
    std::optional<std::string> system, system_file;
    TemplateFlags chat;
    std::optional<bool> show_thinking;  // default: folded at a terminal, otherwise no
    Overflow overflow = Overflow::Shift;
    bool compact = false;  // summarize the oldest turns before the overflow policy drops them
    std::string color = "auto";
    bool plain = false;                 // --plain: answers as the model writes them, even at a terminal
    bool go_on = false;                 // --continue: the last chat with the model
    std::optional<std::string> saved;   // --chat: a saved chat, or the title of a new one
    std::vector<std::string> attached;  // --attach: files for the first message
    PromptStoreFlags store;
    std::optional<std::string> mcp;  // a file that names MCP servers
    std::vector<std::string> mcp_allowed;
    int64_t mcp_timeout = 60;  // seconds
};

struct InspectOptions {
    std::string path;
    bool json = false, tensors = false, arrays = false;
    bool supported = false;  // list the supported families and formats instead of a file's content
    // For the memory plan:
    int64_t context = 0;  // 0: the model's own
    int32_t sequences = 1, batch = 512;
    decode::CacheOptions cache = {};
};

struct TemplateOptions {
    std::string path;                 // a GGUF file, or the text of a template
    std::optional<std::string> name;  // of a GGUF file's templates
    std::optional<std::string> at;    // date for strftime_now: "2025-06-01", "2025-06-01 12:30:00"
    bool jsonl = false;
};

struct TokenizeOptions {
    std::string path;
    std::optional<std::string> text, file;
    bool ids = false, no_bos = false, special = false, jsonl = false, decode = false;
    bool llama_compatible = false;
};

struct PerplexityOptions {
    ModelOptions model;
    std::string file;
    int64_t chunks = -1;
    int32_t stride = 0;  // between the beginnings of chunks; 0: chunks do not overlap
    std::string save_logits, base;
    bool hellaswag = false, winogrande = false, multiple_choice = false;  // the file has tasks, not a text
    std::optional<int64_t> tasks;                                         // most tasks; 0: all
    bool json = false;

    bool has_tasks() const { return hellaswag || winogrande || multiple_choice; }
};

struct BenchOptions {
    enum class Output { Table, Markdown, Csv, JsonObject, JsonLines };
    struct PromptAndAnswer {
        int32_t prompt, generate;
    };
    ModelOptions model;
    std::vector<ModelOptions> variants;  // every combination of the listed values; empty: `model` alone
    DraftFlags draft;                    // if any is set, only the speedup by drafts is measured
    // Empty: not given; the defaults are 512, 128 and 0.
    std::vector<int32_t> prompts, generates, depths;
    std::vector<PromptAndAnswer> both;  // a prefill and the decoding after it, timed together
    int32_t repetitions = 5;
    std::vector<int32_t> sequences;   // numbers of concurrent sequences, as in `batch`; empty: no such test
    bool text = false;                // measure the tokenizer and the chat template instead of the model
    std::optional<std::string> file;  // with `text`: also measure this file
    Output output = Output::Table;
    bool json() const { return output == Output::JsonObject; }
};

struct DoctorOptions {
    std::string path;  // empty: no model, synthetic weights
    std::string device = "auto";
    int threads = 0;
    bool quick = false;  // only correctness, no measurements
    bool json = false;
};

struct DevicesOptions {
    bool json = false;
};

}  // namespace runnel::commands
