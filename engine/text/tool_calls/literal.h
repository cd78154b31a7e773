// Converts values in the notation of Python or of Gemma 4 to JSON.
#pragma once

#include <optional>

#include "engine/text/json.h"
#include "engine/text/tool_calls/cursor.h"

namespace runnel::text {

enum class LiteralStyle {
    Python,  // 'a', "a", True, None, tuples, and JSON's true, false, null
    Fields,  // <|"|>a<|"|>, {key:value}; strings have no escapes
};

// The value that begins here; nullopt if it is malformed or nested too deeply.
std::optional<Json> take_literal(Cursor &cursor, LiteralStyle style);
// The arguments of a call, after its opening parenthesis, including the closing one: "a=1, b=2)".
std::optional<Json> take_python_arguments(Cursor &cursor);
// An object of Gemma 4: "{a:1,b:<|"|>x<|"|>}".
std::optional<Json> take_fields(Cursor &cursor);

}  // namespace runnel::text
