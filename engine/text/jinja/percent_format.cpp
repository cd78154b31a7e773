// "..." % values: Python's printf-like formatting.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/operators.h"

namespace runnel::text::jinja {
namespace {

constexpr int kMaxPercentField = 10000;  // width or precision

struct Field {
    bool left = false, zero = false, plus = false, blank = false, alternate = false;
    int width = 0, precision = -1;
    char kind = 's';
};

class PercentFormat {
  public:
    PercentFormat(Runtime &runtime, const MarkedText &format, const Value &arguments)
        : runtime_(runtime), format_(format), arguments_(arguments) {
        if (arguments.is(Type::Sequence) && arguments.sequence()->kind == Sequence::Kind::Tuple)
            items_ = arguments.sequence()->items;
        else
            items_ = {arguments};
    }

    MarkedText run() {
        const std::string_view text = format_.view();
        while (at_ < text.size()) {
            const size_t plain = std::min(text.find('%', at_), text.size());
            result_.append(format_, at_, plain - at_);
            at_ = plain + 1;
            if (plain < text.size()) field();
        }
        const bool is_mapping = arguments_.is(Type::Dict);
        if (next_ < items_.size() && !is_mapping)
            fail("not all arguments converted during string formatting");
        return std::move(result_);
    }

  private:
    char take() {
        if (at_ >= format_.size()) fail("incomplete format");
        return format_.view()[at_++];
    }
    char peek() const { return at_ < format_.size() ? format_.view()[at_] : '\0'; }

    const Value &argument() {
        if (key_) {
            const Value *found = arguments_.is(Type::Dict) ? arguments_.dict()->find(*key_) : nullptr;
            if (!found)
                fail(arguments_.is(Type::Dict) ? "KeyError in a format" : "format requires a mapping");
            return *found;
        }
        if (next_ >= items_.size()) fail("not enough arguments for format string");
        return items_[next_++];
    }

    int number() {
        if (peek() == '*') {
            ++at_;
            const Value &value = argument();
            if (!is_integral(value) || as_integer(value) < 0 || as_integer(value) > kMaxPercentField)
                fail("* requires a small integer");
            return static_cast<int>(as_integer(value));
        }
        int value = 0;
        while (peek() >= '0' && peek() <= '9') {
            value = value * 10 + (take() - '0');
            if (value > kMaxPercentField) fail("a field of a format is too wide");
        }
        return value;
    }

    void field() {
        key_.reset();
        if (peek() == '(') {
            const size_t end = format_.view().find(')', at_);
            if (end == std::string_view::npos) fail("incomplete format key");
            key_ = Value::string(format_.substr(at_ + 1, end - at_ - 1));
            at_ = end + 1;
        }
        Field field;
        for (;; ++at_) {
            const char c = peek();
            bool *flag = c == '-'   ? &field.left
                         : c == '0' ? &field.zero
                         : c == '+' ? &field.plus
                         : c == ' ' ? &field.blank
                         : c == '#' ? &field.alternate
                                    : nullptr;
            if (!flag) break;
            *flag = true;
        }
        field.width = number();
        if (peek() == '.') {
            ++at_;
            field.precision = number();
        }
        field.kind = take();
        if (field.kind == '%')
            result_.append("%", Origin::Template);
        else
            convert(field, argument());
    }

    void convert(const Field &field, const Value &value) {
        switch (field.kind) {
            case 's':
                return text(field, to_text(runtime_, require_safe(value)));
            case 'r':
            case 'a':
                return text(field, to_repr(runtime_, value));
            case 'c':
                return text(field, character(value));
            case 'd':
            case 'i':
            case 'u':
                return integer(field, value);
            case 'x':
            case 'X':
            case 'o':
                return based(field, value);
            case 'e':
            case 'E':
            case 'f':
            case 'F':
            case 'g':
            case 'G':
                return floating(field, value);
            default:
                fail("unsupported format character '" + std::string(1, field.kind) + "'");
        }
    }

    static const Value &require_safe(const Value &value) {
        if (value.is_undefined() && value.undefined().unsafe) fail_undefined(value.undefined());
        return value;
    }

    static MarkedText character(const Value &value) {
        if (value.is_string() && count_characters(value.text().view()) == 1) return value.text();
        if (!is_integral(value) || as_integer(value) < 0 || as_integer(value) > 0x10ffff)
            fail("%c requires int or char");
        std::string result;
        append_utf8(result, static_cast<uint32_t>(as_integer(value)));
        return MarkedText(result);
    }

    void text(const Field &field, MarkedText value) {
        if (field.precision >= 0) {
            const auto offsets = character_offsets(value.view());
            const auto most = static_cast<size_t>(field.precision);
            if (most + 1 < offsets.size()) value.truncate(offsets[most]);
        }
        pad(field, value, false);
    }

    void pad(const Field &field, const MarkedText &value, bool number) {
        const size_t length = count_characters(value.view());
        const auto width = static_cast<size_t>(field.width);
        const size_t missing = width > length ? width - length : 0;
        runtime_.charge(value.size() + missing);
        if (number && field.zero && !field.left) {
            const size_t sign = value.view().find_first_not_of("+- ") == 0 ? 0 : 1;
            result_.append(value, 0, sign);
            result_.append(std::string(missing, '0'), Origin::Template);
            result_.append(value, sign, SIZE_MAX);
            return;
        }
        if (!field.left) result_.append(std::string(missing, ' '), Origin::Template);
        result_.append(value);
        if (field.left) result_.append(std::string(missing, ' '), Origin::Template);
    }

    void signed_number(const Field &field, bool is_negative, std::string digits) {
        if (is_negative)
            digits.insert(0, "-");
        else if (field.plus || field.blank)
            digits.insert(0, field.plus ? "+" : " ");
        pad(field, MarkedText(std::move(digits)), true);
    }

    static int64_t to_integer(const Value &value, bool accepts_float) {
        if (is_integral(value)) return as_integer(value);
        if (accepts_float && value.is(Type::Float) && std::fabs(value.number()) < 0x1p62)
            return static_cast<int64_t>(value.number());
        fail("%d format: a real number is required, not " + std::string(type_name(require_defined(value))));
    }

    static std::string with_precision(const Field &field, std::string digits) {
        const auto least = static_cast<size_t>(std::max(field.precision, 0));
        if (digits.size() < least) digits.insert(0, least - digits.size(), '0');
        return digits;
    }

    void integer(const Field &field, const Value &value) {
        const int64_t number = to_integer(value, true);
        std::string digits = std::to_string(number);
        if (number < 0) digits.erase(0, 1);
        signed_number(field, number < 0, with_precision(field, std::move(digits)));
    }

    void based(const Field &field, const Value &value) {
        const int64_t number = to_integer(value, false);
        const uint64_t size =
            number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
        char buffer[32];
        const auto end = std::to_chars(buffer, buffer + sizeof buffer, size, field.kind == 'o' ? 8 : 16).ptr;
        std::string digits = with_precision(field, std::string(buffer, end));
        if (field.alternate) digits.insert(0, field.kind == 'o' ? "0o" : "0x");
        signed_number(field, number < 0, field.kind == 'X' ? upper(digits) : digits);
    }

    void floating(const Field &field, const Value &value) {
        if (!is_number(value))
            fail("must be real number, not " + std::string(type_name(require_defined(value))));
        const double number = as_double(value);
        const std::string spec = std::string(field.alternate ? "%#.*" : "%.*") + field.kind;
        // Up to 309 digits before the point.
        std::string digits(static_cast<size_t>(std::max(field.precision, 6)) + 330, '\0');
        const int length = std::snprintf(digits.data(), digits.size(), spec.c_str(),
                                         field.precision < 0 ? 6 : field.precision, std::fabs(number));
        digits.resize(static_cast<size_t>(length));
        signed_number(field, std::signbit(number), std::move(digits));
    }

    Runtime &runtime_;
    const MarkedText &format_;
    const Value &arguments_;
    std::vector<Value> items_;
    size_t at_ = 0, next_ = 0;
    std::optional<Value> key_;
    MarkedText result_;
};

}  // namespace

Value percent_format(Runtime &runtime, const Value &format, const Value &arguments) {
    runtime.charge(format.text().size());
    return runtime.string(PercentFormat(runtime, format.text(), arguments).run());
}

}  // namespace runnel::text::jinja
