// JSON from outside: the only parser of the product.
//
// Bounded in bytes, depth and values, linear in its input (n log n for the keys of one object), and it can be
// stopped. nlohmann's own Json::parse is none of that: it looks for every key among those before it, takes a
// depth callback in quadratic time, and copying what nests deeply overflows the stack.
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

// Of keys that an object has twice the last value counts, at the place of the first. Throws JsonError;
// Stopped when `stop` became true meanwhile.
Json parse_json(std::string_view text, const JsonLimits &limits = {},
                const std::atomic<bool> *stop = nullptr);

}  // namespace runnel::text
