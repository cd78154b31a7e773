#include "engine/text/jinja/predicates.h"

#include <algorithm>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/methods.h"
#include "engine/text/jinja/operators.h"

namespace runnel::text::jinja {
namespace {

using Kind = Sequence::Kind;

// A test without arguments.
template <bool (*holds)(const Value &)>
bool of_value(Runtime &, const Value &input, Arguments &arguments) {
    bind("test", arguments, {});
    return holds(input);
}

bool is_defined(const Value &v) {
    return !v.is_undefined();
}
bool is_not_defined(const Value &v) {
    return v.is_undefined();
}
bool is_nothing(const Value &v) {
    return v.is_none();
}
bool is_boolean(const Value &v) {
    return v.is(Type::Boolean);
}
bool is_that_true(const Value &v) {
    return v.is(Type::Boolean) && v.boolean();
}
bool is_that_false(const Value &v) {
    return v.is(Type::Boolean) && !v.boolean();
}
bool is_integer(const Value &v) {
    return v.is(Type::Integer);
}
bool is_float(const Value &v) {
    return v.is(Type::Float);
}
bool is_text(const Value &v) {
    return v.is_string();
}
bool is_mapping(const Value &v) {
    return v.is(Type::Dict);
}
bool is_escaped(const Value &v) {
    return v.is_string() && v.string()->markup;
}
// Python's Undefined is iterable and has a length; it is callable, but the call fails.
bool is_iterable(const Value &v) {
    return v.is_undefined() || v.is_string() || v.is(Type::Sequence) || v.is(Type::Dict) || v.is(Type::Loop);
}
bool is_sequence(const Value &v) {
    return v.is_undefined() || v.is_string() || v.is(Type::Dict) ||
           (v.is(Type::Sequence) && v.sequence()->kind <= Kind::Range);
}
bool is_callable(const Value &v) {
    return v.is_undefined() || v.is(Type::Function) || v.is(Type::Loop);
}

template <int64_t rest>
bool is_even_or_odd(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("test", arguments, {});
    return equal(runtime, binary(runtime, BinaryOp::Modulo, input, Value::integer(2)), Value::integer(rest));
}

bool is_divisible(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("divisibleby", arguments, {"num"}, 1);
    return equal(runtime, binary(runtime, BinaryOp::Modulo, input, *bound[0]), Value::integer(0));
}

template <CompareOp op>
bool compares_with(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("test", arguments, {"other"}, 1);
    return compares(runtime, op, input, *bound[0]);
}

bool is_same(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("sameas", arguments, {"other"}, 1);
    const Value &other = *bound[0];
    if (input.type() != other.type()) return false;
    if (input.is(Type::Sequence)) return input.sequence() == other.sequence();
    if (input.is(Type::Dict)) return input.dict() == other.dict();
    return equal(runtime, input, other);
}

template <std::string (*map)(std::string_view), std::string (*unmap)(std::string_view)>
bool has_case(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("test", arguments, {});
    const MarkedText text = to_text(runtime, input);
    runtime.work(text.size() * 8);
    return map(text.view()) == text.view() && unmap(text.view()) != text.view();
}

bool is_filter(Runtime &, const Value &input, Arguments &arguments) {
    bind("filter", arguments, {});
    return input.is_string() && find_filter(input.text().view()) != nullptr;
}

bool is_test(Runtime &, const Value &input, Arguments &arguments) {
    bind("test", arguments, {});
    return input.is_string() && find_test(input.text().view()) != nullptr;
}

struct NamedTest {
    std::string_view name;
    TestFunction function;
};
constexpr NamedTest kTests[] = {
    {"defined", of_value<is_defined>},
    {"undefined", of_value<is_not_defined>},
    {"none", of_value<is_nothing>},
    {"string", of_value<is_text>},
    {"mapping", of_value<is_mapping>},
    {"iterable", of_value<is_iterable>},
    {"sequence", of_value<is_sequence>},
    {"boolean", of_value<is_boolean>},
    {"true", of_value<is_that_true>},
    {"false", of_value<is_that_false>},
    {"integer", of_value<is_integer>},
    {"float", of_value<is_float>},
    {"number", of_value<is_number>},
    {"callable", of_value<is_callable>},
    {"escaped", of_value<is_escaped>},
    {"even", is_even_or_odd<0>},
    {"odd", is_even_or_odd<1>},
    {"divisibleby", is_divisible},
    {"equalto", compares_with<CompareOp::Equal>},
    {"eq", compares_with<CompareOp::Equal>},
    {"==", compares_with<CompareOp::Equal>},
    {"ne", compares_with<CompareOp::NotEqual>},
    {"!=", compares_with<CompareOp::NotEqual>},
    {"lt", compares_with<CompareOp::Less>},
    {"lessthan", compares_with<CompareOp::Less>},
    {"<", compares_with<CompareOp::Less>},
    {"le", compares_with<CompareOp::LessEqual>},
    {"<=", compares_with<CompareOp::LessEqual>},
    {"gt", compares_with<CompareOp::Greater>},
    {"greaterthan", compares_with<CompareOp::Greater>},
    {">", compares_with<CompareOp::Greater>},
    {"ge", compares_with<CompareOp::GreaterEqual>},
    {">=", compares_with<CompareOp::GreaterEqual>},
    {"in", compares_with<CompareOp::In>},
    {"sameas", is_same},
    {"upper", has_case<upper, lower>},
    {"lower", has_case<lower, upper>},
    {"filter", is_filter},
    {"test", is_test},
};

}  // namespace

TestFunction find_test(std::string_view name) {
    const auto *const found = std::find_if(std::begin(kTests), std::end(kTests),
                                           [&](const NamedTest &entry) { return entry.name == name; });
    return found == std::end(kTests) ? nullptr : found->function;
}

}  // namespace runnel::text::jinja
