// Filters on numbers and on values of any kind; find_filter().
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "engine/text/jinja/access.h"
#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/methods.h"

namespace runnel::text::jinja {
namespace {

Value default_filter(Runtime &, const Value &input, Arguments &arguments) {
    const auto bound = bind("default", arguments, {"default_value", "boolean"});
    const bool also_false = bound[1] && is_true(*bound[1]);
    const bool replaces =
        (input.is_undefined() && !input.undefined().unsafe) || (also_false && !is_true(input));
    if (!replaces) return input;
    return bound[0] ? *bound[0] : Value::string(std::string());
}

std::optional<std::string> indent_argument(Runtime &runtime, const Value *value) {
    if (!given(value)) return std::nullopt;
    if (value->is_string()) return value->text().bytes();
    const int64_t width = std::max<int64_t>(integer_argument(*value), 0);
    runtime.charge(static_cast<size_t>(width));
    return std::string(static_cast<size_t>(width), ' ');
}

// Hugging Face's version: json.dumps(), not Jinja's, which escapes for HTML.
Value tojson_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
    JsonStyle style;
    style.ensure_ascii = bound[0] && is_true(*bound[0]);
    style.indent = indent_argument(runtime, bound[1]);
    style.sort_keys = bound[3] && is_true(*bound[3]);
    if (style.indent) style.item_separator = ",";
    if (given(bound[2])) {
        const auto separators = sequence_of(runtime, *bound[2]);
        if (separators->items.size() != 2) fail("tojson: separators must be two strings");
        style.item_separator = string_argument(separators->items[0]).bytes();
        style.key_separator = string_argument(separators->items[1]).bytes();
    }
    return runtime.string(to_json(runtime, input, style));
}

// A number in the syntax of int() and float(): white space around it, single "_" between digits.
std::string number_text(const Value &value) {
    std::string_view text = value.text().view();
    text.remove_prefix(leading_space(text));
    text.remove_suffix(trailing_space(text));
    if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
    std::string digits;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto is_digit = [&](size_t at) {
            return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at]));
        };
        if (text[i] == '_' && i > 0 && is_digit(i - 1) && is_digit(i + 1)) continue;
        digits += text[i];
    }
    return digits;
}

std::optional<double> parse_float(const Value &value) {
    const std::string text = number_text(value);
    double number = 0;
    const char *const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc::result_out_of_range && rest == end) return std::strtod(text.c_str(), nullptr);
    if (error != std::errc() || rest != end || text.empty()) return std::nullopt;
    return number;
}

std::optional<int64_t> parse_integer(const Value &value, int64_t base) {
    if (base != 0 && (base < 2 || base > 36)) fail("int() base must be >= 2 and <= 36, or 0");
    std::string text = number_text(value);
    const bool negative = text.starts_with('-');
    std::string_view digits = std::string_view(text).substr(negative ? 1 : 0);
    const auto skip = [&](char low, char high, int64_t of) {
        if ((base != 0 && base != of) || digits.size() < 3 || digits[0] != '0') return;
        if (digits[1] != low && digits[1] != high) return;
        digits.remove_prefix(2);
        base = of;
    };
    skip('x', 'X', 16), skip('o', 'O', 8), skip('b', 'B', 2);
    if (base == 0) base = 10;
    uint64_t size = 0;
    const char *const end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, size, static_cast<int>(base));
    if (error == std::errc::result_out_of_range || (error == std::errc() && size > INT64_MAX))
        fail("this number does not fit into 64 bits");
    if (error != std::errc() || rest != end || digits.empty()) return std::nullopt;
    return negative ? -static_cast<int64_t>(size) : static_cast<int64_t>(size);
}

int64_t truncated(double number) {
    if (std::isnan(number)) fail("cannot convert float NaN to integer");
    if (!(std::fabs(number) < 0x1p63)) fail("this number does not fit into 64 bits");
    return static_cast<int64_t>(number);
}

Value int_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("int", arguments, {"default", "base"});
    const Value preset = bound[0] ? *bound[0] : Value::integer(0);
    if (input.is_string()) {
        runtime.work(input.text().size());
        if (const auto number = parse_integer(input, bound[1] ? integer_argument(*bound[1]) : 10))
            return Value::integer(*number);
        const auto number = parse_float(input);
        return number && std::isfinite(*number) ? Value::integer(truncated(*number)) : preset;
    }
    if (is_integral(input)) return Value::integer(as_integer(input));
    if (input.is(Type::Float))
        return std::isnan(input.number()) ? preset : Value::integer(truncated(input.number()));
    require_defined(input);
    return preset;
}

Value float_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("float", arguments, {"default"});
    if (is_number(input)) return Value::number(as_double(input));
    if (input.is_string()) {
        runtime.work(input.text().size());
        if (const auto number = parse_float(input)) return Value::number(*number);
    }
    require_defined(input);
    return bound[0] ? *bound[0] : Value::number(0);
}

// Python's round(): correct for the binary value; exact halves round to even.
double rounded(double value, int64_t precision) {
    if (!std::isfinite(value) || precision > 330) return value;
    if (precision < 0) {
        const double scale = std::pow(10.0, static_cast<double>(std::min<int64_t>(-precision, 400)));
        return std::isfinite(scale) ? std::nearbyint(value / scale) * scale : 0.0;
    }
    char text[700];
    std::snprintf(text, sizeof text, "%.*f", static_cast<int>(precision), value);
    return std::strtod(text, nullptr);
}

Value round_filter(Runtime &, const Value &input, Arguments &arguments) {
    const auto bound = bind("round", arguments, {"precision", "method"});
    const int64_t precision = bound[0] ? integer_argument(*bound[0]) : 0;
    const std::string_view method = bound[1] ? string_argument(*bound[1]).view() : "common";
    if (method != "common" && method != "ceil" && method != "floor")
        fail("method must be common, ceil or floor");
    if (!is_number(input))
        fail("type " + std::string(type_name(require_defined(input))) + " doesn't define __round__ method");
    if (method == "common") {
        if (input.is(Type::Float)) return Value::number(rounded(input.number(), precision));
        if (precision >= 0) return Value::integer(as_integer(input));
        return Value::integer(truncated(rounded(as_double(input), precision)));
    }
    const double scale = std::pow(10.0, static_cast<double>(precision)), value = as_double(input) * scale;
    return Value::number((method == "ceil" ? std::ceil(value) : std::floor(value)) / scale);
}

Value abs_filter(Runtime &, const Value &input, Arguments &arguments) {
    bind("abs", arguments, {});
    if (input.is(Type::Float)) return Value::number(std::fabs(input.number()));
    if (!is_integral(input))
        fail("bad operand type for abs(): '" + std::string(type_name(require_defined(input))) + "'");
    const int64_t value = as_integer(input);
    if (value == INT64_MIN) fail("this number does not fit into 64 bits");
    return Value::integer(value < 0 ? -value : value);
}

// Finds only Python's attributes: methods, not the items of a dict.
Value attr_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("attr", arguments, {"name"}, 1);
    const MarkedText &name = string_argument(*bound[0]);
    if (input.is(Type::Dict) && !find_method(input, name.view()) && !is_mutating(input, name.view()))
        return Undefined{bound[0]->string(), Type::Dict};
    return attribute(runtime, input, bound[0]->string());
}

Value filesizeformat_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("filesizeformat", arguments, {"binary"});
    const bool binary = bound[0] && is_true(*bound[0]);
    Arguments none;
    const double bytes = float_filter(runtime, input, none).number(), base = binary ? 1024 : 1000;
    if (bytes == 1) return Value::string(std::string("1 Byte"));
    if (bytes < base) return Value::string(std::to_string(truncated(bytes)) + " Bytes");
    constexpr const char *decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    constexpr const char *powers[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    size_t i = 0;
    double unit = base;
    while (i < 7 && bytes >= unit * base) unit *= base, ++i;
    char text[400];
    std::snprintf(text, sizeof text, "%.1f %s", bytes / unit, (binary ? powers : decimal)[i]);
    return Value::string(std::string(text));
}

constexpr NamedFilter kValueFilters[] = {
    {"tojson", tojson_filter}, {"default", default_filter}, {"d", default_filter},
    {"int", int_filter},       {"float", float_filter},     {"round", round_filter},
    {"abs", abs_filter},       {"attr", attr_filter},       {"filesizeformat", filesizeformat_filter},
};

}  // namespace

std::span<const NamedFilter> value_filters() {
    return kValueFilters;
}

FilterFunction find_filter(std::string_view name) {
    for (const auto table : {value_filters(), text_filters(), sequence_filters()})
        for (const NamedFilter &entry : table)
            if (entry.name == name) return entry.function;
    return nullptr;
}

}  // namespace runnel::text::jinja
