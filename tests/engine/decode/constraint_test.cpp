#include "engine/decode/constraint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/decode/error.h"
#include "engine/decode/sampler.h"
#include "engine/decode/speculation/grammar_draft.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/grammar/source.h"

using namespace runnel;
using namespace runnel::decode;
using grammar::Source;

namespace {

// Letters a to f, "{", "}", a pair of marks, and an end.
enum Id : TokenId {
    kA,
    kB,
    kC,
    kD,
    kE,
    kF,
    kOpenBrace,
    kCloseBrace,
    kOpen,
    kClose,
    kNewline,
    kAb,
    kMarkAndBrace,
    kEnd
};
const std::vector<std::string> kTexts{"a", "b", "c", "d", "e", "f", "{", "}", "", "", "\n", "ab", ">>{", ""};

Constraint constraint_of(const std::string &gbnf, std::optional<FreeText> free = {}) {
    auto index = std::make_shared<grammar::TokenIndex>(kTexts, std::vector<TokenId>{kEnd});
    grammar::Machine machine(grammar::compile({.kind = Source::Kind::Gbnf, .text = gbnf}));
    return Constraint(std::make_shared<grammar::Masks>(std::move(machine), index), std::move(free));
}

SamplingOptions greedy() {
    SamplingOptions options;
    options.temperature = 0;
    return options;
}

std::vector<TokenId> allowed_after(Constraint &constraint, const std::vector<TokenId> &history) {
    std::vector<TokenId> ids;
    const grammar::Bits mask = constraint.mask(history);
    for (TokenId id = 0; id <= kEnd; ++id) {
        if (grammar::has_bit(mask, id)) ids.push_back(id);
        CHECK(constraint.allows(history, id) == grammar::has_bit(mask, id));
    }
    return ids;
}

}  // namespace

TEST_CASE("constraint: follows an answer forward and back, with drafts and dropped tokens") {
    Constraint constraint = constraint_of("root ::= \"a\" (\"b\" | \"c\") \"d\"* \"e\"");
    const std::vector<TokenId> prompt{kF, kF, kE};
    constraint.begin(prompt.size());
    const auto with = [&](std::vector<TokenId> answer) {
        answer.insert(answer.begin(), prompt.begin(), prompt.end());
        return answer;
    };
    using Ids = std::vector<TokenId>;
    CHECK(allowed_after(constraint, with({})) == Ids{kA, kAb});
    CHECK(allowed_after(constraint, with({kA})) == Ids{kB, kC});
    CHECK(allowed_after(constraint, with({kA, kB, kD, kD})) == Ids{kD, kE});
    CHECK(allowed_after(constraint, with({kA, kC})) == Ids{kD, kE});  // another branch
    CHECK(allowed_after(constraint, with({kA})) == Ids{kB, kC});      // back
    CHECK(constraint.allowed(with({kA}), Ids{kB, kD, kF, kE}) == 2);
    CHECK(constraint.allowed(with({kA, kB}), Ids{kE, kEnd, kA}) == 2);
    CHECK(!constraint.complete(Ids{kA, kB, kD}));
    CHECK(constraint.complete(Ids{kA, kB, kD, kE}));
    CHECK(constraint.ending(Ids{kA}) == "be");
    CHECK(constraint.ending(Ids{kA, kB, kE}) == "");
    // A copy is independent.
    Constraint copy = constraint;
    CHECK(allowed_after(copy, with({kAb})) == Ids{kD, kE});
    CHECK(allowed_after(constraint, with({kA, kC, kE})) == Ids{kEnd});
    // A context shift drops the prompt and a part of the answer.
    CHECK(allowed_after(constraint, with({kA, kB, kD, kD})) == Ids{kD, kE});
    constraint.drop(4);
    CHECK(allowed_after(constraint, Ids{kB, kD, kD, kD}) == Ids{kD, kE});
    // Another one keeps the beginning of the prompt, which is not compared with the answer.
    Constraint keeping = constraint;
    keeping.begin(prompt.size());
    CHECK(allowed_after(keeping, with({kA, kB, kD, kD})) == Ids{kD, kE});
    keeping.drop(4, 2);
    const TokenId first = with({})[0], second = with({})[1];
    CHECK(allowed_after(keeping, Ids{first, second, kD}) == Ids{kD, kE});
    CHECK(allowed_after(keeping, Ids{first, second, kD, kE}) == Ids{kEnd});
}

TEST_CASE("constraint: reasoning is free until its mark, which may share a token with the answer") {
    const auto text = [](TokenId id) {
        return id == kOpen ? std::string("<<") : id == kClose ? ">>" : kTexts[static_cast<size_t>(id)];
    };
    using Ids = std::vector<TokenId>;
    Constraint inside = constraint_of("root ::= \"{\" \"}\"", FreeText{.close = ">>", .text = text});
    inside.begin(0);
    CHECK(allowed_after(inside, {}).size() == kTexts.size() - 1);  // anything but the end
    CHECK(allowed_after(inside, {kA, kCloseBrace}).size() == kTexts.size() - 1);
    CHECK(allowed_after(inside, {kA, kClose}) == Ids{kOpenBrace});
    CHECK(allowed_after(inside, {kA, kMarkAndBrace}) == Ids{kCloseBrace});
    CHECK(!inside.complete(Ids{kA}));
    CHECK(inside.complete(Ids{kA, kMarkAndBrace, kCloseBrace}));
    CHECK(inside.ending(Ids{kA}) == "");
    Constraint either =
        constraint_of("root ::= \"{\" \"}\"", FreeText{.close = ">>", .open = kOpen, .text = text});
    either.begin(0);
    CHECK(allowed_after(either, {}) == Ids{kOpenBrace, kOpen});
    CHECK(allowed_after(either, {kOpen, kA, kClose}) == Ids{kOpenBrace});
    CHECK(allowed_after(either, {kOpenBrace}) == Ids{kCloseBrace});
}

TEST_CASE("constraint: a draw has the model's probabilities over the allowed tokens") {
    std::vector<float> logits(kTexts.size());
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i) * 1.7f) * 2;
    for (const bool filtered : {false, true}) {
        CAPTURE(filtered);
        SamplingOptions options;
        options.temperature = options.top_p = 1;
        options.top_k = 0;
        options.min_p = 0;
        if (filtered) options.top_k = 2;
        Sampler sampler(options, static_cast<int32_t>(logits.size()));
        sampler.constrain(constraint_of("root ::= [b-e] \"}\""));
        sampler.begin_answer(0);
        const Distribution got = sampler.distribution(logits, {});
        std::map<TokenId, double> expected;
        for (const TokenId id : {kB, kC, kD, kE})
            expected[id] = std::exp(double{logits[static_cast<size_t>(id)]});
        if (filtered)  // the mask comes first: the two best allowed tokens
            while (expected.size() > 2)
                expected.erase(std::min_element(expected.begin(), expected.end(),
                                                [](auto &a, auto &b) { return a.second < b.second; }));
        double sum = 0;
        for (const auto &[id, weight] : expected) sum += weight;
        CHECK(got.candidates.size() == expected.size());
        for (const auto &[id, weight] : expected)
            CHECK(got.probability_of(id) == doctest::Approx(weight / sum));
    }
}

TEST_CASE(
    "constraint: the top-k logits suffice if enough of them are allowed, otherwise the full row is read") {
    const std::vector<float> logits{0, 5, 1, 0, 0, 9, 8, 0, 0, 0, 0, 0, 0, 7};
    const std::vector<kernels::TopLogit> two{{kF, 9}, {kOpenBrace, 8}},
        many{{kF, 9}, {kOpenBrace, 8}, {kEnd, 7}, {kB, 5}};
    Sampler sampler(greedy(), static_cast<int32_t>(logits.size()));
    sampler.constrain(constraint_of("root ::= [bc]"));
    sampler.begin_answer(0);
    CHECK(!sampler.sample(two, {}));
    CHECK(sampler.sample(many, {}) == kB);
    CHECK(sampler.sample(logits, {}) == kB);
    CHECK(sampler.sample(logits, std::vector<TokenId>{kB}) == kEnd);
}

TEST_CASE("constraint: no ending is found if the search exceeds the grammar's limits") {
    auto index = std::make_shared<grammar::TokenIndex>(kTexts, std::vector<TokenId>{kEnd});
    const Source source{.kind = Source::Kind::Gbnf, .text = "root ::= \"a\" root \"bb\" | \"c\""};
    grammar::Machine machine(grammar::compile(source), {.depth = 8});
    const Constraint constraint(std::make_shared<grammar::Masks>(std::move(machine), index));
    CHECK(constraint.ending(std::vector<TokenId>{kA}) == "cbb");
    CHECK(constraint.ending(std::vector<TokenId>{kA, kA, kA, kA, kA, kA}) == "");
}

TEST_CASE("constraint: a grammar that allows no token throws DecodeError") {
    Constraint constraint = constraint_of("root ::= \"z\"");
    constraint.begin(0);
    CHECK_THROWS_AS(constraint.mask({}), DecodeError);
}

namespace {

// A source that always gives the same draft.
class Fixed final : public DraftSource {
  public:
    explicit Fixed(Draft draft) : draft_(std::move(draft)) {}
    Draft draft(std::span<const TokenId>, int32_t, float, Sampler &) override { return draft_; }
    std::string_view name() const override { return "fixed"; }

  private:
    Draft draft_;
};

}  // namespace

TEST_CASE("constraint: drafts of any source end before the first refused token") {
    using Ids = std::vector<TokenId>;
    Sampler sampler(greedy(), static_cast<int32_t>(kTexts.size()));
    sampler.constrain(constraint_of("root ::= \"c\" \"abd\" [ef] \"a\""));
    sampler.begin_answer(1);
    Draft draft{.tokens = {kAb, kD, kE, kB, kA}, .probabilities = {1, 1, 1, 1, 1}, .distributions = {}};
    draft.branches = {{0, {kA, kB, kE}, {1, 1, 1}}, {2, {kF, kA}, {1, 1}}, {1, {kA}, {1}}, {4, {kE}, {1}}};
    std::vector<std::unique_ptr<DraftSource>> sources;
    sources.push_back(std::make_unique<Fixed>(draft));
    Speculator speculator(std::move(sources), {.length = {.branches = 5}});
    speculator.propose(Ids{kF, kC}, 8, 0, sampler);
    CHECK(std::ranges::equal(speculator.drafts(), Ids{kAb, kD, kE}));
    REQUIRE(speculator.branches().size() == 2);
    CHECK(speculator.branches()[0].tokens == Ids{kA, kB});
    CHECK(speculator.branches()[1].tokens == Ids{kF, kA});
}

TEST_CASE("constraint: forced text is drafted in the tokens of the tokenizer") {
    Sampler sampler(greedy(), static_cast<int32_t>(kTexts.size()));
    sampler.constrain(constraint_of("root ::= \"c\" \"abd\" [ef]"));
    sampler.begin_answer(1);
    const Words words{[](TokenId id) { return kTexts[static_cast<size_t>(id)]; },
                      [](const std::string &text) {
                          std::vector<TokenId> ids;
                          for (size_t i = 0; i < text.size(); ++i) {
                              const bool pair = text.substr(i, 2) == "ab";
                              ids.push_back(pair ? kAb : text[i] - 'a');
                              i += pair;
                          }
                          return ids;
                      }};
    GrammarDraft source(words);
    const std::vector<TokenId> text{kF, kC};
    CHECK(source.draft(text, 8, 0, sampler).tokens == std::vector<TokenId>{kAb});  // "d" could still change
    CHECK(source.draft(std::vector<TokenId>{kF, kC, kA, kB, kD}, 8, 0, sampler).tokens.empty());
    CHECK(source.draft(text, 0, 0, sampler).tokens.empty());
}

TEST_CASE("constraint: an answer may end before the mark, but not after it") {
    FreeText free{.close = "{", .text = [](TokenId id) { return kTexts[static_cast<size_t>(id)]; }};
    free.may_end = true;
    Constraint constraint = constraint_of("root ::= \"a\" \"b\"", free);
    constraint.begin(0);
    const std::vector<TokenId> anything = allowed_after(constraint, {});
    CHECK(std::ranges::count(anything, kEnd) == 1);
    CHECK(std::ranges::count(anything, kF) == 1);
    CHECK(allowed_after(constraint, {kF, kOpenBrace}) == std::vector<TokenId>{kA, kAb});
    CHECK(allowed_after(constraint, {kF, kOpenBrace, kAb}) == std::vector<TokenId>{kEnd});
    CHECK(constraint.complete(std::vector<TokenId>{}));
    CHECK(constraint.complete(std::vector<TokenId>{kA, kB}));
    CHECK(!constraint.complete(std::vector<TokenId>{kA, kOpenBrace}));
    CHECK(constraint.complete(std::vector<TokenId>{kA, kOpenBrace, kAb}));
    CHECK(constraint.allowed(std::vector<TokenId>{}, std::vector<TokenId>{kA, kEnd, kA}) == 2);
}
