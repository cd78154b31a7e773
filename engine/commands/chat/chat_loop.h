// A chat: messages and commands in, answers out.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/commands/chat/chat_model.h"
#include "engine/commands/chat/line_editor.h"
#include "engine/commands/chat/transcript.h"
#include "engine/commands/io.h"
#include "engine/commands/options.h"

namespace runnel::commands {

class Chat {
  public:
    // Keeps all references.
    Chat(const ChatOptions &options, decode::Engine &engine, std::unique_ptr<decode::Drafting> drafts,
         Io &io);

    // Reads and answers until the input ends; returns the exit code.
    int loop();

  private:
    struct Command {
        const char *name, *argument, *help;
        void (Chat::*call)(const std::string &argument);
    };
    static std::span<const Command> commands();

    bool wants_color() const;
    TerminalHooks terminal_hooks();
    void greet();
    void obey(const std::string &line);
    template <class Work>
    void attempt(Work work);
    // Without a terminal, the exit code is that of the first command that fails.
    void remember_failure(int code);
    bool agrees(const std::string &question);
    void answer_to(const std::string &message);
    void answer();

    // Commands (chat_commands.cpp).
    void help(const std::string &);
    void leave(const std::string &);
    void clear(const std::string &);
    void regenerate(const std::string &);
    void undo(const std::string &);
    void edit(const std::string &text);
    void system(const std::string &text);
    void change_setting(const std::string &text);
    void format(const std::string &what);
    void think(const std::string &how);
    void show_state(const std::string &);
    void read(const std::string &path);
    void save(const std::string &path);
    void load(const std::string &path);
    void stats(const std::string &);

    const ChatOptions &options_;
    decode::Engine &engine_;
    Io &io_;
    const bool terminal_, color_;
    ChatModel model_;
    Transcript transcript_;
    std::unique_ptr<LineSource> lines_;
    bool over_ = false;
    int code_ = exit_code::kDone;
};

}  // namespace runnel::commands
