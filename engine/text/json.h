// Parses untrusted JSON; the only JSON parser of the program.
//
// Limited in bytes, depth and values, linear in its input (n log n in the keys of one object), and
// interruptible. nlohmann's own Json::parse is none of that: it searches all earlier keys for every key,
// takes quadratic time with a depth callback, and copying a deeply nested value overflows the stack.
#pragma once

#include <atomic>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace runnel::text {

using Json = nlohmann::ordered_json;

struct JsonLimits {
    size_t bytes = size_t{64} << 20;
    size_t values = 1'000'000;  // at all depths: objects, arrays and scalars
    size_t depth = 200;         // copying, comparing, writing and destroying a Json are recursive
};

// what() is one printable line: "line 2, column 7: unexpected '}'", "more than 1000000 values".
class JsonError : public std::runtime_error {
  public:
    enum class Kind { Syntax, Limit, Stopped };
    JsonError(Kind k, const std::string &what) : std::runtime_error(what), kind(k) {}
    Kind kind;
};

// If an object repeats a key, the last value counts, at the position of the first. Throws JsonError; Stopped
// if `stop` became true meanwhile.
Json parse_json(std::string_view text, const JsonLimits &limits = {},
                const std::atomic<bool> *stop = nullptr);

// The value of a key; null if `object` is not an object, has no such key, or has null there.
const Json *find_member(const Json &object, std::string_view key);

}  // namespace runnel::text
