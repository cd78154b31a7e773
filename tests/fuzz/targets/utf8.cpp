// UTF-8 that comes in pieces, and the terminal filter.
#include "engine/text/utf8.h"
#include "tests/fuzz/targets.h"

namespace runnel::fuzz {
namespace {

// Unicode's own table of well-formed sequences (15.0, table 3-7), written down a second time.
bool well_formed(std::string_view text) {
    const auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
    const auto in = [](uint8_t byte, uint8_t low, uint8_t high) { return byte >= low && byte <= high; };
    for (size_t i = 0; i < text.size();) {
        const uint8_t c = at(i);
        size_t length = c < 0x80            ? 1
                        : in(c, 0xC2, 0xDF) ? 2
                        : in(c, 0xE0, 0xEF) ? 3
                        : in(c, 0xF0, 0xF4) ? 4
                                            : 0;
        if (length == 0 || i + length > text.size()) return false;
        const uint8_t low{c == 0xE0 ? uint8_t{0xA0} : c == 0xF0 ? uint8_t{0x90} : uint8_t{0x80}};
        const uint8_t high{c == 0xED ? uint8_t{0x9F} : c == 0xF4 ? uint8_t{0x8F} : uint8_t{0xBF}};
        if (length > 1 && !in(at(i + 1), low, high)) return false;
        for (size_t k = 2; k < length; ++k)
            if (!in(at(i + k), 0x80, 0xBF)) return false;
        i += length;
    }
    return true;
}

template <class Stream>
std::string in_pieces(std::string_view text, size_t step) {
    Stream stream;
    std::string all;
    for (size_t at = 0; at < text.size(); at += step) all += stream.push(text.substr(at, step));
    return all + stream.flush();
}

}  // namespace

void utf8(Input input) {
    Bytes choices(input);
    const size_t step = 1 + choices.below(7);
    const std::string_view text = text_of(choices.rest());
    require(text::is_valid_utf8(text) == well_formed(text), "is_valid_utf8() follows Unicode's table");
    const std::string whole = in_pieces<text::Utf8Stream>(text, text.size() + 1);
    require(well_formed(whole), "a stream outputs UTF-8");
    require(in_pieces<text::Utf8Stream>(text, step) == whole, "a stream does not depend on the cuts");
    if (well_formed(text)) require(whole == text, "valid UTF-8 passes unchanged");
    const std::string shown = in_pieces<text::TerminalFilter>(text, step);
    require(shown == text::printable_for_terminal(whole), "the filter does not depend on the cuts");
    require(well_formed(shown), "the filter outputs UTF-8");
    for (size_t i = 0; i < shown.size(); ++i) {
        const auto c = static_cast<uint8_t>(shown[i]);
        require((c >= 0x20 && c != 0x7F) || c == '\n' || c == '\t',
                "no C0 control character reaches a terminal");
        const bool c1 = c == 0xC2 && i + 1 < shown.size() && static_cast<uint8_t>(shown[i + 1]) < 0xA0;
        require(!c1, "no C1 control character reaches a terminal");
    }
}

}  // namespace runnel::fuzz
