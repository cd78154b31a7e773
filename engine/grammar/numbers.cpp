#include "engine/grammar/numbers.h"

#include <algorithm>

#include "engine/grammar/dfa.h"

namespace runnel::grammar {
namespace {

Expr digits(char first, char last) {
    if (first > last) return never();
    return one_of(CharSet{{static_cast<uint8_t>(first), static_cast<uint8_t>(last)}});
}
Expr any_digits(uint32_t min = 0, uint32_t max = kUnbounded) {
    return repeat(digits('0', '9'), min, max);
}
Expr zeros(uint32_t min) {
    return repeat(literal("0"), min);
}
Expr fraction_of(Expr behind_point) {
    return sequence({literal("."), std::move(behind_point)});
}
Expr any_fraction() {
    return optional(fraction_of(any_digits(1)));
}

// Numbers with as many digits as `limit`: either larger ones (smaller, if not `larger`) followed by `other`,
// or `limit` itself followed by `equal`.
Expr compared(std::string_view limit, bool larger, const Expr &other, const Expr &equal) {
    Expr result = equal;
    for (size_t i = limit.size(); i-- > 0;) {
        const char digit = limit[i];
        const char next = static_cast<char>(digit + 1), before = static_cast<char>(digit - 1);
        // A number does not begin with 0.
        const char lowest = i == 0 ? '1' : '0';
        const Expr differs = larger ? digits(next, '9') : digits(lowest, before);
        const auto left = static_cast<uint32_t>(limit.size() - i - 1);
        result = choice(
            {sequence({differs, any_digits(left, left), other}), sequence({digits(digit, digit), result})});
    }
    return result;
}

// Fractions (".5", or nothing for zero) of at least (at most) `limit`; not equal to it if `exclusive`.
Expr fraction_from(std::string_view limit, bool exclusive) {
    const Expr more_than_zero = sequence({zeros(0), digits('1', '9'), any_digits()});
    if (limit.empty()) return exclusive ? fraction_of(more_than_zero) : any_fraction();
    Expr result = exclusive ? more_than_zero : any_digits();
    for (size_t i = limit.size(); i-- > 0;)
        result = choice({sequence({digits(static_cast<char>(limit[i] + 1), '9'), any_digits()}),
                         sequence({digits(limit[i], limit[i]), result})});
    return fraction_of(result);
}
Expr fraction_to(std::string_view limit, bool exclusive) {
    if (limit.empty()) return exclusive ? never() : optional(fraction_of(zeros(1)));
    Expr result = exclusive ? never() : zeros(0);
    for (size_t i = limit.size(); i-- > 0;) {
        result = choice({sequence({digits('0', static_cast<char>(limit[i] - 1)), any_digits()}),
                         sequence({digits(limit[i], limit[i]), result})});
        if (i > 0) result = choice({result, empty()});  // shorter: the rest is zeros
    }
    return optional(fraction_of(result));
}

// Numbers without a sign, of at least (at most) `limit`; not equal to it if `exclusive`.
Expr at_least(const Decimal &limit, bool exclusive) {
    const Expr same = fraction_from(limit.fraction, exclusive);
    if (limit.whole.empty())
        return choice(
            {sequence({literal("0"), same}), sequence({digits('1', '9'), any_digits(), any_fraction()})});
    const auto size = static_cast<uint32_t>(limit.whole.size());
    return choice({compared(limit.whole, true, any_fraction(), same),
                   sequence({digits('1', '9'), any_digits(size), any_fraction()})});
}
Expr at_most(const Decimal &limit, bool exclusive) {
    const Expr same = fraction_to(limit.fraction, exclusive);
    if (limit.whole.empty()) return sequence({literal("0"), same});
    const auto size = static_cast<uint32_t>(limit.whole.size());
    std::vector<Expr> parts{compared(limit.whole, false, any_fraction(), same),
                            sequence({literal("0"), any_fraction()})};
    if (size > 1) parts.push_back(sequence({digits('1', '9'), any_digits(0, size - 2), any_fraction()}));
    return choice(std::move(parts));
}

Expr any_plain() {
    return sequence({choice({literal("0"), sequence({digits('1', '9'), any_digits()})}), any_fraction()});
}
Expr minus(const Expr &e) {
    return sequence({literal("-"), e});
}

Expr from(const Bound &bound) {
    if (bound.value.negative) return choice({any_plain(), minus(at_most(bound.value, bound.exclusive))});
    const Expr positive = at_least(bound.value, bound.exclusive);
    const bool zero = bound.value.is_zero() && !bound.exclusive;
    return zero ? choice({positive, minus(at_most(bound.value, false))}) : positive;
}
Expr up_to(const Bound &bound) {
    if (bound.value.negative) return minus(at_least(bound.value, bound.exclusive));
    const Expr positive = at_most(bound.value, bound.exclusive);
    const bool zero = bound.value.is_zero();
    if (zero)
        return bound.exclusive ? minus(at_least(bound.value, true)) : choice({positive, minus(any_plain())});
    return choice({positive, minus(any_plain())});
}

// value * 10^places; kUnbounded if that is not an integer or has more than 9 digits.
uint64_t scaled(const Decimal &value, size_t places) {
    if (value.fraction.size() > places || value.whole.size() + places > 9) return kUnbounded;
    std::string text = value.whole + value.fraction + std::string(places - value.fraction.size(), '0');
    return text.empty() ? 0 : std::stoull(text);
}

// A state is the remainder of the digits read so far and the position: before any digit, in the whole part,
// or at one of the places after the point.
Dfa multiples(const Decimal &factor) {
    const size_t places = factor.fraction.size();
    const uint64_t divisor = scaled(factor, places);
    if (divisor == kUnbounded || divisor * (places + 3) > Dfa::kMostStates)
        throw GrammarError("multipleOf is too large for an automaton: " + factor.whole + "." +
                           factor.fraction);
    std::vector<CharSet> classes;
    for (uint32_t d = '0'; d <= '9'; ++d) classes.push_back(CharSet::of(d));
    classes.push_back(CharSet::of('-'));
    classes.push_back(CharSet::of('.'));
    CharSet others = CharSet::all();
    for (const CharSet &set : classes) others = others - set;
    classes.push_back(others);
    // State 0: start. Then [phase][remainder]; phase 0: whole part; 1 + i: i places after the point.
    const auto state = [&](size_t phase, uint64_t remainder) {
        return static_cast<uint32_t>(1 + phase * divisor + remainder);
    };
    const size_t count = 1 + (places + 2) * divisor;
    std::vector<uint32_t> next(count * classes.size(), Dfa::kDead);
    std::vector<bool> accepting(count);
    const auto set = [&](uint32_t from, size_t c, uint32_t to) { next[from * classes.size() + c] = to; };
    for (uint32_t d = 0; d < 10; ++d) set(0, d, state(0, d % divisor));
    set(0, 10, 0);
    for (uint64_t r = 0; r < divisor; ++r) {
        for (size_t phase = 0; phase < places + 2; ++phase) {
            const uint32_t at = state(phase, r);
            uint64_t rest = r;  // with zeros for the digits that are missing to `places`
            const size_t done = phase == 0 ? 0 : phase - 1;
            for (size_t i = done; i < places; ++i) rest = rest * 10 % divisor;
            accepting[at] = rest == 0;
            if (phase == 0) set(at, 11, state(1, r));
            for (uint32_t d = 0; d < 10; ++d) {
                if (phase == 0)
                    set(at, d, state(0, (r * 10 + d) % divisor));
                else if (done < places)
                    set(at, d, state(phase + 1, (r * 10 + d) % divisor));
                else if (d == 0)
                    set(at, d, at);
            }
        }
    }
    return Dfa::of(std::move(classes), std::move(next), std::move(accepting));
}

// Most digits after the point. More would let a model write zeros without end.
constexpr uint32_t kMostPlaces = 17;
// For a bound with more places, the automaton that counts them would be too large, so digits are not limited.
constexpr size_t kMostCounted = 100;
uint32_t most_places(const NumberBounds &bounds) {
    size_t places = 0;
    for (const auto &bound : {bounds.least, bounds.most})
        if (bound) places = std::max(places, bound->value.fraction.size());
    for (const Decimal &factor : bounds.multiples_of) places = std::max(places, factor.fraction.size());
    // With multipleOf, digits after the factor's places are zeros, and each takes one more copy of the automaton.
    if (places > kMostCounted) return kUnbounded;
    return bounds.multiples_of.empty() ? std::max(static_cast<uint32_t>(places), kMostPlaces)
                                       : static_cast<uint32_t>(places) + 1;
}

// `places`: most digits after the point.
Expr syntax(bool integer, bool exponent, uint32_t places) {
    std::vector<Expr> parts{
        optional(literal("-")), choice({literal("0"), sequence({digits('1', '9'), any_digits()})}),
        optional(fraction_of(integer ? repeat(literal("0"), 1, places) : any_digits(1, places)))};
    if (exponent)
        parts.push_back(
            optional(sequence({one_of(CharSet{{'E', 'E'}, {'e', 'e'}}),
                               optional(one_of(CharSet{{'+', '+'}, {'-', '-'}})), any_digits(1)})));
    return sequence(std::move(parts));
}

}  // namespace

Decimal Decimal::parse(std::string_view text) {
    Decimal d;
    if (text.starts_with('-')) d.negative = true, text.remove_prefix(1);
    int64_t exponent = 0;
    if (const size_t e = text.find_first_of("eE"); e != text.npos) {
        std::string_view digits = text.substr(e + 1);
        const bool negative = digits.starts_with('-');
        if (negative || digits.starts_with('+')) digits.remove_prefix(1);
        for (const char c : digits) exponent = std::min<int64_t>(exponent * 10 + (c - '0'), 100'000);
        if (negative) exponent = -exponent;
        text = text.substr(0, e);
    }
    const size_t point = std::min(text.find('.'), text.size());
    std::string all(text.substr(0, point));
    if (point < text.size()) all += text.substr(point + 1);
    int64_t places = static_cast<int64_t>(point) + exponent;  // digits before the point
    if (std::abs(exponent) > 400) {
        if (all.find_first_not_of('0') != all.npos) throw GrammarError("a number's exponent is too large");
        places = 0;
    }
    if (places < 0) all.insert(0, static_cast<size_t>(-places), '0'), places = 0;
    if (static_cast<size_t>(places) > all.size()) all.append(static_cast<size_t>(places) - all.size(), '0');
    d.whole = all.substr(0, static_cast<size_t>(places));
    d.fraction = all.substr(static_cast<size_t>(places));
    d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size()));
    d.fraction.erase(d.fraction.find_last_not_of('0') + 1);
    if (d.is_zero()) d.negative = false;
    return d;
}

int compare(const Decimal &a, const Decimal &b) {
    if (a.negative != b.negative) return a.negative ? -1 : 1;
    const int sign = a.negative ? -1 : 1;
    if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -sign : sign;
    if (const int c = a.whole.compare(b.whole)) return c < 0 ? -sign : sign;
    const int c = a.fraction.compare(b.fraction);
    return c == 0 ? 0 : c < 0 ? -sign : sign;
}

Expr number(const NumberBounds &bounds, bool integer) {
    if (!bounds.any()) return syntax(integer, !integer, integer ? kMostPlaces : kUnbounded);
    Dfa dfa = Dfa::of(syntax(integer, false, most_places(bounds)));
    if (bounds.least) dfa = dfa & Dfa::of(from(*bounds.least));
    if (bounds.most) dfa = dfa & Dfa::of(up_to(*bounds.most));
    for (const Decimal &factor : bounds.multiples_of) dfa = dfa & multiples(factor);
    return words(std::make_shared<Dfa>(std::move(dfa)), Spelling::Plain);
}

bool within(const Decimal &value, const NumberBounds &bounds, bool integer) {
    if (integer && !value.fraction.empty()) return false;
    const auto fits = [&](const std::optional<Bound> &bound, int side) {
        if (!bound) return true;
        const int c = compare(value, bound->value) * side;
        return bound->exclusive ? c > 0 : c >= 0;
    };
    if (!fits(bounds.least, 1) || !fits(bounds.most, -1)) return false;
    const std::string text = (value.negative ? "-" : "") + (value.whole.empty() ? "0" : value.whole) +
                             (value.fraction.empty() ? "" : "." + value.fraction);
    return std::all_of(bounds.multiples_of.begin(), bounds.multiples_of.end(),
                       [&](const Decimal &factor) { return multiples(factor).matches(text); });
}

}  // namespace runnel::grammar
