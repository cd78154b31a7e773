// Access to the contents of values: attributes, items, slices, iteration.
#pragma once

#include <optional>
#include <vector>

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// value.name: a method first, then an item. Undefined if there is neither.
Value attribute(Runtime &runtime, const Value &value, const StringRef &name);
// value[index]: an item first, then a method.
Value item(Runtime &runtime, const Value &value, const Value &index);
// value[start:stop:step]; None stands for an omitted bound.
Value slice(Runtime &runtime, const Value &value, const Value &start, const Value &stop, const Value &step);

// All items: characters of a string, keys of a dict; an iterator is consumed. Throws TemplateError if
// the value is not iterable.
std::vector<Value> items_of(Runtime &runtime, const Value &value);
// Like items_of(), but a list is not copied.
std::shared_ptr<const Sequence> sequence_of(Runtime &runtime, const Value &value);

// Python's len(). Throws TemplateError.
int64_t length_of(Runtime &runtime, const Value &value);

// "a.b.0", the attribute argument of filters: nested items, found as by item().
Value attribute_path(Runtime &runtime, const Value &value, const Value &path);

}  // namespace runnel::text::jinja
