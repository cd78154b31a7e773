// What the command line says, as values. Filled by the options of the commands (cli/); names and meaning as in help.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/arguments.h"
#include "engine/commands/constraint_flags.h"
#include "engine/completion/request.h"
#include "engine/decode/engine.h"
#include "engine/decode/sampler.h"
#include "engine/decode/speculation/speculator.h"

namespace runnel::commands {

struct ModelOptions {
    std::string path;
    int threads = 0;
    int64_t context = 0;
    int32_t batch = 512;
    std::string device = "auto";            // "cpu", "cuda", "cuda:N"
    std::string gpu_layers = "auto";        // "all" or a number
    bool cpu_moe = false;                   // all experts on the CPU,
    std::optional<int64_t> cpu_moe_layers;  // or those of the first so many layers
    decode::CacheOptions cache;
};

struct GenerationFlags {
    decode::SamplingOptions sampling;  // without seed and logit_bias, which stand below
    std::optional<uint64_t> seed;
    std::vector<std::string> logit_bias;  // "ID+B", "ID-B", "ID-inf"
    int64_t predict = -1;
    std::vector<std::string> stops;
    bool ignore_eos = false;
    std::optional<double> deadline;  // seconds
    ConstraintFlags constraint;
};

struct TemplateFlags {
    std::optional<std::string> file, name;  // a template in place of the file's, or one of the file's by name
    std::optional<std::string> tools;       // a file with a JSON list of tool definitions
    std::vector<std::string> variables;     // "NAME=VALUE"
    bool given() const { return file || name || tools || !variables.empty(); }
};

using Overflow = completion::OverflowPolicy;

struct StatsFlags {
    bool print = false;
    std::string file;
    int fd = -1;
};

struct DraftFlags {
    std::string model;                // a draft model's file; empty: none
    std::string device = "auto";      // of the draft model,
    std::string gpu_layers = "auto";  // and how much of it
    bool lookup = false;
    int32_t self_layers = 0;
    int32_t most = 16, least = 0;
    int32_t branches = 4;  // continuations side by side
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
    std::optional<std::string> file;  // "-": stdin
    std::optional<std::string> system, system_file;
    TemplateFlags chat;
    bool raw = false, echo = false, json = false, show_thinking = false;
    Overflow overflow = Overflow::Error;
    std::optional<std::string> prompt_cache;  // file of the prefilled prompt
    int32_t samples = 1, beams = 1;           // not both above 1
};

struct BatchOptions {
    ModelOptions model;
    DraftFlags draft;
    GenerationFlags generation;  // of rows that say nothing else
    StatsFlags stats;
    std::optional<std::string> input, output;  // stdin and stdout
    std::optional<std::string> system, system_file;
    TemplateFlags chat;
    bool lines = false;  // every line is a prompt, not JSON
    bool raw = false, unordered = false, show_thinking = false;
    bool resume = false, force = false;  // go on with the output; also where settings or rows differ
    Overflow overflow = Overflow::Error;
    int32_t parallel = 32;
    Shard shard{1, 1};  // lines part, part + parts, ...
};

struct ChatOptions {
    ModelOptions model;
    DraftFlags draft;
    GenerationFlags generation;
    StatsFlags stats;
    std::optional<std::string> system, system_file;
    TemplateFlags chat;
    bool show_thinking = false;  // also where stdout is no terminal
    Overflow overflow = Overflow::Shift;
    std::string color = "auto";
};

struct InspectOptions {
    std::string path;
    bool json = false, tensors = false, arrays = false;
    bool supported = false;  // what this program runs, instead of a file
    int64_t context = 0;     // of the memory plan; 0: the model's own
};

struct TemplateOptions {
    std::string path;                 // a GGUF file, or the text of a template
    std::optional<std::string> name;  // of a GGUF file's templates
    std::optional<std::string> at;    // what strftime_now shows: "2025-06-01", "2025-06-01 12:30:00"
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
    std::string save_logits, base;
    bool json = false;
};

struct BenchOptions {
    ModelOptions model;
    DraftFlags draft;  // any: what drafts gain is measured, and nothing else
    int32_t prompt = 512, generate = 128, repetitions = 5;
    std::vector<int32_t> depths = {0};
    std::vector<int32_t> sequences;   // how many at a time, as `batch` runs them; none: no such test
    bool text = false;                // the tokenizer and the chat template instead of the model
    std::optional<std::string> file;  // with `text`: also this one
    bool json = false;
};

struct DoctorOptions {
    std::string path;  // empty: no model, weights of its own
    std::string device = "auto";
    int threads = 0;
    bool quick = false;  // right or wrong only: nothing is measured
    bool json = false;
};

struct DevicesOptions {
    bool json = false;
};

}  // namespace runnel::commands
