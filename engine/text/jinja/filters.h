// The filters: value | name(arguments).
#pragma once

#include <span>
#include <string_view>

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// Throws TemplateError for what the filter does not take.
using FilterFunction = Value (*)(Runtime &runtime, const Value &input, Arguments &arguments);

// Null when there is none of that name.
FilterFunction find_filter(std::string_view name);

// The tables that find_filter() looks into, sorted by what they work on.
struct NamedFilter {
    std::string_view name;
    FilterFunction function;
};
std::span<const NamedFilter> text_filters();
std::span<const NamedFilter> sequence_filters();
std::span<const NamedFilter> value_filters();

}  // namespace runnel::text::jinja
