#include "engine/text/normalize.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "engine/text/utf8.h"

namespace runnel::text {
namespace {

// Characters that never change and never compose with the character before them (NFC_Quick_Check=Yes and
// combining class 0): a subset that covers most common text. tests/engine/text/normalize_test.cpp checks it
// against utf8proc.
bool is_inert(uint32_t c) {
    return c < 0x300 || (c >= 0x391 && c <= 0x482) || (c >= 0x5D0 && c <= 0x5EA) ||
           (c >= 0x620 && c <= 0x64A) || (c >= 0x905 && c <= 0x939) || (c >= 0xE01 && c <= 0xE33) ||
           (c >= 0x2010 && c <= 0x2027) || (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) ||
           (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0x1F300 && c <= 0x1FAFF);
}

struct Free {
    void operator()(utf8proc_uint8_t *memory) const { std::free(memory); }
};

// `part` is valid UTF-8.
void append_nfc(std::string_view part, std::string &out) {
    if (part.empty()) return;
    utf8proc_uint8_t *memory = nullptr;
    const auto flags = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const utf8proc_ssize_t bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t *>(part.data()),
                                                static_cast<utf8proc_ssize_t>(part.size()), &memory, flags);
    const std::unique_ptr<utf8proc_uint8_t, Free> owner(memory);
    if (bytes < 0) throw std::bad_alloc();  // the only possible error for valid text
    out.append(reinterpret_cast<const char *>(memory), static_cast<size_t>(bytes));
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        if (static_cast<unsigned char>(text[at]) < 0x80) {
            ++at;
            continue;
        }
        const Utf8Char c = first_char(text.substr(at));
        if (c.valid && !is_inert(c.code_point)) return false;
        at += c.bytes;
    }
    return true;
}

std::string to_nfc(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    // A run to normalize begins at the last inert character before one that is not, and ends at the next
    // inert one: nothing composes across either end.
    size_t done = 0, last_inert = 0;
    bool pending = false;
    for (size_t at = 0; at < text.size();) {
        const Utf8Char c = first_char(text.substr(at));
        const bool inert = !c.valid || is_inert(c.code_point);
        if (!inert && !pending) {
            out.append(text.substr(done, last_inert - done));
            done = last_inert;
            pending = true;
        } else if (inert && pending) {
            append_nfc(text.substr(done, at - done), out);
            done = at;
            pending = false;
        }
        if (inert) last_inert = c.valid ? at : at + c.bytes;
        at += c.bytes;
    }
    if (pending) {
        append_nfc(text.substr(done), out);
    } else {
        out.append(text.substr(done));
    }
    return out;
}

}  // namespace runnel::text
