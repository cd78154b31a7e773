// Runs the syntax tree of a template.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

// The variables of a block with its own scope: a loop iteration, a macro call, ...
struct Scope {
    std::shared_ptr<Scope> parent;  // null: the parent is the template's own variables
    std::vector<std::pair<Symbol, Value>> values;
};

// One rendering. Macros see the variables of the scope where they were defined, with their
// values at the time of the call.
class Interpreter {
  public:
    // Keeps references to its arguments.
    Interpreter(const Program &program, Runtime &runtime, const Dict &context);
    ~Interpreter();
    Interpreter(const Interpreter &) = delete;
    Interpreter &operator=(const Interpreter &) = delete;

    // Throws TemplateError without a position.
    MarkedText run();
    // The position at which run() threw.
    Place place() const { return place_; }

  private:
    enum class Flow { Next, Break, Continue };
    class Entered;

    Flow execute(const Body &body, MarkedText &out);
    Flow execute(const TextOutput &node, MarkedText &out);
    Flow execute(const Output &node, MarkedText &out);
    Flow execute(const If &node, MarkedText &out);
    Flow execute(const For &node, MarkedText &out);
    Flow execute(const Set &node, MarkedText &out);
    Flow execute(const SetBlock &node, MarkedText &out);
    Flow execute(const MacroDefinition &node, MarkedText &out);
    Flow execute(const CallBlock &node, MarkedText &out);
    Flow execute(const FilterBlock &node, MarkedText &out);
    Flow execute(const With &node, MarkedText &out);
    Flow execute(const Scoped &node, MarkedText &out);
    Flow execute(const Jump &node, MarkedText &out);
    void loop(const For &node, const Value &items, size_t depth, MarkedText &out);
    std::shared_ptr<const Sequence> loop_items(const For &node, const Value &items);
    bool passes(const For &node, const Value &item);
    std::shared_ptr<Loop> make_loop(const For &node, std::shared_ptr<const Sequence> items, size_t depth);

    Value evaluate(const Expr &expr);
    Value evaluate(const Literal &node);
    Value evaluate(const Variable &node);
    Value evaluate(const ListLiteral &node);
    Value evaluate(const DictLiteral &node);
    Value evaluate(const Unary &node);
    Value evaluate(const Binary &node);
    Value evaluate(const Logic &node);
    Value evaluate(const Concatenation &node);
    Value evaluate(const Comparison &node);
    Value evaluate(const Conditional &node);
    Value evaluate(const Attribute &node);
    Value evaluate(const Item &node);
    Value evaluate(const Slice &node);
    Value evaluate(const Call &node);
    Value evaluate(const Filter &node);
    Value evaluate(const Test &node);
    Arguments arguments(const CallArguments &node);
    Value call_with_caller(const Call &node, const Value *caller);
    Value filtered(const std::vector<FilterCall> &filters, Value value);
    Value apply(const FilterCall &filter, const Value &input);

    Value make_macro(const std::shared_ptr<const Macro> &macro);
    Value call_macro(const Macro &macro, const std::shared_ptr<Scope> &scope, Arguments &arguments);
    void bind_extras(const Macro &macro, Arguments &arguments);

    const Value &look_up(Symbol symbol) const;
    void assign(Symbol symbol, Value value);
    void assign(const Target &target, const Value &value);
    MarkedText captured(const Body &body);

    const Program &program_;
    Runtime &runtime_;
    std::vector<Value> variables_;              // the template's own, by Symbol
    std::shared_ptr<Scope> scope_;              // null outside of all blocks
    std::vector<std::shared_ptr<Scope>> kept_;  // scopes captured by macros (possible cycles)
    Place place_;
};

}  // namespace runnel::text::jinja
