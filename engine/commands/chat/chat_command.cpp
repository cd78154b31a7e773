// The options of `chat`.
#include <unistd.h>

#include <memory>

#include "engine/commands/chat/editor.h"
#include "engine/commands/cli/shared_options.h"
#include "engine/commands/commands.h"
#include "engine/commands/sandbox/sandbox_option.h"

namespace runnel::commands {

Command chat_command() {
    Command command{
        .name = "chat",
        .usage = "MODEL",
        .summary = "talk to a model in the terminal",
        .description =
            "A conversation with a model. Ctrl-C stops the answer, Ctrl-D leaves, /help "
            "lists the commands. Later chats remember the lines typed here, unless RUNNEL_NO_HISTORY is "
            "1. Without a terminal, every line of standard input is a "
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
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        o->model.path = words.model;
        if (isatty(io.in)) start_editor_helper();
        confine({.files = SandboxPaths::Files::All}, gpu_wish(o->model, o->draft));
        return chat(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
