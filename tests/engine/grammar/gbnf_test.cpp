#include <nlohmann/json.hpp>

#include "engine/grammar/gbnf.h"
#include "tests/engine/grammar/grammar_support.h"
#include "tests/support/data.h"

using namespace runnel;
using namespace runnel::grammar;
using nlohmann::json;
using testing::grammar_error;
using testing::machine_of;
using testing::matches;

TEST_CASE("GBNF: the recorded grammars accept and reject the recorded texts, and errors name the place") {
    size_t grammars = 0;
    for (const json &entry : json::parse(testing::read_file("tests/data/grammar/gbnf.json"))) {
        const std::string name = entry["name"], text = entry["grammar"];
        CAPTURE(name);
        if (entry.contains("error")) {
            const std::string message = grammar_error([&] { compile(parse_gbnf(text)); });
            CHECK_MESSAGE(message.find(entry["error"].get<std::string>()) != message.npos, message);
            CHECK_MESSAGE(message.starts_with(entry["at"].get<std::string>()), message);
            continue;
        }
        ++grammars;
        Machine machine = machine_of(Source::Kind::Gbnf, text);
        for (const std::string good : entry["accept"]) CHECK_MESSAGE(matches(machine, good), good);
        for (const std::string bad : entry["reject"]) CHECK_MESSAGE(!matches(machine, bad), bad);
    }
    CHECK(grammars >= 40);
}

TEST_CASE("GBNF: the state of an ambiguous grammar does not grow with the text") {
    Machine machine =
        machine_of(Source::Kind::Gbnf, "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"\"");
    const StateId deep = machine.advance(machine.start(), std::string(2000, 'a'));
    CHECK(deep != kDead);
    CHECK(machine.states() < 3000);
    CHECK(machine.accepts(machine.advance(deep, std::string(2000, 'b'))));
}

TEST_CASE("GBNF: a repetition count takes no additional states, and right recursion no stack") {
    const Program counted = compile(parse_gbnf("root ::= [a-z]{5,100000}"));
    CHECK(counted.nodes.size() < 20);
    Machine machine = machine_of(Source::Kind::Gbnf, "root ::= \"a\" root | \"b\"");
    machine.advance(machine.start(), std::string(1000, 'a'));
    CHECK(machine.states() < 10);
}

TEST_CASE("GBNF: a text that is nested too deeply is an error, not a crash") {
    Machine machine = machine_of(Source::Kind::Gbnf, "root ::= \"(\" root \")\" | \"x\"");
    CHECK_THROWS_AS(machine.advance(machine.start(), std::string(20000, '(')), GrammarLimit);
}

TEST_CASE("GBNF: tokens may be named by number and by text") {
    const Tokenize tokenize = [](std::string_view text) {
        return text == "<think>" ? std::vector<int32_t>{7} : std::vector<int32_t>{1, 2};
    };
    Machine machine(compile(parse_gbnf("root ::= <think> \"a\" !<[7]>* <[8]>", tokenize)));
    StateId state = machine.start();
    CHECK(machine.step_token(state, 8) == kDead);
    state = machine.step_token(state, 7);
    REQUIRE(state != kDead);
    CHECK(machine.step_token(state, 9) == kDead);
    state = machine.step(state, 'a');
    state = machine.step_token(machine.step_token(state, 9), 9);
    CHECK(machine.step_token(state, 7) == kDead);
    CHECK(machine.accepts(machine.step_token(state, 8)));
    CHECK(grammar_error([&] { parse_gbnf("root ::= <other>", tokenize); }).find("not one token") !=
          std::string::npos);
    CHECK(grammar_error([] { parse_gbnf("root ::= <think>"); }).find("needs a model") != std::string::npos);
}

TEST_CASE("GBNF: reports the only byte that can follow") {
    Machine machine = machine_of(Source::Kind::Gbnf, "root ::= \"ab\" (\"cd\" | \"ce\") \"f\"?");
    CHECK(machine.forced_byte(machine.start()) == 'a');
    CHECK(machine.forced_byte(machine.advance(machine.start(), "ab")) == 'c');
    CHECK(machine.forced_byte(machine.advance(machine.start(), "abc")) == -1);
    CHECK(machine.forced_byte(machine.advance(machine.start(), "abcd")) == -1);
}

TEST_CASE("GBNF: random texts are accepted and rejected as by an independent recognizer") {
    // Written by scripts/check-constrained --record.
    size_t texts = 0;
    for (const json &entry : json::parse(testing::read_file("tests/data/grammar/gbnf_texts.json"))) {
        const std::string grammar = entry["grammar"];
        CAPTURE(grammar);
        Machine machine = machine_of(Source::Kind::Gbnf, grammar);
        for (const std::string good : entry["accept"]) CHECK_MESSAGE(matches(machine, good), good);
        for (const std::string bad : entry["reject"]) CHECK_MESSAGE(!matches(machine, bad), bad);
        texts += entry["accept"].size() + entry["reject"].size();
    }
    CHECK(texts > 700);
}
