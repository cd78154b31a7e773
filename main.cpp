// The command line: parse, call one function of engine/commands, turn what goes wrong into one line and an
// exit code.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/arguments.h"
#include "engine/commands/commands.h"
#include "engine/commands/parser.h"
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

// A command ready to be parsed, and what to do then.
struct Command {
    std::unique_ptr<Parser> parser;
    std::function<int(const Words &, Io &)> call;
    bool takes_text = false, takes_model = true;
    std::function<bool()> needs_no_model = {};  // true: as it was called, no model is needed
    bool model_optional = false;
};

Command make_run() {
    auto parser = std::make_unique<Parser>("run", "One prompt in, one answer out.", true, "PROMPT");
    auto o = std::make_shared<RunOptions>();
    add_model_options(*parser, o->model);
    add_draft_options(*parser, o->draft);
    parser->flag("--spec-verify", o->verify_drafts,
                 "decode plainly beside the guesses, and fail where the text differs");
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
    auto o = std::make_shared<BatchOptions>();
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
    add_draft_options(*parser, b.draft);
    add_generation_options(*parser, b.generation, b.stats);
    add_system_options(*parser, b);
    add_template_options(*parser, b);
    add_overflow_option(*parser, b.overflow);
    const auto call = [o, shard](const Words &words, Io &io) {
        BatchOptions &options = *o;
        options.model.path = words.model;
        if (!shard->empty()) options.shard = parse_shard(*shard);
        return batch(options, io);
    };
    return {std::move(parser), call};
}

Command make_chat() {
    auto parser = std::make_unique<Parser>("chat", "Talk to a model.", true);
    auto o = std::make_shared<ChatOptions>();
    add_model_options(*parser, o->model);
    add_draft_options(*parser, o->draft);
    add_generation_options(*parser, o->generation, o->stats);
    add_system_options(*parser, *o);
    add_template_options(*parser, *o);
    add_overflow_option(*parser, o->overflow);
    parser->text_option("--color", o->color, "colors")->check(CLI::IsMember({"auto", "on", "off"}));
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
    parser->flag("--llama-compatible", o->llama_compatible,
                 "cut words as llama.cpp does where the model's own tokenizer does otherwise");
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
    auto o = std::make_shared<PerplexityOptions>();
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
    auto o = std::make_shared<BenchOptions>();
    add_model_options(*parser, o->model);
    add_draft_options(*parser, o->draft);
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
    parser->flag("--text", o->text,
                 "the tokenizer and the chat template instead: MB/s, load and render times");
    parser->text_option("-f,--file", o->file, "with --text: also the text of a file")->type_name("FILE");
    const auto call = [o](const Words &words, Io &io) {
        o->model.path = words.model;
        if (o->file && !o->text) throw UsageError("-f is for --text");
        return o->text ? bench_text(*o, io) : bench(*o, io);
    };
    return {std::move(parser), call};
}

Command make_doctor() {
    auto parser = std::make_unique<Parser>(
        "doctor",
        "Is it the file, the CPU, the GPU or its driver? Every step of the model (without MODEL: matrices of "
        "the formats that runnel writes, attention, experts) on every device against plain arithmetic in "
        "double precision, a line each, and a verdict.",
        true);
    auto o = std::make_shared<DoctorOptions>();
    parser->option("-t,--threads", o->threads, "CPU threads; 0: the physical cores")->check(range(0, 4096));
    add_device_option(*parser, "--device", o->device,
                      "what to check: auto (all), cpu, cuda or cuda:N (-dev)");
    parser->flag("--quick", o->quick, "right or wrong only: no speeds");
    parser->flag("--json", o->json, "as JSON");
    const auto call = [o](const Words &words, Io &io) {
        o->path = words.model;
        return doctor(*o, io);
    };
    Command command{std::move(parser), call};
    command.model_optional = true;
    return command;
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
    {"doctor", make_doctor},
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
    "  runnel doctor [MODEL]         is it the file, the CPU, the GPU or its driver?\n"
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
    if (command.model_optional && common.words.empty() && !common.model && !model)
        return command.call({}, io);
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
        if (error.kind == kernels::BackendError::Kind::Cancelled) return exit_code::kInterrupted;
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
