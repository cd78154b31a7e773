#include "engine/commands/parser.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>

#include "engine/decode/device.h"
#include "gguf/printable.h"
#include "kernels/backend.h"

namespace runnel::commands {
namespace {

// Help without the names of environment variables, which follow a rule.
class HelpFormatter final : public CLI::Formatter {
  public:
    HelpFormatter() { column_width(34); }
    std::string make_option_opts(const CLI::Option *option) const override {
        const bool flag = option->get_type_size() == 0 || option->get_type_name().empty();
        return flag ? std::string() : " " + option->get_type_name();
    }
};

}  // namespace

CLI::Validator not_negative(bool above) {
    return CLI::Validator(
        [above](std::string &text) {
            double value = 0;
            const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) &&
                              (above ? value > 0 : value >= 0);
            return good ? std::string()
                        : "a number " + std::string(above ? "above 0" : "from 0 on") + ", not " +
                              gguf::quoted(text);
        },
        "");
}

CLI::Validator range(int64_t low, int64_t high) {
    CLI::Range check(low, high);
    check.description("");
    return check;
}

Parser::Parser(const std::string &command, const std::string &description, bool has_model, const char *text)
    : app_(description, "runnel " + command) {
    app_.formatter(std::make_shared<HelpFormatter>());
    app_.option_defaults()->take_last();
    if (has_model) {
        words_.push_back(app_.add_option("MODEL", "the model, a GGUF file (any part of a split one)"));
        text_option("-m,--model", common_.model, "the same as an option");
    }
    if (text) words_.push_back(app_.add_option(text, "see the options below"));
    flag("-q,--quiet", common_.quiet, "no progress, notes or statistics: errors only");
    app_.add_flag("--version", common_.version, "what this program is built from");
    app_.add_option("--config", config_, "settings from a TOML or INI file; sections are commands")
        ->type_name("FILE");
}
const Common &Parser::common() {
    common_.words.clear();
    for (const CLI::Option *word : words_)
        if (word->count() > 0) common_.words.push_back(word->results().front());
    return common_;
}

void Parser::environment(CLI::Option *added) {
    if (added->get_lnames().empty() || added->get_lnames().front() == "model") return;
    std::string name = "RUNNEL_";
    for (const char c : added->get_lnames().front())
        name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    added->envname(name);
}

void add_device_option(Parser &p, const std::string &names, std::string &device, const std::string &help) {
    p.text_option(names, device, help)
        ->check(CLI::Validator(
            [](std::string &name) {
                return decode::is_device_name(name) ? std::string()
                                                    : "auto, cpu, cuda or cuda:N, not " + gguf::quoted(name);
            },
            ""));
}

void add_model_options(Parser &p, ModelOptions &o) {
    p.option("-c,--ctx-size", o.context, "context in tokens; 0: the model's own, reduced to what fits")
        ->check(range(int64_t{0}, int64_t{1} << 40));
    p.option("-t,--threads", o.threads, "CPU threads; 0: the physical cores")->check(range(0, 4096));
    p.option("-b,--batch-size,--ubatch-size", o.batch, "tokens per step of a prefill (-ub)")
        ->check(range(1, 1 << 20));
    add_device_option(p, "--device", o.device, "where to run: auto, cpu, cuda or cuda:N (-dev)");
    p.text_option(
        "--gpu-layers,--n-gpu-layers", o.gpu_layers,
        "layers on the GPU, from the end, the output counted as one (-ngl): auto, all, or 0 for none");
    p.flag("--cpu-moe", o.cpu_moe, "experts stay on the CPU (-cmoe)");
    p.option("--n-cpu-moe", o.cpu_moe_layers, "experts of the first N layers stay on the CPU (-ncmoe)")
        ->check(range(int64_t{0}, int64_t{1} << 20));
    const std::map<std::string, kernels::CacheType> types = {{"f16", kernels::CacheType::F16},
                                                             {"bf16", kernels::CacheType::BF16},
                                                             {"q8_0", kernels::CacheType::Q8_0},
                                                             {"q4_0", kernels::CacheType::Q4_0},
                                                             {"fp8", kernels::CacheType::FP8}};
    CLI::CheckedTransformer type(types);
    type.description("");
    p.option("--cache-type-k", o.cache.types.k, "type of the cached keys: f16, bf16, q8_0, q4_0, fp8 (-ctk)")
        ->transform(type)
        ->type_name("TYPE");
    p.option("--cache-type-v", o.cache.types.v, "type of the cached values (-ctv)")
        ->transform(type)
        ->type_name("TYPE");
    CLI::AsSizeValue size(false);
    size.description("");
    p.option("--cache-size", o.cache.size,
             "memory for keys and values, as 800M or 4G; by default what the context needs")
        ->transform(size)
        ->check(range(int64_t{0}, int64_t{1} << 50))
        ->type_name("SIZE");
    p.option("--window", o.cache.window,
             "look at no more than the last N tokens, and at the sinks; 0: as the model does")
        ->check(range(0, 1 << 24));
    p.option("--sinks", o.cache.sinks, "with --window: the first N tokens stay in sight")
        ->check(range(0, 512));
}

void add_draft_options(Parser &p, DraftFlags &o) {
    p.text_option("--draft-model,--model-draft", o.model,
                  "a small model that guesses ahead (-md); the text stays the same")
        ->type_name("FILE");
    add_device_option(p, "--draft-device,--device-draft", o.device,
                      "where the draft model runs; as --device");
    p.text_option("--gpu-layers-draft", o.gpu_layers, "of the draft model (-ngld); as --gpu-layers");
    p.flag("--lookup", o.lookup, "guess ahead from the text so far: for edits, quotes, repetitions");
    p.option("--self-draft", o.self_layers, "guess ahead with the first N layers of the model itself; 0: off")
        ->check(range(0, 4096));
    p.option("--draft-max,--draft,--spec-draft-n-max,--num-draft-tokens", o.most,
             "most guesses at a time; how many is chosen by what pays")
        ->check(range(0, decode::kMostDrafts));
    p.option("--draft-min", o.least, "fewer guesses than this are not tried")
        ->check(range(0, decode::kMostDrafts));
    p.option("--draft-branches", o.branches,
             "most continuations guessed side by side, as many as pay; 1: one; rejection has one only")
        ->check(range(1, decode::kMostDrafts));
    p.option("--draft-p-min", o.least_probability, "no guess of which the draft is less sure than this")
        ->check(CLI::Range(0.0, 1.0).description(""));
    CLI::CheckedTransformer rule(std::map<std::string, decode::DraftRule>{
        {"same", decode::DraftRule::Same}, {"rejection", decode::DraftRule::Rejection}});
    rule.description("");
    p.option("--draft-rule", o.rule,
             "same: the text is that without guesses; rejection: only its distribution is")
        ->transform(rule)
        ->type_name("RULE");
}

void add_generation_options(Parser &p, GenerationFlags &g, StatsFlags &stats) {
    decode::SamplingOptions &s = g.sampling;
    p.option("-n,--predict,--n-predict,--max-tokens", g.predict,
             "most tokens to generate; -1: until the end");
    p.option("-s,--seed", g.seed, "sampling seed; random, and shown by --stats, if not given")
        ->check(CLI::Validator(
            [](std::string &text) {
                uint64_t seed = 0;
                const char *const end = text.data() + text.size();
                const auto [rest, error] = std::from_chars(text.data(), end, seed);
                return error == std::errc() && rest == end
                           ? std::string()
                           : "the seed is a number below 2^64 (the system prompt is --system or -sys)";
            },
            "UINT"));
    p.option("--temp,--temperature", s.temperature, "temperature; 0: greedy");
    p.option("--top-k", s.top_k, "the K most probable tokens only; 0: off");
    p.option("--top-p", s.top_p, "the most probable tokens up to this probability; 1: off");
    p.option("--min-p", s.min_p, "tokens of at least this share of the best one's probability; 0: off");
    p.option("--typical", s.typical, "locally typical sampling; 1: off");
    p.option("--repeat-penalty", s.repeat_penalty, "penalty on repeated tokens; 1: off")
        ->check(not_negative(true));
    p.option("--repeat-last-n", s.repeat_last_n, "tokens that the penalties look at; -1: all");
    p.option("--presence-penalty", s.presence_penalty, "penalty on tokens that were there; 0: off");
    p.option("--frequency-penalty", s.frequency_penalty, "penalty by how often they were; 0: off");
    p.list("--stop,-r,--reverse-prompt", g.stops, "end in front of this text; repeatable");
    p.flag("--ignore-eos", g.ignore_eos, "go on when the model wants to end");
    p.list("--logit-bias", g.logit_bias, "ID+B or ID-B: add to a token's logit; repeatable");
    p.option("--deadline", g.deadline, "stop after so many seconds, with what there is")
        ->check(not_negative());
    p.flag("--stats", stats.print, "a summary on stderr");
    p.text_option("--stats-file", stats.file, "the summary as JSON, to a file");
    p.option("--stats-fd", stats.fd, "the summary as JSON, to a file descriptor")->check(range(0, 1 << 20));
}

void add_overflow_option(Parser &p, Overflow &overflow) {
    CLI::CheckedTransformer name(std::map<std::string, Overflow>{
        {"error", Overflow::Error}, {"shift", Overflow::Shift}, {"drop-middle", Overflow::DropMiddle}});
    name.description("");
    p.option(
         "--on-overflow", overflow,
         "when text outgrows the context: error, shift (the oldest goes, not the system prompt), drop-middle")
        ->transform(name)
        ->type_name("WHAT");
}

}  // namespace runnel::commands
