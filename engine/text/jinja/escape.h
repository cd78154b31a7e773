// HTML escapes, for templates that call `escape` or append to a `safe` string.
#pragma once

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// Replaces & < > ' " like markupsafe.
MarkedText escape_html(Runtime &runtime, const MarkedText &text);
// `escape`: markup is returned unchanged; other values as escaped text.
Value escaped(Runtime &runtime, const Value &value);

}  // namespace runnel::text::jinja
