// A command line on top of CLI11: what all commands have in common, and the groups of options that several
// share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/arguments.h"
#include "engine/commands/options.h"

namespace runnel::commands {

// What all commands have, and the model and text among the words of the command line.
struct Common {
    bool quiet = false;
    bool version = false;
    std::optional<std::string> model;
    Arguments words;
};

// Finite numbers from 0 on; without 0 itself when `above`.
CLI::Validator not_negative(bool above = false);

// Whole numbers from `low` to `high`.
CLI::Validator range(int64_t low, int64_t high);

// Every option added is also a RUNNEL_* variable; of one given twice, the last counts.
class Parser {
  public:
    // `text`: what the word after the model is called in help, if there is one.
    Parser(const std::string &command, const std::string &description, bool has_model,
           const char *text = nullptr);

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
    const Common &common();

  private:
    // RUNNEL_CTX_SIZE for --ctx-size. The model's is looked at by the caller.
    void environment(CLI::Option *added);

    CLI::App app_;
    Common common_;
    std::vector<CLI::Option *> words_;
    std::string config_;
};

// A device by name (decode/device.h).
void add_device_option(Parser &p, const std::string &names, std::string &device, const std::string &help);

// Context, threads, device, cache.
void add_model_options(Parser &p, ModelOptions &o);

// Speculative decoding.
void add_draft_options(Parser &p, DraftFlags &o);

// Sampling, ends of an answer, statistics.
void add_generation_options(Parser &p, GenerationFlags &g, StatsFlags &stats);

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

// What to do with text that outgrows the context.
void add_overflow_option(Parser &p, Overflow &overflow);

}  // namespace runnel::commands
