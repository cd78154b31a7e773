#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/commands/chat/chat_loop.h"
#include "engine/commands/chat/editor.h"
#include "engine/commands/chat/settings.h"
#include "engine/text/utf8.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::commands {

std::span<const Chat::Command> Chat::commands() {
    static constexpr Command kCommands[] = {
        {"/help", "", "this", &Chat::help},
        {"/exit", "", "leave (also /bye, Ctrl-D)", &Chat::leave},
        {"/clear", "", "forget the conversation (also /reset)", &Chat::clear},
        {"/regen", "", "another answer to your last message", &Chat::regenerate},
        {"/undo", "", "remove your last message and its answer", &Chat::undo},
        {"/edit", "[TEXT]", "change your last message and ask again", &Chat::edit},
        {"/system", "[TEXT]", "show or set the system prompt; \"\" for none", &Chat::system},
        {"/set", "[NAME N]", "change a setting: /set temp 0.5", &Chat::change_setting},
        {"/format", "[WHAT]", "constrain answers: json, a schema file, or text for none", &Chat::format},
        {"/think", "[HOW]", "on, off, low, medium, high or auto: how the model reasons", &Chat::think},
        {"/show", "", "settings, and how full the context is", &Chat::show_state},
        {"/read", "FILE", "a message from a file", &Chat::read},
        {"/save", "FILE", "save the conversation as JSON", &Chat::save},
        {"/load", "FILE", "continue a saved conversation", &Chat::load},
        {"/stats", "", "statistics of the last answer", &Chat::stats},
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
                      "\"\"\"              begins and ends a message of several lines; a pasted text is one "
                      "message\n"
                      "Ctrl-G           write the message in $EDITOR\n"
                      "Ctrl-C           stops the answer\n");
}
void Chat::leave(const std::string &) {
    over_ = true;
}
void Chat::clear(const std::string &) {
    transcript_.messages.clear();
}
void Chat::undo(const std::string &) {
    const std::string message = transcript_.undo();
    io_.err.try_write(message.empty() ? "no message to take back\n"
                                      : "taken back: " + gguf::printable(message, 200) + "\n");
}
void Chat::edit(const std::string &text) {
    const Transcript before = transcript_;
    const std::string old = transcript_.undo();
    if (old.empty()) throw InputError("no message to change");
    const std::optional<std::string> changed = !text.empty() ? text
                                               : terminal_   ? edit_in_editor(old)
                                                             : std::nullopt;
    if (changed && changed->find_first_not_of(" \t\n") != std::string::npos)
        answer_to(*changed);
    else
        transcript_ = before;
}
void Chat::system(const std::string &text) {
    if (text.empty())
        io_.err.try_write(text::printable_for_terminal(transcript_.system.empty() ? "no system prompt"
                                                                                  : transcript_.system) +
                          "\n");
    else
        transcript_.system = text == "\"\"" ? "" : text;
}
void Chat::change_setting(const std::string &text) {
    const size_t blank = text.find_first_of(" \t"), value = text.find_first_not_of(" \t", blank);
    if (text.empty()) return show_state("");
    if (value == std::string::npos) throw InputError("/set NAME N: the number is missing");
    set(model_.settings(), text.substr(0, blank), text.substr(value));
    model_.apply_settings();
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
    if (what != "json" && what != "text") flags.schema = what;
    try {
        model_.apply_settings();
    } catch (...) {
        flags = before;
        throw;
    }
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
            return model_.set_thinking(thinking);
        } catch (const std::invalid_argument &error) {
            throw InputError("/think " + how + ": " + error.what());
        }
    }
    throw InputError("/think: on, off, low, medium, high or auto, not '" + gguf::printable(how, 40) + "'");
}
void Chat::show_state(const std::string &) {
    io_.err.try_write(list_settings(model_.settings()) + "messages " +
                      std::to_string(transcript_.messages.size()) + "\ncontext " +
                      std::to_string(model_.tokens_of(transcript_)) + " of " +
                      std::to_string(engine_.executor().context()) + " tokens\n");
}
void Chat::read(const std::string &path) {
    if (path.empty()) throw InputError("/read FILE: the file's name is missing");
    const std::string text = read_all(path, -1);
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) throw InputError(path + " has no text in it");
    answer_to(text);
}
void Chat::save(const std::string &path) {
    if (path.empty()) throw InputError("/save FILE: the file's name is missing");
    try {
        transcript_.save(path, io_.overwrite);
    } catch (const gguf::OutputRefused &error) {
        if (error.why != gguf::OutputRefused::Why::Exists || !terminal_) throw;
        if (!agrees(gguf::printable(path, 4096) + " exists already. Replace it? [y/N] "))
            return io_.err.try_write("not saved\n");
        transcript_.save(path, true);
    }
}
bool Chat::agrees(const std::string &question) {
    std::string answer;
    return lines_->read(question, answer) == LineSource::Event::Line && (answer == "y" || answer == "Y");
}
void Chat::load(const std::string &path) {
    if (path.empty()) throw InputError("/load FILE: the file's name is missing");
    transcript_ = Transcript::load(path);
    io_.err.try_write(std::to_string(transcript_.messages.size()) + " messages\n");
}
void Chat::stats(const std::string &) {
    io_.err.try_write(model_.report() ? report_text(*model_.report()) : "no answer yet\n");
}

void Chat::regenerate(const std::string &) {
    const Transcript before = transcript_;
    const std::string message = transcript_.undo();
    if (message.empty()) throw InputError("no message to answer again");
    model_.vary();
    answer_to(message);
    if (transcript_.messages.size() < before.messages.size()) transcript_ = before;
}

}  // namespace runnel::commands
