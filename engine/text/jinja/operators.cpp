#include "engine/text/jinja/operators.h"

#include <cmath>

#include "engine/text/jinja/escape.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/search.h"

namespace runnel::text::jinja {
namespace {

using Kind = Sequence::Kind;

constexpr const char *kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

[[noreturn]] void fail_operands(BinaryOp op, const Value &left, const Value &right) {
    require_defined(left);
    require_defined(right);
    if (op == BinaryOp::Add && left.is_string())
        fail("can only concatenate str (not \"" + std::string(type_name(right)) + "\") to str");
    fail("unsupported operand type(s) for " + std::string(kSymbols[static_cast<size_t>(op)]) + ": '" +
         std::string(type_name(left)) + "' and '" + std::string(type_name(right)) + "'");
}

[[noreturn]] void fail_overflow() {
    fail("this number does not fit into 64 bits");
}

[[noreturn]] void fail_zero() {
    fail("division by zero");
}

int64_t checked_power(int64_t base, int64_t exponent) {
    int64_t result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) fail_overflow();
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
    }
    return result;
}

// Rounds towards minus infinity, like Python.
int64_t floor_divide(int64_t a, int64_t b) {
    if (b == 0) fail_zero();
    if (b == -1) {
        int64_t result = 0;
        if (__builtin_sub_overflow(int64_t{0}, a, &result)) fail_overflow();
        return result;
    }
    const int64_t quotient = a / b;
    return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t modulo(int64_t a, int64_t b) {
    if (b == 0) fail_zero();
    if (b == -1) return 0;
    const int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double float_modulo(double a, double b) {
    if (b == 0) fail_zero();
    const double rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest == 0 ? std::copysign(0.0, b) : rest;
}

Value integers(BinaryOp op, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflow = false;
    switch (op) {
        case BinaryOp::Add:
            overflow = __builtin_add_overflow(a, b, &result);
            break;
        case BinaryOp::Subtract:
            overflow = __builtin_sub_overflow(a, b, &result);
            break;
        case BinaryOp::Multiply:
            overflow = __builtin_mul_overflow(a, b, &result);
            break;
        case BinaryOp::Divide:
            if (b == 0) fail_zero();
            return Value::number(static_cast<double>(a) / static_cast<double>(b));
        case BinaryOp::FloorDivide:
            return Value::integer(floor_divide(a, b));
        case BinaryOp::Modulo:
            return Value::integer(modulo(a, b));
        case BinaryOp::Power:
            if (b >= 0) return Value::integer(checked_power(a, b));
            if (a == 0) fail("0.0 cannot be raised to a negative power");
            return Value::number(std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
    if (overflow) fail_overflow();
    return Value::integer(result);
}

double floats(BinaryOp op, double a, double b) {
    switch (op) {
        case BinaryOp::Add:
            return a + b;
        case BinaryOp::Subtract:
            return a - b;
        case BinaryOp::Multiply:
            return a * b;
        case BinaryOp::Divide:
            if (b == 0) fail_zero();
            return a / b;
        case BinaryOp::FloorDivide:
            if (b == 0) fail_zero();
            return std::floor((a - float_modulo(a, b)) / b + 0.5);
        case BinaryOp::Modulo:
            return float_modulo(a, b);
        case BinaryOp::Power:
            if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
            if (a < 0 && b != std::floor(b)) fail("a negative number has no such root");
            return std::pow(a, b);
    }
    return 0;
}

Value concatenate(Runtime &runtime, const Value &left, const Value &right) {
    const String &a = *left.string(), &b = *right.string();
    runtime.charge(a.text.size() + b.text.size() + Runtime::kStringOverhead);
    const bool markup = a.markup || b.markup;
    MarkedText text = markup && !a.markup ? escape_html(runtime, a.text) : a.text;
    if (markup && !b.markup)
        text.append(escape_html(runtime, b.text));
    else
        text.append(b.text);
    return Value::string(std::move(text), markup);
}

Value join_sequences(Runtime &runtime, const Sequence &a, const Sequence &b) {
    runtime.charge_items(a.items.size() + b.items.size());
    std::vector<Value> items;
    items.reserve(a.items.size() + b.items.size());
    items.insert(items.end(), a.items.begin(), a.items.end());
    items.insert(items.end(), b.items.begin(), b.items.end());
    return make_sequence(a.kind, std::move(items));
}

bool is_list_or_tuple(const Value &value) {
    return value.is(Type::Sequence) && value.sequence()->kind <= Kind::Tuple;
}

Value repeat(Runtime &runtime, const Value &value, int64_t count) {
    const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
    const size_t size = value.is_string() ? value.text().size() : value.sequence()->items.size();
    size_t total = 0;
    if (__builtin_mul_overflow(times, std::max<size_t>(size, 1), &total)) total = SIZE_MAX;
    if (size == 0) total = 0;
    if (value.is_string()) {
        runtime.charge(total);
        MarkedText text;
        for (size_t i = 0; i < times && total > 0; ++i) text.append(value.text());
        return runtime.string(std::move(text), value.string()->markup);
    }
    runtime.charge_items(total);
    std::vector<Value> items;
    items.reserve(total);
    for (size_t i = 0; i < times && total > 0; ++i)
        items.insert(items.end(), value.sequence()->items.begin(), value.sequence()->items.end());
    return make_sequence(value.sequence()->kind, std::move(items));
}

bool is_repeatable(const Value &value) {
    return value.is_string() || is_list_or_tuple(value);
}

bool among(Runtime &runtime, const std::vector<Value> &items, const Value &needle) {
    for (const Value &item : items)
        if (equal(runtime, item, needle)) return true;
    return false;
}

}  // namespace

Value binary(Runtime &runtime, BinaryOp op, const Value &left, const Value &right) {
    if (is_integral(left) && is_integral(right)) return integers(op, as_integer(left), as_integer(right));
    if (is_number(left) && is_number(right))
        return Value::number(floats(op, as_double(left), as_double(right)));
    if (op == BinaryOp::Add) {
        if (left.is_string() && right.is_string()) return concatenate(runtime, left, right);
        if (is_list_or_tuple(left) && is_list_or_tuple(right) &&
            left.sequence()->kind == right.sequence()->kind)
            return join_sequences(runtime, *left.sequence(), *right.sequence());
    } else if (op == BinaryOp::Multiply) {
        if (is_repeatable(left) && is_integral(right)) return repeat(runtime, left, as_integer(right));
        if (is_repeatable(right) && is_integral(left)) return repeat(runtime, right, as_integer(left));
    } else if (op == BinaryOp::Modulo && left.is_string()) {
        return percent_format(runtime, left, right);
    }
    fail_operands(op, left, right);
}

Value negative(const Value &operand) {
    if (operand.is(Type::Float)) return Value::number(-operand.number());
    if (!is_integral(operand))
        fail("bad operand type for unary -: '" + std::string(type_name(require_defined(operand))) + "'");
    return integers(BinaryOp::Subtract, 0, as_integer(operand));
}

Value positive(const Value &operand) {
    if (operand.is(Type::Float)) return operand;
    if (!is_integral(operand))
        fail("bad operand type for unary +: '" + std::string(type_name(require_defined(operand))) + "'");
    return Value::integer(as_integer(operand));
}

bool contains(Runtime &runtime, const Value &haystack, const Value &needle) {
    runtime.step();
    switch (haystack.type()) {
        case Type::String:
            if (!needle.is_string())
                fail("'in <string>' requires string as left operand, not " + std::string(type_name(needle)));
            runtime.work(haystack.text().size() + needle.text().size());
            return find(haystack.text().view(), needle.text().view()) != kNotFound;
        case Type::Dict:
            return haystack.dict()->find(needle) != nullptr;
        case Type::Sequence: {
            Sequence &sequence = *haystack.sequence();
            if (!sequence.is_iterator()) return among(runtime, sequence.items, needle);
            while (sequence.next < sequence.items.size())
                if (equal(runtime, sequence.items[sequence.next++], needle)) return true;
            return false;
        }
        case Type::Undefined:
            if (haystack.undefined().unsafe) fail_undefined(haystack.undefined());
            return false;
        default:
            fail("argument of type '" + std::string(type_name(haystack)) + "' is not iterable");
    }
}

bool compares(Runtime &runtime, CompareOp op, const Value &left, const Value &right) {
    switch (op) {
        case CompareOp::Equal:
            return equal(runtime, left, right);
        case CompareOp::NotEqual:
            return !equal(runtime, left, right);
        case CompareOp::Less:
            return compare(runtime, left, right, "<") < 0;
        case CompareOp::LessEqual:
            return compare(runtime, left, right, "<=") <= 0;
        case CompareOp::Greater:
            return compare(runtime, left, right, ">") > 0;
        case CompareOp::GreaterEqual:
            return compare(runtime, left, right, ">=") >= 0;
        case CompareOp::In:
            return contains(runtime, right, left);
        case CompareOp::NotIn:
            return !contains(runtime, right, left);
    }
    return false;
}

}  // namespace runnel::text::jinja
