// Compares the machine with a naive recognizer, which computes sets of end positions directly from the
// expressions.
#include <map>
#include <set>

#include "engine/grammar/dfa.h"
#include "tests/engine/grammar/grammar_support.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::grammar;
using testing::matches;
using testing::Random;

namespace {

using Ends = std::set<size_t>;

// Computes the positions at which matches of an expression that begin at `from` can end.
class Naive {
  public:
    Naive(const Grammar &grammar, std::string_view text) : grammar_(grammar), text_(text) {}

    bool matches() { return ends(*grammar_.rules[grammar_.root].body, 0).contains(text_.size()); }

  private:
    Ends ends(const Expression &e, size_t from) {
        switch (e.kind) {
            case Kind::Empty:
                return {from};
            case Kind::Bytes:
                return text_.substr(from).starts_with(e.text) ? Ends{from + e.text.size()} : Ends{};
            case Kind::Chars:
                return from < text_.size() && e.chars.contains(static_cast<uint8_t>(text_[from]))
                           ? Ends{from + 1}
                           : Ends{};
            case Kind::Sequence: {
                Ends now{from};
                for (const Expr &part : e.parts) now = after(now, *part);
                return now;
            }
            case Kind::Choice: {
                Ends all;
                for (const Expr &part : e.parts) all.merge(ends(*part, from));
                return all;
            }
            case Kind::Repeat: {
                Ends now{from}, all;
                if (e.min == 0) all = now;
                // More rounds than there are characters bring nothing new.
                const size_t most = std::min<size_t>(e.max, e.min + text_.size() + 1);
                for (size_t i = 1; i <= most && !now.empty(); ++i) {
                    now = after(now, *e.parts[0]);
                    if (i >= e.min) all.insert(now.begin(), now.end());
                }
                return all;
            }
            case Kind::Rule: {
                const auto key = std::pair(e.rule, from);
                if (const auto at = known_.find(key); at != known_.end()) return at->second;
                return known_[key] = ends(*grammar_.rules[e.rule].body, from);
            }
            default:
                return {};
        }
    }
    Ends after(const Ends &from, const Expression &e) {
        Ends all;
        for (const size_t at : from) all.merge(ends(e, at));
        return all;
    }

    const Grammar &grammar_;
    std::string_view text_;
    std::map<std::pair<uint32_t, size_t>, Ends> known_;
};

Expr random_expression(Random &random, int depth, uint32_t rules) {
    const auto inner = [&] { return random_expression(random, depth - 1, rules); };
    switch (random.below(depth > 0 ? 8 : 3)) {
        case 0:
            return literal(std::string(1 + random.below(2), static_cast<char>('a' + random.below(3))));
        case 1:
            return one_of(CharSet{{'a', static_cast<uint32_t>('a' + random.below(3))}});
        case 2:
            return random.below(4) == 0 ? empty() : literal("b");
        case 3:
            return sequence({inner(), inner()});
        case 4:
            return choice({inner(), inner()});
        case 5: {
            const auto min = static_cast<uint32_t>(random.below(4));
            return repeat(inner(), min,
                          random.below(3) == 0 ? kUnbounded : min + static_cast<uint32_t>(random.below(7)));
        }
        case 6:  // a rule after a character: no left recursion
            return sequence({literal("c"), rule(static_cast<uint32_t>(random.below(rules)))});
        default:
            return optional(inner());
    }
}

std::string random_text(Random &random) {
    std::string text;
    for (size_t i = random.below(12); i > 0; --i) text += static_cast<char>('a' + random.below(3));
    return text;
}

}  // namespace

TEST_CASE("machine: random grammars accept the texts that an independent recognizer accepts") {
    constexpr uint64_t kSeed = 5;
    size_t accepted = 0, refused = 0;
    for (uint64_t round = 0; round < 400; ++round) {
        CAPTURE(round);
        Random random(kSeed * 1000 + round);
        Grammar grammar;
        const auto rules = static_cast<uint32_t>(1 + random.below(3));
        for (uint32_t i = 0; i < rules; ++i) grammar.add("r" + std::to_string(i));
        for (uint32_t i = 0; i < rules; ++i) grammar.rules[i].body = random_expression(random, 4, rules);
        std::optional<Machine> machine;
        try {
            machine.emplace(compile(grammar));
        } catch (const GrammarError &) {
            continue;  // nothing matches
        }
        for (int i = 0; i < 25; ++i) {
            const std::string text = random_text(random);
            CAPTURE(text);
            const bool expected = Naive(grammar, text).matches();
            CHECK(matches(*machine, text) == expected);
            (expected ? accepted : refused)++;
        }
    }
    CHECK(accepted > 500);
    CHECK(refused > 500);
}

TEST_CASE("machine: every state that is reached can be finished") {
    for (uint64_t round = 0; round < 200; ++round) {
        CAPTURE(round);
        Random random(900 + round);
        Grammar grammar;
        for (uint32_t i = 0; i < 2; ++i) grammar.add("r" + std::to_string(i));
        for (uint32_t i = 0; i < 2; ++i) grammar.rules[i].body = random_expression(random, 4, 2);
        std::optional<Machine> machine;
        try {
            machine.emplace(compile(grammar));
        } catch (const GrammarError &) {
            continue;
        }
        StateId state = machine->start();
        for (int i = 0; i < 20; ++i) {
            CHECK((machine->accepts(state) || machine->goes_on(state)));
            const std::vector<uint8_t> bytes = machine->next_bytes(state);
            CHECK(bytes.empty() != machine->goes_on(state));
            if (bytes.empty()) break;
            state = machine->step(state, bytes[random.below(bytes.size())]);
        }
    }
}

TEST_CASE("machine: dropping its caches changes nothing") {
    Machine machine = testing::machine_of(Source::Kind::Gbnf, "root ::= (\"a\" | [b-f]{2,5} root)* \"x\"");
    const std::string text = "abcaddefxaxx";
    std::vector<StateId> states{machine.start()};
    for (const char c : text) states.push_back(machine.step(states.back(), static_cast<uint8_t>(c)));
    machine.forget_steps();
    StateId state = machine.start();
    for (size_t i = 0; i < text.size(); ++i) {
        state = machine.step(state, static_cast<uint8_t>(text[i]));
        CHECK(state == states[i + 1]);
    }
}

TEST_CASE("machine: UTF-8 is read byte by byte, without overlong forms and surrogates") {
    Machine machine = testing::machine_of(Source::Kind::Gbnf, "root ::= .");
    for (const uint32_t c :
         {0u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xd7ffu, 0xe000u, 0xffffu, 0x10000u, 0x10ffffu}) {
        std::vector<uint8_t> bytes;
        append_utf8(bytes, c);
        CHECK(matches(machine, {reinterpret_cast<const char *>(bytes.data()), bytes.size()}));
    }
    for (const char *bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xed\xa0\x80",
                            "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80", "\xff", "\xe2\x82"})
        CHECK(!matches(machine, bad));
}
