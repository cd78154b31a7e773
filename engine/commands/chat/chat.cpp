// Talk to a model in the terminal, or line by line through a pipe.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "engine/commands/chat/conversation.h"
#include "engine/commands/chat/line_editor.h"
#include "engine/commands/chat/settings.h"
#include "engine/commands/chat/transcript.h"
#include "engine/commands/cli/nearest.h"
#include "engine/commands/commands.h"
#include "engine/commands/generation.h"
#include "engine/commands/terminal.h"
#include "engine/decode/error.h"
#include "engine/decode/session.h"
#include "engine/text/utf8.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using decode::Engine;
using decode::Generator;
using decode::StopRequest;

// An answer on its way out: in color, reasoning dimmed, or between its marks where there is no color.
// Colors end with it, also when the answer ends with an error.
class AnswerView {
  public:
    AnswerView(Output &out, bool colors, bool shows_reasoning, const Conversation &conversation)
        : out_(out), colors_(colors), shows_reasoning_(shows_reasoning), conversation_(conversation) {
        if (!colors_) return;
        guard_.emplace(1);
        out_.write(kAnswer);
    }
    ~AnswerView() {
        if (colors_) out_.try_write("\x1b[0m");
    }
    AnswerView(const AnswerView &) = delete;
    AnswerView &operator=(const AnswerView &) = delete;

    void show(bool is_reasoning, const std::string &text) {
        if (is_reasoning && !shows_reasoning_) return;
        if (is_reasoning != std::exchange(inside_, is_reasoning)) {
            if (!colors_)
                out_.write(inside_ ? conversation_.opening_mark() : conversation_.closing_mark());
            else
                out_.write(inside_ ? "\x1b[0;2m" : std::string("\n\n") + kAnswer);
        }
        out_.write(out_.is_terminal() ? text::printable_for_terminal(text) : text);
    }

  private:
    static constexpr const char *kAnswer = "\x1b[0;36m";
    Output &out_;
    bool colors_, shows_reasoning_;
    const Conversation &conversation_;
    std::optional<ColorScope> guard_;  // a signal leaves no color behind, either
    bool inside_ = false;
};

class Chat {
  public:
    Chat(const ChatOptions &options, Engine &engine, std::unique_ptr<decode::Drafting> drafts, Io &io)
        : options_(options),
          engine_(engine),
          io_(io),
          terminal_(isatty(io.in) && io.out.is_terminal()),
          color_(terminal_ && wants_color()),
          generation_(options.generation),
          sampling_(sampling_options(generation_)),
          conversation_(engine.file(), engine.tokenizer(), options.chat),
          session_(engine.executor()),
          sampler_(engine.sampler(sampling_)),
          transcript_{system_prompt(options.system, options.system_file, io.in), {}},
          drafts_(std::move(drafts)) {}

    int loop() {
        // Between answer and line, Ctrl-C has nothing to stop; that is no reason to leave.
        if (terminal_) signal(SIGINT, [](int) {});
        greet();
        lines_ = terminal_ ? make_terminal_lines(history_path()) : make_plain_lines(io_.in);
        std::string message;
        while (!over_) {
            const auto event = read_message(*lines_, ">>> ", message);
            if (event == LineSource::Event::End) break;
            if (event == LineSource::Event::Interrupt ||
                message.find_first_not_of(" \t\n") == std::string::npos)
                continue;
            if (message.starts_with('/') && message.find('\n') == std::string::npos)
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

    struct Command {
        const char *name, *argument, *help;
        void (Chat::*call)(const std::string &argument);
    };
    static std::span<const Command> commands() {
        static constexpr Command kCommands[] = {
            {"/help", "", "this", &Chat::help},
            {"/exit", "", "leave (also /bye, Ctrl-D)", &Chat::leave},
            {"/clear", "", "forget the conversation (also /reset)", &Chat::clear},
            {"/regen", "", "another answer to your last message", &Chat::regenerate},
            {"/undo", "", "take your last message and its answer back", &Chat::undo},
            {"/edit", "[TEXT]", "change your last message and ask again", &Chat::edit},
            {"/system", "[TEXT]", "show or set the system prompt; \"\" for none", &Chat::system},
            {"/set", "[NAME N]", "change a setting: /set temp 0.5", &Chat::change_setting},
            {"/show", "", "settings, and how full the context is", &Chat::show_state},
            {"/read", "FILE", "a message from a file", &Chat::read},
            {"/save", "FILE", "save the conversation as JSON", &Chat::save},
            {"/load", "FILE", "go on with a saved conversation", &Chat::load},
            {"/stats", "", "numbers of the last answer", &Chat::stats},
        };
        return kCommands;
    }

    void obey(const std::string &line) {
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

    // At a terminal, what a person asked for and cannot have is a line, and the chat goes on.
    template <class Work>
    void attempt(Work work) {
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
        }
    }

    // A script learns at the end that one of its commands failed; a person has read it.
    void remember_failure(int code) {
        if (!terminal_ && code_ == exit_code::kDone) code_ = code;
    }

    void help(const std::string &) {
        std::string text;
        for (const Command &c : commands()) {
            std::string left = std::string(c.name) + (*c.argument ? " " : "") + c.argument;
            left.resize(std::max<size_t>(left.size(), 17), ' ');
            text += left + c.help + "\n";
        }
        io_.err.try_write(
            text +
            "\"\"\"              begins and ends a message of several lines; a pasted text is one "
            "message\n"
            "Ctrl-G           write the message in $EDITOR\n"
            "Ctrl-C           stops the answer\n");
    }
    void leave(const std::string &) { over_ = true; }
    void clear(const std::string &) { transcript_.messages.clear(); }
    void undo(const std::string &) {
        const std::string message = transcript_.undo();
        io_.err.try_write(message.empty() ? "no message to take back\n"
                                          : "taken back: " + gguf::printable(message, 200) + "\n");
    }
    void edit(const std::string &text) {
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
    void system(const std::string &text) {
        if (text.empty())
            io_.err.try_write(text::printable_for_terminal(transcript_.system.empty() ? "no system prompt"
                                                                                      : transcript_.system) +
                              "\n");
        else
            transcript_.system = text == "\"\"" ? "" : text;
    }
    void change_setting(const std::string &text) {
        const size_t blank = text.find_first_of(" \t"), value = text.find_first_not_of(" \t", blank);
        if (text.empty()) return show_state("");
        if (value == std::string::npos) throw InputError("/set NAME N: the number is missing");
        set(generation_, text.substr(0, blank), text.substr(value));
        sampling_ = sampling_options(generation_);
        sampler_ = engine_.sampler(sampling_);
        speculator_.reset();  // its sources may have taken over the old ones
    }
    void show_state(const std::string &) {
        io_.err.try_write(list_settings(generation_) + "messages " +
                          std::to_string(transcript_.messages.size()) + "\ncontext " +
                          std::to_string(transcript_.messages.empty() ? 0 : encode().tokens.size()) + " of " +
                          std::to_string(engine_.executor().context()) + " tokens\n");
    }
    void read(const std::string &path) {
        if (path.empty()) throw InputError("/read FILE: the file's name is missing");
        const std::string text = read_all(path, -1);
        if (text.find_first_not_of(" \t\r\n") == std::string::npos)
            throw InputError(path + " has no text in it");
        answer_to(text);
    }
    void save(const std::string &path) {
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
    bool agrees(const std::string &question) {
        std::string answer;
        return lines_->read(question, answer) == LineSource::Event::Line && (answer == "y" || answer == "Y");
    }
    void load(const std::string &path) {
        if (path.empty()) throw InputError("/load FILE: the file's name is missing");
        transcript_ = Transcript::load(path);
        io_.err.try_write(std::to_string(transcript_.messages.size()) + " messages\n");
    }
    void stats(const std::string &) { io_.err.try_write(last_ ? report_text(*last_) : "no answer yet\n"); }

    void regenerate(const std::string &) {
        const Transcript before = transcript_;
        const std::string message = transcript_.undo();
        if (message.empty()) throw InputError("no message to answer again");
        sampler_.set_stream(++stream_);
        answer_to(message);
        if (transcript_.messages.size() < before.messages.size()) transcript_ = before;
    }

    void answer_to(const std::string &message) {
        transcript_.messages.push_back({"user", message});
        answer();
    }

    // The last message is the user's; what cannot be answered is forgotten.
    void answer() {
        try {
            const Conversation::Prompt prompt = fitting_prompt();
            text::Message answer = generate(prompt);
            if (answer.content.empty() && answer.reasoning.empty())
                transcript_.messages.pop_back();
            else
                transcript_.messages.push_back(std::move(answer));
        } catch (const InputError &error) {  // the template refuses it
            transcript_.messages.pop_back();
            if (!terminal_) throw;
            io_.err.try_write("runnel: " + gguf::printable(error.what(), 4096) + "\n");
        } catch (const decode::DecodeError &error) {
            if (error.kind != decode::DecodeError::Kind::BadInput) throw;
            transcript_.messages.pop_back();
            if (!terminal_) throw;
            io_.err.try_write("runnel: " + gguf::printable(error.what(), 4096) + "\n");
        }
    }

    Conversation::Prompt encode() const { return conversation_.prompt(transcript_.all()); }

    // Where the conversation leaves less than a quarter of the context for the answer, the oldest turns go,
    // down to half of it, so that this does not happen again with the next message.
    Conversation::Prompt fitting_prompt() {
        Conversation::Prompt prompt = encode();
        const size_t context = static_cast<size_t>(engine_.executor().context());
        if (options_.overflow == Overflow::Error || prompt.tokens.size() <= context - context / 4)
            return prompt;
        // In the middle means: behind the first turn.
        std::vector<text::Message> first;
        if (options_.overflow == Overflow::DropMiddle) first = transcript_.take_first();
        const size_t before = transcript_.messages.size() + first.size();
        while (prompt.tokens.size() > context / 2 && transcript_.forget_oldest()) prompt = encode();
        transcript_.messages.insert(transcript_.messages.begin(), first.begin(), first.end());
        if (!first.empty()) prompt = encode();
        if (const size_t left = transcript_.messages.size(); left < before)
            io_.note(
                "the context of " + std::to_string(context) + " tokens is full: the oldest " +
                std::to_string(before - left) +
                (first.empty() ? " messages are forgotten" : " messages behind the first are forgotten"));
        return prompt;
    }

    text::Message generate(const Conversation::Prompt &prompt) {
        StopRequest stop;
        const InterruptScope interrupts(
            stop, terminal_ ? InterruptScope::Repeated::Ignored : InterruptScope::Repeated::Kills);
        std::optional<decode::DeadlineTimer> deadline;
        if (options_.generation.deadline)
            deadline.emplace(stop, std::chrono::duration<double>(*options_.generation.deadline));
        decode::GenerationOptions how = generation_options(generation_);
        how.stops.insert(how.stops.end(), conversation_.stops().begin(), conversation_.stops().end());
        how.shift_keeping = Room{static_cast<size_t>(engine_.executor().context()), options_.overflow,
                                 conversation_.fixed_tokens(transcript_.all())}
                                .keeping();
        if (drafts_ && !speculator_) speculator_ = drafts_->speculator();
        counted_ = speculator_ ? speculator_->counts() : decode::SpeculationCounts();
        Generator generator(session_, sampler_, conversation_.vocabulary(), how, &stop, speculator_.get());
        generator.start(prompt.tokens);
        text::Message answer = show(generator, conversation_.splitter(prompt));
        io_.out.write("\n");
        finish(generator);
        return answer;
    }

    text::Message show(Generator &generator, text::ReasoningSplitter splitter) {
        text::Message answer{"assistant", "", ""};
        AnswerView view(io_.out, color_, terminal_ || options_.show_thinking, conversation_);
        const auto take = [&](const std::vector<text::ReasoningSplitter::Piece> &pieces) {
            for (const auto &[is_reasoning, text] : pieces) {
                view.show(is_reasoning, text);
                (is_reasoning ? answer.reasoning : answer.content) += text;
            }
        };
        while (const auto piece = generator.next()) take(splitter.push(*piece));
        take(splitter.flush());
        return answer;
    }

    void finish(const Generator &generator) {
        last_ = Report{options_.model.path,
                       sampling_.seed,
                       engine_.load_seconds(),
                       generator.timings(),
                       generator.tokens().size(),
                       std::string(name(generator.finish_reason())),
                       engine_.placement(),
                       speculator_ ? std::optional(speculator_->counts().since(counted_)) : std::nullopt};
        if (generator.forgotten() > 0)
            io_.note("the context was full: the oldest " + std::to_string(generator.forgotten()) +
                     " tokens behind the system prompt were forgotten");
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
    GenerationFlags generation_;
    decode::SamplingOptions sampling_;
    Conversation conversation_;
    decode::Session session_;
    decode::Sampler sampler_;
    Transcript transcript_;
    std::optional<Report> last_;
    std::unique_ptr<decode::Drafting> drafts_;        // or none,
    std::unique_ptr<decode::Speculator> speculator_;  // made with the first answer
    decode::SpeculationCounts counted_;               // of the answers before
    std::unique_ptr<LineSource> lines_;
    uint32_t stream_ = 0;
    bool over_ = false;
    int code_ = exit_code::kDone;
};

}  // namespace

int chat(const ChatOptions &options, Io &io) {
    StopRequest stop;  // of the loading
    std::optional<InterruptScope> loading(std::in_place, stop);
    decode::EngineOptions engine_flags = engine_options(options.model, io, stop);
    leave_room(engine_flags, options.draft);
    note_inputs({options.draft.model, options.system_file, options.chat.file, options.chat.tools});
    check_stats_file(options.stats, io);
    Engine engine(engine_flags);
    auto drafts = drafting(options.draft, options.model, engine, 1, io, stop);
    loading.reset();
    if (stop.requested()) throw Interrupted{};
    return Chat(options, engine, std::move(drafts), io).loop();
}

}  // namespace runnel::commands
