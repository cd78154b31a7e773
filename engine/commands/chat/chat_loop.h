// A chat: messages and commands in, answers out.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/commands/chat/attachment.h"
#include "engine/commands/chat/chat_file.h"
#include "engine/commands/chat/chat_model.h"
#include "engine/commands/chat/conversation.h"
#include "engine/commands/chat/line_editor.h"
#include "engine/commands/io.h"
#include "engine/commands/options.h"

namespace runnel::commands {

namespace mcp {
class Servers;
}

class Chat {
  public:
    // All references must outlive it. `servers`: null without --mcp.
    Chat(const ChatOptions &options, decode::Engine &engine, std::unique_ptr<decode::Drafting> drafts,
         mcp::Servers *servers, Io &io);

    // Reads and answers until the input ends; returns the exit code.
    int loop();

  private:
    struct Command {
        const char *name, *argument, *help;
        void (Chat::*call)(const std::string &argument);
    };
    static std::span<const Command> commands();

    TerminalHooks terminal_hooks();
    void greet();
    // How answers look (chat_look.cpp).
    AnswerLook look_at_start() const;
    AnswerLook answer_look() const;
    ChatModel::View view(Output &out);
    void watch(decode::StopRequest &stop, ChatView *view);
    std::string toggle_reasoning();
    bool set_look(const std::string &name, const std::string &value);
    std::string look_text() const;
    void obey(const std::string &line);
    template <class Work>
    void attempt(Work work);
    // Without a terminal, the exit code is that of the first command that fails.
    void remember_failure(int code);
    bool agrees(const std::string &question);
    // Shows a line that says what a command did.
    void say(const std::string &text);

    // The saved chat (chat_saving.cpp).
    void open_at_start();
    void open_chat(const SavedChat &chat);
    void begin_chat();
    void keep_history(bool on);
    void save_entry(const Json &entry);

    void send(const std::string &typed);
    void answer_to(const std::string &message);
    bool answer(Conversation::Id otherwise);
    void hide_surplus();
    bool summarize();
    // Summarizes old turns under --on-overflow compact. False if the user interrupted it.
    bool make_room(const std::string &message);
    void show_answer();

    // Tools of MCP servers (chat_tools.cpp).
    enum class Consent;
    Consent consent_to(const std::string &name, const std::string &arguments);
    std::optional<std::string> result_of(const std::string &name, const std::string &arguments);
    size_t calls_in_turn() const;
    // Runs the tool calls of the answer at the head and adds their results. Done: the model has to answer again.
    // Stopped: the user stopped a call.
    enum class Calls { None, Done, Stopped };
    Calls run_calls();
    void add_result(const Json &call, const std::string &result);
    // After a saved chat was opened: adds an error as the result of every call at its end that has none.
    void close_calls();

    void write_to(const std::string &path, const std::function<void(bool overwrite)> &write);

    // Commands (chat_commands.cpp).
    void help(const std::string &);
    void leave(const std::string &);
    void clear(const std::string &);
    void regenerate(const std::string &);
    void undo(const std::string &);
    void edit(const std::string &text);
    void previous(const std::string &);
    void next(const std::string &);
    void step(int direction);
    std::optional<Conversation::Id> message_number(const std::string &text) const;
    void go(const std::string &number);
    void tree(const std::string &);
    void compact(const std::string &);
    void system(const std::string &text);
    void change_setting(const std::string &text);
    void format(const std::string &what);
    void think(const std::string &how);
    void show_state(const std::string &);
    void read(const std::string &path);
    void save(const std::string &path);
    void load(const std::string &path);
    void export_text(const std::string &path);
    void list_chats(const std::string &);
    void open(const std::string &name);
    void title(const std::string &text);
    void copy(const std::string &);
    void stats(const std::string &);
    void mcp(const std::string &server);

    const ChatOptions &options_;
    decode::Engine &engine_;
    Io &io_;
    const bool terminal_, color_;
    AnswerLook look_;
    mcp::Servers *servers_;  // null: none
    ChatModel model_;
    Conversation conversation_;
    std::optional<ChatFile> file_;          // where the conversation is saved
    std::vector<Attachment> attached_;      // goes with the next message
    std::vector<Conversation::Id> hiding_;  // messages that the next answer leaves out
    std::unique_ptr<LineSource> lines_;
    bool over_ = false;
    int code_ = exit_code::kDone;
};

}  // namespace runnel::commands
