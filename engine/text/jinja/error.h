// What can be wrong with a template, or with what it was given.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace runnel::text::jinja {

// Where in a template, counted from 1 in lines and characters; 0: nowhere in particular.
struct Place {
    uint32_t line = 0, column = 0;
};

class TemplateError : public std::runtime_error {
  public:
    enum class Kind {
        Syntax,     // it does not compile
        Raised,     // it called raise_exception(message)
        Undefined,  // it used a value that there is not
        Runtime,    // Python refuses the operation
        Security,   // the sandbox refuses it: nothing a template is given may be changed
        Limit,      // too many steps, too deep, too much output
    };
    TemplateError(Kind error_kind, const std::string &text, Place at = {})
        : std::runtime_error(text), kind(error_kind), message(text), place(at) {}
    // The same with its place; what() becomes "line 3, column 7: MESSAGE: {{ the line }}", in one line.
    TemplateError(const TemplateError &error, Place at, std::string_view source);

    Kind kind;
    std::string message;  // alone, as raise_exception had it
    Place place;
};

[[noreturn]] inline void fail(TemplateError::Kind kind, const std::string &message, Place place = {}) {
    throw TemplateError(kind, message, place);
}
// Python's TypeError, ValueError and the like.
[[noreturn]] inline void fail(const std::string &message) {
    throw TemplateError(TemplateError::Kind::Runtime, message);
}

}  // namespace runnel::text::jinja
