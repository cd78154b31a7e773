#include "engine/commands/chat/edit/keys.h"

#include <algorithm>
#include <cstdlib>

#include "engine/commands/chat/edit/cells.h"
#include "engine/text/utf8.h"

namespace runnel::commands {
namespace {

constexpr char kEscape = '\x1b', kCtrlC = '\x03', kDelete = '\x7f';
constexpr std::string_view kPasteEnd = "\x1b[201~";
constexpr size_t kLongestSequence = 64;

// The modifier of "1;5": a bit each for Shift (1), Alt (2), Ctrl (4).
int modifiers(std::string_view parameters) {
    const size_t semicolon = parameters.find(';');
    return semicolon == std::string_view::npos
               ? 0
               : std::max(std::atoi(std::string(parameters.substr(semicolon + 1)).c_str()) - 1, 0);
}

Key::Name key_of_tilde(int number, bool by_word) {
    switch (number) {
        case 1:
        case 7:
            return Key::Home;
        case 4:
        case 8:
            return Key::End;
        case 3:
            return by_word ? Key::EraseWordRight : Key::Delete;
        default:
            return Key::Unknown;
    }
}

// "27;2;13" (modifyOtherKeys of xterm) and "13;2" (the protocol of kitty): Enter with a modifier.
bool is_modified_enter(std::string_view parameters, char end) {
    return end == 'u' ? parameters.starts_with("13;") && modifiers(parameters) > 0
                      : parameters.starts_with("27;") && parameters.ends_with(";13");
}

Key::Name key_of(std::string_view parameters, char end) {
    const bool by_word = (modifiers(parameters) & 6) != 0;
    switch (end) {
        case 'A':
            return Key::Up;
        case 'B':
            return Key::Down;
        case 'C':
            return by_word ? Key::WordRight : Key::Right;
        case 'D':
            return by_word ? Key::WordLeft : Key::Left;
        case 'H':
            return Key::Home;
        case 'F':
            return Key::End;
        case 'M':
            return parameters.empty() ? Key::Enter : Key::Unknown;  // Enter of the keypad
        case 'u':
            return is_modified_enter(parameters, end) ? Key::Newline : Key::Unknown;
        case '~':
            return is_modified_enter(parameters, end)
                       ? Key::Newline
                       : key_of_tilde(std::atoi(std::string(parameters).c_str()), by_word);
        default:
            return Key::Unknown;
    }
}

Key key_of_control(char byte) {
    switch (byte) {
        case '\r':
            return {Key::Enter};
        case '\n':
            return {Key::Newline};
        case '\t':
            return {Key::Tab};
        case '\b':
        case kDelete:
            return {Key::Backspace};
        case '\0':
            return {Key::Unknown};
        default:
            return {Key::Control, std::string(1, static_cast<char>(byte < 27 ? 'a' + byte - 1 : '@' + byte))};
    }
}

bool is_control_byte(char byte) {
    return static_cast<unsigned char>(byte) < ' ' || byte == kDelete;
}

}  // namespace

Key KeyDecoder::take(size_t bytes, Key key) {
    at_ += bytes;
    if (at_ == bytes_.size()) {
        bytes_.clear();
        at_ = 0;
    }
    searched_ = at_;
    return key;
}

std::optional<Key> KeyDecoder::next() {
    if (in_paste_) return next_paste();
    if (at_ == bytes_.size()) return std::nullopt;
    const char byte = bytes_[at_];
    if (byte == kEscape) return next_escape();
    if (is_control_byte(byte)) return take(1, key_of_control(byte));
    return next_text();
}

std::optional<Key> KeyDecoder::next_paste() {
    const size_t end = bytes_.find(kPasteEnd, std::max(searched_, at_));
    if (end == std::string::npos) {
        searched_ = bytes_.size() - std::min(bytes_.size() - at_, kPasteEnd.size() - 1);
        return std::nullopt;
    }
    in_paste_ = false;
    std::string text = clean_text(std::string_view(bytes_).substr(at_, end - at_));
    while (text.ends_with('\n')) text.pop_back();
    return take(end + kPasteEnd.size() - at_, {Key::Paste, std::move(text)});
}

std::optional<Key> KeyDecoder::next_escape() {
    const std::string_view rest = std::string_view(bytes_).substr(at_);
    if (rest.size() == 1) return std::nullopt;
    switch (rest[1]) {
        case kEscape:
            return take(1, {Key::Escape});
        case '\r':
        case '\n':
            return take(2, {Key::Newline});
        case kDelete:
        case '\b':
            return take(2, {Key::EraseWordLeft});
        case 'b':
            return take(2, {Key::WordLeft});
        case 'f':
            return take(2, {Key::WordRight});
        case 'd':
            return take(2, {Key::EraseWordRight});
        case 'O':
            if (rest.size() == 2) return std::nullopt;
            if (rest[2] == 'M') return take(3, {Key::Enter});
            return is_control_byte(rest[2]) ? take(2, {Key::Unknown}) : take(3, {key_of("", rest[2])});
        case '[':
            break;
        default: {  // Alt and a character
            const text::Utf8Char c = text::first_char(rest.substr(1));
            if (c.cut_off) return std::nullopt;
            return is_control_byte(rest[1]) ? take(1, {Key::Escape}) : take(1 + c.bytes, {Key::Unknown});
        }
    }
    if (rest.starts_with("\x1b[["))  // a function key of the Linux console
        return rest.size() < 4 ? std::nullopt
                               : std::optional(take(is_control_byte(rest[3]) ? 3 : 4, {Key::Unknown}));
    size_t end = 2;
    while (end < rest.size() && rest[end] >= ' ' && rest[end] <= '?') ++end;
    if (end == rest.size() && end < kLongestSequence) return std::nullopt;
    if (end == rest.size() || rest[end] < '@' || rest[end] > '~') return take(end, {Key::Unknown});
    const std::string_view parameters = rest.substr(2, end - 2);
    const char last = rest[end];
    if (last == '~' && parameters == "200") {
        in_paste_ = true;
        take(end + 1, {Key::Unknown});
        return next_paste();
    }
    return take(end + 1, {key_of(parameters, last)});
}

std::optional<Key> KeyDecoder::next_text() {
    std::string text;
    size_t end = at_;
    while (end < bytes_.size() && !is_control_byte(bytes_[end])) {
        const text::Utf8Char c = text::first_char(std::string_view(bytes_).substr(end));
        if (c.cut_off) break;
        text += clean_text(std::string_view(bytes_).substr(end, c.bytes));
        end += c.bytes;
    }
    if (end == at_) return std::nullopt;
    const Key key{text.empty() ? Key::Unknown : Key::Text, text};
    return take(end - at_, key);
}

std::optional<Key> KeyDecoder::expire() {
    if (in_paste_) {
        if (!bytes_.ends_with(kCtrlC)) return std::nullopt;
        in_paste_ = false;
        return take(bytes_.size() - at_, {Key::Control, "c"});
    }
    if (at_ == bytes_.size()) return std::nullopt;
    if (bytes_[at_] == kEscape)
        return take(bytes_.size() - at_, {bytes_.size() - at_ == 1 ? Key::Escape : Key::Unknown});
    return take(bytes_.size() - at_, {Key::Text, "\uFFFD"});  // an incomplete character
}

}  // namespace runnel::commands
