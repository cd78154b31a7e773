#include "engine/grammar/regex.h"

#include "engine/grammar/dfa.h"
#include "tests/engine/grammar/grammar_support.h"

using namespace runnel;
using namespace runnel::grammar;
using testing::grammar_error;
using testing::matches;

namespace {

Machine machine_for(const Expr &e) {
    Grammar grammar;
    grammar.add("root", e);
    return Machine(compile(grammar));
}

struct Case {
    const char *pattern;
    std::vector<const char *> accept, reject;
};

}  // namespace

TEST_CASE("regex: a pattern matches the text as a whole") {
    const Case kCases[] = {
        {"abc", {"abc"}, {"ab", "abcd", "xabc"}},
        {"^abc$", {"abc"}, {"xabc"}},
        {"a|bc|", {"a", "bc", ""}, {"ab", "c"}},
        {"(?:a|b)+?c{2,3}", {"acc", "abbccc"}, {"cc", "acccc"}},
        {"(?<year>\\d{4})-(?P<m>\\d\\d)", {"2024-05"}, {"24-05", "2024-5"}},
        {"[^a-c\\]]*", {"xyz", "é", ""}, {"a", "]"}},
        {"[\\w.-]+@[a-z]+", {"a.b-c_1@x"}, {"@x", "a b@x"}},
        {"\\x41\\u0042\\u{1F600}\\uD83D\\uDE00", {"AB😀😀"}, {"AB😀"}},
        {"a.c", {"abc", "aéc", "a\tc"}, {"a\nc", "a\rc", "ac"}},
        {"x{2", {"x{2"}, {"xx"}},
        {"a{,2}", {"a{,2}"}, {"aa"}},
        {"\\.\\*\\/\\-\\_\\$", {".*/-_$"}, {"a"}},
        {"\\s+\\S", {" \xc2\xa0x", "\t\vé"}, {"x", "  "}},
        {"\\p{Lu}\\p{L}*\\P{L}", {"Éa1", "A-"}, {"a1", "AB"}},
        {"(a*)*b", {"b", "aaab"}, {"a"}},
        {"[^]", {"a", "\n", "😀"}, {"", "aa"}},
        {"(\\bfoo\\b ?)+", {"foo", "foo foo"}, {"foofoo", "foo_foo"}},
        {"a^b|c", {"c"}, {"ab", "a"}},
        {"[\\d-x]", {"-", "x", "5"}, {"a"}},
    };
    for (const Case &c : kCases) {
        CAPTURE(c.pattern);
        Machine machine = machine_for(whole_match(parse_regex(c.pattern)));
        const Dfa dfa = Dfa::of(parse_regex(c.pattern));
        for (const char *text : c.accept) CHECK_MESSAGE((matches(machine, text) && dfa.matches(text)), text);
        for (const char *text : c.reject)
            CHECK_MESSAGE((!matches(machine, text) && !dfa.matches(text)), text);
    }
}

TEST_CASE("regex: a search finds a match anywhere, between its anchors") {
    const Case kCases[] = {
        {"foo", {"foo", "a foo b", "foofoo"}, {"fo", "f oo"}},
        {"^foo", {"foo", "food"}, {"a foo"}},
        {"foo$", {"foo", "a foo"}, {"food", "foo\n"}},
        {"^a$|^b", {"a", "b", "bcd"}, {"ab", "xa", "aa"}},
        {"(^a|b)c", {"ac", "xbc", "acd"}, {"xac", "b"}},
        {"\\bcat\\b", {"cat", "the cat.", "cat-flap"}, {"cats", "concat", "_cat"}},
        {"a\\Bb", {"xaby"}, {"a b"}},
        {"", {"", "anything"}, {}},
        {"^$", {""}, {"a"}},
    };
    for (const Case &c : kCases) {
        CAPTURE(c.pattern);
        Machine machine = machine_for(search_match(parse_regex(c.pattern)));
        const Dfa dfa = Dfa::of(parse_regex(c.pattern), true);
        for (const char *text : c.accept) CHECK_MESSAGE((matches(machine, text) && dfa.matches(text)), text);
        for (const char *text : c.reject)
            CHECK_MESSAGE((!matches(machine, text) && !dfa.matches(text)), text);
    }
}

TEST_CASE("regex: unsupported or wrong syntax is refused with its place") {
    const std::pair<std::string, const char *> kCases[] = {
        {"a(?=b)", "look-around"},
        {"(?<!a)b", "look-around"},
        {"(a)\\1", "back-reference"},
        {"(?i)a", "flags"},
        {"a**", "nothing to repeat"},
        {"*a", "nothing to repeat"},
        {"(a", "'(' without ')'"},
        {"a)", "')' without '('"},
        {"[a", "'[' without ']'"},
        {"a{3,2}", "out of order"},
        {"[b-a]", "out of order"},
        {"\\q", "unknown escape"},
        {"\\", "at the end"},
        {"\\p{Greek}", "not supported"},
        {"a++", "possessive"},
        {"\\ud800", "surrogate"},
        {"a{999999999}", "above"},
        {std::string(3000, '('), "nested too deeply"},
        {"\xff", "UTF-8"},
    };
    for (const auto &[pattern, part] : kCases) {
        const std::string message = grammar_error([&] { parse_regex(pattern); });
        CHECK_MESSAGE(message.find(part) != message.npos, pattern << ": " << message);
        CHECK_MESSAGE(message.starts_with("line 1, column "), message);
    }
}

TEST_CASE("regex: automata intersect, complement and bound lengths") {
    const Dfa a = Dfa::of(parse_regex("^(ab)*$"), true), b = Dfa::of(parse_regex("^.{3,6}$"), true);
    const Dfa both = a & b, other = a.complement();
    for (const char *text : {"", "ab", "aba", "abab", "ababab", "abababab", "x"}) {
        CAPTURE(text);
        CHECK(both.matches(text) == (a.matches(text) && b.matches(text)));
        CHECK(other.matches(text) == !a.matches(text));
    }
    CHECK((a & other).none());
    CHECK(a.shortest()[0] == 0);
    CHECK(a.longest()[0] == kUnbounded);
    CHECK(both.longest()[0] == 6);
    Machine machine = machine_for(words(std::make_shared<Dfa>(a), Spelling::Plain, 3, 7));
    for (const char *text : {"abab", "ababab"}) CHECK(matches(machine, text));
    for (const char *text : {"", "ab", "aba", "ababa", "abababab"}) CHECK(!matches(machine, text));
    CHECK(machine.advance(machine.start(), "abababa") == kDead);  // cannot be finished
    CHECK(machine.advance(machine.start(), "ababa") != kDead);
}
