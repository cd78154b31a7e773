#include "engine/commands/chat/chat_loop.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/commands/chat/history_file.h"
#include "engine/commands/chat/mcp/servers.h"
#include "engine/commands/chat/settings.h"
#include "engine/commands/cli/nearest.h"
#include "engine/commands/prompt_format.h"
#include "engine/commands/terminal.h"
#include "engine/decode/error.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

constexpr size_t kLongestMessage = 32 << 20;

// "/home is full" and "/home/me/notes" are messages, not commands.
bool is_command(const std::string &message) {
    if (!message.starts_with('/') || message.find('\n') != std::string::npos) return false;
    const std::string word = message.substr(0, message.find_first_of(" \t"));
    std::error_code error;
    return word.find('/', 1) == std::string::npos && !std::filesystem::exists(word, error);
}

}  // namespace

Chat::Chat(const ChatOptions &options, decode::Engine &engine, std::unique_ptr<decode::Drafting> drafts,
           mcp::Servers *servers, Io &io)
    : options_(options),
      engine_(engine),
      io_(io),
      terminal_(isatty(io.in) && io.out.is_terminal()),
      color_(terminal_ && terminal_colors(options.color)),
      look_(look_at_start()),
      servers_(servers),
      model_(options, engine, std::move(drafts), servers ? servers->definitions() : Json(), io),
      conversation_([this](const Json &entry) { save_entry(entry); }) {
    if (const std::string system = system_prompt(options.system, options.system_file, io.in); !system.empty())
        conversation_.set_system(system);
    for (const std::string &path : options.attached) attached_.push_back(read_attachment(path));
}

int Chat::loop() {
    // Between an answer and the next prompt, Ctrl-C must not end the program.
    if (terminal_) signal(SIGINT, [](int) {});
    greet();
    open_at_start();
    lines_ = terminal_ ? make_terminal_lines(history_path(), terminal_hooks()) : make_plain_lines(io_.in);
    std::string message;
    while (!over_) {
        const auto event = lines_->read_message(">>> ", message);
        if (event == LineSource::Event::End) break;
        if (event == LineSource::Event::Interrupt || message.find_first_not_of(" \t\n") == std::string::npos)
            continue;
        if (is_command(message))
            obey(message);
        else
            send(message);
    }
    // A script that ends with /read sends the files without a message.
    if (!terminal_ && !over_ && !attached_.empty()) send("");
    if (terminal_ && !over_) io_.out.write("\n");
    return code_;
}

void Chat::obey(const std::string &line) {
    const size_t blank = line.find_first_of(" \t\n");
    std::string name = line.substr(0, blank);
    const size_t begin = line.find_first_not_of(" \t\n", blank);
    const std::string rest = begin == std::string::npos ? "" : line.substr(begin);
    if (name == "/bye" || name == "/quit") name = "/exit";
    if (name == "/reset") name = "/clear";
    if (name == "/?") name = "/help";
    std::vector<std::string> names;
    for (const Command &command : commands()) {
        if (name == command.name) return attempt([&] { (this->*command.call)(rest); });
        names.emplace_back(command.name);
    }
    const auto near = nearest(name, names);
    io_.err.try_write("there is no command " + gguf::printable(name) +
                      (near ? "; did you mean " + *near + "?\n" : "; /help lists them\n"));
    remember_failure(exit_code::kUsage);
}

// Reports an error of a command in one line; the chat continues.
template <class Work>
void Chat::attempt(Work work) {
    const auto say = [&](const std::exception &error, int code) {
        io_.err.try_write("runnel: " + gguf::printable(error.what(), 4096) + "\n");
        remember_failure(code);
    };
    try {
        work();
    } catch (const InputError &error) {
        say(error, exit_code::kInput);
    } catch (const UsageError &error) {
        say(error, exit_code::kUsage);
    } catch (const gguf::OutputRefused &error) {
        say(error, exit_code::kUsage);
    } catch (const OutputError &error) {
        say(error, exit_code::kFailed);
    } catch (const decode::DecodeError &error) {
        if (error.kind != decode::DecodeError::Kind::BadInput) throw;
        say(error, exit_code::kInput);
    }
}

void Chat::remember_failure(int code) {
    if (!terminal_ && code_ == exit_code::kDone) code_ = code;
}

void Chat::say(const std::string &text) {
    io_.progress((terminal_ && io_.err.is_terminal() ? shown_dim(text, look_) : text) + "\n");
}

// Sends what was typed, with the files that are attached to it.
void Chat::send(const std::string &typed) {
    std::vector<Attachment> files = attached_;
    bool can_send = !terminal_;  // in a script, @FILE in a message is not a file
    if (terminal_)
        attempt([&] {
            for (const std::string &path : named_files(typed)) {
                files.push_back(read_attachment(path));
                say("attached " + described(files.back()));
            }
            can_send = true;
        });
    if (!can_send) return;
    const std::string message = with_attachments(files, typed);
    const Conversation::Id before = conversation_.head();
    if (message.size() <= kLongestMessage)
        answer_to(message);
    else
        attempt([&] { throw InputError("the message is longer than 32 MiB"); });
    const bool is_taken = conversation_.head() != before;
    if (!is_taken && model_.interrupted()) return;  // the message can be sent again
    if (!is_taken && !attached_.empty()) say("the files are no longer attached: /read attaches them again");
    attached_.clear();
}

void Chat::answer_to(const std::string &message) {
    // The new message replaces one that has no answer.
    if (const Conversation::Id head = conversation_.head();
        conversation_.last_question() == head && head != Conversation::kRoot)
        conversation_.visit(conversation_.at(head).parent);
    if (!make_room(message)) return;
    const Conversation::Id before = conversation_.head();
    conversation_.add({.message = {"user", message}});
    answer(before);
}

// Answers the user's message at the head. If there is no answer (an error), the head becomes `otherwise`.
bool Chat::answer(Conversation::Id otherwise) {
    const Conversation::Id question = conversation_.head();
    Calls calls = Calls::None;
    try {
        do {
            hide_surplus();
            model_.set_saved(file_ && file_->saves());
            model_.answer(conversation_.transcript(hiding_), view(io_.out), [&](const text::Message &answer) {
                if (answer.content.empty() && answer.reasoning.empty() && answer.tool_calls.empty()) return;
                conversation_.add({.message = answer,
                                   .hides = hiding_,
                                   .stream = model_.stream(),
                                   .written = model_.written()});
            });
            calls = run_calls();
        } while (calls == Calls::Done);
    } catch (const decode::DecodeError &error) {  // the template refuses the message, or it does not fit
        if (error.kind != decode::DecodeError::Kind::BadInput) throw;
        const bool has_calls = conversation_.head() != question;
        if (!has_calls) conversation_.go(otherwise);
        if (!terminal_) throw;
        io_.err.try_write("runnel: " + gguf::printable(error.what(), 4096) + "\n");
        return has_calls;
    }
    if (model_.interrupted() || calls == Calls::Stopped) lines_->hold_typed();
    const bool has_answer = conversation_.head() != question;
    if (!has_answer) conversation_.go(otherwise);
    if (model_.interrupted() && !terminal_) {
        over_ = true;  // without a terminal, an interrupt ends the chat
        code_ = exit_code::kInterrupted;
    }
    return has_answer;
}

}  // namespace runnel::commands
