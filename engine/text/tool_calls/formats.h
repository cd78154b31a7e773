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

// Around strings of Fields.
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
    // Around each call (of List and Python: around all of them). A constrained model writes the whitespace in a
    // mark as it stands; any whitespace or none is read in its place.
    std::string_view before = {}, between = {}, after = {};
    std::string_view open = {}, close = {};  // around all calls; empty: nothing
    std::string_view short_before = {};      // what some models write instead of `before`
    bool bare = false;                       // `before` may be absent: a call is the whole answer
    std::string_view name_key = "name", arguments_key = "arguments", id_key = {};  // of Object and List
    std::string_view id_mark = {};                                // Named: between name and an id
    std::string_view parameter = {}, value = {}, end_value = {};  // of Parameters
    bool typed = false;    // `value` is followed by true or false (is it a string?) and ">
    bool counted = false;  // Named: a number follows the name, behind a colon
    bool repeats = true;   // more than one call in an answer

    // The marks with which calls begin in a text; none for what can only be bare.
    std::vector<std::string_view> triggers() const;
    // Whether a control token with this text is part of a mark.
    bool is_mark(std::string_view piece) const;
};

// The most specific first: the first one that can read what a template writes is the template's.
std::span<const ToolFormat> tool_formats();
// Null for a name that is not in the table.
const ToolFormat *find_tool_format(std::string_view name);

// Without whitespace at both ends.
std::string_view trimmed(std::string_view text);
// Up to the first whitespace inside.
std::string_view first_word(std::string_view mark);
// f(word) for the words of a mark in order, until one gives false. True if none did.
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
