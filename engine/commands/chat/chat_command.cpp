// The options of `chat`.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/commands/chat/chat_file.h"
#include "engine/commands/chat/editor.h"
#include "engine/commands/chat/mcp/servers.h"
#include "engine/commands/cli/shared_options.h"
#include "engine/commands/commands.h"
#include "engine/commands/constraint_flags.h"
#include "engine/commands/generation.h"
#include "engine/commands/sandbox/sandbox_option.h"
#include "engine/commands/stored_prompts.h"
#include "gguf/mapping.h"

namespace runnel::commands {
namespace {

// The model of the saved chat that --continue or --chat resumes.
std::string recorded_model(const ChatOptions &options) {
    const std::filesystem::path folder = chats_folder();
    std::optional<SavedChat> chat;
    if (options.saved) chat = find_chat(folder, *options.saved);
    if (options.go_on && !options.saved) chat = last_chat(folder, "");
    if (chat && !chat->model.empty()) return chat->model;
    throw UsageError(options.go_on && !options.saved
                         ? "no model given, and there is no saved chat to continue: name a GGUF file"
                         : "no model given: name a GGUF file");
}

// Checks the options as far as that needs no model, before servers start.
void check_options(const ChatOptions &o, Io &io) {
    (void)drafting_options(o.draft, o.model);
    (void)engine_options(o.model);
    (void)sampling_options(o.generation);
    (void)limits(o.generation);
    (void)check_constraint(o.generation.constraint);
    check_stats_file(o.stats, io);
    (void)gguf::Mapping(o.model.path);
}

mcp::Config mcp_config(const ChatOptions &options, Io &io) {
    mcp::Config config = mcp::read_config(*options.mcp);
    for (const std::string &note : config.notes) io.note(note);
    return config;
}

}  // namespace

Command chat_command() {
    Command command{
        .name = "chat",
        .usage = "[MODEL]",
        .summary = "talk to a model in the terminal",
        .description =
            "A conversation with a model. Ctrl-C stops the answer, Ctrl-D leaves, /help lists the commands. "
            "Every turn is saved in ~/.local/state/runnel/chats: --continue resumes where the last chat "
            "ended, and needs no MODEL. Later chats also remember the lines typed here. RUNNEL_NO_HISTORY=1 "
            "turns both off. Without a terminal, every line of standard input is a message, and only "
            "--continue and --chat save the chat.",
        .examples = {"chat model.gguf", "chat model.gguf -sys \"Answer in one sentence.\" --temp 0.5",
                     "chat model.gguf -md small-model.gguf -c 8k", "chat --continue",
                     "chat model.gguf --chat work -a notes.txt"},
        .model = Command::Model::Optional};
    auto o = std::make_shared<ChatOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    table.flag("-k,--continue", o->go_on, "continue the last chat (of MODEL, if one is named)");
    table
        .text("--chat", o->saved,
              "resume the saved chat with this title, or this number in /chats; a new title begins a "
              "new chat")
        .takes("NAME");
    table.list("-a,--attach", o->attached, "attach a text file to the first message; repeatable")
        .takes("FILE");
    add_system_options(table, o->system, o->system_file);
    add_template_options(table, o->chat, o->show_thinking);
    table.in_group(Group::Prompt);
    table
        .text("--mcp", o->mcp,
              "start the MCP servers that a JSON file lists (\"mcpServers\"): the model may call their "
              "tools, and the "
              "chat asks before each call")
        .takes("FILE");
    table
        .list("--mcp-allow", o->mcp_allowed,
              "with --mcp: run this tool, or all tools of this server, without asking; repeatable")
        .takes("NAME")
        .rare();
    table
        .number("--mcp-timeout", o->mcp_timeout, whole_numbers(1, 86400),
                "with --mcp: time limit in seconds for a call, and for the start of the servers")
        .rare();
    add_generation_options(table, o->generation);
    add_model_options(table, o->model);
    table.in_group(Group::Context);
    table
        .add("--on-overflow", "WHAT",
             "when the chat exceeds the context: error, shift (the oldest messages go, the system prompt "
             "stays), drop-middle, or compact (the model summarizes the oldest messages)",
             [o](const std::string &text) {
                 static const std::pair<const char *, Overflow> kWords[] = {
                     {"error", Overflow::Error},
                     {"shift", Overflow::Shift},
                     {"drop-middle", Overflow::DropMiddle},
                     {"compact", Overflow::Shift}};
                 o->compact = text == "compact";
                 for (const auto &[word, policy] : kWords)
                     if (text == word) {
                         o->overflow = policy;
                         return;
                     }
                 throw ValueError("error, shift, drop-middle or compact");
             })
        .by_default("shift")
        .choices = {"error", "shift", "drop-middle", "compact"};
    add_prompt_store_option(table, o->store);
    add_draft_options(table, o->draft);
    table.in_group(Group::Output);
    table
        .choice("-co,--color", o->color, {{"auto", "auto"}, {"on", "on"}, {"off", "off"}},
                "colors; NO_COLOR is respected")
        .takes("WHEN")
        .or_alone("on");
    table.flag("--plain", o->plain,
               "show answers as the model writes them: no Markdown, no line breaks between words, reasoning "
               "not folded");
    add_stats_options(table, o->stats);
    command.writes_files = true;
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        o->model.path = words.model.empty() ? recorded_model(*o) : words.model;
        if (isatty(io.in)) start_editor_helper();
        std::optional<mcp::Servers> servers;  // a confined process cannot start them
        if (o->mcp) {
            check_options(*o, io);
            servers.emplace(mcp_config(*o, io),
                            mcp::ServersOptions{o->mcp_allowed, std::chrono::seconds(o->mcp_timeout)});
        }
        confine({.files = SandboxPaths::Files::All}, gpu_wish(o->model, o->draft));
        return chat(*o, servers ? &*servers : nullptr, io);
    };
    return command;
}

}  // namespace runnel::commands
