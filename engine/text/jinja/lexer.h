// Splits a template's source into tokens and applies white space control: Jinja with trim_blocks and
// lstrip_blocks, without keep_trailing_newline, the settings that chat templates are written for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/error.h"

namespace runnel::text::jinja {

enum class TokenKind : uint8_t {
    Data,           // text between tags
    VariableBegin,  // {{
    VariableEnd,
    BlockBegin,  // {%
    BlockEnd,
    Name,
    String,  // unescaped
    Integer,
    Float,
    Operator,  // + - / // * % ** ~ [ ] ( ) { } == != > >= < <= = . : | , ;
    End,
};

struct Token {
    TokenKind kind;
    std::string text;
    Place place;

    bool is(TokenKind kind_asked, std::string_view text_asked) const {
        return kind == kind_asked && text == text_asked;
    }
    bool is_name(std::string_view name) const { return is(TokenKind::Name, name); }
    bool is_operator(std::string_view symbol) const { return is(TokenKind::Operator, symbol); }
};

// Converts line ends to "\n" and drops one at the very end. Positions and lex() refer to this text.
std::string normalize_source(std::string_view source);

// The last token is End. `source`: from normalize_source(). Throws TemplateError{Syntax}.
std::vector<Token> lex(std::string_view source);

// A token as text for messages.
std::string describe(const Token &token);

}  // namespace runnel::text::jinja
