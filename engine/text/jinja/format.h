// Values as text: what {{ }} prints, and JSON as Python's json.dumps writes it.
#pragma once

#include <optional>
#include <string>

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// Python's str(): strings as they are, containers with the repr() of their items.
MarkedText to_text(Runtime &runtime, const Value &value);
// Appends it; for strings without a copy.
void append_text(Runtime &runtime, MarkedText &out, const Value &value);
MarkedText to_repr(Runtime &runtime, const Value &value);

// Python's repr() of a float: the shortest digits that give it back; 1e+16 and above, below 1e-4 with an
// exponent.
std::string float_text(double value);

struct JsonStyle {
    std::optional<std::string> indent;  // of one level; without it, all is one line
    std::string item_separator = ", ", key_separator = ": ";
    bool ensure_ascii = false, sort_keys = false;
};
// json.dumps(). Throws TemplateError for what JSON cannot say.
MarkedText to_json(Runtime &runtime, const Value &value, const JsonStyle &style);

}  // namespace runnel::text::jinja
