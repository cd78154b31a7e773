#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "engine/commands/chat/chat_loop.h"
#include "engine/commands/chat/conversation_text.h"
#include "engine/commands/chat/editor.h"
#include "engine/commands/chat/settings.h"
#include "engine/text/utf8.h"
#include "gguf/printable.h"

namespace runnel::commands {

std::span<const Chat::Command> Chat::commands() {
    static constexpr Command kCommands[] = {
        {"/help", "", "this", &Chat::help},
        {"/exit", "", "leave (also /bye, Ctrl-D)", &Chat::leave},
        {"/clear", "", "begin a new chat (also /reset)", &Chat::clear},
        {"/regen", "", "generate another answer to your last message; keep the old one", &Chat::regenerate},
        {"/back", "", "go to the previous version of this answer or message", &Chat::previous},
        {"/next", "", "go to the next version of this answer or message", &Chat::next},
        {"/undo", "", "take back your last message and its answer", &Chat::undo},
        {"/edit", "[N] [TEXT]", "change your last message, or message N, and ask again", &Chat::edit},
        {"/tree", "", "list all messages and branches of this chat, with their numbers", &Chat::tree},
        {"/go", "N", "continue from message N", &Chat::go},
        {"/compact", "", "let the model summarize all turns but the last; /undo reverts it", &Chat::compact},
        {"/system", "[TEXT]", "show or set the system prompt; \"\" for none", &Chat::system},
        {"/set", "[NAME N]", "change a setting: /set temp 0.5, /set plain on", &Chat::change_setting},
        {"/format", "[WHAT]", "constrain answers: json, a schema file, or text (no constraint)",
         &Chat::format},
        {"/think", "[HOW]", "set how the model reasons: on, off, low, medium, high or auto", &Chat::think},
        {"/show", "", "show the settings, and how full the context is", &Chat::show_state},
        {"/read", "FILE", "attach a text file to the next message (also @FILE in it)", &Chat::read},
        {"/copy", "", "copy the last answer to the clipboard", &Chat::copy},
        {"/save", "FILE", "save the conversation as JSON", &Chat::save},
        {"/load", "FILE", "begin a new chat with a conversation from a JSON file", &Chat::load},
        {"/export", "FILE.md", "write the conversation as Markdown", &Chat::export_text},
        {"/chats", "", "list the saved chats", &Chat::list_chats},
        {"/open", "N", "continue a saved chat, by its number or title", &Chat::open},
        {"/title", "[TEXT]", "show or set the title of this chat", &Chat::title},
        {"/mcp", "[SERVER]", "show MCP servers and tools, or what a server wrote on stderr", &Chat::mcp},
        {"/stats", "", "show statistics of the last answer", &Chat::stats},
    };
    return kCommands;
}

void Chat::help(const std::string &) {
    std::string text;
    for (const Command &c : commands()) {
        std::string left = std::string(c.name) + (*c.argument ? " " : "") + c.argument;
        left.resize(std::max<size_t>(left.size(), 17), ' ');
        text += left + c.help + "\n";
    }
    io_.err.try_write(text +
                      "\"\"\"              begins and ends a message of several lines\n"
                      "Alt-Enter        begin a new line in the message; a pasted text is one message\n"
                      "Ctrl-G           write the message in $EDITOR\n"
                      "Ctrl-T           show or fold the reasoning; works while the model reasons, too\n"
                      "Ctrl-C           stop the answer\n"
                      "Ctrl-Z           suspend the chat\n"
                      "Text typed during an answer is the next message; Enter sends it afterwards.\n");
}
void Chat::leave(const std::string &) {
    over_ = true;
}
void Chat::clear(const std::string &) {
    const bool is_saved = file_ && !file_->path().empty();
    begin_chat();
    say(is_saved ? "new chat; /chats lists the old one" : "new chat");
}
void Chat::undo(const std::string &) {
    const Conversation::Id id = conversation_.last_question();
    if (id == Conversation::kRoot) return io_.err.try_write("there is no message to remove\n");
    const Conversation::Node &node = conversation_.at(id);
    io_.err.try_write(node.is_summary ? "removed the summary\n"
                                      : "removed: " + gguf::printable(node.message.content, 200) + "\n");
    conversation_.go(node.parent);
}
// If the text begins with the number of a message, edits that message, otherwise the last one.
void Chat::edit(const std::string &text) {
    Conversation::Id id = conversation_.last_question();
    std::string changed = text;
    if (const auto number = message_number(text)) {
        id = *number;
        changed.erase(0, std::min(text.find_first_not_of(" \t", text.find_first_of(" \t")), text.size()));
        if (conversation_.at(id).message.role != "user" || conversation_.at(id).is_summary)
            throw InputError("message " + std::to_string(id) + " is not yours: /tree shows the numbers");
    }
    if (id == Conversation::kRoot) throw InputError("there is no message to change");
    if (changed.empty() && terminal_)
        changed = edit_in_editor(conversation_.at(id).message.content).value_or("");
    if (changed.find_first_not_of(" \t\n") == std::string::npos) return say("not changed");
    const Conversation::Id before = conversation_.head();
    conversation_.visit(conversation_.at(id).parent);
    conversation_.add({.message = {"user", changed}});
    answer(before);
}
// The number of a message at the beginning of a text.
std::optional<Conversation::Id> Chat::message_number(const std::string &text) const {
    Conversation::Id id = 0;
    const char *const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, id);
    const bool is_word = rest == end || *rest == ' ' || *rest == '\t';
    if (error != std::errc() || !is_word || id == Conversation::kRoot || !conversation_.has(id))
        return std::nullopt;
    return id;
}
void Chat::regenerate(const std::string &) {
    const Conversation::Id before = conversation_.head(), question = conversation_.last_question();
    if (question == Conversation::kRoot) throw InputError("there is no message to answer again");
    if (conversation_.at(question).is_summary)
        throw InputError("the last message is a summary: /undo removes it");
    if (!conversation_.at(question).children.empty()) model_.vary();
    conversation_.visit(question);
    if (!answer(before)) return;
    const size_t count = conversation_.at(question).children.size();
    if (count > 1)
        say("answer " + std::to_string(count) + " of " + std::to_string(count) +
            ": /back goes to the one before");
}
void Chat::previous(const std::string &) {
    step(-1);
}
void Chat::next(const std::string &) {
    step(1);
}
void Chat::step(int direction) {
    const Conversation::Fork fork = conversation_.fork(direction);
    if (fork.at == Conversation::kRoot)
        throw InputError("there is only one version: /regen generates another answer");
    if (fork.next == Conversation::kRoot)
        throw InputError(direction < 0 ? "this is the first version" : "this is the last version");
    conversation_.go(conversation_.end_of(fork.next));
    const bool is_answer = conversation_.at(fork.next).message.role != "user";
    show_answer();
    say(std::string(is_answer ? "answer " : "message ") + std::to_string(fork.number) + " of " +
        std::to_string(fork.count));
}
void Chat::go(const std::string &text) {
    const auto id = message_number(text);
    if (!id) throw InputError("/go N needs the number of a message: /tree shows the numbers");
    conversation_.go(*id);
    show_answer();
    say("the next message follows message " + std::to_string(*id));
}
// Shows the last message, but only at a terminal: in output for a program, each answer appears once.
void Chat::show_answer() {
    if (!terminal_ || conversation_.head() == Conversation::kRoot) return;
    io_.out.write(shown_text(conversation_.at(conversation_.head()).message.content, look_) + "\n");
}
void Chat::tree(const std::string &) {
    constexpr size_t kColumns = 80;
    io_.err.try_write(conversation_.size() == 0 ? "no messages yet\n"
                                                : tree_text(conversation_, kColumns, !terminal_moves()));
}
void Chat::system(const std::string &text) {
    const std::string &now = conversation_.system();
    if (text.empty())
        return io_.err.try_write(text::printable_for_terminal(now.empty() ? "no system prompt" : now) + "\n");
    conversation_.set_system(text == "\"\"" ? "" : text);
    say(now.empty() ? "no system prompt from now on" : "the system prompt is set");
}
// "NAME VALUE", or ollama's "parameter NAME VALUE", "system TEXT", "format json", "noformat", "think", "nothink".
void Chat::change_setting(const std::string &text) {
    const size_t blank = text.find_first_of(" \t"), value = text.find_first_not_of(" \t", blank);
    const std::string name = text.substr(0, blank),
                      rest = value == std::string::npos ? "" : text.substr(value);
    if (text.empty()) return show_state("");
    if (name == "parameter") return change_setting(rest);
    if (name == "system") return system(rest);
    if (name == "format") return format(rest);
    if (name == "noformat") return format("text");
    if (name == "think") return think(rest.empty() ? "on" : rest);
    if (name == "nothink") return think("off");
    if (name == "history" || name == "nohistory") return keep_history(name == "history");
    if (set_look(name, rest)) return;
    if (rest.empty()) throw InputError("/set NAME N: the value is missing");
    set(model_.settings(), name, rest);
    model_.apply_settings();
    say(clipped(name + " is " + rest, 80));
}
void Chat::format(const std::string &what) {
    ConstraintFlags &flags = model_.settings().constraint;
    const ConstraintFlags before = flags;
    if (what.empty()) {
        const bool constrained = flags.grammar || flags.schema || flags.regex || !flags.choices.empty();
        io_.err.try_write(constrained ? "constrained\n" : flags.json ? "json\n" : "text\n");
        return;
    }
    flags = ConstraintFlags();
    flags.whitespace = before.whitespace;
    flags.any_order = before.any_order;
    flags.close = before.close;
    flags.json = what == "json";
    if (what != "json" && what != "text") flags.schema = regular_file(what);
    try {
        model_.apply_settings();
    } catch (...) {
        flags = before;
        throw;
    }
    say(what == "text"   ? "answers are free text"
        : what == "json" ? "answers are JSON"
                         : "answers follow the schema");
}
void Chat::think(const std::string &how) {
    using text::Thinking;
    static constexpr std::pair<const char *, Thinking> kWords[] = {
        {"auto", Thinking::Default}, {"on", Thinking::On},         {"off", Thinking::Off},
        {"low", Thinking::Low},      {"medium", Thinking::Medium}, {"high", Thinking::High}};
    for (const auto &[word, thinking] : kWords) {
        if (how.empty() && thinking == model_.format().thinking())
            return io_.err.try_write(std::string(word) + "\n");
        if (how != word) continue;
        try {
            model_.set_thinking(thinking);
            return say("reasoning: " + how);
        } catch (const std::invalid_argument &error) {
            throw InputError("/think " + how + ": " + error.what());
        }
    }
    throw InputError("/think: on, off, low, medium, high or auto, not '" + gguf::printable(how, 40) + "'");
}
void Chat::show_state(const std::string &) {
    const Transcript transcript = conversation_.transcript();
    io_.err.try_write(list_settings(model_.settings()) + look_text() + "messages " +
                      std::to_string(transcript.messages.size()) + "\ncontext " +
                      std::to_string(model_.tokens_of(transcript)) + " of " +
                      std::to_string(engine_.executor().context()) + " tokens\n");
}
void Chat::read(const std::string &path) {
    if (path.empty()) throw InputError("/read FILE: the file's name is missing");
    regular_file(path);
    attached_.push_back(read_attachment(path));
    say(described(attached_.back()) + " is attached to your next message");
}
void Chat::copy(const std::string &) {
    if (!terminal_ || !terminal_moves()) throw InputError("/copy needs a terminal with a clipboard");
    Conversation::Id id = conversation_.head();
    while (id != Conversation::kRoot && conversation_.at(id).message.role != "assistant")
        id = conversation_.at(id).parent;
    if (id == Conversation::kRoot) throw InputError("there is no answer to copy");
    const std::string &answer = conversation_.at(id).message.content;
    if (answer.size() > kLongestCopy)
        throw InputError("the answer is longer than the " + std::to_string(kLongestCopy) +
                         " bytes that a terminal's clipboard takes");
    io_.out.write(clipboard_sequence(answer));
    say(std::to_string(answer.size()) + " bytes sent to the terminal's clipboard");
}
bool Chat::agrees(const std::string &question) {
    std::string answer;
    return lines_->ask("", question, answer) == LineSource::Event::Line && (answer == "y" || answer == "Y");
}
void Chat::stats(const std::string &) {
    if (!model_.report()) return io_.err.try_write("no answer yet\n");
    const ChatModel::Branches branches = model_.branches();
    std::string text = report_text(*model_.report());
    text += "branches " + std::to_string(branches.kept) + " in the cache";
    if (branches.dropped > 0)
        text += ", " + std::to_string(branches.dropped) +
                " dropped for lack of memory and read again when needed";
    io_.err.try_write(text + "\n");
}

}  // namespace runnel::commands
