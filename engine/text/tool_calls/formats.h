// How models write tool calls: a table of the formats in use.
//
// A call has a name and arguments, an answer one or more calls. A row of the table holds the marks around them;
// `body` says how the arguments are written. To add a format, add a row: parsing, constraining and detection
// (parse.h, grammar/tool_grammar.h, detect.h) follow it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::text {

// Around strings in Body::Fields.
inline constexpr std::string_view kFieldQuote = "<|\"|>";

struct ToolFormat {
    enum class Body {
        Object,      // before {"name": N, "arguments": A} after
        List,        // before [{"name": N, "arguments": A}, ..] after
        Named,       // before N between A after
        Parameters,  // before N between (parameter K value V end_value).. after
        Python,      // before [N(K=V, ..), ..] after
        Fields,      // before N{K:V, ..} after; strings between <|"|>, no escapes
    };
    std::string_view name;  // in messages
    Body body;
    // Marks around each call (List and Python: around the whole list). A constrained model writes the white
    // space in a mark exactly; the parser accepts any, or none, in its place.
    std::string_view before = {}, between = {}, after = {};
    std::string_view open = {}, close = {};  // around all calls; empty: nothing
    std::string_view short_before = {};      // what some models write instead of `before`
    bool bare = false;                       // `before` may be absent: a call is the whole answer
    std::string_view name_key = "name", arguments_key = "arguments",
                     id_key = {};                                 // Object and List: the keys
    std::string_view id_mark = {};                                // Named: stands between the name and an id
    std::string_view parameter = {}, value = {}, end_value = {};  // Parameters: the marks of one parameter
    bool typed = false;    // `value` is followed by true or false (whether it is a string) and ">
    bool counted = false;  // Named: a colon and a number follow the name
    bool repeats = true;   // more than one call in an answer
    // Named: what stands in the place of a name before text. The prompt then ends with `before`, so an answer begins
    // with a name, or with this and a newline.
    std::string_view text_name = {};

    // First words of the marks that begin calls in a text; empty for a format without such marks.
    std::vector<std::string_view> triggers() const;
    // Whether a control token with this text is part of a mark.
    bool is_mark(std::string_view piece) const;
};

// The most specific first: a template's format is the first one that can read what it writes.
std::span<const ToolFormat> tool_formats();
// Null for a name that is not in the table.
const ToolFormat *find_tool_format(std::string_view name);

// `text` without the white space at its ends.
std::string_view trimmed(std::string_view text);
// The first word of `mark`.
std::string_view first_word(std::string_view mark);
// Calls f(word) for each word of `mark`, in order, until one call returns false. True if none did.
template <class F>
bool all_words(std::string_view mark, F f) {
    for (mark = trimmed(mark); !mark.empty(); mark = trimmed(mark)) {
        const std::string_view word = first_word(mark);
        if (!f(word)) return false;
        mark.remove_prefix(word.size());
    }
    return true;
}

}  // namespace runnel::text
