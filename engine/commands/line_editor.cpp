#include "engine/commands/line_editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

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
        // A window that changes its size is drawn anew, and who is ended or suspended leaves the terminal as
        // it was.
        el_set(el, EL_SIGNAL, 1);
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
        el_source(el, nullptr);
        HistEvent event;
        history(history_.get(), &event, H_SETSIZE, kHistoryLines);
        history(history_.get(), &event, H_SETUNIQUE, 1);
        if (!history_file_.empty()) history(history_.get(), &event, H_LOAD, history_file_.c_str());
    }

    Event read(const std::string &prompt, std::string &line) override {
        prompt_ = prompt;
        interrupted_ = false;
        int length = 0;
        const char *text = el_gets(editor_.get(), &length);
        // A SIGINT that did not come from the keyboard gives up the line just the same.
        if (interrupted_ || (text == nullptr && length < 0 && errno == EINTR)) {
            std::fputs("^C\n", stdout);
            std::fflush(stdout);
            return Event::Interrupt;
        }
        if (text == nullptr || length <= 0) return Event::End;
        line.assign(text, static_cast<size_t>(length));
        while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
        if (!line.empty()) remember(line);
        return Event::Line;
    }

  private:
    static TerminalLines &self(EditLine *e) {
        void *data = nullptr;
        el_get(e, EL_CLIENTDATA, &data);
        return *static_cast<TerminalLines *>(data);
    }
    // libedit takes the encoding from the locale; a plain "C" locale would break every umlaut.
    static void use_utf8() {
        std::setlocale(LC_CTYPE, "");
        if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
    }
    // Saved at once: a program that is killed forgets nothing.
    void remember(const std::string &line) {
        HistEvent event;
        history(history_.get(), &event, H_ENTER, line.c_str());
        if (!history_file_.empty()) history(history_.get(), &event, H_SAVE, history_file_.c_str());
    }

    std::filesystem::path history_file_;
    std::unique_ptr<History, void (*)(History *)> history_;
    std::unique_ptr<EditLine, void (*)(EditLine *)> editor_;
    std::string prompt_;
    bool interrupted_ = false;
};

class PlainLines final : public LineSource {
  public:
    explicit PlainLines(int fd) : fd_(fd) {}

    Event read(const std::string &, std::string &line) override {
        size_t end;
        while ((end = buffer_.find('\n')) == std::string::npos && fill()) continue;
        if (end == std::string::npos && buffer_.empty()) return Event::End;
        line = buffer_.substr(0, end);
        buffer_.erase(0, end == std::string::npos ? end : end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return Event::Line;
    }

  private:
    bool fill() {
        char bytes[4096];
        ssize_t n;
        do n = ::read(fd_, bytes, sizeof bytes);
        while (n < 0 && errno == EINTR);
        if (n <= 0) return false;
        buffer_.append(bytes, static_cast<size_t>(n));
        return true;
    }
    int fd_;
    std::string buffer_;
};

}  // namespace

std::unique_ptr<LineSource> make_terminal_lines(const std::filesystem::path &history) {
    return std::make_unique<TerminalLines>(history);
}

std::unique_ptr<LineSource> make_plain_lines(int fd) {
    return std::make_unique<PlainLines>(fd);
}

std::filesystem::path history_path() {
    namespace fs = std::filesystem;
    fs::path directory;
    if (const char *state = std::getenv("XDG_STATE_HOME"); state && *state == '/')
        directory = state;
    else if (const char *home = std::getenv("HOME"); home && *home == '/')
        directory = fs::path(home) / ".local" / "state";
    else
        return {};
    directory /= "runnel";
    std::error_code error;
    if (fs::create_directories(directory, error)) fs::permissions(directory, fs::perms::owner_all, error);
    const fs::path file = directory / "history";
    const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return {};
    fchmod(fd, 0600);
    close(fd);
    return file;
}

LineSource::Event read_message(LineSource &lines, const std::string &prompt, std::string &message) {
    std::string line;
    LineSource::Event event = lines.read(prompt, line);
    message = line;
    if (event != LineSource::Event::Line || !line.starts_with(kBlock)) return event;
    message = line.substr(kBlock.size());
    while (message.find(kBlock) == std::string::npos) {
        event = lines.read("... ", line);
        if (event == LineSource::Event::Interrupt) return event;
        if (event == LineSource::Event::End) return LineSource::Event::Line;  // a block without its end
        message += "\n" + line;
    }
    message.resize(message.find(kBlock));
    if (message.starts_with('\n')) message.erase(0, 1);
    if (message.ends_with('\n')) message.pop_back();
    return LineSource::Event::Line;
}

}  // namespace runnel::commands
