// The functions that every template can call.
#pragma once

#include <string_view>

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// range, dict, namespace, cycler, joiner, raise_exception, strftime_now; undefined for other names.
Value global_function(std::string_view name);

}  // namespace runnel::text::jinja
