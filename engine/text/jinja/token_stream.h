// The token stream shared by both parts of the parser, with symbols and nesting limits.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/lexer.h"

namespace runnel::text::jinja {

class TokenStream {
  public:
    explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

    const Token &current() const { return tokens_[at_]; }
    const Token &look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    // Returns the current token and advances, but never past the last token.
    const Token &next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
    Place place() const { return current().place; }

    bool skip_name(std::string_view name) { return skip(current().is_name(name)); }
    bool skip_operator(std::string_view symbol) { return skip(current().is_operator(symbol)); }
    // Throw TemplateError{Syntax} if the current token is a different one.
    void expect_operator(std::string_view symbol) {
        if (!skip_operator(symbol)) fail_expected("'" + std::string(symbol) + "'");
    }
    void expect_name(std::string_view name) {
        if (!skip_name(name)) fail_expected("'" + std::string(name) + "'");
    }
    std::string expect_any_name() {
        if (current().kind != TokenKind::Name) fail_expected("a name");
        return next().text;
    }
    void expect(TokenKind kind, const char *what) {
        if (!skip(current().kind == kind)) fail_expected(what);
    }
    [[noreturn]] void fail_expected(const std::string &what) const {
        fail("expected " + what + ", got " + describe(current()), place());
    }
    [[noreturn]] static void fail(const std::string &message, Place place) {
        jinja::fail(TemplateError::Kind::Syntax, message, place);
    }

  private:
    bool skip(bool matches) {
        if (matches) next();
        return matches;
    }
    std::vector<Token> tokens_;
    size_t at_ = 0;
};

// The names of a template, numbered.
class SymbolTable {
  public:
    SymbolTable() {
        for (const char *name : {"loop", "caller", "varargs", "kwargs"}) symbol(name);
    }
    Symbol symbol(const std::string &name) {
        const auto [entry, is_new] = symbols_.try_emplace(name, static_cast<Symbol>(names_.size()));
        if (is_new) names_.push_back(Value::string(name).string());
        return entry->second;
    }
    const StringRef &name(Symbol symbol) const { return names_[symbol]; }
    std::vector<StringRef> take() && { return std::move(names_); }

  private:
    std::unordered_map<std::string, Symbol> symbols_;
    std::vector<StringRef> names_;
};

}  // namespace runnel::text::jinja
