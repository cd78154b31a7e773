// The syntax tree of a template.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/predicates.h"
#include "engine/text/jinja/value.h"

namespace runnel::text::jinja {

// A variable's name, as a number: index into Program::names.
using Symbol = uint32_t;

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;
struct NamedArgument;
struct DictEntry;
struct ComparedWith;
struct Statement;
using Body = std::vector<Statement>;

// (a, b, name=c, *d, **e)
struct CallArguments {
    std::vector<Expr> positional;
    std::vector<NamedArgument> keyword;
    ExprPtr star, star_star;  // may be null
};

struct FilterCall {
    std::string name;
    FilterFunction function;  // null: unknown filter, an error only when it is evaluated
    CallArguments arguments;
    Place place;
};

struct Literal {
    Value value;
};
struct Variable {
    Symbol symbol;
};
struct ListLiteral {
    std::vector<Expr> items;
    bool is_tuple;
};
struct DictLiteral {
    std::vector<DictEntry> items;
};
struct Unary {
    enum class Op : uint8_t { Not, Minus, Plus } op;
    ExprPtr operand;
};
enum class BinaryOp : uint8_t { Add, Subtract, Multiply, Divide, FloorDivide, Modulo, Power };
struct Binary {
    BinaryOp op;
    ExprPtr left, right;
};
struct Logic {
    bool is_and;
    ExprPtr left, right;
};
struct Concatenation {
    std::vector<Expr> parts;
};
enum class CompareOp : uint8_t { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, In, NotIn };
struct Comparison {
    ExprPtr first;
    std::vector<ComparedWith> rest;  // a < b < c: every adjacent pair
};
struct Conditional {
    ExprPtr test, then, otherwise;  // otherwise may be null
};
struct Attribute {
    ExprPtr object;
    StringRef name;
};
struct Item {
    ExprPtr object, index;
};
struct Slice {
    ExprPtr object, start, stop, step;  // the last three may be null
};
struct Call {
    ExprPtr callee;
    CallArguments arguments;
};
struct Filter {
    ExprPtr input;
    FilterCall call;
};
struct Test {
    ExprPtr input;
    std::string name;
    TestFunction function;  // null: unknown test
    CallArguments arguments;
};

struct Expr {
    using Node =
        std::variant<Literal, Variable, ListLiteral, DictLiteral, Unary, Binary, Logic, Concatenation,
                     Comparison, Conditional, Attribute, Item, Slice, Call, Filter, Test>;
    Place place;
    uint32_t height = 1;  // of the tree; the parser limits it
    Node node;
};

struct NamedArgument {
    StringRef name;
    Expr value;
};
struct DictEntry {
    Expr key, value;
};
struct ComparedWith {
    CompareOp op;
    Expr right;
};

// The target of an assignment: a name, an attribute of a namespace, or several of these.
struct Target {
    Symbol symbol = 0;
    StringRef attribute;  // null for a name
    std::vector<Target> parts;
    bool is_tuple = false;
    Place place;
};

struct Parameter {
    Symbol symbol;
    StringRef name;
    std::optional<Expr> preset;
};
struct Macro {
    std::string name;
    std::vector<Parameter> parameters;
    Body body;
    // The special names that its body uses.
    bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
    Place place;
};

struct TextOutput {
    std::string text;
};
struct Output {
    std::vector<Expr> values;
};
struct If {
    std::vector<std::pair<Expr, Body>> branches;
    Body otherwise;
};
struct For {
    Target target;
    Expr items;
    std::optional<Expr> condition;
    bool recursive;
    bool uses_loop;  // the body uses `loop`
    Body body, otherwise;
};
struct Set {
    Target target;
    Expr value;
};
struct SetBlock {
    Target target;
    std::vector<FilterCall> filters;
    Body body;
};
struct MacroDefinition {
    Symbol symbol;
    std::shared_ptr<const Macro> macro;
};
struct CallBlock {
    Expr call;
    std::shared_ptr<const Macro> caller;
};
struct FilterBlock {
    std::vector<FilterCall> filters;
    Body body;
};
struct With {
    std::vector<std::pair<Target, Expr>> assignments;
    Body body;
};
struct Scoped {
    Body body;  // variables set in it are not visible after it
};
struct Jump {
    bool leaves;  // break; otherwise continue
};

struct Statement {
    using Node = std::variant<TextOutput, Output, If, For, Set, SetBlock, MacroDefinition, CallBlock,
                              FilterBlock, With, Scoped, Jump>;
    Place place;
    Node node;
};

// The first symbols of every template: names that the language itself defines.
inline constexpr Symbol kLoop = 0, kCaller = 1, kVarargs = 2, kKwargs = 3;

struct Program {
    std::vector<StringRef> names;  // by Symbol
    Body body;
};

}  // namespace runnel::text::jinja
