// Talk to a model in the terminal, or line by line through a pipe.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "engine/commands/commands.h"
#include "engine/commands/conversation.h"
#include "engine/commands/generation.h"
#include "engine/commands/line_editor.h"
#include "engine/decode/error.h"
#include "engine/decode/session.h"
#include "engine/text/utf8.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using decode::Engine;
using decode::Generator;
using decode::StopRequest;

constexpr const char *kHelp =
    "/help            this\n"
    "/exit, /bye      leave (also Ctrl-D)\n"
    "/reset, /clear   forget the conversation\n"
    "/system [TEXT]   show or set the system prompt; \"\" for none\n"
    "/regen           another answer to the last message\n"
    "/stats           numbers of the last answer\n"
    "\"\"\"              begins and ends a message of several lines\n"
    "Ctrl-C           stops the answer\n";

// The colour of answers while this exists, also when one ends with an error.
class Coloured {
  public:
    Coloured(Output &out, bool on) : out_(out), on_(on) {
        if (on_) out_.write("\x1b[36m");
    }
    ~Coloured() {
        if (on_) out_.try_write("\x1b[0m");
    }
    Coloured(const Coloured &) = delete;
    Coloured &operator=(const Coloured &) = delete;

  private:
    Output &out_;
    bool on_;
};

class Chat {
  public:
    Chat(const ChatOptions &options, Engine &engine, Io &io)
        : options_(options),
          engine_(engine),
          io_(io),
          terminal_(isatty(io.in) && io.out.is_terminal()),
          color_(terminal_ && wants_color()),
          sampling_(sampling_options(options.generation)),
          conversation_(engine.file(), engine.tokenizer()),
          session_(engine.executor()),
          sampler_(engine.sampler(sampling_)),
          system_(system_prompt(options.system, options.system_file, io.in)) {}

    int loop() {
        // Between answer and line, Ctrl-C has nothing to stop; that is no reason to leave.
        if (terminal_) signal(SIGINT, SIG_IGN);
        greet();
        const auto lines = terminal_ ? make_terminal_lines(history_path()) : make_plain_lines(io_.in);
        std::string message;
        while (!over_) {
            const auto event = read_message(*lines, ">>> ", message);
            if (event == LineSource::Event::End) break;
            if (event == LineSource::Event::Interrupt ||
                message.find_first_not_of(" \t\n") == std::string::npos)
                continue;
            if (message.starts_with('/'))
                obey(message);
            else
                answer_to(message);
        }
        if (terminal_ && !over_) io_.out.write("\n");
        return code_;
    }

  private:
    bool wants_color() const {
        if (options_.color != "auto") return options_.color == "on";
        const char *no = std::getenv("NO_COLOR"), *term = std::getenv("TERM");
        return !(no && *no) && term && std::strcmp(term, "dumb") != 0;
    }

    void greet() {
        for (const std::string &note : engine_.notes()) io_.note(note);
        if (!conversation_.note().empty()) io_.note(conversation_.note());
        if (terminal_)
            io_.progress(gguf::printable(options_.model.path, 4096) + ", context " +
                         std::to_string(engine_.executor().context()) + " tokens. /help for help.\n");
    }

    void obey(const std::string &line) {
        const size_t blank = line.find_first_of(" \t\n");
        const std::string command = line.substr(0, blank);
        const size_t begin = line.find_first_not_of(" \t\n", blank);
        const std::string rest = begin == std::string::npos ? "" : line.substr(begin);
        if (command == "/exit" || command == "/bye" || command == "/quit") {
            over_ = true;
        } else if (command == "/help" || command == "/?") {
            io_.err.try_write(kHelp);
        } else if (command == "/reset" || command == "/clear") {
            messages_.clear();
        } else if (command == "/system") {
            if (rest.empty())
                io_.err.try_write(
                    text::printable_for_terminal(system_.empty() ? "no system prompt" : system_) + "\n");
            else
                system_ = rest == "\"\"" ? "" : rest;
        } else if (command == "/stats") {
            io_.err.try_write(last_ ? report_text(*last_) : "no answer yet\n");
        } else if (command == "/regen") {
            regenerate();
        } else {
            io_.err.try_write("there is no command " + gguf::printable(command) + "; /help lists them\n");
        }
    }

    void regenerate() {
        if (messages_.empty()) {
            io_.err.try_write("no message to answer again\n");
            return;
        }
        const std::vector<text::Message> before = messages_;
        messages_.pop_back();  // the answer: every message has one
        sampler_.set_stream(++stream_);
        answer();
        if (messages_.empty() || messages_.back().role != "assistant") messages_ = before;
    }

    void answer_to(const std::string &message) {
        messages_.push_back({"user", message});
        answer();
    }

    // The last message is the user's; what cannot be answered is forgotten.
    void answer() {
        try {
            const std::vector<text::TokenId> prompt = fitting_prompt();
            const std::string text = generate(prompt);
            if (text.empty())
                messages_.pop_back();
            else
                messages_.push_back({"assistant", text});
        } catch (const decode::DecodeError &error) {
            if (error.kind != decode::DecodeError::Kind::BadInput) throw;
            messages_.pop_back();
            if (!terminal_) throw;
            io_.err.try_write("runnel: " + gguf::printable(error.what(), 4096) + "\n");
        }
    }

    std::vector<text::TokenId> encode() const {
        std::vector<text::Message> all;
        if (!system_.empty()) all.push_back({"system", system_});
        all.insert(all.end(), messages_.begin(), messages_.end());
        return conversation_.encode(all);
    }

    // Where the conversation leaves less than a quarter of the context for the answer, the oldest turns go,
    // down to half of it, so that this does not happen again with the next message.
    std::vector<text::TokenId> fitting_prompt() {
        std::vector<text::TokenId> prompt = encode();
        const size_t context = static_cast<size_t>(engine_.executor().context());
        if (!options_.shift || prompt.size() <= context - context / 4) return prompt;
        const size_t before = messages_.size();
        while (messages_.size() > 1 && prompt.size() > context / 2) {
            // A turn is a message of the user and the answer to it.
            size_t next = 1;
            while (next + 1 < messages_.size() && messages_[next].role != "user") ++next;
            messages_.erase(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(next));
            prompt = encode();
        }
        if (messages_.size() < before)
            io_.note("the context of " + std::to_string(context) + " tokens is full: the oldest " +
                     std::to_string(before - messages_.size()) + " messages are forgotten");
        return prompt;
    }

    std::string generate(const std::vector<text::TokenId> &prompt) {
        StopRequest stop;
        const InterruptScope interrupts(
            stop, terminal_ ? InterruptScope::Repeated::Ignored : InterruptScope::Repeated::Kills);
        std::optional<decode::DeadlineTimer> deadline;
        if (options_.generation.deadline)
            deadline.emplace(stop, std::chrono::duration<double>(*options_.generation.deadline));
        decode::GenerationOptions how = generation_options(options_.generation);
        how.stops.insert(how.stops.end(), conversation_.stops().begin(), conversation_.stops().end());
        Generator generator(session_, sampler_, engine_.vocabulary(), how, &stop);
        generator.start(prompt);
        const std::string text = show(generator);
        io_.out.write("\n");
        finish(generator);
        return text;
    }

    std::string show(Generator &generator) {
        const Coloured coloured(io_.out, color_);
        std::string text;
        while (const auto piece = generator.next()) {
            io_.out.write(io_.out.is_terminal() ? text::printable_for_terminal(*piece) : *piece);
            text += *piece;
        }
        return text;
    }

    void finish(const Generator &generator) {
        last_ = Report{options_.model.path,       sampling_.seed,
                       engine_.load_seconds(),    generator.timings(),
                       generator.tokens().size(), std::string(name(generator.finish_reason()))};
        if (generator.context_full()) io_.note("the context is full: the answer ends here");
        write_stats(options_.stats, *last_, io_);
        if (generator.finish_reason() != decode::FinishReason::Interrupt) return;
        if (terminal_) return;
        over_ = true;  // nobody is there to go on
        code_ = exit_code::kInterrupted;
    }

    const ChatOptions &options_;
    Engine &engine_;
    Io &io_;
    const bool terminal_, color_;
    const decode::SamplingOptions sampling_;
    Conversation conversation_;
    decode::Session session_;
    decode::Sampler sampler_;
    std::string system_;
    std::vector<text::Message> messages_;  // without the system prompt
    std::optional<Report> last_;
    uint32_t stream_ = 0;
    bool over_ = false;
    int code_ = exit_code::kDone;
};

}  // namespace

int chat(const ChatOptions &options, Io &io) {
    Engine engine(engine_options(options.model));
    return Chat(options, engine, io).loop();
}

}  // namespace runnel::commands
