#include "engine/completion/written_answer.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "engine/text/utf8.h"

namespace runnel::completion {
namespace {

using text::Segment;

std::string text_of(std::span<const Segment> segments) {
    std::string text;
    for (const Segment &segment : segments) text += segment.text;
    return text;
}

// The segments that make up the bytes [begin, end) of the joined text.
std::vector<Segment> part(std::span<const Segment> segments, size_t begin, size_t end) {
    std::vector<Segment> result;
    size_t at = 0;
    for (const Segment &segment : segments) {
        const size_t from = std::max(begin, at), to = std::min(end, at + segment.text.size());
        if (from < to) result.push_back({segment.text.substr(from - at, to - from), segment.special});
        at += segment.text.size();
    }
    return result;
}

bool is_special(std::span<const Segment> segments, size_t begin, size_t end) {
    const std::vector<Segment> parts = part(segments, begin, end);
    return std::all_of(parts.begin(), parts.end(), [](const Segment &segment) { return segment.special; });
}

// How much of an answer matches the text at one position.
struct Fit {
    size_t tokens = 0, end = 0;  // the number of tokens that match, and where their text ends
};

// The text of the tokens as Answer reports it: with U+FFFD for invalid bytes.
std::string rest_of(const text::Tokenizer &tokenizer, std::span<const TokenId> tokens) {
    text::Utf8Stream characters;
    std::string text;
    for (const TokenId id : tokens) text += characters.push(tokenizer.decode(id));
    return text + characters.flush();
}

Fit fit(const text::Tokenizer &tokenizer, std::span<const Segment> segments, std::string_view text, size_t at,
        std::span<const TokenId> tokens) {
    Fit longest{0, at};
    text::Utf8Stream characters;
    size_t count = 0;
    for (size_t end = at; count < tokens.size(); ++count) {
        const TokenId id = tokens[count];
        const bool is_control = id < 0 || id >= tokenizer.size() || tokenizer.is_control(id);
        const std::string bytes = is_control ? std::string(tokenizer.piece(id)) : tokenizer.decode(id);
        const std::string whole = characters.push(bytes);
        if (bytes.empty() || !text.substr(end).starts_with(whole)) break;
        if (is_control && !is_special(segments, end, end + whole.size())) break;
        end += whole.size();
        if (text::Utf8Stream(characters).flush().empty()) longest = {count + 1, end};
    }
    // The template may trim the blanks at the end, and with them a part of the last token.
    std::string rest = rest_of(tokenizer, tokens.subspan(longest.tokens));
    rest.erase(rest.find_last_not_of(" \t\r\n") + 1);
    return text.substr(longest.end).starts_with(rest) ? longest : Fit{0, at};
}

}  // namespace

PromptMark mark_of(std::span<const Segment> segments) {
    base::Checksum sum;
    uint64_t bytes = 0;
    for (const Segment &segment : segments) {
        sum.add(std::as_bytes(std::span(segment.text)));
        bytes += segment.text.size();
    }
    return {bytes, sum.value()};
}

std::vector<TokenId> encode(const text::Tokenizer &tokenizer, std::span<const Segment> segments,
                            std::span<const WrittenAnswer> answers) {
    const bool adds_end = tokenizer.encode("").size() > (tokenizer.adds_bos() ? 1 : 0);
    if (answers.empty() || adds_end) return tokenizer.encode(segments);
    const std::string text = text_of(segments);
    std::vector<TokenId> ids;
    size_t at = 0, summed = 0;
    base::Checksum sum;  // of the first `summed` bytes
    const auto append_text = [&](size_t end) {
        const std::vector<TokenId> more = tokenizer.encode(
            part(segments, at, end), {.add_special = at == 0, .parse_special = false, .continues = at > 0});
        ids.insert(ids.end(), more.begin(), more.end());
        at = end;
    };
    for (const WrittenAnswer &answer : answers) {
        const uint64_t begin = answer.after.bytes;
        if (begin == 0 || begin < std::max(at, summed) || begin > text.size()) continue;
        sum.add(std::as_bytes(std::span(text).subspan(summed, static_cast<size_t>(begin) - summed)));
        summed = static_cast<size_t>(begin);
        if (sum.value() != answer.after.sum) continue;
        const Fit found = fit(tokenizer, segments, text, summed, answer.tokens);
        if (found.tokens == 0) continue;
        append_text(summed);
        ids.insert(ids.end(), answer.tokens.begin(),
                   answer.tokens.begin() + static_cast<std::ptrdiff_t>(found.tokens));
        at = found.end;
    }
    append_text(text.size());
    return ids;
}

}  // namespace runnel::completion
