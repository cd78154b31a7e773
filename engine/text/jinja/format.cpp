#include "engine/text/jinja/format.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/text/jinja/characters.h"
#include "engine/text/utf8.h"

namespace runnel::text::jinja {
namespace {

using Kind = Sequence::Kind;

std::string hex(uint32_t value, int digits) {
    std::string text;
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
        text += "0123456789abcdef"[value >> shift & 15];
    return text;
}

// str.isprintable(): all characters except control, format, private and separator ones; the blank is printable.
bool is_printable(uint32_t c) {
    if (c < 0x80) return c >= 0x20 && c < 0x7f;
    const auto kind = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return kind != UTF8PROC_CATEGORY_CN && kind < UTF8PROC_CATEGORY_ZS;
}

// Writes a container as one text. Its origin is Content if any string in it is.
class Writer {
  public:
    explicit Writer(Runtime &runtime) : runtime_(runtime) {}

    void repr(const Value &value);
    MarkedText take() && { return MarkedText(std::move(out_), origin_); }

  private:
    void write(std::string_view text) {
        runtime_.charge(text.size());
        out_ += text;
    }
    void repr_string(const String &string);
    void repr_sequence(const Sequence &sequence);
    void repr_dict(const Dict &dict);
    void repr_items(const std::vector<Value> &items, std::string_view open, std::string_view close);

    Runtime &runtime_;
    std::string out_;
    Origin origin_ = Origin::Template;
};

std::string escaped(uint32_t c) {
    if (c == '\n') return "\\n";
    if (c == '\r') return "\\r";
    if (c == '\t') return "\\t";
    return c < 0x100 ? "\\x" + hex(c, 2) : c < 0x10000 ? "\\u" + hex(c, 4) : "\\U" + hex(c, 8);
}

void Writer::repr_string(const String &string) {
    if (string.text.origin() == Origin::Content) origin_ = Origin::Content;
    std::string_view text = string.text.view();
    const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
    std::string result = string.markup ? "Markup(" : "";
    result += quote;
    while (!text.empty()) {
        const Utf8Char c = first_char(text);
        if (c.code_point == '\\' || c.code_point == static_cast<uint32_t>(quote))
            (result += '\\') += text[0];
        else if (c.valid && !is_printable(c.code_point))
            result += escaped(c.code_point);
        else
            result += text.substr(0, c.bytes);
        text.remove_prefix(c.bytes);
    }
    result += quote;
    write(string.markup ? result + ")" : result);
}

void Writer::repr_items(const std::vector<Value> &items, std::string_view open, std::string_view close) {
    write(open);
    for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) write(", ");
        repr(items[i]);
    }
    write(close);
}

void Writer::repr_sequence(const Sequence &sequence) {
    switch (sequence.kind) {
        case Kind::List:
            return repr_items(sequence.items, "[", "]");
        case Kind::Tuple:
            return repr_items(sequence.items, "(", sequence.items.size() == 1 ? ",)" : ")");
        case Kind::Keys:
            return repr_items(sequence.items, "dict_keys([", "])");
        case Kind::Values:
            return repr_items(sequence.items, "dict_values([", "])");
        case Kind::Items:
            return repr_items(sequence.items, "dict_items([", "])");
        case Kind::Range:
            return write("range(" + std::to_string(sequence.start) + ", " + std::to_string(sequence.stop) +
                         (sequence.stride != 1 ? ", " + std::to_string(sequence.stride) : "") + ")");
        case Kind::Iterator:
            return write("<generator object>");
    }
}

void Writer::repr_dict(const Dict &dict) {
    write("{");
    for (size_t i = 0; i < dict.size(); ++i) {
        if (i > 0) write(", ");
        repr(dict.entries()[i].key);
        write(": ");
        repr(dict.entries()[i].value);
    }
    write("}");
}

void Writer::repr(const Value &value) {
    const Runtime::Deeper deeper(runtime_);
    runtime_.step();
    switch (value.type()) {
        case Type::Undefined:
            if (value.undefined().unsafe) fail_undefined(value.undefined());
            return write("Undefined");
        case Type::None:
            return write("None");
        case Type::Boolean:
            return write(value.boolean() ? "True" : "False");
        case Type::Integer:
            return write(std::to_string(value.integer()));
        case Type::Float:
            return write(float_text(value.number()));
        case Type::String:
            return repr_string(*value.string());
        case Type::Sequence:
            return repr_sequence(*value.sequence());
        case Type::Dict:
            return repr_dict(*value.dict());
        case Type::Namespace:
            write("<Namespace ");
            repr_dict(value.name_space()->attributes);
            return write(">");
        case Type::Function:
            return write("<" + std::string(value.function()->type_name) + " " + value.function()->name + ">");
        case Type::Loop:
            return write("<LoopContext " + std::to_string(value.loop()->index + 1) + "/" +
                         std::to_string(value.loop()->items->items.size()) + ">");
        case Type::Cycler:
            return write("<Cycler>");
    }
}

class JsonWriter {
  public:
    JsonWriter(Runtime &runtime, const JsonStyle &style) : runtime_(runtime), style_(style) {}

    void value(const Value &value);
    MarkedText take() && { return MarkedText(std::move(out_), origin_); }

  private:
    void write(std::string_view text) {
        runtime_.charge(text.size());
        out_ += text;
    }
    void string(const MarkedText &text);
    void key(const Value &key);
    void list(const std::vector<Value> &items);
    void dict(const Dict &dict);
    void new_line() {
        if (!style_.indent) return;
        write("\n");
        for (size_t i = 0; i < level_; ++i) write(*style_.indent);
    }
    // Writes the items of a non-empty list or dict with brackets around them.
    template <class Item>
    void items(size_t count, const char *brackets, const Item &item) {
        write({brackets, 1});
        ++level_;
        for (size_t i = 0; i < count; ++i) {
            if (i > 0) write(style_.item_separator);
            new_line();
            item(i);
        }
        --level_;
        if (count > 0) new_line();
        write({brackets + 1, 1});
    }

    Runtime &runtime_;
    const JsonStyle &style_;
    std::string out_;
    Origin origin_ = Origin::Template;
    size_t level_ = 0;
};

void append_json_character(std::string &result, uint32_t c) {
    switch (c) {
        case '"':
            result += "\\\"";
            break;
        case '\\':
            result += "\\\\";
            break;
        case '\n':
            result += "\\n";
            break;
        case '\r':
            result += "\\r";
            break;
        case '\t':
            result += "\\t";
            break;
        case '\f':
            result += "\\f";
            break;
        case '\b':
            result += "\\b";
            break;
        default:
            if (c > 0xffff)
                result +=
                    "\\u" + hex(0xd800 + ((c - 0x10000) >> 10), 4) + "\\u" + hex(0xdc00 + (c & 0x3ff), 4);
            else
                result += "\\u" + hex(c, 4);
    }
}

void JsonWriter::string(const MarkedText &text) {
    if (text.origin() == Origin::Content) origin_ = Origin::Content;
    std::string result = "\"";
    std::string_view rest = text.view();
    const auto is_plain = [&](char c) {
        return c != '"' && c != '\\' && static_cast<uint8_t>(c) >= 0x20 &&
               (!style_.ensure_ascii || static_cast<uint8_t>(c) < 0x80);
    };
    while (!rest.empty()) {
        const auto end = std::find_if_not(rest.begin(), rest.end(), is_plain);
        result.append(rest.begin(), end);
        rest.remove_prefix(static_cast<size_t>(end - rest.begin()));
        if (rest.empty()) break;
        const Utf8Char c = first_char(rest);
        append_json_character(result, c.code_point);
        rest.remove_prefix(c.bytes);
    }
    write(result += '"');
}

void JsonWriter::key(const Value &key) {
    if (key.is_string()) return string(key.text());
    if (key.type() > Type::Float || key.is_undefined())
        fail("keys must be str, int, float, bool or None, not " + std::string(type_name(key)));
    write("\"");
    value(key);
    write("\"");
}

void JsonWriter::list(const std::vector<Value> &list) {
    items(list.size(), "[]", [&](size_t i) { value(list[i]); });
}

void JsonWriter::dict(const Dict &dict) {
    std::vector<const Dict::Entry *> entries;
    for (const Dict::Entry &entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys)
        std::stable_sort(entries.begin(), entries.end(),
                         [&](const auto *a, const auto *b) { return compare(runtime_, a->key, b->key) < 0; });
    items(entries.size(), "{}", [&](size_t i) {
        key(entries[i]->key);
        write(style_.key_separator);
        value(entries[i]->value);
    });
}

void JsonWriter::value(const Value &value) {
    const Runtime::Deeper deeper(runtime_);
    runtime_.step();
    switch (value.type()) {
        case Type::None:
            return write("null");
        case Type::Boolean:
            return write(value.boolean() ? "true" : "false");
        case Type::Integer:
            return write(std::to_string(value.integer()));
        case Type::Float:
            if (std::isnan(value.number())) return write("NaN");
            if (std::isinf(value.number())) return write(value.number() > 0 ? "Infinity" : "-Infinity");
            return write(float_text(value.number()));
        case Type::String:
            return string(value.text());
        case Type::Dict:
            return dict(*value.dict());
        default:
            if (value.is(Type::Sequence) && value.sequence()->kind <= Kind::Tuple)
                return list(value.sequence()->items);
            if (value.is_undefined() && value.undefined().unsafe) fail_undefined(value.undefined());
            fail("Object of type " + std::string(type_name(value)) + " is not JSON serializable");
    }
}

}  // namespace

MarkedText to_text(Runtime &runtime, const Value &value) {
    if (value.is_string()) return value.text();
    if (value.is_undefined() && !value.undefined().unsafe) return {};
    return to_repr(runtime, value);
}

void append_text(Runtime &runtime, MarkedText &out, const Value &value) {
    if (value.is_string()) {
        runtime.charge(value.text().size());
        out.append(value.text());
    } else {
        out.append(to_text(runtime, value));
    }
}

MarkedText to_repr(Runtime &runtime, const Value &value) {
    Writer writer(runtime);
    writer.repr(value);
    return std::move(writer).take();
}

std::string float_text(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    char buffer[40];
    // Digits and exponent of the shortest form; Python's rule then selects the notation.
    const auto scientific =
        std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
    const std::string_view text(buffer, static_cast<size_t>(scientific.ptr - buffer));
    const size_t mark = text.find('e');
    int exponent = 0;
    std::from_chars(text.data() + mark + (text[mark + 1] == '+' ? 2 : 1), text.data() + text.size(),
                    exponent);
    if (exponent < -4 || exponent >= 16) return std::string(text);
    const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
    std::string result(buffer, fixed.ptr);
    if (result.find('.') == result.npos) result += ".0";
    return result;
}

MarkedText to_json(Runtime &runtime, const Value &value, const JsonStyle &style) {
    JsonWriter writer(runtime, style);
    writer.value(value);
    return std::move(writer).take();
}

}  // namespace runnel::text::jinja
