#include "engine/commands/cli/dispatch.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "engine/commands/cli/command_line.h"
#include "engine/commands/cli/completion.h"
#include "engine/commands/cli/config.h"
#include "engine/commands/cli/foreign.h"
#include "engine/commands/cli/help.h"
#include "engine/commands/cli/nearest.h"
#include "engine/commands/cli/shared_options.h"
#include "engine/commands/commands.h"
#include "engine/commands/models/hub_api.h"
#include "engine/commands/models/resolve.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

const CommandEntry *find_command(std::string_view name) {
    for (const CommandEntry &entry : command_entries())
        if (entry.name == name) return &entry;
    return nullptr;
}

bool is_left_out(std::string_view command) {
    return std::ranges::find(left_out_commands(), command) != left_out_commands().end();
}

// Options of commands that this program lacks are not known, so any name may be one.
bool command_has(std::string_view command, std::string_view name) {
    if (command.empty() ? !left_out_commands().empty() : is_left_out(command)) return true;
    Common common;
    for (const CommandEntry &entry : command_entries()) {
        if (!command.empty() && command != entry.name) continue;
        const Command made = with_common_options(entry.make(), common);
        if (name != "config" && made.options.find("--" + std::string(name))) return true;
    }
    return false;
}

// Applies settings from all sources to the options of a command.
class Settings {
  public:
    explicit Settings(std::map<std::string, std::string> models) : models_(std::move(models)) {}

    // Starts another source, whose lists replace earlier ones.
    void begin_source() { given_.clear(); }

    // `what` names the option in messages.
    void set(const Option &option, const std::string &value, const std::string &what) {
        if (option.is_repeatable && given_.insert(&option).second) option.clear();
        try {
            option.set(value);
            if (option.value == "MODEL" && option.name() != "model") named_models_[&option] = value;
        } catch (const ValueError &error) {
            throw UsageError(what + ": " + error.what() + ", not " + gguf::quoted(value));
        }
    }

    // The file that MODEL names. Throws UsageError.
    std::string resolved(const std::string &model, bool is_offline, Io &io) const {
        const auto found = models_.find(model);
        return resolve_model(found == models_.end() ? model : found->second, models_, is_offline, io);
    }

    // Replaces the values of options that name models, except MODEL itself, with the paths of their files.
    void resolve_options(bool is_offline, Io &io) const {
        for (const auto &[option, model] : named_models_) option->set(resolved(model, is_offline, io));
    }

  private:
    std::map<std::string, std::string> models_;
    std::map<const Option *, std::string> named_models_;
    std::set<const Option *> given_;
};

void apply(const Configuration &configuration, const std::string &path, const Command &command,
           Settings &settings) {
    settings.begin_source();
    for (const Setting &setting : configuration.settings)
        if (const Option *option = command.options.find("--" + setting.name); option)
            settings.set(*option, setting.value, gguf::printable(path, 4096) + ": " + setting.name);
}

void apply_environment(const Command &command, Settings &settings) {
    settings.begin_source();
    for (const Option &option : command.options.options()) {
        const std::string name = option.variable();
        const char *value = std::getenv(name.c_str());
        const bool general = option.name() == "config" || option.name() == "help" ||
                             option.name() == "help-all" || option.name() == "version";
        if (value && *value && !general) settings.set(option, value, name);
    }
}

void apply(const CommandLine &line, Settings &settings) {
    settings.begin_source();
    for (const CommandLine::Given &given : line.given) {
        const std::string name = "--" + std::string(given.option->name());
        settings.set(*given.option, given.value,
                     given.typed == name ? name : given.typed + " (" + name + ")");
    }
}

// -hf USER/REPO and -hff FILE are the MODEL hf.co/USER/REPO/FILE.
void take_hub_name(Common &common) {
    if (!common.hub_repo) {
        if (common.hub_file) throw UsageError("--hf-file names a file of a repository: add -hf USER/REPO");
        return;
    }
    if (common.model) throw UsageError("give the model with -m or with -hf, not with both");
    const std::string name = *common.hub_repo + (common.hub_file ? "/" + *common.hub_file : "");
    if (!parse_hub_name(name))
        throw UsageError("-hf " + gguf::quoted(name) +
                         ": write USER/REPO or USER/REPO:QUANT, and a file's name with -hff");
    common.model = name.starts_with("http") || parse_hub_address(name) ? name : "hf.co/" + name;
    common.hub_repo.reset();
    common.hub_file.reset();
}

int call(Command made, const Arguments &arguments, Io &io) {
    Common common;
    const Command command = with_common_options(std::move(made), common);
    const CommandLine line = parse_command_line(arguments, command);

    // A model from the environment or a configuration file is a default: a MODEL argument replaces it.
    std::optional<std::string> default_model;
    const auto has = [](std::string_view c, std::string_view name) { return command_has(c, name); };
    const auto own = user_configuration();
    Configuration user = own ? read_configuration(*own, command.name, has) : Configuration{};
    std::optional<std::string> named;
    for (const CommandLine::Given &given : line.given)
        if (given.option->name() == "config") named = given.value;
    const Configuration extra = named ? read_configuration(*named, command.name, has) : Configuration{};
    for (const auto &[name, file] : extra.models) user.models[name] = file;

    Settings settings(user.models);
    if (own) apply(user, *own, command, settings);
    apply_environment(command, settings);
    if (named) apply(extra, *named, command, settings);
    take_hub_name(common);
    default_model = std::exchange(common.model, std::nullopt);
    apply(line, settings);
    take_hub_name(common);

    if (common.help || common.help_all) {
        io.out.write(help(command, common.help_all));
        return exit_code::kDone;
    }
    if (common.version) {
        io.out.write(version());
        return exit_code::kDone;
    }
    io.quiet = common.quiet;
    io.overwrite = common.overwrite;
    for (const std::string &note : line.notes) io.note(note);
    const bool none = command.model == Command::Model::None ||
                      (command.model == Command::Model::Optional && line.words.empty() && !common.model &&
                       !default_model) ||
                      (command.needs_no_model && command.needs_no_model());
    if (none && line.words.empty()) return command.call({}, io);
    if (none && command.takes_text && line.words.size() == 1) return command.call({{}, line.words[0]}, io);
    if (none && command.operands_now && command.operands_now(line.words.size()) == line.words.size())
        return command.call({.model = {}, .text = {}, .operands = line.words}, io);
    if (none) throw UsageError("unexpected argument " + gguf::quoted(line.words[0]));
    Arguments before = line.words;
    const bool has_model = common.model || default_model;
    const size_t operand_count =
        command.operands_now ? command.operands_now(before.size()) : command.operands;
    if (operand_count > 0 && before.size() < operand_count + (has_model ? 0 : 1))
        throw UsageError("usage: runnel " + std::string(command.name) + " " + std::string(command.usage));
    const Arguments operands(before.end() - static_cast<std::ptrdiff_t>(operand_count), before.end());
    before.resize(before.size() - operand_count);
    Words words = split_words(before, common.model, default_model, command.takes_text);
    for (const std::string &operand : operands)
        words.operands.push_back(
            command.operands_are_models ? settings.resolved(operand, common.is_offline, io) : operand);
    words.model = settings.resolved(words.model, common.is_offline, io);
    settings.resolve_options(common.is_offline, io);
    return command.call(words, io);
}

int explain(const Arguments &arguments, Io &io) {
    std::string text = overview();
    if (!arguments.empty()) {
        const CommandEntry *entry = find_command(arguments[0]);
        if (!entry)
            throw UsageError("there is no command " + gguf::quoted(arguments[0]) +
                             "; runnel help lists them");
        Common common;
        text =
            help(with_common_options(entry->make(), common), arguments.size() > 1 && arguments[1] == "--all");
    }
    io.out.write(text);
    return exit_code::kDone;
}

[[noreturn]] void fail_unknown(const std::string &name) {
    if (is_left_out(name))
        throw UsageError("this program is the one of make demo, without " + name +
                         ": make builds build/runnel, with all commands");
    std::vector<std::string> names;
    for (const CommandEntry &entry : command_entries()) names.emplace_back(entry.name);
    const auto near = nearest(name, names);
    const std::string what = "there is no command " + gguf::quoted(name);
    if (near) throw UsageError(what + "; did you mean " + *near + "?");
    if (const std::string_view use = foreign_command(name); !use.empty())
        throw UsageError(what + ": " + std::string(use));
    throw UsageError(what + "; runnel --help lists them");
}

}  // namespace

int dispatch(const Arguments &arguments, Io &io) {
    if (arguments.empty()) {
        io.err.try_write(overview());
        return exit_code::kUsage;
    }
    const std::string &first = arguments[0];
    const Arguments rest(arguments.begin() + 1, arguments.end());
    if (first == "--version" || first == "version") {
        io.out.write(version());
        return exit_code::kDone;
    }
    if (first == "--help" || first == "-h" || first == "help") return explain(rest, io);
    if (const CommandEntry *entry = find_command(first)) return call(entry->make(), rest, io);
    if (first.starts_with('-'))
        throw UsageError("name a command first: runnel run " + gguf::printable(first, 64) +
                         " ... for one answer, runnel chat " + gguf::printable(first, 64) +
                         " ... for a conversation");
    if (first.ends_with(".gguf")) return call(chat_command(), arguments, io);
    fail_unknown(first);
}

}  // namespace runnel::commands
