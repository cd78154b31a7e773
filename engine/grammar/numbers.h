// Expressions for JSON numbers, with or without bounds.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/expression.h"

namespace runnel::grammar {

// A decimal number, exactly.
struct Decimal {
    bool negative = false;        // not for 0
    std::string whole, fraction;  // digits: `whole` without leading, `fraction` without trailing zeros
    static Decimal parse(std::string_view json_number);
    bool is_zero() const { return whole.empty() && fraction.empty(); }
};
// < 0, 0, > 0.
int compare(const Decimal &a, const Decimal &b);

struct Bound {
    Decimal value;
    bool exclusive = false;
};

struct NumberBounds {
    std::optional<Bound> least, most;
    std::vector<Decimal> multiples_of;  // positive
    bool any() const { return least || most || !multiples_of.empty(); }
};

// Numbers within the bounds. With bounds, without an exponent and with at most 17 digits after the point, or as
// many as a bound has; with multipleOf, one more than the factor. Integers may have a fraction of up to 17 zeros,
// as in JSON Schema. Throws GrammarError if the automaton would be too large.
Expr number(const NumberBounds &bounds, bool integer);

// Whether the value satisfies the bounds and, if `integer` is set, is an integer.
bool within(const Decimal &value, const NumberBounds &bounds, bool integer);

}  // namespace runnel::grammar
