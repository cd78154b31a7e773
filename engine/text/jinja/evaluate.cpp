// Expressions.
#include "engine/text/jinja/access.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/methods.h"
#include "engine/text/jinja/operators.h"

namespace runnel::text::jinja {

// Restores the position afterwards, so that errors of the outer expression name its own.
Value Interpreter::evaluate(const Expr &expr) {
    const Runtime::Deeper deeper(runtime_);
    runtime_.step();
    const Place before = std::exchange(place_, expr.place);
    Value value = std::visit([this](const auto &node) { return evaluate(node); }, expr.node);
    place_ = before;
    return value;
}

Value Interpreter::evaluate(const Literal &node) {
    return node.value;
}

Value Interpreter::evaluate(const Variable &node) {
    return look_up(node.symbol);
}

Value Interpreter::evaluate(const ListLiteral &node) {
    runtime_.charge_items(node.items.size() + 2);
    std::vector<Value> items;
    items.reserve(node.items.size());
    for (const Expr &item : node.items) items.push_back(evaluate(item));
    return node.is_tuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

Value Interpreter::evaluate(const DictLiteral &node) {
    runtime_.charge(node.items.size() * sizeof(Dict::Entry) * 2 + sizeof(Dict));
    auto dict = std::make_shared<Dict>();
    for (const auto &[key, value] : node.items) {
        const Value name = evaluate(key);
        dict->set(name, evaluate(value));
    }
    return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

Value Interpreter::evaluate(const Unary &node) {
    const Value operand = evaluate(*node.operand);
    switch (node.op) {
        case Unary::Op::Not:
            return Value::boolean(!is_true(operand));
        case Unary::Op::Minus:
            return negative(operand);
        default:
            return positive(operand);
    }
}

Value Interpreter::evaluate(const Binary &node) {
    const Value left = evaluate(*node.left);
    return binary(runtime_, node.op, left, evaluate(*node.right));
}

Value Interpreter::evaluate(const Logic &node) {
    Value left = evaluate(*node.left);
    return is_true(left) == node.is_and ? evaluate(*node.right) : left;
}

Value Interpreter::evaluate(const Concatenation &node) {
    MarkedText text;
    for (const Expr &part : node.parts) append_text(runtime_, text, evaluate(part));
    return runtime_.string(std::move(text));
}

Value Interpreter::evaluate(const Comparison &node) {
    Value left = evaluate(*node.first);
    for (const auto &[op, expr] : node.rest) {
        Value right = evaluate(expr);
        if (!compares(runtime_, op, left, right)) return Value::boolean(false);
        left = std::move(right);
    }
    return Value::boolean(true);
}

Value Interpreter::evaluate(const Conditional &node) {
    if (is_true(evaluate(*node.test))) return evaluate(*node.then);
    return node.otherwise ? evaluate(*node.otherwise) : Value();
}

Value Interpreter::evaluate(const Attribute &node) {
    return attribute(runtime_, evaluate(*node.object), node.name);
}

Value Interpreter::evaluate(const Item &node) {
    const Value object = evaluate(*node.object);
    return item(runtime_, object, evaluate(*node.index));
}

Value Interpreter::evaluate(const Slice &node) {
    const Value object = evaluate(*node.object);
    const auto bound = [&](const ExprPtr &expr) { return expr ? evaluate(*expr) : Value::none(); };
    const Value start = bound(node.start), stop = bound(node.stop);
    return slice(runtime_, object, start, stop, bound(node.step));
}

Arguments Interpreter::arguments(const CallArguments &node) {
    Arguments given;
    given.positional.reserve(node.positional.size());
    for (const Expr &expr : node.positional) given.positional.push_back(evaluate(expr));
    for (const auto &[name, expr] : node.keyword) given.keyword.emplace_back(name, evaluate(expr));
    if (node.star) {
        const auto items = sequence_of(runtime_, evaluate(*node.star));
        runtime_.charge_items(items->items.size());
        given.positional.insert(given.positional.end(), items->items.begin(), items->items.end());
    }
    if (node.star_star) {
        const Value extra = evaluate(*node.star_star);
        if (!extra.is(Type::Dict)) fail("argument after ** must be a mapping");
        runtime_.charge_items(2 * extra.dict()->size());
        for (const Dict::Entry &entry : extra.dict()->entries()) {
            if (!entry.key.is_string()) fail("keywords must be strings");
            given.keyword.emplace_back(entry.key.string(), entry.value);
        }
    }
    return given;
}

Value Interpreter::evaluate(const Call &node) {
    return call_with_caller(node, nullptr);
}

Value Interpreter::call_with_caller(const Call &node, const Value *caller) {
    const auto *const member = std::get_if<Attribute>(&node.callee->node);
    Value self, callee;
    Method method = nullptr;
    if (member) {
        // A method call does not create a value for the method first.
        self = evaluate(*member->object);
        method = find_method(self, member->name->text.view());
        if (!method) callee = attribute(runtime_, self, member->name);
    } else {
        callee = evaluate(*node.callee);
    }
    Arguments given = arguments(node.arguments);
    if (caller) given.keyword.emplace_back(program_.names[kCaller], *caller);
    return method ? method(runtime_, self, given) : call(runtime_, callee, given);
}

Value Interpreter::apply(const FilterCall &filter, const Value &input) {
    Arguments given = arguments(filter.arguments);
    place_ = filter.place;
    if (!filter.function) fail("No filter named '" + filter.name + "'.");
    return filter.function(runtime_, input, given);
}

Value Interpreter::filtered(const std::vector<FilterCall> &filters, Value value) {
    for (const FilterCall &filter : filters) value = apply(filter, value);
    return value;
}

Value Interpreter::evaluate(const Filter &node) {
    const Value input = evaluate(*node.input);
    return apply(node.call, input);
}

Value Interpreter::evaluate(const Test &node) {
    const Value input = evaluate(*node.input);
    Arguments given = arguments(node.arguments);
    if (!node.function) fail("No test named '" + node.name + "'.");
    return Value::boolean(node.function(runtime_, input, given));
}

}  // namespace runnel::text::jinja
