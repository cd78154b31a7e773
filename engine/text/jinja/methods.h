// The methods of Python's str, list, dict and numbers, as far as the sandbox lets templates use them.
#pragma once

#include <string_view>

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

using Method = Value (*)(Runtime &runtime, const Value &self, Arguments &arguments);

// Null when the value has no such method.
Method find_method(const Value &value, std::string_view name);
// Those that would change a value: they exist, but templates must not call them.
bool is_mutating(const Value &value, std::string_view name);

// What find_method() asks.
Method find_string_method(std::string_view name);
Method find_collection_method(const Value &value, std::string_view name);

// str.format(): {} {0} {name} {0.attribute} {0[key]} with !s, !r and format specifications.
Value format_method(Runtime &runtime, const Value &self, Arguments &arguments);

// str.strip() and its relatives: from which side, and what (white space when null).
enum class Side : uint8_t { Left, Right, Both };
MarkedText strip(Runtime &runtime, const MarkedText &text, Side side, const Value *characters);
// str.splitlines().
std::vector<Value> split_lines(Runtime &runtime, const MarkedText &text, bool keep_ends);
// str.replace().
MarkedText replace(Runtime &runtime, const MarkedText &text, const MarkedText &from, const MarkedText &to,
                   int64_t most);
// str.center() with blanks.
MarkedText center(Runtime &runtime, const MarkedText &text, int64_t width, const MarkedText &fill);

// An integer argument. Throws TemplateError for what is none.
int64_t integer_argument(const Value &value);
const MarkedText &string_argument(const Value &value);
inline bool given(const Value *value) {
    return value && !value->is_none();
}

}  // namespace runnel::text::jinja
