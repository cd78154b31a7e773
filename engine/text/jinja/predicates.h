// The tests: value is name(arguments).
#pragma once

#include <string_view>

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// Throws TemplateError for what the test does not take.
using TestFunction = bool (*)(Runtime &runtime, const Value &input, Arguments &arguments);

// Null when there is none of that name.
TestFunction find_test(std::string_view name);

}  // namespace runnel::text::jinja
