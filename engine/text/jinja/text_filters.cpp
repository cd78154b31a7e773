// Filters on text.
#include <algorithm>

#include "engine/text/jinja/access.h"
#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/escape.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/methods.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/utf8.h"

namespace runnel::text::jinja {
namespace {

// Strings unchanged (including whether they are markup), everything else as {{ }} prints it.
Value soft_text(Runtime &runtime, const Value &input) {
    return input.is_string() ? input : runtime.string(to_text(runtime, input));
}

// A method of str as a filter.
Value call_method(Runtime &runtime, const char *name, const Value &input, Arguments &arguments) {
    const Value text = soft_text(runtime, input);
    return find_method(text, name)(runtime, text, arguments);
}

Value upper_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    return call_method(runtime, "upper", input, arguments);
}

Value lower_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    return call_method(runtime, "lower", input, arguments);
}

Value capitalize_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    return call_method(runtime, "capitalize", input, arguments);
}

Value trim_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    return call_method(runtime, "strip", input, arguments);
}

// A capital after white space and - ( { [ <, unlike str.title().
Value title_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("title", arguments, {});
    const Value text = soft_text(runtime, input);
    runtime.work(text.text().size() * 4);
    const auto separates = [](uint32_t c) {
        return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    };
    std::string result;
    std::string_view rest = text.text().view();
    while (!rest.empty()) {
        size_t end = 0;
        while (end < rest.size()) {
            const Utf8Char c = first_char(rest.substr(end));
            if (separates(c.code_point)) break;
            end += c.bytes;
        }
        if (end == 0) {
            const size_t bytes = first_char(rest).bytes;
            result += rest.substr(0, bytes);
            rest.remove_prefix(bytes);
            continue;
        }
        const size_t first = first_char(rest).bytes;
        result += upper(rest.substr(0, first)) + lower(rest.substr(first, end - first));
        rest.remove_prefix(end);
    }
    return runtime.string(MarkedText(std::move(result), text.text().origin()));
}

Value replace_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("replace", arguments, {"old", "new", "count"}, 2);
    return runtime.string(replace(runtime, to_text(runtime, input), to_text(runtime, *bound[0]),
                                  to_text(runtime, *bound[1]),
                                  given(bound[2]) ? integer_argument(*bound[2]) : -1));
}

Value indent_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("indent", arguments, {"width", "first", "blank"});
    MarkedText indention;
    if (bound[0] && bound[0]->is_string())
        indention = bound[0]->text();
    else
        indention =
            center(runtime, MarkedText(), bound[0] ? integer_argument(*bound[0]) : 4, MarkedText(" "));
    const bool first = bound[1] && is_true(*bound[1]), blank = bound[2] && is_true(*bound[2]);
    MarkedText text = string_argument(input);
    text.append("\n", Origin::Template);
    const std::vector<Value> lines = split_lines(runtime, text, false);
    MarkedText result;
    for (size_t i = 0; i < lines.size(); ++i) {
        const MarkedText &line = lines[i].text();
        runtime.charge(line.size() + indention.size() + 1);
        if (i > 0) result.append("\n", Origin::Template);
        if (i == 0 ? first : blank || !line.empty()) result.append(indention);
        result.append(line);
    }
    return runtime.string(std::move(result), input.string()->markup);
}

Value center_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("center", arguments, {"width"});
    const Value text = soft_text(runtime, input);
    const int64_t width = bound[0] ? integer_argument(*bound[0]) : 80;
    return runtime.string(center(runtime, text.text(), width, MarkedText(" ")), text.string()->markup);
}

Value wordcount_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("wordcount", arguments, {});
    const Value text = soft_text(runtime, input);
    runtime.work(text.text().size());
    int64_t count = 0;
    bool inside = false;
    for (std::string_view rest = text.text().view(); !rest.empty();) {
        const Utf8Char c = first_char(rest);
        const bool word = c.valid && is_word(c.code_point);
        count += word && !inside;
        inside = word;
        rest.remove_prefix(c.bytes);
    }
    return Value::integer(count);
}

Value truncate_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("truncate", arguments, {"length", "killwords", "end", "leeway"});
    const MarkedText end = bound[2] ? string_argument(*bound[2]) : MarkedText("...");
    const int64_t length = bound[0] ? integer_argument(*bound[0]) : 255;
    const int64_t leeway = given(bound[3]) ? integer_argument(*bound[3]) : 5;
    const auto end_length = static_cast<int64_t>(count_characters(end.view()));
    if (length < end_length || leeway < 0) fail("truncate: this length or leeway is too small");
    const MarkedText &text = string_argument(input);
    runtime.work(text.size() * 8);
    const auto offsets = character_offsets(text.view());
    const auto size = static_cast<int64_t>(offsets.size() - 1);
    if (size <= leeway || size - leeway <= length) return input;
    MarkedText result = text.substr(0, offsets[static_cast<size_t>(length - end_length)]);
    const size_t blank = result.view().rfind(' ');
    if (!(bound[1] && is_true(*bound[1])) && blank != std::string_view::npos) result.truncate(blank);
    result.append(end);
    return runtime.string(std::move(result));
}

Value string_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("string", arguments, {});
    return soft_text(runtime, input);
}

Value safe_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("safe", arguments, {});
    return runtime.string(to_text(runtime, input), true);
}

Value escape_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("escape", arguments, {});
    return escaped(runtime, input);
}

Value forceescape_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("forceescape", arguments, {});
    return runtime.string(escape_html(runtime, to_text(runtime, input)), true);
}

// Removes comments and tags, and collapses white space.
Value striptags_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("striptags", arguments, {});
    MarkedText text = to_text(runtime, input);
    runtime.charge(text.size());
    for (const auto &[open, close] :
         {std::pair<std::string_view, std::string_view>("<!--", "-->"), {"<", ">"}}) {
        MarkedText kept;
        size_t at = 0;
        while (at < text.size()) {
            const size_t begin = std::min(text.view().find(open, at), text.size());
            const size_t end = begin < text.size() ? text.view().find(close, begin) : std::string_view::npos;
            if (end == std::string_view::npos) break;
            kept.append(text, at, begin - at);
            at = end + close.size();
        }
        kept.append(text, at, SIZE_MAX);
        text = std::move(kept);
    }
    Arguments none, words;
    const Value whole = runtime.string(std::move(text));
    words.positional.push_back(find_method(whole, "split")(runtime, whole, none));
    Value result = find_method(whole, "join")(runtime, Value::string(" "), words);
    for (const auto &[escape, character] :
         {std::pair("&lt;", "<"), std::pair("&gt;", ">"), std::pair("&#39;", "'"), std::pair("&#34;", "\""),
          std::pair("&amp;", "&")})
        result =
            runtime.string(replace(runtime, result.text(), MarkedText(escape), MarkedText(character), -1));
    return result;
}

MarkedText url_quoted(Runtime &runtime, const Value &value, bool in_query) {
    const MarkedText text = to_text(runtime, value);
    runtime.charge(text.size() * 3);
    std::string result;
    for (const char c : text.view()) {
        const auto byte = static_cast<uint8_t>(c);
        const bool plain =
            (byte < 0x80 && is_word(byte)) || c == '-' || c == '.' || c == '~' || (c == '/' && !in_query);
        if (plain)
            result += c;
        else if (c == ' ' && in_query)
            result += '+';
        else
            result += {'%', "0123456789ABCDEF"[byte >> 4], "0123456789ABCDEF"[byte & 15]};
    }
    return MarkedText(std::move(result), text.origin());
}

Value urlencode_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("urlencode", arguments, {});
    if (!input.is(Type::Dict) && !input.is(Type::Sequence))
        return runtime.string(url_quoted(runtime, input, false));
    MarkedText result;
    const auto add = [&](const Value &key, const Value &value) {
        if (!result.empty()) result.append("&", Origin::Template);
        result.append(url_quoted(runtime, key, true));
        result.append("=", Origin::Template);
        result.append(url_quoted(runtime, value, true));
    };
    if (input.is(Type::Dict)) {
        for (const Dict::Entry &entry : input.dict()->entries()) add(entry.key, entry.value);
    } else {
        const auto pairs = sequence_of(runtime, input);
        for (const Value &pair : pairs->items) {
            const auto parts = sequence_of(runtime, pair);
            if (parts->items.size() != 2) fail("urlencode requires pairs");
            add(parts->items[0], parts->items[1]);
        }
    }
    return runtime.string(std::move(result));
}

Value format_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    if (!arguments.positional.empty() && !arguments.keyword.empty())
        fail("can't handle positional and keyword arguments at the same time");
    const Value text = soft_text(runtime, input);
    if (arguments.keyword.empty()) return percent_format(runtime, text, Value::tuple(arguments.positional));
    auto values = std::make_shared<Dict>();
    for (const auto &[name, value] : arguments.keyword) values->set(Value(name), value);
    return percent_format(runtime, text, Value(std::shared_ptr<const Dict>(values)));
}

Value xmlattr_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("xmlattr", arguments, {"autospace"});
    if (!input.is(Type::Dict)) fail("xmlattr requires a mapping");
    MarkedText result;
    for (const Dict::Entry &entry : input.dict()->entries()) {
        if (entry.value.is_none() || entry.value.is_undefined()) continue;
        if (string_argument(entry.key).view().find_first_of(" \t\n\v\f\r/>=") != std::string_view::npos)
            fail("Invalid character in attribute name");
        if (!result.empty() || !bound[0] || is_true(*bound[0])) result.append(" ", Origin::Template);
        result.append(escaped(runtime, entry.key).text());
        result.append("=\"", Origin::Template);
        result.append(escaped(runtime, entry.value).text());
        result.append("\"", Origin::Template);
    }
    return runtime.string(std::move(result));
}

constexpr NamedFilter kTextFilters[] = {
    {"trim", trim_filter},
    {"upper", upper_filter},
    {"lower", lower_filter},
    {"title", title_filter},
    {"capitalize", capitalize_filter},
    {"replace", replace_filter},
    {"indent", indent_filter},
    {"string", string_filter},
    {"safe", safe_filter},
    {"escape", escape_filter},
    {"e", escape_filter},
    {"forceescape", forceescape_filter},
    {"center", center_filter},
    {"wordcount", wordcount_filter},
    {"truncate", truncate_filter},
    {"striptags", striptags_filter},
    {"urlencode", urlencode_filter},
    {"format", format_filter},
    {"xmlattr", xmlattr_filter},
};

}  // namespace

std::span<const NamedFilter> text_filters() {
    return kTextFilters;
}

}  // namespace runnel::text::jinja
