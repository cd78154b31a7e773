#include "engine/commands/chat/edit/edit_text.h"

#include <algorithm>

#include "engine/commands/chat/edit/cells.h"

namespace runnel::commands {
namespace {

bool is_word(char byte) {
    const auto c = static_cast<unsigned char>(byte);
    return c >= 0x80 || std::isalnum(c) || c == '_';
}

}  // namespace

void EditText::set(std::string text) {
    text_.clear();
    chips_.clear();
    cursor_ = 0;
    paste(text);
}

void EditText::insert(std::string_view typed) {
    text_.insert(cursor_, typed);
    for (Chip &chip : chips_)
        if (chip.begin >= cursor_) chip.begin += typed.size(), chip.end += typed.size();
    cursor_ += typed.size();
}

void EditText::paste(std::string_view text) {
    const auto newlines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    const size_t begin = cursor_;
    insert(text);
    if (newlines < kChipLines && text.size() <= kChipBytes) return;
    const std::string amount =
        newlines > 0 ? grouped(newlines + 1) + " lines" : grouped(text.size()) + " bytes";
    const auto at =
        std::find_if(chips_.begin(), chips_.end(), [&](const Chip &c) { return c.begin >= begin; });
    chips_.insert(at, {begin, cursor_, "[pasted " + amount + "]"});
}

const EditText::Chip *EditText::chip_ending_at(size_t at) const {
    for (const Chip &chip : chips_)
        if (chip.end == at) return &chip;
    return nullptr;
}
const EditText::Chip *EditText::chip_beginning_at(size_t at) const {
    for (const Chip &chip : chips_)
        if (chip.begin == at) return &chip;
    return nullptr;
}

size_t EditText::before(size_t at) const {
    if (at == 0) return 0;
    if (const Chip *chip = chip_ending_at(at)) return chip->begin;
    if (text_[at - 1] == '\n') return at - 1;
    // Clusters can only be found from left to right.
    size_t begin = line_begin(at);
    for (const Chip &chip : chips_)
        if (chip.end < at) begin = std::max(begin, chip.end);
    for (size_t next = begin; next < at; next = behind(next)) begin = next;
    return begin;
}

size_t EditText::behind(size_t at) const {
    if (at >= text_.size()) return text_.size();
    if (const Chip *chip = chip_beginning_at(at)) return chip->end;
    size_t limit = text_.size();
    for (const Chip &chip : chips_)
        if (chip.begin > at) limit = std::min(limit, chip.begin);
    return at + first_grapheme(std::string_view(text_).substr(at, limit - at));
}

size_t EditText::word_before(size_t at) const {
    const auto in_word = [&](size_t i) { return i > 0 && !chip_ending_at(i) && is_word(text_[i - 1]); };
    while (at > 0 && !in_word(at) && !chip_ending_at(at)) at = before(at);
    if (chip_ending_at(at)) return before(at);
    while (in_word(at)) at = before(at);
    return at;
}

size_t EditText::word_behind(size_t at) const {
    const auto in_word = [&](size_t i) {
        return i < text_.size() && !chip_beginning_at(i) && is_word(text_[i]);
    };
    while (at < text_.size() && !in_word(at) && !chip_beginning_at(at)) at = behind(at);
    if (chip_beginning_at(at)) return behind(at);
    while (in_word(at)) at = behind(at);
    return at;
}

size_t EditText::line_begin(size_t at) const {
    for (;;) {
        const Chip *last = nullptr;
        for (const Chip &chip : chips_)
            if (chip.end <= at) last = &chip;
        const size_t from = last ? last->end : 0;
        const size_t newline = at > from ? text_.rfind('\n', at - 1) : std::string::npos;
        if (newline != std::string::npos && newline >= from) return newline + 1;
        if (!last) return 0;
        at = last->begin;
    }
}

size_t EditText::line_end(size_t at) const {
    for (;;) {
        const auto next =
            std::find_if(chips_.begin(), chips_.end(), [&](const Chip &c) { return c.begin >= at; });
        const size_t to = next == chips_.end() ? text_.size() : next->begin;
        const size_t newline = text_.find('\n', at);
        if (newline < to) return newline;
        if (next == chips_.end()) return to;
        at = next->end;
    }
}

std::string EditText::erase(size_t begin, size_t end) {
    std::string gone = text_.substr(begin, end - begin);
    text_.erase(begin, end - begin);
    std::erase_if(chips_, [&](const Chip &c) { return c.begin >= begin && c.end <= end; });
    for (Chip &chip : chips_)
        if (chip.begin >= end) chip.begin -= end - begin, chip.end -= end - begin;
    cursor_ = begin;
    return gone;
}

}  // namespace runnel::commands
