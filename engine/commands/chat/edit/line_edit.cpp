#include "engine/commands/chat/edit/line_edit.h"

#include <string_view>
#include <utility>

#include "engine/commands/chat/edit/cells.h"

namespace runnel::commands {
namespace {

constexpr std::string_view kBlock = "\"\"\"", kBlockBegin = "\"\"\"\n", kBlockEnd = "\n\"\"\"";

}  // namespace

LineEdit::Action LineEdit::press(const Key &key, int columns) {
    const Action action = act(key, columns);
    typed_backslash_ = key.name == Key::Text && key.text.ends_with('\\');
    if (text_.empty()) pasted_ = false;
    return action;
}

void LineEdit::set(std::string text) {
    text_.set(std::move(text));
    pasted_ = !text_.empty();
}

LineEdit::Action LineEdit::act(const Key &key, int columns) {
    if (search_) {
        if (search(key)) return Action::None;
        const std::string before = search_->before;
        search_.reset();
        if (key == Key{Key::Control, "c"} || key == Key{Key::Control, "g"}) return set(before), Action::None;
        if (key.name == Key::Escape) return Action::None;
    }
    const size_t cursor = text_.cursor();
    switch (key.name) {
        case Key::Text:
            text_.insert(key.text);
            break;
        case Key::Paste:
            pasted_ = true;
            text_.paste(key.text);
            break;
        case Key::Control:
            return press_control(key.text[0], columns);
        case Key::Enter:
            return enter();
        case Key::Newline:
            text_.insert("\n");
            break;
        case Key::Tab:
            return Action::Complete;
        case Key::Backspace:
            text_.erase(text_.before(cursor), cursor);
            break;
        case Key::Delete:
            text_.erase(cursor, text_.behind(cursor));
            break;
        case Key::Left:
            text_.set_cursor(text_.before(cursor));
            break;
        case Key::Right:
            text_.set_cursor(text_.behind(cursor));
            break;
        case Key::Up:
            up(columns);
            break;
        case Key::Down:
            down(columns);
            break;
        case Key::Home:
            text_.set_cursor(text_.line_begin(cursor));
            break;
        case Key::End:
            text_.set_cursor(text_.line_end(cursor));
            break;
        case Key::WordLeft:
            text_.set_cursor(text_.word_before(cursor));
            break;
        case Key::WordRight:
            text_.set_cursor(text_.word_behind(cursor));
            break;
        case Key::EraseWordLeft:
            kill(text_.word_before(cursor), cursor);
            break;
        case Key::EraseWordRight:
            kill(cursor, text_.word_behind(cursor));
            break;
        case Key::Escape:
        case Key::Unknown:
            break;
    }
    return Action::None;
}

LineEdit::Action LineEdit::press_control(char letter, int columns) {
    const size_t cursor = text_.cursor();
    switch (letter) {
        case 'a':
            return act({Key::Home}, columns);
        case 'b':
            return act({Key::Left}, columns);
        case 'c':
            return Action::GiveUp;
        case 'd':
            return text_.empty() ? Action::End : press({Key::Delete}, columns);
        case 'e':
            return act({Key::End}, columns);
        case 'f':
            return act({Key::Right}, columns);
        case 'g':
            return Action::Editor;
        case 'k': {
            const size_t end = text_.line_end(cursor);
            kill(cursor, end > cursor ? end : text_.behind(cursor));
            return Action::None;
        }
        case 'l':
            return Action::Redraw;
        case 'n':
            return down(columns), Action::None;
        case 'p':
            return up(columns), Action::None;
        case 'r':
            search_ = Search{"", text_.text(), history_.size()};
            return Action::None;
        case 't':
            return Action::Reasoning;
        case 'u':
            return kill(text_.line_begin(cursor), cursor), Action::None;
        case 'w':
            return kill(text_.word_before(cursor), cursor), Action::None;
        case 'y':
            pasted_ = true;
            return text_.paste(killed_), Action::None;
        case 'z':
            return Action::Suspend;
        default:
            return Action::None;
    }
}

LineEdit::Action LineEdit::enter() {
    const std::string &all = text_.text();
    if (in_open_block()) return text_.insert("\n"), Action::None;
    if (typed_backslash_ && text_.cursor() == all.size() && all.ends_with('\\')) {
        text_.erase(all.size() - 1, all.size());
        text_.insert("\n");
        return Action::None;
    }
    text_.set_cursor(all.size());
    return Action::Submit;
}

bool LineEdit::in_open_block() const {
    const std::string &all = text_.text();
    return blocks_ && !pasted_ && (all == kBlock || (all.starts_with(kBlockBegin) && !is_block()));
}

bool LineEdit::is_block() const {
    const std::string &all = text_.text();
    return blocks_ && !pasted_ && all.starts_with(kBlockBegin) && all.ends_with(kBlockEnd) &&
           all.size() >= kBlockBegin.size() + kBlock.size();
}

std::string LineEdit::message() const {
    const std::string &all = text_.text();
    if (!is_block()) return all;
    const size_t end = all.size() - kBlockEnd.size();
    return end <= kBlockBegin.size() ? "" : all.substr(kBlockBegin.size(), end - kBlockBegin.size());
}

void LineEdit::up(int columns) {
    const EditLayout layout = lay_out(prompt_, text_, columns);
    if (layout.cursor_row > 0)
        text_.set_cursor(layout.offset_at(layout.cursor_row - 1, layout.cursor_column));
    else if (auto line = history_.older(text_.text()))
        set(*line);
}

void LineEdit::down(int columns) {
    const EditLayout layout = lay_out(prompt_, text_, columns);
    if (layout.cursor_row + 1 < layout.rows.size())
        text_.set_cursor(layout.offset_at(layout.cursor_row + 1, layout.cursor_column));
    else if (auto line = history_.newer(text_.text()))
        set(*line);
}

void LineEdit::kill(size_t begin, size_t end) {
    if (begin < end) killed_ = text_.erase(begin, end);
}

bool LineEdit::search(const Key &key) {
    if (key.name == Key::Text) {
        search_->part += key.text;
        find(search_->failed ? 0 : search_->index + 1);
    } else if (key.name == Key::Backspace) {
        const std::string_view part = search_->part;
        size_t last = 0;
        for (size_t at = 0; at < part.size(); at += first_grapheme(part.substr(at))) last = at;
        search_->part.resize(last);
        find(history_.size());
    } else if (key == Key{Key::Control, "r"}) {
        find(search_->index);
    } else {
        return false;
    }
    return true;
}

void LineEdit::find(size_t before) {
    const std::optional<size_t> found =
        search_->part.empty() ? std::nullopt : history_.find(search_->part, before);
    search_->failed = !found && !search_->part.empty();
    if (!found) return;
    search_->index = *found;
    set(history_.line(*found));
}

std::string LineEdit::prompt() const {
    if (!search_) return prompt_;
    std::string part;
    for (std::string_view rest = search_->part; !rest.empty();) {
        const size_t bytes = first_grapheme(rest);
        part += shown_grapheme(rest.substr(0, bytes));
        rest.remove_prefix(bytes);
    }
    return (search_->failed ? "(not found: " : "(search: ") + part + ") ";
}

}  // namespace runnel::commands
