// Jinja's built-in tests: `value is name(arguments)`.
#pragma once

#include <string_view>

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// Throws TemplateError for an input or argument that the test does not accept.
using TestFunction = bool (*)(Runtime &runtime, const Value &input, Arguments &arguments);

// Null for an unknown name.
TestFunction find_test(std::string_view name);

}  // namespace runnel::text::jinja
