// The methods of str.
#include <algorithm>

#include "engine/text/jinja/access.h"
#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/escape.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/methods.h"
#include "engine/text/jinja/search.h"
#include "engine/text/utf8.h"

namespace runnel::text::jinja {
namespace {

constexpr int64_t kLargest = int64_t{1} << 40;  // largest width: charging its memory then fails

// A string of `text` that is markup if `self` is.
Value like(Runtime &runtime, const Value &self, MarkedText text) {
    return runtime.string(std::move(text), self.string()->markup);
}

// Methods that change single characters keep no marks: a text of two origins becomes content.
template <std::string (*map)(std::string_view)>
Value mapped(Runtime &runtime, const Value &self, Arguments &arguments) {
    bind("str method", arguments, {});
    runtime.work(self.text().size() * 4);
    return like(runtime, self, MarkedText(map(self.text().view()), self.text().origin()));
}

template <Side side>
Value strip_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("strip", arguments, {"chars"});
    return like(runtime, self, strip(runtime, self.text(), side, given(bound[0]) ? bound[0] : nullptr));
}

// The text between two character indices, in bytes.
struct Window {
    size_t begin, end;
    bool is_valid;  // false: the start is after the end of the text
};
Window window(Runtime &runtime, const MarkedText &text, const Value *start, const Value *end) {
    if (!given(start) && !given(end)) return {0, text.size(), true};
    runtime.work(text.size() * 8);
    const auto offsets = character_offsets(text.view());
    const auto length = static_cast<int64_t>(offsets.size() - 1);
    const auto index = [&](const Value *value, int64_t preset) {
        const int64_t at = given(value) ? integer_argument(*value) : preset;
        return at < 0 ? std::max<int64_t>(at, -length) + length : at;
    };
    const int64_t first = index(start, 0), last = std::min(index(end, length), length);
    if (first > length || first > last) return {0, 0, false};
    return {offsets[static_cast<size_t>(first)], offsets[static_cast<size_t>(last)], true};
}

Value found_at(const MarkedText &text, size_t byte) {
    if (byte == kNotFound) return Value::integer(-1);
    return Value::integer(static_cast<int64_t>(count_characters(text.view().substr(0, byte))));
}

template <bool last>
Value find_method_of(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind(last ? "rfind" : "find", arguments, {"sub", "start", "end"}, 1);
    const std::string_view wanted = string_argument(*bound[0]).view();
    const Window range = window(runtime, self.text(), bound[1], bound[2]);
    if (!range.is_valid) return Value::integer(-1);
    runtime.work(self.text().size() * 2 + wanted.size());
    const std::string_view part = self.text().view().substr(range.begin, range.end - range.begin);
    const size_t at = last ? find_last(part, wanted) : find(part, wanted);
    return found_at(self.text(), at == kNotFound ? at : at + range.begin);
}

template <bool last>
Value index_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    Value at = find_method_of<last>(runtime, self, arguments);
    if (at.integer() < 0) fail("substring not found");
    return at;
}

Value count_substrings(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("count", arguments, {"sub", "start", "end"}, 1);
    const std::string_view wanted = string_argument(*bound[0]).view();
    const Window range = window(runtime, self.text(), bound[1], bound[2]);
    if (!range.is_valid) return Value::integer(0);
    runtime.work(self.text().size() + wanted.size());
    const std::string_view part = self.text().view().substr(range.begin, range.end - range.begin);
    if (wanted.empty()) return Value::integer(static_cast<int64_t>(count_characters(part)) + 1);
    int64_t count = 0;
    for (size_t at = find(part, wanted); at != kNotFound; at = find(part, wanted, at + wanted.size()))
        ++count;
    return Value::integer(count);
}

template <bool ends>
Value affix_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind(ends ? "endswith" : "startswith", arguments, {"prefix", "start", "end"}, 1);
    const Window range = window(runtime, self.text(), bound[1], bound[2]);
    const std::string_view part = self.text().view().substr(range.begin, range.end - range.begin);
    const auto matches = [&](const Value &affix) {
        const std::string_view text = string_argument(affix).view();
        runtime.work(text.size());
        return range.is_valid && (ends ? part.ends_with(text) : part.starts_with(text));
    };
    const Value &affix = *bound[0];
    if (!affix.is(Type::Sequence) || affix.sequence()->kind != Sequence::Kind::Tuple)
        return Value::boolean(matches(affix));
    const auto &items = affix.sequence()->items;
    return Value::boolean(std::any_of(items.begin(), items.end(), matches));
}

template <bool suffix>
Value remove_affix(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("removeprefix", arguments, {"prefix"}, 1);
    const std::string_view affix = string_argument(*bound[0]).view(), text = self.text().view();
    runtime.work(affix.size());
    if (suffix ? !text.ends_with(affix) : !text.starts_with(affix)) return self;
    return like(runtime, self, self.text().substr(suffix ? 0 : affix.size(), text.size() - affix.size()));
}

// Splits at white space, with none left at the ends: pieces as [begin, end) in bytes.
using Pieces = std::vector<std::pair<size_t, size_t>>;

Pieces words(Runtime &runtime, std::string_view text, int64_t most) {
    Pieces pieces;
    size_t at = leading_space(text);
    while (at < text.size()) {
        runtime.charge(Runtime::kStringOverhead);
        if (most >= 0 && static_cast<int64_t>(pieces.size()) == most) {
            pieces.emplace_back(at, text.size());  // including the white space after it
            break;
        }
        size_t end = at;
        while (end < text.size()) {
            const Utf8Char c = first_char(text.substr(end));
            if (c.valid && is_space(c.code_point)) break;
            end += c.bytes;
        }
        pieces.emplace_back(at, end);
        at = end + leading_space(text.substr(end));
    }
    return pieces;
}

Pieces words_from_right(Runtime &runtime, std::string_view text, int64_t most) {
    Pieces all = words(runtime, text, -1);
    if (most < 0 || static_cast<int64_t>(all.size()) <= most) return all;
    const size_t joined = all.size() - static_cast<size_t>(most);
    // The remainder extends from the first word to the last one that is not split off.
    Pieces pieces = {{0, all[joined - 1].second}};
    pieces.insert(pieces.end(), all.begin() + static_cast<std::ptrdiff_t>(joined), all.end());
    return pieces;
}

Pieces fields(Runtime &runtime, std::string_view text, std::string_view separator, int64_t most) {
    if (separator.empty()) fail("empty separator");
    Pieces pieces;
    size_t begin = 0;
    runtime.work(text.size());
    while (most < 0 || static_cast<int64_t>(pieces.size()) < most) {
        const size_t at = find(text, separator, begin);
        if (at == kNotFound) break;
        runtime.charge(Runtime::kStringOverhead);
        pieces.emplace_back(begin, at);
        begin = at + separator.size();
    }
    pieces.emplace_back(begin, text.size());
    return pieces;
}

Pieces fields_from_right(Runtime &runtime, std::string_view text, std::string_view separator, int64_t most) {
    const std::string backwards(text.rbegin(), text.rend()), reversed(separator.rbegin(), separator.rend());
    Pieces pieces = fields(runtime, backwards, reversed, most);
    for (auto &[begin, end] : pieces) {
        const size_t first = text.size() - end;
        end = text.size() - begin;
        begin = first;
    }
    std::reverse(pieces.begin(), pieces.end());
    return pieces;
}

Value list_of(Runtime &runtime, const Value &self, const Pieces &pieces) {
    runtime.charge_items(pieces.size());
    std::vector<Value> items;
    items.reserve(pieces.size());
    for (const auto &[begin, end] : pieces)
        items.push_back(like(runtime, self, self.text().substr(begin, end - begin)));
    return Value::list(std::move(items));
}

template <bool from_right>
Value split_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("split", arguments, {"sep", "maxsplit"});
    const int64_t most = bound[1] ? integer_argument(*bound[1]) : -1;
    const std::string_view text = self.text().view();
    runtime.work(text.size() * 4);
    if (!given(bound[0]))
        return list_of(runtime, self,
                       from_right ? words_from_right(runtime, text, most) : words(runtime, text, most));
    const std::string_view separator = string_argument(*bound[0]).view();
    return list_of(runtime, self,
                   from_right ? fields_from_right(runtime, text, separator, most)
                              : fields(runtime, text, separator, most));
}

template <bool from_right>
Value partition_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("partition", arguments, {"sep"}, 1);
    const MarkedText &separator = string_argument(*bound[0]);
    if (separator.empty()) fail("empty separator");
    runtime.work(self.text().size() * 2);
    const std::string_view text = self.text().view();
    const size_t at = from_right ? find_last(text, separator.view()) : find(text, separator.view());
    const auto part = [&](size_t begin, size_t end) {
        return like(runtime, self, self.text().substr(begin, end - begin));
    };
    if (at == kNotFound) {
        const Value empty = like(runtime, self, MarkedText());
        return from_right ? Value::tuple({empty, empty, self}) : Value::tuple({self, empty, empty});
    }
    const size_t behind = at + separator.size();
    return Value::tuple({part(0, at), part(at, behind), part(behind, text.size())});
}

Value splitlines_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("splitlines", arguments, {"keepends"});
    return Value::list(split_lines(runtime, self.text(), bound[0] && is_true(*bound[0])));
}

Value replace_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("replace", arguments, {"old", "new", "count"}, 2);
    return like(runtime, self,
                replace(runtime, self.text(), string_argument(*bound[0]), string_argument(*bound[1]),
                        bound[2] ? integer_argument(*bound[2]) : -1));
}

Value join_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("join", arguments, {"iterable"}, 1);
    const std::shared_ptr<const Sequence> items = sequence_of(runtime, *bound[0]);
    MarkedText result;
    for (size_t i = 0; i < items->items.size(); ++i) {
        const Value &item = items->items[i];
        if (!item.is_string())
            fail("sequence item " + std::to_string(i) + ": expected str instance, " +
                 std::string(type_name(item)) + " found");
        runtime.charge(item.text().size() + self.text().size());
        if (i > 0) result.append(self.text());
        result.append(item.text());
    }
    return like(runtime, self, std::move(result));
}

// Adds blanks, or another character, before and after.
MarkedText padded(Runtime &runtime, const MarkedText &text, size_t before, size_t after,
                  const MarkedText &fill) {
    runtime.charge(text.size());
    MarkedText result;
    const auto add = [&](size_t count) {
        runtime.charge(std::min<size_t>(count, kLargest) * fill.size());
        for (size_t i = 0; i < count; ++i) result.append(fill);
    };
    add(before);
    result.append(text);
    add(after);
    return result;
}

size_t missing_width(const MarkedText &text, int64_t width) {
    const auto length = static_cast<int64_t>(count_characters(text.view()));
    return static_cast<size_t>(std::max<int64_t>(std::min(width, kLargest) - length, 0));
}

MarkedText fill_argument(const Value *value) {
    if (!value) return MarkedText(" ");
    const MarkedText &fill = string_argument(*value);
    if (count_characters(fill.view()) != 1) fail("The fill character must be exactly one character long");
    return fill;
}

Value center_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("center", arguments, {"width", "fillchar"}, 1);
    return like(runtime, self,
                center(runtime, self.text(), integer_argument(*bound[0]), fill_argument(bound[1])));
}

template <bool left>
Value justify_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind(left ? "ljust" : "rjust", arguments, {"width", "fillchar"}, 1);
    const size_t missing = missing_width(self.text(), integer_argument(*bound[0]));
    return like(
        runtime, self,
        padded(runtime, self.text(), left ? 0 : missing, left ? missing : 0, fill_argument(bound[1])));
}

Value zfill_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("zfill", arguments, {"width"}, 1);
    const size_t missing = missing_width(self.text(), integer_argument(*bound[0]));
    const bool has_sign = self.text().view().starts_with('-') || self.text().view().starts_with('+');
    MarkedText result = self.text().substr(0, has_sign ? 1 : 0);
    result.append(padded(runtime, self.text().substr(has_sign ? 1 : 0), missing, 0, MarkedText("0")));
    return like(runtime, self, std::move(result));
}

Value expandtabs_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("expandtabs", arguments, {"tabsize"});
    const int64_t size = bound[0] ? std::min(integer_argument(*bound[0]), kLargest) : 8;
    MarkedText result;
    int64_t column = 0;
    std::string_view rest = self.text().view();
    for (size_t at = 0; !rest.empty();) {
        const Utf8Char c = first_char(rest);
        if (c.code_point == '\t') {
            const int64_t blanks = size > 0 ? size - column % size : 0;
            runtime.charge(static_cast<size_t>(blanks));
            result.append(std::string(static_cast<size_t>(blanks), ' '), Origin::Template);
            column += blanks;
        } else {
            runtime.charge(c.bytes);
            result.append(self.text(), at, c.bytes);
            column = c.code_point == '\n' || c.code_point == '\r' ? 0 : column + 1;
        }
        at += c.bytes;
        rest.remove_prefix(c.bytes);
    }
    return like(runtime, self, std::move(result));
}

bool is_alphanumeric(uint32_t c) {
    return is_word(c) && c != '_';
}
bool is_ascii(uint32_t c) {
    return c < 0x80;
}
bool is_numeric(uint32_t c) {
    return is_alphanumeric(c) && !is_alphabetic(c);
}

// isalpha() and the like: at least one character, and all of this kind.
template <bool (*kind)(uint32_t), bool of_empty = false>
Value all_are(Runtime &runtime, const Value &self, Arguments &arguments) {
    bind("str method", arguments, {});
    runtime.work(self.text().size());
    std::string_view rest = self.text().view();
    if (rest.empty()) return Value::boolean(of_empty);
    while (!rest.empty()) {
        const Utf8Char c = first_char(rest);
        if (!c.valid || !kind(c.code_point)) return Value::boolean(false);
        rest.remove_prefix(c.bytes);
    }
    return Value::boolean(true);
}

// isupper(), islower(): at least one letter of this case, none of the other.
template <bool (*wanted)(uint32_t), bool (*other)(uint32_t)>
Value has_case(Runtime &runtime, const Value &self, Arguments &arguments) {
    bind("str method", arguments, {});
    runtime.work(self.text().size());
    bool found = false;
    for (std::string_view rest = self.text().view(); !rest.empty();) {
        const Utf8Char c = first_char(rest);
        if (other(c.code_point)) return Value::boolean(false);
        found |= wanted(c.code_point);
        rest.remove_prefix(c.bytes);
    }
    return Value::boolean(found);
}

Value istitle_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    bind("istitle", arguments, {});
    runtime.work(self.text().size() * 4);
    const std::string_view text = self.text().view();
    return Value::boolean(title(text) == text && lower(text) != text);
}

constexpr NamedMethod kStringMethods[] = {
    {"strip", strip_method<Side::Both>},
    {"split", split_method<false>},
    {"lstrip", strip_method<Side::Left>},
    {"rstrip", strip_method<Side::Right>},
    {"startswith", affix_method<false>},
    {"endswith", affix_method<true>},
    {"replace", replace_method},
    {"upper", mapped<upper>},
    {"lower", mapped<lower>},
    {"title", mapped<title>},
    {"capitalize", mapped<capitalize>},
    {"swapcase", mapped<swap_case>},
    {"casefold", mapped<lower>},
    {"join", join_method},
    {"find", find_method_of<false>},
    {"rfind", find_method_of<true>},
    {"index", index_method<false>},
    {"rindex", index_method<true>},
    {"count", count_substrings},
    {"rsplit", split_method<true>},
    {"splitlines", splitlines_method},
    {"partition", partition_method<false>},
    {"rpartition", partition_method<true>},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"center", center_method},
    {"ljust", justify_method<true>},
    {"rjust", justify_method<false>},
    {"zfill", zfill_method},
    {"expandtabs", expandtabs_method},
    {"format", format_method},
    {"isalpha", all_are<is_alphabetic>},
    {"isdigit", all_are<is_decimal>},
    {"isdecimal", all_are<is_decimal>},
    {"isnumeric", all_are<is_numeric>},
    {"isalnum", all_are<is_alphanumeric>},
    {"isspace", all_are<is_space>},
    {"isascii", all_are<is_ascii, true>},
    {"isupper", has_case<is_upper, is_lower>},
    {"islower", has_case<is_lower, is_upper>},
    {"istitle", istitle_method},
};

// The length of the line end at the start of `text`, as str.splitlines() defines it; 0: none.
size_t line_end(std::string_view text) {
    if (text.starts_with("\r\n")) return 2;
    const Utf8Char c = first_char(text);
    const uint32_t code = c.code_point;
    const bool ends = (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
                      code == 0x2028 || code == 0x2029;
    return ends ? c.bytes : 0;
}

}  // namespace

Method find_string_method(std::string_view name) {
    const auto *const found = std::find_if(std::begin(kStringMethods), std::end(kStringMethods),
                                           [&](const NamedMethod &entry) { return entry.name == name; });
    return found == std::end(kStringMethods) ? nullptr : found->method;
}

MarkedText strip(Runtime &runtime, const MarkedText &text, Side side, const Value *characters) {
    runtime.work(text.size());
    std::string_view rest = text.view();
    size_t begin = 0;
    if (!characters) {
        begin = side == Side::Right ? 0 : leading_space(rest);
        rest.remove_prefix(begin);
        if (side != Side::Left) rest.remove_suffix(trailing_space(rest));
        return text.substr(begin, rest.size());
    }
    const std::string_view set = string_argument(*characters).view();
    const auto offsets = character_offsets(rest);
    size_t first = 0, last = offsets.size() - 1;
    const auto strips = [&](size_t i) {
        const std::string_view character = rest.substr(offsets[i], offsets[i + 1] - offsets[i]);
        runtime.work(set.size() + 64);
        return set.find(character) != set.npos;
    };
    while (side != Side::Right && first < last && strips(first)) ++first;
    while (side != Side::Left && last > first && strips(last - 1)) --last;
    return text.substr(offsets[first], offsets[last] - offsets[first]);
}

std::vector<Value> split_lines(Runtime &runtime, const MarkedText &text, bool keep_ends) {
    std::vector<Value> lines;
    const std::string_view all = text.view();
    size_t begin = 0;
    for (size_t at = 0; at < all.size();) {
        const size_t end = line_end(all.substr(at));
        if (end == 0) {
            at += first_char(all.substr(at)).bytes;
            continue;
        }
        lines.push_back(runtime.string(text.substr(begin, at - begin + (keep_ends ? end : 0))));
        runtime.charge_items(1);
        begin = at += end;
    }
    if (begin < all.size()) lines.push_back(runtime.string(text.substr(begin)));
    return lines;
}

MarkedText replace(Runtime &runtime, const MarkedText &text, const MarkedText &from, const MarkedText &to,
                   int64_t most) {
    runtime.work(text.size());
    runtime.charge(text.size());
    MarkedText result;
    size_t at = 0;
    const bool between = from.empty();  // before every character, and at the end
    for (int64_t done = 0; most < 0 || done < most; ++done) {
        const size_t found = find(text.view(), from.view(), at);
        if (found == kNotFound) break;
        runtime.charge(to.size() + 16);
        result.append(text, at, found - at);
        result.append(to);
        at = found + from.size();
        if (!between) continue;
        if (at == text.size()) return result;
        const size_t bytes = first_char(text.view().substr(at)).bytes;
        result.append(text, at, bytes);
        at += bytes;
    }
    result.append(text, at, SIZE_MAX);
    return result;
}

MarkedText center(Runtime &runtime, const MarkedText &text, int64_t width, const MarkedText &fill) {
    const size_t missing = missing_width(text, width);
    // Python puts the extra one to the left if the width is odd.
    const size_t before = missing / 2 + (missing & static_cast<size_t>(width) & 1);
    return padded(runtime, text, before, missing - before, fill);
}

int64_t integer_argument(const Value &value) {
    if (is_integral(value)) return as_integer(value);
    require_defined(value);
    fail("'" + std::string(type_name(value)) + "' object cannot be interpreted as an integer");
}

const MarkedText &string_argument(const Value &value) {
    if (value.is_string()) return value.text();
    require_defined(value);
    fail("expected str, not '" + std::string(type_name(value)) + "'");
}

}  // namespace runnel::text::jinja
