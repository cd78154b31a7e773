// HTML escapes, for the templates that call `escape` or add to what is `safe`.
#pragma once

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// & < > ' " as markupsafe writes them.
MarkedText escape_html(Runtime &runtime, const MarkedText &text);
// `escape`: what is markup already stays; other values as text.
Value escaped(Runtime &runtime, const Value &value);

}  // namespace runnel::text::jinja
