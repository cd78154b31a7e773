// The filters: value | name(arguments).
#pragma once

#include <span>
#include <string_view>

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// Throws TemplateError for an input or argument that the filter does not accept.
using FilterFunction = Value (*)(Runtime &runtime, const Value &input, Arguments &arguments);

// Null for an unknown name.
FilterFunction find_filter(std::string_view name);

// The tables of find_filter(), by the kind of value that they work on.
struct NamedFilter {
    std::string_view name;
    FilterFunction function;
};
std::span<const NamedFilter> text_filters();
std::span<const NamedFilter> sequence_filters();
std::span<const NamedFilter> value_filters();

}  // namespace runnel::text::jinja
