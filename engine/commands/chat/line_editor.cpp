#include "engine/commands/chat/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

#include "engine/commands/chat/editor.h"
#include "engine/commands/chat/history_file.h"
#include "engine/commands/chat/line_reader.h"
#include "engine/commands/io.h"
#include "engine/commands/terminal.h"

namespace runnel::commands {
namespace {

constexpr int kHistoryLines = 2000;
constexpr std::string_view kBlock = "\"\"\"";

class TerminalLines final : public LineSource {
  public:
    explicit TerminalLines(const std::filesystem::path &history_file)
        : history_file_(history_file), history_(history_init(), history_end), editor_(nullptr, el_end) {
        use_utf8();
        editor_.reset(el_init("runnel", stdin, stdout, stderr));
        if (!editor_ || !history_) throw std::system_error(errno, std::generic_category(), "line editing");
        EditLine *el = editor_.get();
        el_set(el, EL_CLIENTDATA, this);
        el_set(
            el, EL_PROMPT, +[](EditLine *e) { return self(e).prompt_.data(); });
        el_set(el, EL_EDITOR, "emacs");
        el_set(el, EL_HIST, history, history_.get());
        // In a line, Ctrl-C gives up the line; the tty is not to make signals of keys.
        el_set(el, EL_SETTY, "-d", "-isig", nullptr);
        el_set(
            el, EL_ADDFN, "give-up-line", "Give up the line", +[](EditLine *e, int) -> unsigned char {
                self(e).interrupted_ = true;
                return CC_EOF;
            });
        el_set(el, EL_BIND, "^C", "give-up-line", nullptr);
        el_set(
            el, EL_ADDFN, "suspend", "Suspend the program", +[](EditLine *e, int) -> unsigned char {
                el_set(e, EL_PREP_TERM, 0);
                raise(SIGTSTP);
                el_set(e, EL_PREP_TERM, 1);
                return CC_REDISPLAY;
            });
        el_set(el, EL_BIND, "^Z", "suspend", nullptr);
        el_set(el, EL_BIND, "^R", "em-inc-search-prev", nullptr);
        el_set(
            el, EL_ADDFN, "paste", "Insert what the terminal pastes",
            +[](EditLine *e, int) -> unsigned char { return insert_paste(e); });
        el_set(el, EL_BIND, "\\e[200~", "paste", nullptr);
        el_set(
            el, EL_ADDFN, "edit-outside", "Edit the line in $VISUAL or $EDITOR",
            +[](EditLine *e, int) -> unsigned char { return edit_outside(e); });
        el_set(el, EL_BIND, "^G", "edit-outside", nullptr);
        el_source(el, nullptr);
        HistEvent event;
        history(history_.get(), &event, H_SETSIZE, kHistoryLines);
        history(history_.get(), &event, H_SETUNIQUE, 1);
        history_file_.load(history_.get(), kHistoryLines);
    }

    Event read(const std::string &prompt, std::string &line) override {
        prompt_ = prompt;
        interrupted_ = false;
        // The window may have another size by now. (Not EL_SIGNAL: libedit passes signals on to the whole
        // process group, which ends scripts.)
        el_resize(editor_.get());
        int length = 0;
        const char *text = nullptr;
        {
            const RawTerminal raw(STDIN_FILENO, STDOUT_FILENO);
            text = el_gets(editor_.get(), &length);
        }
        if (interrupted_) {
            std::fputs("^C\n", stdout);
            std::fflush(stdout);
            return Event::Interrupt;
        }
        if (text == nullptr || length <= 0) return Event::End;
        line.assign(text, static_cast<size_t>(length));
        while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
        return Event::Line;
    }

    // Saved at once, so that a killed program loses nothing.
    void remember(const std::string &line) override {
        HistEvent event;
        if (line.empty()) return;
        history(history_.get(), &event, H_ENTER, line.c_str());
        history_file_.append(line);
    }

  private:
    static TerminalLines &self(EditLine *e) {
        void *data = nullptr;
        el_get(e, EL_CLIENTDATA, &data);
        return *static_cast<TerminalLines *>(data);
    }
    // A pasted text goes into the line as it is, line ends and all: only a key sends it. (Without this, each
    // of its lines would be a message.)
    static unsigned char insert_paste(EditLine *e) {
        constexpr std::wstring_view kEnd = L"\x1b[201~";
        // Terminals do not paste this byte: the end mark was lost, so the line is given up.
        constexpr wchar_t kCtrlC = 3;
        std::wstring text;
        for (wchar_t c = 0; !text.ends_with(kEnd); text.push_back(c)) {
            if (el_wgetc(e, &c) != 1) return CC_EOF;
            if (c == kCtrlC) {
                self(e).interrupted_ = true;
                return CC_EOF;
            }
        }
        text.resize(text.size() - kEnd.size());
        std::wstring plain;
        for (size_t i = 0; i < text.size(); ++i) {
            if (text[i] == L'\r') {
                if (i + 1 == text.size() || text[i + 1] != L'\n') plain.push_back(L'\n');
            } else if (text[i] == L'\n' || text[i] == L'\t' || (text[i] >= L' ' && text[i] != L'\x7f')) {
                plain.push_back(text[i]);
            }
        }
        while (plain.ends_with(L'\n')) plain.pop_back();
        if (!plain.empty() && el_winsertstr(e, plain.c_str()) != 0) return CC_ERROR;
        return CC_REFRESH;
    }
    static unsigned char edit_outside(EditLine *e) {
        const LineInfo *line = el_line(e);
        const std::string before(line->buffer, line->lastchar);
        el_set(e, EL_PREP_TERM, 0);
        const std::optional<std::string> after = edit_in_editor(before);
        el_set(e, EL_PREP_TERM, 1);
        if (!after) return CC_REDISPLAY;
        const LineInfoW *wide = el_wline(e);
        const int length = static_cast<int>(wide->lastchar - wide->buffer);
        el_cursor(e, static_cast<int>(wide->lastchar - wide->cursor));
        el_deletestr(e, length);
        if (!after->empty()) el_insertstr(e, after->c_str());
        return CC_REDISPLAY;
    }
    // libedit takes the encoding from the locale; a plain "C" locale would break every umlaut.
    static void use_utf8() {
        std::setlocale(LC_CTYPE, "");
        if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
    }
    HistoryFile history_file_;
    std::unique_ptr<History, void (*)(History *)> history_;
    std::unique_ptr<EditLine, void (*)(EditLine *)> editor_;
    std::string prompt_;
    bool interrupted_ = false;
};

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

}  // namespace

std::unique_ptr<LineSource> make_terminal_lines(const std::filesystem::path &history) {
    return std::make_unique<TerminalLines>(history);
}

std::unique_ptr<LineSource> make_plain_lines(int fd, std::string before) {
    return std::make_unique<PlainLines>(fd, std::move(before));
}

LineSource::Event read_message(LineSource &lines, const std::string &prompt, std::string &message) {
    std::string line;
    LineSource::Event event = lines.read(prompt, line);
    message = line;
    if (event == LineSource::Event::Line) lines.remember(line);
    if (event != LineSource::Event::Line || !line.starts_with(kBlock)) return event;
    message = line.substr(kBlock.size());
    while (message.find(kBlock) == std::string::npos) {
        event = lines.read("... ", line);
        if (event == LineSource::Event::Interrupt) return event;
        if (event == LineSource::Event::Line) lines.remember(line);
        if (event == LineSource::Event::End) return LineSource::Event::Line;  // a block without its end
        message += "\n" + line;
    }
    message.resize(message.find(kBlock));
    if (message.starts_with('\n')) message.erase(0, 1);
    if (message.ends_with('\n')) message.pop_back();
    return LineSource::Event::Line;
}

}  // namespace runnel::commands
