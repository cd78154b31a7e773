// The options of `chat`.
#include <memory>

#include "engine/commands/cli/shared_options.h"
#include "engine/commands/commands.h"
#include "engine/commands/sandbox/sandbox.h"

namespace runnel::commands {

Command chat_command() {
    Command command{
        .name = "chat",
        .usage = "MODEL",
        .summary = "talk to a model in the terminal",
        .description =
            "A conversation with a model. Ctrl-C stops the answer, Ctrl-D leaves, /help "
            "lists the commands. Without a terminal, every line of standard input is a "
            "message.",
        .examples = {"chat model.gguf", "chat model.gguf -sys \"Answer in one sentence.\" --temp 0.5",
                     "chat model.gguf -md small-model.gguf -c 8k"}};
    auto o = std::make_shared<ChatOptions>();
    OptionTable &table = command.options;
    add_system_options(table, o->system, o->system_file);
    add_template_options(table, o->chat, o->show_thinking);
    add_generation_options(table, o->generation);
    add_model_options(table, o->model);
    add_overflow_option(table, o->overflow);
    add_draft_options(table, o->draft);
    table.in_group(Group::Output);
    table
        .choice("-co,--color", o->color, {{"auto", "auto"}, {"on", "on"}, {"off", "off"}},
                "colors; NO_COLOR is respected")
        .takes("WHEN")
        .or_alone("on");
    add_stats_options(table, o->stats);
    command.writes_files = true;
    command.call = [o](const Words &words, Io &io) {
        o->model.path = words.model;
        stay_outside("in a chat, files and programs are named at any time");
        return chat(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
