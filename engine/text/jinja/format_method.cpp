// str.format().
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "engine/text/jinja/access.h"
#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/methods.h"

namespace runnel::text::jinja {
namespace {

constexpr int64_t kMaxField = 10000;  // width or precision

// [[fill]align][sign][#][0][width][,][.precision][type]
struct Specification {
    std::string fill = " ";
    char align = '\0', sign = '-', kind = '\0';
    bool alternate = false, thousands = false;
    int64_t width = 0, precision = -1;
};

int64_t take_number(std::string_view &text) {
    int64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value > kMaxField) fail("a field of format() is too wide");
    text.remove_prefix(static_cast<size_t>(rest - text.data()));
    return value;
}

bool begins_with_align(std::string_view text) {
    return !text.empty() && std::string_view("<>^=").find(text[0]) != std::string_view::npos;
}

bool begins_with_digit(std::string_view text) {
    return !text.empty() && text[0] >= '0' && text[0] <= '9';
}

Specification parse_specification(std::string_view text) {
    Specification spec;
    const size_t first = text.empty() ? 0 : character_offsets(text.substr(0, 4))[1];
    if (first > 0 && begins_with_align(text.substr(first))) {
        spec.fill = text.substr(0, first);
        text.remove_prefix(first);
    }
    const auto take = [&](std::string_view set) {
        if (text.empty() || set.find(text[0]) == set.npos) return '\0';
        const char c = text[0];
        text.remove_prefix(1);
        return c;
    };
    if (begins_with_align(text)) spec.align = take("<>^=");
    if (const char sign = take("+- ")) spec.sign = sign;
    spec.alternate = take("#") != '\0';
    if (take("0")) {
        spec.fill = spec.align ? spec.fill : "0";
        spec.align = spec.align ? spec.align : '=';
    }
    if (begins_with_digit(text)) spec.width = take_number(text);
    spec.thousands = take(",") != '\0';
    if (take(".")) {
        if (!begins_with_digit(text)) fail("Format specifier missing precision");
        spec.precision = take_number(text);
    }
    spec.kind = text.size() == 1 ? text[0] : '\0';
    if (text.size() > 1) fail("Invalid format specifier");
    return spec;
}

void insert_thousands(std::string &digits) {
    const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
    for (size_t at = whole; at > 3; at -= 3) digits.insert(at - 3, ",");
}

class Formatter {
  public:
    Formatter(Runtime &runtime, const Value &self, Arguments &arguments)
        : runtime_(runtime), format_(self.text()), arguments_(arguments) {}

    MarkedText run() {
        const std::string_view text = format_.view();
        while (at_ < text.size()) {
            const size_t brace = std::min(text.find_first_of("{}", at_), text.size());
            runtime_.charge(brace - at_ + 1);
            result_.append(format_, at_, brace - at_);
            at_ = brace;
            if (at_ == text.size()) break;
            if (at_ + 1 < text.size() && text[at_ + 1] == text[at_]) {
                result_.append(format_, at_, 1);
                at_ += 2;
            } else if (text[at_] == '}') {
                fail("Single '}' encountered in format string");
            } else {
                field();
            }
        }
        return std::move(result_);
    }

  private:
    void field() {
        const size_t end = format_.view().find('}', at_);
        if (end == std::string_view::npos) fail("expected '}' before end of string");
        std::string_view inside = format_.view().substr(at_ + 1, end - at_ - 1);
        at_ = end + 1;
        if (inside.find('{') != inside.npos) fail("format() with fields within fields is not supported");
        const size_t colon = std::min(inside.find(':'), inside.size());
        const Specification spec = parse_specification(inside.substr(std::min(colon + 1, inside.size())));
        std::string_view name = inside.substr(0, colon);
        const size_t mark = std::min(name.find('!'), name.size());
        const std::string_view conversion = name.substr(mark);
        Value value = look_up(name.substr(0, mark));
        if (conversion == "!r" || conversion == "!a")
            value = runtime_.string(to_repr(runtime_, value));
        else if (conversion == "!s")
            value = runtime_.string(to_text(runtime_, value));
        else if (!conversion.empty())
            fail("Unknown conversion specifier in format()");
        write(spec, value);
    }

    Value look_up(std::string_view name) {
        const size_t end = std::min(name.find_first_of(".["), name.size());
        Value value = argument(name.substr(0, end));
        name.remove_prefix(end);
        while (!name.empty()) {
            const bool by_item = name[0] == '[';
            const size_t close =
                by_item ? name.find(']') : std::min(name.find_first_of(".[", 1), name.size());
            if (close == name.npos) fail("Missing ']' in format string");
            const std::string_view part = name.substr(1, close - 1);
            const Value key = Value::string(std::string(part));
            value = by_item ? item(runtime_, value, begins_with_digit(part) ? index_of(part) : key)
                            : attribute(runtime_, value, key.string());
            require_defined(value);
            name.remove_prefix(close + (by_item ? 1 : 0));
        }
        return value;
    }

    static Value index_of(std::string_view text) {
        const int64_t index = take_number(text);
        return Value::integer(index);
    }

    Value argument(std::string_view name) {
        if (name.empty() || begins_with_digit(name)) {
            const auto index = static_cast<size_t>(name.empty() ? next_++ : take_number(name));
            if (index >= arguments_.positional.size())
                fail("Replacement index out of range for positional args tuple");
            return arguments_.positional[index];
        }
        for (const auto &[key, value] : arguments_.keyword)
            if (key->text.view() == name) return value;
        fail("format() has no argument '" + std::string(name) + "'");
    }

    void write(const Specification &spec, const Value &value) {
        const bool is_numeric = is_number(value) && !(value.is(Type::Boolean) && spec.kind == '\0');
        if (!is_numeric) {
            MarkedText text = to_text(runtime_, value);
            if (spec.kind != '\0' && spec.kind != 's') fail("Unknown format code for a str");
            if (spec.precision >= 0) {
                const auto offsets = character_offsets(text.view());
                if (static_cast<size_t>(spec.precision) + 1 < offsets.size())
                    text.truncate(offsets[static_cast<size_t>(spec.precision)]);
            }
            return pad(spec, {}, text, spec.align ? spec.align : '<');
        }
        const bool negative = is_integral(value) ? as_integer(value) < 0 : std::signbit(value.number());
        const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
        std::string digits = digits_of(spec, value);
        if (spec.thousands) insert_thousands(digits);
        pad(spec, sign, MarkedText(std::move(digits)), spec.align ? spec.align : '>');
    }

    // The digits without the sign.
    static std::string digits_of(const Specification &spec, const Value &value) {
        const bool based = spec.kind == 'x' || spec.kind == 'X' || spec.kind == 'o' || spec.kind == 'b';
        if (is_integral(value) && (spec.kind == '\0' || spec.kind == 'd' || based)) {
            const int64_t number = as_integer(value);
            const uint64_t size =
                number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
            char buffer[80];
            const int base = spec.kind == 'o' ? 8 : spec.kind == 'b' ? 2 : based ? 16 : 10;
            std::string digits(buffer, std::to_chars(buffer, buffer + sizeof buffer, size, base).ptr);
            if (spec.kind == 'X') digits = upper(digits);
            if (spec.alternate && based) digits.insert(0, {'0', spec.kind});
            return digits;
        }
        const double number = std::fabs(as_double(value));
        if (spec.kind == '\0' && spec.precision < 0) return float_text(number);
        const char kind = spec.kind == '%' ? 'f' : spec.kind == '\0' ? 'g' : spec.kind;
        if (std::string_view("eEfFgG").find(kind) == std::string_view::npos)
            fail("Unknown format code for a number");
        const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
        std::string digits(static_cast<size_t>(precision) + 340, '\0');
        const std::string pattern = std::string("%.*") + kind;
        digits.resize(
            static_cast<size_t>(std::snprintf(digits.data(), digits.size(), pattern.c_str(), precision,
                                              spec.kind == '%' ? number * 100 : number)));
        return spec.kind == '%' ? digits + "%" : digits;
    }

    void pad(const Specification &spec, const std::string &sign, const MarkedText &text, char align) {
        const auto length = static_cast<int64_t>(count_characters(text.view()) + sign.size());
        const int64_t missing = std::max<int64_t>(spec.width - length, 0);
        runtime_.charge(text.size() + static_cast<size_t>(missing) * spec.fill.size());
        const int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
        const auto fill = [&](int64_t count) {
            for (int64_t i = 0; i < count; ++i) result_.append(spec.fill, format_.origin());
        };
        if (align != '=') fill(before);
        result_.append(sign, Origin::Template);
        if (align == '=') fill(before);
        result_.append(text);
        fill(missing - before);
    }

    Runtime &runtime_;
    const MarkedText &format_;
    Arguments &arguments_;
    size_t at_ = 0;
    int64_t next_ = 0;
    MarkedText result_;
};

}  // namespace

Value format_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    return runtime.string(Formatter(runtime, self, arguments).run());
}

}  // namespace runnel::text::jinja
