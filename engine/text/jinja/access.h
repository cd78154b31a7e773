// Reaching into values: attributes, items, slices, iteration.
#pragma once

#include <optional>
#include <vector>

#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// value.name: a method first, then an item. Undefined when there is none.
Value attribute(Runtime &runtime, const Value &value, const StringRef &name);
// value[index]: an item first, then a method.
Value item(Runtime &runtime, const Value &value, const Value &index);
// value[start:stop:step]; None stands for "not given".
Value slice(Runtime &runtime, const Value &value, const Value &start, const Value &stop, const Value &step);

// All items: of a string its characters, of a dict its keys; an iterator is used up. Throws TemplateError for
// what cannot be walked over.
std::vector<Value> items_of(Runtime &runtime, const Value &value);
// The same where they are at hand already: no copy for lists.
std::shared_ptr<const Sequence> sequence_of(Runtime &runtime, const Value &value);

// Python's len(). Throws TemplateError.
int64_t length_of(Runtime &runtime, const Value &value);

// "a.b.0": what the filters call an attribute: items of items, as item() finds them.
Value attribute_path(Runtime &runtime, const Value &value, const Value &path);

}  // namespace runnel::text::jinja
