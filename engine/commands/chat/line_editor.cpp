#include "engine/commands/chat/line_editor.h"

#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <string_view>
#include <utility>

#include "engine/commands/chat/history_file.h"
#include "engine/commands/chat/line_reader.h"
#include "engine/commands/chat/terminal_lines.h"
#include "engine/commands/io.h"
#include "engine/text/utf8.h"

namespace runnel::commands {
namespace {

constexpr std::string_view kBlock = "\"\"\"";

class PlainLines final : public LineSource {
  public:
    PlainLines(int fd, std::string before) : reader_(fd, "stdin", kLargestInput, std::move(before)) {}

    Event read(const std::string &, std::string &line) override {
        LineReader::State state;
        do state = reader_.next(line, -1);
        while (state == LineReader::State::NotYet);
        if (state == LineReader::State::End) return Event::End;
        if (reader_.cut())
            throw InputError("line " + std::to_string(reader_.number()) + " of stdin is longer than 512 MiB");
        return Event::Line;
    }
    bool has_line() const override { return reader_.has_line(); }

  private:
    LineReader reader_;
};

// A terminal that cannot move its cursor: the terminal driver edits the line.
class DumbLines final : public LineSource {
  public:
    explicit DumbLines(const std::filesystem::path &history)
        : history_(history), reader_(STDIN_FILENO, "stdin", kLargestInput) {}

    Event read(const std::string &prompt, std::string &line) override {
        out_.try_write(prompt);
        if (!ahead_.empty()) {
            line = std::move(ahead_.front());
            ahead_.pop_front();
            out_.try_write(text::printable_for_terminal(line) + "\n");
            return Event::Line;
        }
        return wait(line);
    }
    // An unfinished line is dropped: otherwise Enter after the answer to the question would send it as well.
    Event ask(const std::string &above, const std::string &question, std::string &answer) override {
        out_.try_write(above);
        for (std::string line; reader_.next(line, 0) == LineReader::State::Line;)
            ahead_.push_back(std::move(line));
        tcflush(STDIN_FILENO, TCIFLUSH);
        out_.try_write(question);
        return wait(answer);
    }
    void remember(const std::string &message) override { history_.append(message); }

  private:
    Event wait(std::string &line) {
        switch (reader_.next(line, -1)) {
            case LineReader::State::Line:
                return Event::Line;
            case LineReader::State::End:
                return Event::End;
            case LineReader::State::NotYet:  // interrupted by a signal
                break;
        }
        out_.try_write("\n");
        return Event::Interrupt;
    }

    HistoryFile history_;
    LineReader reader_;
    std::deque<std::string> ahead_;  // lines that were typed before a question
    Output out_{STDOUT_FILENO, "the terminal"};
};

}  // namespace

LineSource::Event LineSource::read_message(const std::string &prompt, std::string &message) {
    std::string line;
    Event event = read(prompt, message);
    if (event == Event::Line && message == kBlock) {
        message.clear();
        for (bool first = true; (event = read("... ", line)) == Event::Line && line != kBlock; first = false)
            message += (first ? "" : "\n") + line;
        if (event == Event::Interrupt) return event;
        event = Event::Line;  // the end of the input ends a block, too
    }
    if (event == Event::Line && !message.empty()) remember(message);
    return event;
}

bool terminal_moves() {
    const char *term = std::getenv("TERM");
    return term && *term && std::string_view(term) != "dumb";
}

bool terminal_colors(const std::string &option) {
    if (option != "auto") return option == "on";
    const char *no = std::getenv("NO_COLOR");
    return !(no && *no) && terminal_moves();
}

std::unique_ptr<LineSource> make_terminal_lines(const std::filesystem::path &history, TerminalHooks hooks) {
    if (!terminal_moves()) return std::make_unique<DumbLines>(history);
    return std::make_unique<TerminalLines>(STDIN_FILENO, STDOUT_FILENO, history, std::move(hooks));
}

std::unique_ptr<LineSource> make_plain_lines(int fd, std::string before) {
    return std::make_unique<PlainLines>(fd, std::move(before));
}

}  // namespace runnel::commands
