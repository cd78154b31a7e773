#include "engine/text/jinja/functions.h"

#include <algorithm>
#include <ctime>

#include "engine/text/jinja/access.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/methods.h"

namespace runnel::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;  // the limit of Jinja's sandbox

Value range_function(Runtime &runtime, Arguments &arguments) {
    if (arguments.positional.empty()) fail("range expected at least 1 argument, got 0");
    const auto bound = bind("range", arguments, {"start", "stop", "step"}, 1);
    const int64_t first = integer_argument(*bound[0]);
    const int64_t start = bound[1] ? first : 0, stop = bound[1] ? integer_argument(*bound[1]) : first;
    const int64_t step = bound[2] ? integer_argument(*bound[2]) : 1;
    if (step == 0) fail("range() arg 3 must not be zero");
    // Unsigned: the distance between two integers may overflow a signed one.
    const bool is_empty = step > 0 ? start >= stop : start <= stop;
    const uint64_t distance = is_empty   ? 0
                              : step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                         : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
    const uint64_t stride =
        step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
    const uint64_t count = distance == 0 ? 0 : (distance - 1) / stride + 1;
    if (count > static_cast<uint64_t>(kMaxRange))
        fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (" + std::to_string(kMaxRange) +
             ").");
    runtime.charge_items(count);
    std::vector<Value> items;
    items.reserve(count);
    for (uint64_t i = 0; i < count; ++i)
        items.push_back(Value::integer(
            static_cast<int64_t>(static_cast<uint64_t>(start) + i * static_cast<uint64_t>(step))));
    auto range = make_sequence(Sequence::Kind::Range, std::move(items));
    range->start = start, range->stop = stop, range->stride = step;
    return range;
}

// Accepts a mapping or pairs, and then keyword arguments.
Dict dict_of(Runtime &runtime, const char *name, Arguments &arguments) {
    Dict dict;
    if (arguments.positional.size() > 1) fail(std::string(name) + " expected at most 1 argument");
    if (!arguments.positional.empty()) {
        const Value &source = arguments.positional[0];
        if (source.is(Type::Dict)) {
            runtime.charge(source.dict()->size() * sizeof(Dict::Entry) * 2);
            dict = *source.dict();
        } else {
            const auto pairs = sequence_of(runtime, source);
            for (const Value &pair : pairs->items) {
                const auto parts = sequence_of(runtime, pair);
                if (parts->items.size() != 2) fail(std::string(name) + " requires pairs");
                runtime.charge(sizeof(Dict::Entry) * 2);
                dict.set(parts->items[0], parts->items[1]);
            }
        }
    }
    for (const auto &[key, value] : arguments.keyword) dict.set(Value(key), value);
    return dict;
}

Value dict_function(Runtime &runtime, Arguments &arguments) {
    return std::make_shared<const Dict>(dict_of(runtime, "dict", arguments));
}

Value namespace_function(Runtime &runtime, Arguments &arguments) {
    return runtime.new_namespace(dict_of(runtime, "namespace", arguments));
}

Value cycler_function(Runtime &runtime, Arguments &arguments) {
    if (arguments.positional.empty()) fail("at least one item has to be provided");
    runtime.charge_items(arguments.positional.size());
    auto cycler = std::make_shared<Cycler>();
    cycler->items = arguments.positional;
    cycler->nesting = nesting_around(cycler->items);
    return cycler;
}

// Returns nothing at the first call, then the separator.
Value joiner_function(Runtime &, Arguments &arguments) {
    const auto bound = bind("joiner", arguments, {"sep"});
    const Value separator = bound[0] ? *bound[0] : Value::string(std::string(", "));
    const auto used = std::make_shared<bool>(false);
    return std::make_shared<const Function>(Function{"joiner", "Joiner",
                                                     [separator, used](Runtime &, Arguments &) {
                                                         return std::exchange(*used, true)
                                                                    ? separator
                                                                    : Value::string(std::string());
                                                     },
                                                     nesting_around(separator)});
}

Value raise_exception_function(Runtime &runtime, Arguments &arguments) {
    const auto bound = bind("raise_exception", arguments, {"message"}, 1);
    fail(TemplateError::Kind::Raised, to_text(runtime, *bound[0]).bytes());
}

Value strftime_now_function(Runtime &runtime, Arguments &arguments) {
    const auto bound = bind("strftime_now", arguments, {"format"}, 1);
    const std::string &format = string_argument(*bound[0]).bytes();
    if (format.empty()) return Value::string(std::string());
    if (format.size() > 1000) fail("strftime_now: this format is too long");
    const std::tm now = runtime.now();
    // A marker at the end distinguishes an empty result from a buffer that is too small.
    const std::string marked = format + ".";
    std::string text(16384, '\0');
    runtime.charge(text.size());
    text.resize(std::strftime(text.data(), text.size(), marked.c_str(), &now));
    if (text.empty()) fail("strftime_now: the result of this format is too long");
    text.pop_back();
    return runtime.string(MarkedText(std::move(text)));
}

struct NamedFunction {
    std::string_view name;
    Value (*call)(Runtime &, Arguments &);
};
constexpr NamedFunction kFunctions[] = {
    {"range", range_function},
    {"dict", dict_function},
    {"namespace", namespace_function},
    {"cycler", cycler_function},
    {"joiner", joiner_function},
    {"raise_exception", raise_exception_function},
    {"strftime_now", strftime_now_function},
};

}  // namespace

Value global_function(std::string_view name) {
    for (const NamedFunction &entry : kFunctions)
        if (entry.name == name)
            return std::make_shared<const Function>(Function{std::string(name), "function", entry.call, 0});
    return Value();
}

}  // namespace runnel::text::jinja
