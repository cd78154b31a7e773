#include "engine/commands/chat/terminal_lines.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/commands/chat/edit/cells.h"
#include "engine/commands/chat/editor.h"

namespace runnel::commands {
namespace {

constexpr size_t kHistoryLines = 2000;
constexpr int kSequenceMilliseconds = 200;  // between the bytes of one key
const Key kCtrlC{Key::Control, "c"}, kCtrlT{Key::Control, "t"}, kCtrlZ{Key::Control, "z"};

std::vector<std::string> clean_lines(std::vector<std::string> lines) {
    for (std::string &line : lines) line = clean_text(line);
    return lines;
}

// The candidates in columns, without the folder that they all share.
std::string candidate_list(const std::vector<std::string> &candidates, WindowSize size) {
    const size_t folder = candidates.front().rfind('/', candidates.front().size() - 2) + 1;
    const auto name = [&](const std::string &c) {
        return folder > 1 && folder < c.size() ? c.substr(folder) : c;
    };
    int widest = 1;
    for (const std::string &candidate : candidates)
        widest = std::max(widest, text_width(name(candidate)) + 2);
    const size_t per_row = static_cast<size_t>(std::max(1, size.columns / widest));
    const size_t most = per_row * static_cast<size_t>(std::max(1, size.rows - 4));
    std::string list;
    for (size_t i = 0; i < candidates.size() && i < most; ++i) {
        const std::string shown = name(candidates[i]);
        list += shown;
        const bool last = i % per_row + 1 == per_row || i + 1 == std::min(candidates.size(), most);
        list += last ? "\n" : std::string(static_cast<size_t>(widest - text_width(shown)), ' ');
    }
    if (candidates.size() > most) list += "and " + std::to_string(candidates.size() - most) + " more\n";
    return list;
}

}  // namespace

WindowSize window_size(int fd) {
    winsize found{};
    WindowSize size;
    if (ioctl(fd, TIOCGWINSZ, &found) == 0 && found.ws_col > 0 && found.ws_row > 0)
        size = {found.ws_col, found.ws_row};
    return size;
}

TerminalLines::TerminalLines(int in, int out, const std::filesystem::path &history, TerminalHooks hooks)
    : in_(in),
      out_(out, "the terminal"),
      hooks_(std::move(hooks)),
      history_file_(history),
      history_(clean_lines(history_file_.load(kHistoryLines)), kHistoryLines),
      modes_(in, out) {
    modes_.enter(TerminalModes::Mode::Watch);
}

LineSource::Event TerminalLines::read(const std::string &prompt, std::string &line) {
    History none;
    LineEdit asked(none, prompt, false);
    const Event event = edit(asked);
    line = asked.text().text();
    return event;
}

// Waits for the end of an incomplete key or paste: its last bytes do not answer the question either.
bool TerminalLines::take_typed() {
    bool interrupted = false;
    for (;;) {
        const Watched seen = watch(false);
        interrupted |= seen.interrupted;
        if (ended_ || (!seen.redraw && !keys_.waits())) return !interrupted;
        pollfd waiting{in_, POLLIN, 0};
        poll(&waiting, 1, kSequenceMilliseconds);
    }
}

LineSource::Event TerminalLines::ask(const std::string &above, const std::string &question,
                                     std::string &answer) {
    modes_.enter(TerminalModes::Mode::Edit);
    out_.try_write(above);
    const bool goes_on = take_typed();
    std::deque<Key> typed = std::exchange(ahead_, {});
    above_ = above;
    // (A question that the editor would leave out is one of the lines above.)
    const bool fits = has_room_for(question, window_size(in_).columns);
    if (goes_on && !fits) {
        out_.try_write(question + '\n');
        above_ += question + '\n';
    }
    const Event event = goes_on ? read(fits ? question : "", answer) : Event::Interrupt;
    above_.clear();
    ahead_ = std::move(typed);
    modes_.enter(TerminalModes::Mode::Watch);
    return event;
}

LineSource::Event TerminalLines::read_message(const std::string &prompt, std::string &message) {
    LineEdit edited(history_, prompt, true);
    const Event event = edit(edited);
    message = edited.message();
    if (event == Event::Line && !message.empty()) remember(message);
    return event;
}

// Saves the message at once, so that a killed program loses nothing.
void TerminalLines::remember(const std::string &message) {
    history_.add(message);
    history_file_.append(message);
}

bool TerminalLines::read_bytes() {
    char bytes[16384];
    const ssize_t got = ::read(in_, bytes, sizeof bytes);
    ended_ = got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN);
    if (got > 0) keys_.push({bytes, static_cast<size_t>(got)});
    return got > 0;
}

std::optional<Key> TerminalLines::next_key() {
    if (!ahead_.empty()) {
        Key key = std::move(ahead_.front());
        ahead_.pop_front();
        return key;
    }
    for (;;) {
        if (auto key = keys_.next()) return key;
        pollfd waiting[2] = {{in_, POLLIN, 0}, {modes_.changes(), POLLIN, 0}};
        const int ready = poll(waiting, 2, keys_.waits() ? kSequenceMilliseconds : -1);
        if (ready < 0 && errno != EINTR) ended_ = true;
        if (ready == 0)
            if (auto key = keys_.expire()) return key;
        if (ready > 0 && waiting[0].revents) read_bytes();
        if (ended_ || (ready > 0 && waiting[1].revents)) return std::nullopt;
    }
}

LineSource::Watched TerminalLines::watch(bool wants_toggle) {
    pollfd waiting{in_, POLLIN, 0};
    bool more = false;
    while (!ended_ && poll(&waiting, 1, 0) > 0 && read_bytes()) more = true;
    if (more) typed_ = base::Clock::now();
    Watched seen;
    const auto changes = modes_.take_changes();
    seen.resized = changes.window || changes.continued;
    seen.redraw = changes.continued;
    // Ctrl-C and Ctrl-Z now raise signals, but those read before the answer began are keys.
    while (const auto key = keys_.next()) {
        if (*key == kCtrlC) {
            seen.interrupted = true;
        } else if (*key == kCtrlZ) {
            modes_.suspend();
            modes_.take_changes();
            seen.resized = seen.redraw = true;
            return seen;  // the keys after it belong to the next call
        } else {
            ahead_.push_back(*key);
        }
    }
    if (keys_.waits() && base::seconds_since(typed_) * 1000 > kSequenceMilliseconds)
        if (const auto key = keys_.expire()) ahead_.push_back(*key);
    if (wants_toggle) seen.toggled = std::erase(ahead_, kCtrlT) % 2 == 1;
    return seen;
}

void TerminalLines::hold_typed() {
    watch(false);
    while (!ahead_.empty() && ahead_.back().name == Key::Enter) ahead_.pop_back();
    for (Key &key : ahead_)
        if (key.name == Key::Enter) key.name = Key::Newline;
    given_up_ = 1;  // counts the Ctrl-C that interrupted the answer
}

void TerminalLines::paint(const LineEdit &edit) {
    out_.try_write(screen_.paint(lay_out(edit.prompt(), edit.text(), size_.columns), size_));
}

void TerminalLines::finish(LineEdit &edit) {
    out_.try_write(screen_.finish(lay_out(edit.prompt(), edit.text(), size_.columns)));
}

LineSource::Event TerminalLines::edit(LineEdit &edit) {
    using Action = LineEdit::Action;
    modes_.enter(TerminalModes::Mode::Edit);
    screen_ = EditScreen();
    modes_.take_changes();
    size_ = window_size(in_);
    paint(edit);
    Event event = Event::End;
    for (bool reading = true; reading;) {
        const std::optional<Key> key = next_key();
        if (ended_) break;
        if (!key) {
            modes_.take_changes();
            size_ = window_size(in_);
            screen_.resized(size_.columns);
            paint(edit);
            continue;
        }
        const Action action = edit.press(*key, size_.columns);
        if (action != Action::GiveUp || !edit.text().empty()) given_up_ = 0;
        switch (action) {
            case Action::None:
                break;
            case Action::Submit:
                finish(edit);
                event = Event::Line;
                reading = false;
                break;
            case Action::GiveUp:
                edit.text().set_cursor(edit.text().text().size());
                if (edit.text().empty()) ++given_up_;
                edit.text().insert("^C");
                finish(edit);
                event = Event::Interrupt;
                reading = false;
                break;
            case Action::End:
                reading = false;
                break;
            case Action::Suspend:
                finish(edit);
                modes_.suspend();
                modes_.take_changes();
                size_ = window_size(in_);
                out_.try_write(above_);
                break;
            case Action::Editor:
                open_editor(edit);
                break;
            case Action::Complete:
                complete_word(edit);
                break;
            case Action::Reasoning:
                if (hooks_.toggle_reasoning && above_.empty()) show_above(hooks_.toggle_reasoning());
                break;
            case Action::Redraw:
                out_.try_write("\x1b[H\x1b[2J" + above_);
                screen_ = EditScreen();
                break;
        }
        if (reading) paint(edit);
    }
    modes_.enter(TerminalModes::Mode::Watch);
    hint_how_to_leave();
    return event;
}

void TerminalLines::hint_how_to_leave() {
    if (given_up_ < 2) return;
    given_up_ = 0;
    const char *hint = "Ctrl-D or /exit leaves the chat";
    out_.try_write(hooks_.colors ? "\x1b[2m" + std::string(hint) + "\x1b[0m\n" : std::string(hint) + "\n");
}

void TerminalLines::open_editor(LineEdit &edit) {
    out_.try_write(screen_.clear());
    const std::optional<std::string> after = edit_in_editor(edit.text().text());
    modes_.take_changes();
    size_ = window_size(in_);
    if (after) edit.set(clean_text(*after));
}

void TerminalLines::complete_word(LineEdit &edit) {
    EditText &text = edit.text();
    const std::string_view before = std::string_view(text.text()).substr(0, text.cursor());
    const Completion found = complete(before, hooks_.names);
    if (found.candidates.empty()) {
        if (!before.starts_with('/')) text.insert("\t");
        return;
    }
    const bool grows = found.common.size() > text.cursor() - found.begin;
    if (grows || found.candidates.size() == 1) {
        text.erase(found.begin, text.cursor());
        text.insert(found.common);
        if (found.candidates.size() == 1) text.insert(found.end);
    } else {
        show_above(candidate_list(found.candidates, size_));
    }
}

void TerminalLines::show_above(const std::string &text) {
    if (!text.empty()) out_.try_write(screen_.clear() + text);
}

}  // namespace runnel::commands
