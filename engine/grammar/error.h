// What is wrong with a grammar, and where.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace runnel::grammar {

// A grammar, schema or pattern that cannot be used. One line, which begins with "line L, column C: " if the
// place is known (columns count bytes, both from 1).
class GrammarError : public std::runtime_error {
  public:
    explicit GrammarError(const std::string &message) : std::runtime_error(message) {}
    GrammarError(const std::string &message, size_t line, size_t column)
        : std::runtime_error("line " + std::to_string(line) + ", column " + std::to_string(column) + ": " +
                             message) {}
    // `at`: a byte of `text`.
    GrammarError(const std::string &message, std::string_view text, size_t at)
        : GrammarError(message, line_of(text, at), column_of(text, at)) {}

  private:
    static size_t line_of(std::string_view text, size_t at) {
        size_t line = 1;
        for (size_t i = 0; i < at && i < text.size(); ++i) line += text[i] == '\n';
        return line;
    }
    static size_t column_of(std::string_view text, size_t at) {
        const std::string_view before = text.substr(0, at);
        const size_t newline = before.rfind('\n');
        return newline == before.npos ? before.size() + 1 : before.size() - newline;
    }
};

// A constraint that outgrew its bounds while it was used: too many states, too ambiguous, nested too deeply.
class GrammarLimit : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Bounds on untrusted input.
inline constexpr size_t kMaxGrammarBytes = 4u << 20;  // of a grammar, schema or pattern
inline constexpr size_t kMaxNesting = 200;            // of groups, schemas and documents
inline constexpr size_t kMaxRules = 100'000;
inline constexpr size_t kMaxNodes = 4'000'000;  // of a compiled program
inline constexpr uint32_t kUnbounded = 0xffffffff;
inline constexpr uint32_t kMaxCount = 100'000'000;  // of a repetition

}  // namespace runnel::grammar
