// Values that are written as in Python, or as Gemma 4 writes them, as JSON.
#pragma once

#include <optional>

#include "engine/text/json.h"
#include "engine/text/tool_calls/cursor.h"

namespace runnel::text {

enum class LiteralStyle {
    Python,  // 'a', "a", True, None, tuples, and JSON's true, false, null
    Fields,  // <|"|>a<|"|>, {key:value}; strings have no escapes
};

// The value that begins here, or nothing. Bounded in depth.
std::optional<Json> take_literal(Cursor &cursor, LiteralStyle style);
// "a=1, b=2)": the arguments of a call, whose opening bracket was taken, with the closing one.
std::optional<Json> take_python_arguments(Cursor &cursor);
// "{a:1,b:<|"|>x<|"|>}"
std::optional<Json> take_fields(Cursor &cursor);

}  // namespace runnel::text
