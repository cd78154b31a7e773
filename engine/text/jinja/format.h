// Converts values to text: the output of {{ }}, and JSON as written by Python's json.dumps.
#pragma once

#include <optional>
#include <string>

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// Python's str(): strings unchanged, containers with the repr() of their items.
MarkedText to_text(Runtime &runtime, const Value &value);
// Appends the text; strings are not copied first.
void append_text(Runtime &runtime, MarkedText &out, const Value &value);
MarkedText to_repr(Runtime &runtime, const Value &value);

// Python's repr() of a float: the shortest digits that round-trip; with an exponent
// from 1e+16 on and below 1e-4.
std::string float_text(double value);

struct JsonStyle {
    std::optional<std::string> indent;  // of one level; without it, all output is one line
    std::string item_separator = ", ", key_separator = ": ";
    bool ensure_ascii = false, sort_keys = false;
};
// json.dumps(). Throws TemplateError for a value that JSON cannot represent.
MarkedText to_json(Runtime &runtime, const Value &value, const JsonStyle &style);

}  // namespace runnel::text::jinja
