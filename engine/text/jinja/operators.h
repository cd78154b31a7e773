// Python's operators.
#pragma once

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// All throw TemplateError where Python raises. Integers have 64 bits; overflow is an error.
Value binary(Runtime &runtime, BinaryOp op, const Value &left, const Value &right);
Value negative(const Value &operand);
Value positive(const Value &operand);
// `needle in haystack`.
bool contains(Runtime &runtime, const Value &haystack, const Value &needle);
bool compares(Runtime &runtime, CompareOp op, const Value &left, const Value &right);

// "%s is %d" % (...), % value or % {...}.
Value percent_format(Runtime &runtime, const Value &format, const Value &arguments);

}  // namespace runnel::text::jinja
