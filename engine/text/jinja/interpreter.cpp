// Statements and macros. Expressions: evaluate.cpp.
#include "engine/text/jinja/interpreter.h"

#include <algorithm>

#include "engine/text/jinja/access.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/functions.h"

namespace runnel::text::jinja {
namespace {

std::shared_ptr<Scope> fresh_scope(std::shared_ptr<Scope> parent) {
    auto scope = std::make_shared<Scope>();
    scope->parent = std::move(parent);
    return scope;
}

}  // namespace

// Makes a scope the current one while it exists.
class Interpreter::Entered {
  public:
    Entered(Interpreter &interpreter, std::shared_ptr<Scope> scope)
        : interpreter_(interpreter), before_(std::exchange(interpreter.scope_, std::move(scope))) {}
    ~Entered() { interpreter_.scope_ = std::move(before_); }
    Entered(const Entered &) = delete;
    Entered &operator=(const Entered &) = delete;

  private:
    Interpreter &interpreter_;
    std::shared_ptr<Scope> before_;
};

Interpreter::Interpreter(const Program &program, Runtime &runtime, const Dict &context)
    : program_(program), runtime_(runtime) {
    variables_.reserve(program.names.size());
    for (const StringRef &name : program.names) {
        const Value *given = context.find(Value(name));
        Value value = given ? *given : global_function(name->text.view());
        variables_.push_back(value.is_undefined() ? Value(Undefined{name}) : std::move(value));
    }
}

Interpreter::~Interpreter() {
    for (const auto &scope : kept_) scope->values.clear();
}

MarkedText Interpreter::run() {
    MarkedText out;
    execute(program_.body, out);
    return out;
}

const Value &Interpreter::look_up(Symbol symbol) const {
    for (const Scope *scope = scope_.get(); scope; scope = scope->parent.get())
        for (const auto &[name, value] : scope->values)
            if (name == symbol) return value;
    return variables_[symbol];
}

void Interpreter::assign(Symbol symbol, Value value) {
    if (!scope_) {
        variables_[symbol] = std::move(value);
        return;
    }
    for (auto &[name, held] : scope_->values)
        if (name == symbol) {
            held = std::move(value);
            return;
        }
    scope_->values.emplace_back(symbol, std::move(value));
}

void Interpreter::assign(const Target &target, const Value &value) {
    if (target.is_tuple) {
        const auto items = sequence_of(runtime_, value);
        if (items->items.size() != target.parts.size())
            fail((items->items.size() < target.parts.size() ? "not enough" : "too many") +
                 std::string(" values to unpack (expected ") + std::to_string(target.parts.size()) + ")");
        for (size_t i = 0; i < target.parts.size(); ++i) assign(target.parts[i], items->items[i]);
        return;
    }
    if (!target.attribute) return assign(target.symbol, value);
    const Value &holder = look_up(target.symbol);
    if (!holder.is(Type::Namespace)) fail("cannot assign attribute on non-namespace object");
    runtime_.charge(sizeof(Dict::Entry));
    holder.name_space()->attributes.set(Value(target.attribute), value);
}

MarkedText Interpreter::captured(const Body &body) {
    MarkedText out;
    execute(body, out);
    return out;
}

Interpreter::Flow Interpreter::execute(const Body &body, MarkedText &out) {
    const Runtime::Deeper deeper(runtime_);
    for (const Statement &statement : body) {
        runtime_.step();
        place_ = statement.place;
        const Flow flow = std::visit([&](const auto &node) { return execute(node, out); }, statement.node);
        if (flow != Flow::Next) return flow;
        runtime_.check_output(out.size());
    }
    return Flow::Next;
}

Interpreter::Flow Interpreter::execute(const TextOutput &node, MarkedText &out) {
    runtime_.charge(node.text.size());
    out.append(node.text, Origin::Template);
    return Flow::Next;
}

Interpreter::Flow Interpreter::execute(const Output &node, MarkedText &out) {
    for (const Expr &expr : node.values) {
        const Value value = evaluate(expr);
        place_ = expr.place;
        append_text(runtime_, out, value);
    }
    return Flow::Next;
}

Interpreter::Flow Interpreter::execute(const If &node, MarkedText &out) {
    for (const auto &[condition, body] : node.branches)
        if (is_true(evaluate(condition))) return execute(body, out);
    return execute(node.otherwise, out);
}

bool Interpreter::passes(const For &node, const Value &item) {
    const Entered entered(*this, fresh_scope(scope_));
    assign(node.target, item);
    return is_true(evaluate(*node.condition));
}

// In a loop with a condition, `loop` counts only the items that satisfy it.
std::shared_ptr<const Sequence> Interpreter::loop_items(const For &node, const Value &items) {
    auto all = sequence_of(runtime_, items);
    if (!node.condition || !node.uses_loop) return all;
    std::vector<Value> passing;
    for (const Value &item : all->items)
        if (passes(node, item)) passing.push_back(item);
    return make_sequence(Sequence::Kind::List, std::move(passing));
}

std::shared_ptr<Loop> Interpreter::make_loop(const For &node, std::shared_ptr<const Sequence> items,
                                             size_t depth) {
    auto loop = std::make_shared<Loop>();
    loop->nesting = nesting_around(items->items);
    loop->items = std::move(items);
    loop->depth = depth;
    if (!node.recursive) return loop;
    const auto recurse = [this, &node, scope = scope_, depth](Runtime &, Arguments &arguments) {
        const auto bound = bind("loop", arguments, {"iterable"}, 1);
        const Entered entered(*this, scope);
        MarkedText out;
        this->loop(node, *bound[0], depth + 1, out);
        return runtime_.string(std::move(out));
    };
    loop->recurse = std::make_shared<const Function>(Function{"loop", "LoopContext", recurse, 0});
    return loop;
}

Interpreter::Flow Interpreter::execute(const For &node, MarkedText &out) {
    loop(node, evaluate(node.items), 0, out);
    return Flow::Next;
}

void Interpreter::loop(const For &node, const Value &items, size_t depth, MarkedText &out) {
    const Runtime::Deeper deeper(runtime_);
    const auto sequence = loop_items(node, items);
    const auto loop = node.uses_loop ? make_loop(node, sequence, depth) : nullptr;
    const bool filters = node.condition && !node.uses_loop;
    bool any = false;
    auto scope = fresh_scope(scope_);
    for (size_t i = 0; i < sequence->items.size(); ++i) {
        runtime_.step();
        if (filters && !passes(node, sequence->items[i])) continue;
        any = true;
        if (scope.use_count() == 1)
            scope->values.clear();
        else
            scope = fresh_scope(scope_);  // a macro still refers to the old one
        const Entered entered(*this, scope);
        if (loop) {
            loop->index = i;
            assign(kLoop, Value(loop));
        }
        assign(node.target, sequence->items[i]);
        if (execute(node.body, out) == Flow::Break) break;
    }
    if (any) return;
    const Entered entered(*this, fresh_scope(scope_));
    execute(node.otherwise, out);
}

Interpreter::Flow Interpreter::execute(const Set &node, MarkedText &) {
    const Value value = evaluate(node.value);
    place_ = node.target.place;
    assign(node.target, value);
    return Flow::Next;
}

Interpreter::Flow Interpreter::execute(const SetBlock &node, MarkedText &) {
    // Variables that are set inside the block are not visible after it.
    Value value;
    {
        const Entered entered(*this, fresh_scope(scope_));
        value = filtered(node.filters, runtime_.string(captured(node.body)));
    }
    assign(node.target, value);
    return Flow::Next;
}

Interpreter::Flow Interpreter::execute(const MacroDefinition &node, MarkedText &) {
    assign(node.symbol, make_macro(node.macro));
    return Flow::Next;
}

Interpreter::Flow Interpreter::execute(const CallBlock &node, MarkedText &out) {
    const Value caller = make_macro(node.caller);
    append_text(runtime_, out, call_with_caller(std::get<Call>(node.call.node), &caller));
    return Flow::Next;
}

Interpreter::Flow Interpreter::execute(const FilterBlock &node, MarkedText &out) {
    const Entered entered(*this, fresh_scope(scope_));
    append_text(runtime_, out, filtered(node.filters, runtime_.string(captured(node.body))));
    return Flow::Next;
}

Interpreter::Flow Interpreter::execute(const With &node, MarkedText &out) {
    // The values cannot refer to each other's names.
    std::vector<Value> values;
    for (const auto &assignment : node.assignments) values.push_back(evaluate(assignment.second));
    const Entered entered(*this, fresh_scope(scope_));
    for (size_t i = 0; i < values.size(); ++i) assign(node.assignments[i].first, values[i]);
    return execute(node.body, out);
}

Interpreter::Flow Interpreter::execute(const Scoped &node, MarkedText &out) {
    const Entered entered(*this, fresh_scope(scope_));
    return execute(node.body, out);
}

Interpreter::Flow Interpreter::execute(const Jump &node, MarkedText &) {
    return node.leaves ? Flow::Break : Flow::Continue;
}

Value Interpreter::make_macro(const std::shared_ptr<const Macro> &macro) {
    if (scope_) kept_.push_back(scope_);
    runtime_.charge(sizeof(Function) + sizeof(Scope));
    const auto call = [this, macro, scope = scope_](Runtime &, Arguments &given) {
        return call_macro(*macro, scope, given);
    };
    return std::make_shared<const Function>(Function{macro->name, "Macro", call, 0});
}

Value Interpreter::call_macro(const Macro &macro, const std::shared_ptr<Scope> &closure, Arguments &given) {
    const Runtime::Deeper deeper(runtime_);
    const size_t count = macro.parameters.size(), positional = std::min(count, given.positional.size());
    std::vector<Value> values(given.positional.begin(),
                              given.positional.begin() + static_cast<std::ptrdiff_t>(positional));
    values.resize(count);
    std::vector<bool> is_given(count);
    std::fill_n(is_given.begin(), positional, true);
    std::erase_if(given.keyword, [&](const auto &entry) {
        for (size_t i = 0; i < count; ++i) {
            if (macro.parameters[i].name->text.view() != entry.first->text.view()) continue;
            if (is_given[i])
                fail("macro '" + macro.name + "' got two values for '" + entry.first->text.bytes() + "'");
            values[i] = entry.second;
            is_given[i] = true;
            return true;
        }
        return false;
    });
    const Place place = place_;
    const Entered entered(*this, fresh_scope(closure));
    bind_extras(macro, given);
    for (size_t i = 0; i < count; ++i) {
        const Parameter &parameter = macro.parameters[i];
        if (!is_given[i])
            values[i] = parameter.preset ? evaluate(*parameter.preset) : Value(Undefined{parameter.name});
        assign(parameter.symbol, std::move(values[i]));
    }
    MarkedText text = captured(macro.body);
    place_ = place;
    return runtime_.string(std::move(text));
}

// Binds the remaining arguments to varargs and kwargs if the macro's body uses them.
void Interpreter::bind_extras(const Macro &macro, Arguments &given) {
    if (macro.uses_caller) {
        const auto caller = std::find_if(given.keyword.begin(), given.keyword.end(), [](const auto &entry) {
            return entry.first->text.view() == "caller";
        });
        Value value = Undefined{program_.names[kCaller]};
        if (caller != given.keyword.end()) {
            value = caller->second;
            given.keyword.erase(caller);
        }
        assign(kCaller, std::move(value));
    }
    if (macro.uses_kwargs) {
        auto extra = std::make_shared<Dict>();
        for (const auto &[key, value] : given.keyword) extra->set(Value(key), value);
        assign(kKwargs, Value(std::shared_ptr<const Dict>(std::move(extra))));
    } else if (!given.keyword.empty()) {
        fail("macro '" + macro.name + "' takes no keyword argument '" +
             given.keyword.front().first->text.bytes() + "'");
    }
    const size_t count = std::min(macro.parameters.size(), given.positional.size());
    if (macro.uses_varargs) {
        const auto first = given.positional.begin() + static_cast<std::ptrdiff_t>(count);
        assign(kVarargs, Value::tuple({first, given.positional.end()}));
    } else if (given.positional.size() > count) {
        fail("macro '" + macro.name + "' takes not more than " + std::to_string(macro.parameters.size()) +
             " argument(s)");
    }
}

}  // namespace runnel::text::jinja
