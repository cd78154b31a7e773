// Errors of a template or of its input.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace runnel::text::jinja {

// A position in a template: line and column in characters, from 1; 0: unknown.
struct Place {
    uint32_t line = 0, column = 0;
};

class TemplateError : public std::runtime_error {
  public:
    enum class Kind {
        Syntax,     // it does not compile
        Raised,     // it calls raise_exception(message)
        Undefined,  // it uses an undefined value
        Runtime,    // Python rejects the operation
        Security,   // the sandbox rejects it: a template must not modify its input
        Limit,      // too many steps, too much depth or output
    };
    TemplateError(Kind error_kind, const std::string &text, Place at = {})
        : std::runtime_error(text), kind(error_kind), message(text), place(at) {}
    // Adds a position; what() becomes "line 3, column 7: MESSAGE: {{ the line }}", in one line.
    TemplateError(const TemplateError &error, Place at, std::string_view source);

    Kind kind;
    std::string message;  // alone, e.g. the argument of raise_exception()
    Place place;
};

[[noreturn]] inline void fail(TemplateError::Kind kind, const std::string &message, Place place = {}) {
    throw TemplateError(kind, message, place);
}
// Throws the counterpart of Python's TypeError, ValueError and the like.
[[noreturn]] inline void fail(const std::string &message) {
    throw TemplateError(TemplateError::Kind::Runtime, message);
}

}  // namespace runnel::text::jinja
