// The start of a chat: its greeting, and the names that the line editor completes.
#include <unistd.h>

#include <sstream>

#include "engine/commands/chat/chat_header.h"
#include "engine/commands/chat/chat_loop.h"
#include "engine/commands/chat/settings.h"
#include "engine/commands/chat/terminal_lines.h"
#include "engine/commands/prompt_format.h"

namespace runnel::commands {
namespace {

constexpr int kUnlimited = 10000;  // columns for output that is not a terminal

}  // namespace

TerminalHooks Chat::terminal_hooks() {
    TerminalHooks hooks;
    for (const Command &command : commands()) hooks.names.commands.emplace_back(command.name);
    std::istringstream settings(list_settings(model_.settings()));
    for (std::string line; std::getline(settings, line);)
        hooks.names.settings.push_back(line.substr(0, line.find(' ')));
    hooks.names.settings.insert(hooks.names.settings.end(), {"plain", "show-thinking"});
    hooks.colors = color_;
    hooks.toggle_reasoning = [this] { return toggle_reasoning(); };
    return hooks;
}

void Chat::greet() {
    for (const std::string &note : engine_.notes()) io_.note(note);
    if (!model_.format().note().empty()) io_.note(model_.format().note());
    note_unused(options_.chat, model_.format(), io_);
    if (!terminal_) return;
    const bool shown = io_.err.is_terminal();
    const int columns = shown ? window_size(STDERR_FILENO).columns : kUnlimited;
    io_.progress(header_line(header_of(engine_), columns, color_ && shown) + "\n");
}

}  // namespace runnel::commands
