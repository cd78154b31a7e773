// The methods of Python's str, list, dict and numbers that the sandbox allows.
#pragma once

#include <string_view>

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

using Method = Value (*)(Runtime &runtime, const Value &self, Arguments &arguments);

// Null if the value has no such method.
Method find_method(const Value &value, std::string_view name);
// Methods that would modify a value: they exist, but templates must not call them.
bool is_mutating(const Value &value, std::string_view name);

struct NamedMethod {
    std::string_view name;
    Method method;
};

// The tables of find_method(), by type.
Method find_string_method(std::string_view name);
Method find_collection_method(const Value &value, std::string_view name);

// str.format(): {} {0} {name} {0.attribute} {0[key]} with !s, !r and format specifications.
Value format_method(Runtime &runtime, const Value &self, Arguments &arguments);

// str.strip() and its variants: which side, and which characters (null: white space).
enum class Side : uint8_t { Left, Right, Both };
MarkedText strip(Runtime &runtime, const MarkedText &text, Side side, const Value *characters);
// str.splitlines().
std::vector<Value> split_lines(Runtime &runtime, const MarkedText &text, bool keep_ends);
// str.replace().
MarkedText replace(Runtime &runtime, const MarkedText &text, const MarkedText &from, const MarkedText &to,
                   int64_t most);
// str.center() with blanks.
MarkedText center(Runtime &runtime, const MarkedText &text, int64_t width, const MarkedText &fill);

// An integer argument. Throws TemplateError for another type.
int64_t integer_argument(const Value &value);
const MarkedText &string_argument(const Value &value);
inline bool given(const Value *value) {
    return value && !value->is_none();
}

}  // namespace runnel::text::jinja
