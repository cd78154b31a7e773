// The command line: parse, call one function of engine/commands, turn what goes wrong into one line and an
// exit code.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/arguments.h"
#include "engine/commands/commands.h"
#include "engine/decode/device.h"
#include "engine/decode/error.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "gguf/file.h"
#include "gguf/printable.h"
#include "kernels/backend.h"

namespace {

namespace gguf = runnel::gguf;
namespace model = runnel::model;
namespace text = runnel::text;
namespace kernels = runnel::kernels;
namespace decode = runnel::decode;
using namespace runnel::commands;

// What all commands have, and the model and text among the words of the command line.
struct Common {
    bool quiet = false;
    bool version = false;
    std::optional<std::string> model;
    Arguments words;
};

// Help without the names of environment variables, which follow a rule.
class HelpFormatter final : public CLI::Formatter {
  public:
    HelpFormatter() { column_width(34); }
    std::string make_option_opts(const CLI::Option *option) const override {
        const bool flag = option->get_type_size() == 0 || option->get_type_name().empty();
        return flag ? std::string() : " " + option->get_type_name();
    }
};

// Finite numbers from 0 on; without 0 itself when `above`.
CLI::Validator not_negative(bool above = false) {
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

// Whole numbers from `low` to `high`.
CLI::Validator range(int64_t low, int64_t high) {
    CLI::Range check(low, high);
    check.description("");
    return check;
}

class Parser {
  public:
    // `text`: what the word after the model is called in help, if there is one.
    Parser(const std::string &command, const std::string &description, bool has_model,
           const char *text = nullptr)
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
    template <class T>
    CLI::Option *option(const std::string &names, T &value, const std::string &help) {
        CLI::Option *added = app_.add_option(names, value, help);
        environment(added);
        return added->type_name("N");
    }
    // Text as it stands, also empty.
    template <class T>
    CLI::Option *text_option(const std::string &names, T &value, const std::string &help) {
        CLI::Option *added = app_.add_option_function<std::string>(
            names, [&value](const std::string &text) { value = text; }, help);
        environment(added);
        return added->type_name("TEXT");
    }
    CLI::Option *list(const std::string &names, std::vector<std::string> &values, const std::string &help) {
        CLI::Option *added = app_.add_option(names, values, help);
        environment(added);
        return added->take_all()->allow_extra_args(false)->type_name("TEXT");
    }
    void flag(const std::string &names, bool &value, const std::string &help) {
        environment(app_.add_flag(names, value, help));
    }
    CLI::App &app() { return app_; }

    // What was parsed.
    const Common &common() {
        common_.words.clear();
        for (const CLI::Option *word : words_)
            if (word->count() > 0) common_.words.push_back(word->results().front());
        return common_;
    }

  private:
    // RUNNEL_CTX_SIZE for --ctx-size. The model's is looked at in dispatch().
    void environment(CLI::Option *added) {
        if (added->get_lnames().empty() || added->get_lnames().front() == "model") return;
        std::string name = "RUNNEL_";
        for (const char c : added->get_lnames().front())
            name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
        added->envname(name);
    }
    CLI::App app_;
    Common common_;
    std::vector<CLI::Option *> words_;
    std::string config_;
};

void add_model_options(Parser &p, ModelOptions &o) {
    p.option("-c,--ctx-size", o.context, "context in tokens; 0: the model's own, reduced to what fits")
        ->check(range(int64_t{0}, int64_t{1} << 40));
    p.option("-t,--threads", o.threads, "CPU threads; 0: the physical cores")->check(range(0, 4096));
    p.option("-b,--batch-size,--ubatch-size", o.batch, "tokens per step of a prefill (-ub)")
        ->check(range(1, 1 << 20));
    p.text_option("--device", o.device, "where to run: auto, cpu, cuda or cuda:N (-dev)")
        ->check(CLI::Validator(
            [](std::string &name) {
                return decode::is_device_name(name) ? std::string()
                                                    : "auto, cpu, cuda or cuda:N, not " + gguf::quoted(name);
            },
            ""));
    p.text_option("--gpu-layers,--n-gpu-layers", o.gpu_layers,
                  "layers on the GPU (-ngl): auto, all, or 0 for none");
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

template <class Options>
void add_system_options(Parser &p, Options &o) {
    p.text_option("--system,--system-prompt", o.system, "the system prompt (-sys)");
    p.text_option("--system-file", o.system_file, "the system prompt from a file (-sysf)");
}

template <class Options>
void add_template_options(Parser &p, Options &o) {
    p.text_option("--chat-template", o.chat.file, "a chat template (Jinja) in place of the file's")
        ->type_name("FILE");
    p.text_option("--template-name", o.chat.name, "one of several templates in the file: tool_use")
        ->type_name("NAME");
    p.list("--template-var", o.chat.variables,
           "NAME=VALUE for the template: enable_thinking=false; repeatable");
    p.text_option("--tools", o.chat.tools, "tools that the model may call: a JSON list of definitions")
        ->type_name("FILE");
    p.flag("--show-thinking", o.show_thinking, "the model's reasoning on stdout, too");
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

// A command ready to be parsed, and what to do then.
struct Command {
    std::unique_ptr<Parser> parser;
    std::function<int(const Words &, Io &)> call;
    bool takes_text = false, takes_model = true;
    std::function<bool()> needs_no_model = {};  // true: as it was called, no model is needed
};

template <class Options>
std::shared_ptr<Options> new_options() {
    return std::make_shared<Options>();
}

Command make_run() {
    auto parser = std::make_unique<Parser>("run", "One prompt in, one answer out.", true, "PROMPT");
    auto o = new_options<RunOptions>();
    add_model_options(*parser, o->model);
    add_generation_options(*parser, o->generation, o->stats);
    add_system_options(*parser, *o);
    add_template_options(*parser, *o);
    parser->text_option("-p,--prompt", o->prompt, "the prompt, instead of the argument");
    parser->text_option("-f,--file", o->file, "the prompt from a file; -: standard input");
    parser->flag("--raw", o->raw, "complete the text as it stands, without the chat template");
    parser->flag("--echo", o->echo, "the prompt first");
    parser->flag("--json", o->json, "one JSON object on stdout");
    parser->option("--samples", o->samples, "so many answers, with their log-probabilities in --json")
        ->check(range(1, 1024));
    parser->option("--beams", o->beams, "the best answer that a search of so many beams finds")
        ->check(range(1, 256));
    add_overflow_option(*parser, o->overflow);
    parser
        ->text_option("--prompt-cache", o->prompt_cache,
                      "keep the computed prompt in a file, for the next run that begins with the same text")
        ->type_name("FILE");
    const auto call = [o](const Words &words, Io &io) {
        RunOptions &options = *o;
        options.model.path = words.model;
        if (words.text && options.prompt) throw UsageError("two prompts: one as an argument, one with -p");
        if (words.text) options.prompt = words.text;
        return run(options, io);
    };
    return {std::move(parser), call, true};
}

Command make_batch() {
    auto parser = std::make_unique<Parser>("batch", "Many prompts in, many answers out.", true);
    auto o = new_options<BatchOptions>();
    BatchOptions &b = *o;
    parser->text_option("-i,--input", b.input, "JSON objects, one a line; by default standard input")
        ->type_name("FILE");
    parser->text_option("-o,--output", b.output, "where the answers go; by default standard output")
        ->type_name("FILE");
    parser->flag("--lines", b.lines, "every line is a prompt as it stands, not JSON");
    parser->flag("--unordered", b.unordered, "answers as they are done, not in the order of the input");
    parser->flag("--resume", b.resume, "go on with the output of a run that was interrupted or killed");
    parser->option("--parallel", b.parallel, "most answers that are computed at a time")
        ->check(range(1, 4096));
    auto shard = std::make_shared<std::string>();
    parser->text_option("--shard", *shard, "only the I-th of every N lines, I from 1 on")->type_name("I/N");
    parser->flag("--raw", b.raw, "complete prompts as they stand, without the chat template");
    add_model_options(*parser, b.model);
    add_generation_options(*parser, b.generation, b.stats);
    add_system_options(*parser, b);
    auto overflow = std::make_shared<std::string>("error");
    parser->text_option("--on-overflow", *overflow, "what to do with a prompt that outgrows the context")
        ->check(CLI::IsMember({"error"}));
    const auto call = [o, overflow, shard](const Words &words, Io &io) {
        BatchOptions &options = *o;
        options.model.path = words.model;
        if (!shard->empty()) options.shard = parse_shard(*shard);
        return batch(options, io);
    };
    return {std::move(parser), call};
}

Command make_chat() {
    auto parser = std::make_unique<Parser>("chat", "Talk to a model.", true);
    auto o = new_options<ChatOptions>();
    add_model_options(*parser, o->model);
    add_generation_options(*parser, o->generation, o->stats);
    add_system_options(*parser, *o);
    add_template_options(*parser, *o);
    add_overflow_option(*parser, o->overflow);
    parser->text_option("--color", o->color, "colours")->check(CLI::IsMember({"auto", "on", "off"}));
    const auto call = [o](const Words &words, Io &io) {
        o->model.path = words.model;
        return chat(*o, io);
    };
    return {std::move(parser), call};
}

Command make_inspect() {
    auto parser = std::make_unique<Parser>("inspect", "Metadata, tensors, memory plan.", true);
    auto o = std::make_shared<InspectOptions>();
    parser->flag("--json", o->json, "one JSON object");
    parser->flag("--tensors", o->tensors, "list the tensors (JSON always does)");
    parser->flag("--arrays", o->arrays, "metadata arrays in full length");
    parser->option("-c,--ctx-size", o->context, "context of the memory plan; 0: the model's own")
        ->check(range(0, 1 << 30));
    parser->flag("--supported", o->supported,
                 "without MODEL: the families and formats, and how they were checked");
    const auto call = [o](const Words &words, Io &io) {
        o->path = words.model;
        return inspect(*o, io);
    };
    return {std::move(parser), call, false, true, [o] { return o->supported; }};
}

Command make_tokenize() {
    auto parser = std::make_unique<Parser>("tokenize", "Text to token ids and back.", true, "TEXT");
    auto o = std::make_shared<TokenizeOptions>();
    parser->text_option("-f,--file", o->file, "the text from a file; -: standard input");
    parser->flag("--ids", o->ids, "the ids as one list");
    parser->flag("--no-bos", o->no_bos, "without the tokens that the model adds");
    parser->flag("--special", o->special, "the text of special tokens becomes those tokens");
    parser->flag("--jsonl", o->jsonl, "a JSON string per line in, a list of ids per line out");
    parser->flag("--decode", o->decode, "ids to text");
    const auto call = [o](const Words &words, Io &io) {
        o->path = words.model;
        o->text = words.text;
        return tokenize(*o, io);
    };
    return {std::move(parser), call, true};
}

Command make_template() {
    auto parser = std::make_unique<Parser>(
        "template", "Render a chat template, of a GGUF file or a .jinja file, with the JSON object on stdin.",
        true);
    auto o = std::make_shared<TemplateOptions>();
    parser->flag("--jsonl", o->jsonl,
                 "an object per line in; a JSON string, or {\"error\": ...}, per line out");
    parser->text_option("--at", o->at, "the date that the template sees: 2025-06-01, 2025-06-01T12:30:00")
        ->type_name("DATE");
    parser->text_option("--template-name", o->name, "one of several templates in the file: tool_use")
        ->type_name("NAME");
    const auto call = [o](const Words &words, Io &io) {
        o->path = words.model;
        return render_template(*o, io);
    };
    return {std::move(parser), call};
}

Command make_perplexity() {
    auto parser = std::make_unique<Parser>("perplexity", "Perplexity of a text.", true);
    auto o = new_options<PerplexityOptions>();
    add_model_options(*parser, o->model);
    parser->text_option("-f,--file", o->file, "the text; -: standard input");
    parser->option("--chunks", o->chunks, "only so many chunks; -1: all");
    parser->text_option("--save-logits", o->save_logits, "save the log-probabilities to a file");
    parser->text_option("--kl-base", o->base,
                        "compare with saved log-probabilities; the text is in that file");
    parser->flag("--json", o->json, "the result as JSON");
    const auto call = [o](const Words &words, Io &io) {
        o->model.path = words.model;
        return perplexity(*o, io);
    };
    return {std::move(parser), call};
}

Command make_bench() {
    auto parser = std::make_unique<Parser>("bench", "Speed, against what the hardware allows.", true);
    auto o = new_options<BenchOptions>();
    add_model_options(*parser, o->model);
    parser->option("-p,--n-prompt", o->prompt, "tokens of the prefill test; 0: none")
        ->check(range(0, 1 << 24));
    parser->option("-n,--n-gen", o->generate, "tokens of the decode test; 0: none")->check(range(0, 1 << 24));
    parser->option("-r,--repetitions", o->repetitions, "how often each")->check(range(1, 10000));
    parser->app()
        .add_option("-d,--depth", o->depths, "tokens in the cache before; a list: 0,4096")
        ->envname("RUNNEL_DEPTH")
        ->delimiter(',')
        ->take_all()
        ->allow_extra_args(false)
        ->check(range(0, 1 << 24));
    parser->app()
        .add_option("--sequences", o->sequences,
                    "also decode so many sequences at a time, against one; a list: 16,32")
        ->envname("RUNNEL_SEQUENCES")
        ->delimiter(',')
        ->take_all()
        ->allow_extra_args(false)
        ->check(range(1, 4096));
    parser->flag("--json", o->json, "the result as JSON");
    const auto call = [o](const Words &words, Io &io) {
        o->model.path = words.model;
        return bench(*o, io);
    };
    return {std::move(parser), call};
}

Command make_devices() {
    auto parser = std::make_unique<Parser>("devices", "What this machine offers.", false);
    auto o = std::make_shared<DevicesOptions>();
    parser->flag("--json", o->json, "as JSON");
    return {std::move(parser), [o](const Words &, Io &io) { return devices(*o, io); }, false, false};
}

struct Entry {
    std::string_view name;
    Command (*make)();
};
constexpr Entry kCommands[] = {
    {"chat", make_chat},
    {"run", make_run},
    {"batch", make_batch},
    {"bench", make_bench},
    {"perplexity", make_perplexity},
    {"inspect", make_inspect},
    {"tokenize", make_tokenize},
    {"template", make_template},
    {"devices", make_devices},
};

constexpr const char *kHelp =
    "runnel: language models from GGUF files\n\n"
    "  runnel chat MODEL             talk to a model in the terminal\n"
    "  runnel run MODEL [PROMPT]     one prompt in, one answer out (argument, -f FILE, or stdin)\n"
    "  runnel batch MODEL            many prompts: JSONL or lines in, JSONL out\n"
    "  runnel bench MODEL            prefill and decode speed against what the hardware allows\n"
    "  runnel perplexity MODEL -f F  perplexity of a text, divergence from saved logits\n"
    "  runnel inspect MODEL          metadata, tensors, memory plan\n"
    "  runnel tokenize MODEL [TEXT]  ids and pieces\n"
    "  runnel template FILE          render a chat template\n"
    "  runnel devices                what this machine offers\n"
    "  runnel --version\n\n"
    "runnel COMMAND --help explains a command. MODEL is a GGUF file; -m FILE is the same.\n"
    "Every option can be set as RUNNEL_NAME in the environment and in a --config file.\n";

bool has_option(Parser &parser, const std::string &name) {
    return name != "config" && parser.app().get_option_no_throw("--" + name) != nullptr;
}

// The empty command stands for any.
bool command_has(const std::string &command, const std::string &name) {
    for (const Entry &entry : kCommands)
        if ((command.empty() || command == entry.name) && has_option(*entry.make().parser, name)) return true;
    return false;
}

std::optional<std::string> environment(const char *name) {
    const char *value = std::getenv(name);
    return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

// "--name=" becomes "--name" "", where the option takes a value: CLI11 would take the next argument for it.
Arguments with_empty_values(const Arguments &arguments, Parser &parser) {
    Arguments result;
    bool plain = false;  // behind "--"
    for (const std::string &argument : arguments) {
        plain = plain || argument == "--";
        const CLI::Option *option = nullptr;
        if (!plain && argument.starts_with("--") && argument.find('=') == argument.size() - 1)
            option = parser.app().get_option_no_throw(argument.substr(0, argument.size() - 1));
        if (option && option->get_type_size() != 0) {
            result.push_back(argument.substr(0, argument.size() - 1));
            result.emplace_back();
        } else {
            result.push_back(argument);
        }
    }
    return result;
}

// Throws UsageError for an option that there is not, or a word too many.
[[noreturn]] void fail_on_extras(const Entry &entry, const Arguments &extras) {
    const std::string help = "; runnel " + std::string(entry.name) + " --help lists the options";
    for (const std::string &extra : extras)
        if (extra.size() > 1 && extra.starts_with('-'))
            throw UsageError("there is no option " + gguf::quoted(extra) + help);
    throw UsageError("unexpected argument " + gguf::quoted(extras.empty() ? "" : extras.front()) + help);
}

// Environment, then configuration, then the command line: the last one to set an option counts.
int dispatch(const Entry &entry, Arguments arguments, Io &io) {
    Command command = entry.make();
    Parser &parser = *command.parser;
    arguments = with_long_spellings(std::move(arguments));
    std::optional<std::string> config = take_config(arguments);
    if (!config) config = environment("RUNNEL_CONFIG");
    std::optional<std::string> model = environment("RUNNEL_MODEL");
    Arguments all;
    if (config)
        for (std::string &setting : config_arguments(*config, std::string(entry.name), command_has)) {
            if (setting.starts_with("--model="))
                model = setting.substr(8);
            else
                all.push_back(std::move(setting));
        }
    all.insert(all.end(), arguments.begin(), arguments.end());
    all = with_empty_values(all, parser);
    std::reverse(all.begin(), all.end());  // as CLI11 wants it
    try {
        parser.app().parse(all);
    } catch (const CLI::CallForHelp &) {
        io.out.write(parser.app().help());
        return exit_code::kDone;
    } catch (const CLI::ExtrasError &) {
        fail_on_extras(entry, parser.app().remaining());
    }
    const Common &common = parser.common();
    io.quiet = common.quiet;
    if (common.version) {
        io.out.write(version());
        return exit_code::kDone;
    }
    const bool no_model = !command.takes_model || (command.needs_no_model && command.needs_no_model());
    if (no_model && common.words.empty()) return command.call({}, io);
    if (no_model) throw UsageError("unexpected argument '" + gguf::printable(common.words[0]) + "'");
    return command.call(split_words(common.words, common.model, model, command.takes_text), io);
}

int call(const Arguments &arguments, Io &io) {
    if (arguments.empty()) {
        io.err.try_write(kHelp);
        return exit_code::kUsage;
    }
    const std::string &first = arguments[0];
    if (first == "--version" || first == "version") {
        io.out.write(version());
        return exit_code::kDone;
    }
    if (first == "--help" || first == "-h" || first == "help") {
        io.out.write(kHelp);
        return exit_code::kDone;
    }
    for (const Entry &entry : kCommands)
        if (first == entry.name) return dispatch(entry, {arguments.begin() + 1, arguments.end()}, io);
    throw UsageError("there is no command '" + gguf::printable(first) + "'; runnel --help lists them");
}

// One line on stderr, whatever it holds.
int fail(int code, std::string_view what, Io &io) {
    io.err.try_write("runnel: " + gguf::printable(what, 4096) + "\n");
    return code;
}

int guarded(const Arguments &arguments, Io &io) {
    try {
        return call(arguments, io);
    } catch (const ClosedPipe &) {
        return exit_code::kDone;
    } catch (const Interrupted &) {
        return exit_code::kInterrupted;
    } catch (const UsageError &error) {
        return fail(exit_code::kUsage, error.what(), io);
    } catch (const CLI::ParseError &error) {
        return fail(exit_code::kUsage, error.what(), io);
    } catch (const InputError &error) {
        return fail(exit_code::kInput, error.what(), io);
    } catch (const gguf::FileError &error) {
        return fail(error.missing ? exit_code::kUsage : exit_code::kModelFile, error.what(), io);
    } catch (const model::ModelError &error) {
        return fail(exit_code::kModelFile, error.what(), io);
    } catch (const text::TokenizerError &error) {
        return fail(exit_code::kModelFile, error.what(), io);
    } catch (const kernels::BackendError &error) {
        const bool memory = error.kind == kernels::BackendError::Kind::OutOfMemory;
        return fail(memory ? exit_code::kMemory : exit_code::kFailed, error.what(), io);
    } catch (const decode::DecodeError &error) {
        using Kind = decode::DecodeError::Kind;
        return fail(error.kind == Kind::OutOfMemory ? exit_code::kMemory
                    : error.kind == Kind::BadInput  ? exit_code::kInput
                                                    : exit_code::kFailed,
                    error.what(), io);
    } catch (const std::bad_alloc &) {
        return fail(exit_code::kMemory, "out of memory", io);
    } catch (const std::exception &error) {
        return fail(exit_code::kFailed, error.what(), io);
    }
}

// Weights are used where they lie in the file. When someone cuts the file short, or the disk fails, reading
// them is this signal. Another cause of it is a bug, and ends as bugs do.
void on_bus_error(int, siginfo_t *info, void *) {
    if (info->si_code != BUS_ADRERR && info->si_code != BUS_OBJERR) {
        signal(SIGBUS, SIG_DFL);  // the instruction runs again
        return;
    }
    constexpr std::string_view kMessage =
        "runnel: the model file can no longer be read: it was cut short while in use, or its disk fails\n";
    [[maybe_unused]] const ssize_t written = write(2, kMessage.data(), kMessage.size());
    _exit(exit_code::kFailed);
}

void set_signals() {
    // Where no InterruptScope says otherwise; ignored it stays, as shells want it of jobs in the background.
    const auto before = signal(SIGINT, [](int) { _exit(exit_code::kInterrupted); });
    if (before == SIG_IGN) signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write(), see ClosedPipe
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

int main(int argc, char **argv) {
    set_signals();
    Io io;
    const int code = guarded(Arguments(argv + std::min(argc, 1), argv + argc), io);
    // Everything is written, nothing is buffered: unmapping gigabytes and joining threads would only take
    // time.
    _exit(code);
}
