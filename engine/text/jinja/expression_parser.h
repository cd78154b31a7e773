// The part of the parser for expressions.
#pragma once

#include <string>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/parser.h"
#include "engine/text/jinja/token_stream.h"

namespace runnel::text::jinja {

class ExpressionParser {
  public:
    ExpressionParser(TokenStream &stream, SymbolTable &symbols) : stream_(stream), symbols_(symbols) {}

    // One expression. with_if = false: "a if b" is not accepted (in the head of a for loop).
    Expr expression(bool with_if = true);
    // Like expression(), but expressions separated by commas form a tuple. Stops before `end`, if given.
    Expr tuple(bool with_if = true, std::string_view end = {}, bool in_parentheses = false);
    CallArguments arguments();
    // A chain "| name(arguments) | name ..."; if `inline_start`, its first filter has no "|".
    std::vector<FilterCall> filters(bool inline_start = false);
    Target target(std::string_view end, bool with_attributes);
    // For macros: a bare name.
    Symbol name_target();

    // An unknown filter or test is an error only if it is evaluated unconditionally. forgive() drops those
    // found since `mark`; check() throws for the first that is left.
    size_t mark() const { return unknown_.size(); }
    void forgive(size_t mark) {
        unknown_.erase(unknown_.begin() + static_cast<std::ptrdiff_t>(mark), unknown_.end());
    }
    void check() const {
        if (!unknown_.empty()) throw unknown_.front();
    }

    // The special names found so far, from which the parsers of macros and loops take those that their bodies
    // use.
    struct SpecialNames {
        bool caller = false, varargs = false, kwargs = false, loop = false;
        void add(const SpecialNames &other) {
            caller |= other.caller, varargs |= other.varargs, kwargs |= other.kwargs, loop |= other.loop;
        }
    };
    SpecialNames met;

  private:
    class Nested;
    template <class Node>
    Expr make(Place place, Node node, uint32_t height) const;
    Expr or_expression();
    Expr and_expression();
    Expr not_expression();
    Expr comparison();
    Expr sum();
    Expr concatenation();
    Expr product();
    Expr power();
    Expr unary(bool with_filter);
    Expr primary();
    Expr named();
    Expr string_literal();
    Expr number_literal();
    Expr list_literal();
    Expr dict_literal();
    Expr postfix(Expr expr);
    Expr filtered(Expr expr);
    Expr subscript(Expr object);
    Expr call(Expr callee);
    Expr test(Expr input);
    FilterCall filter_call();
    Target one_target(bool with_attributes);
    template <class Next>
    Expr binary_chain(const Next &next,
                      std::initializer_list<std::pair<std::string_view, BinaryOp>> operators);

    TokenStream &stream_;
    SymbolTable &symbols_;
    std::vector<TemplateError> unknown_;
    uint32_t nested_ = 0;
};

}  // namespace runnel::text::jinja
