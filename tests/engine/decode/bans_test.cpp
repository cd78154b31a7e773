#include "engine/decode/bans.h"

#include <doctest/doctest.h>

#include "engine/decode/constraint.h"
#include "engine/decode/error.h"
#include "engine/grammar/source.h"
#include "tests/support/random.h"

using namespace runnel::decode;
using namespace runnel;
using runnel::testing::Random;

namespace {

std::shared_ptr<const TokenTexts> texts_of(const std::vector<std::string> &texts) {
    return std::make_shared<TokenTexts>([&](TokenId id) { return texts[static_cast<size_t>(id)]; },
                                        static_cast<int32_t>(texts.size()));
}

std::string word(Random &random, size_t longest) {
    std::string text;
    for (size_t i = 1 + random.below(longest); i > 0; --i) text += static_cast<char>('a' + random.below(2));
    return text;
}

bool has_any(const std::string &text, const std::vector<std::string> &banned) {
    return std::any_of(banned.begin(), banned.end(),
                       [&](const std::string &one) { return text.find(one) != text.npos; });
}

}  // namespace

TEST_CASE("bans: the forbidden tokens are those whose text would complete a banned text") {
    for (uint64_t seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        std::vector<std::string> texts{"", "c", "\xc3"}, banned;
        for (int i = 0; i < 12; ++i) texts.push_back(word(random, 4));
        for (size_t i = 1 + random.below(4); i > 0; --i) banned.push_back(word(random, 6));
        Bans bans(banned, texts_of(texts));
        Bans::State state = Bans::kStart;
        std::string answer;
        for (int step = 0; step < 20; ++step) {
            const grammar::Bits &forbidden = bans.forbidden(state);
            std::vector<TokenId> allowed;
            for (TokenId id = 0; id < bans.rows(); ++id) {
                const bool expected = has_any(answer + texts[static_cast<size_t>(id)], banned);
                CHECK(grammar::has_bit(forbidden, id) == expected);
                if (!expected) allowed.push_back(id);
            }
            const TokenId next = allowed[random.below(allowed.size())];
            answer += texts[static_cast<size_t>(next)];
            state = bans.advance(state, next);
        }
    }
}

TEST_CASE("bans: an empty text and too many bytes are refused") {
    const auto tokens = texts_of({"a"});
    CHECK_THROWS_AS(Bans({"a", ""}, tokens), DecodeError);
    CHECK_THROWS_AS(Bans({std::string(Bans::kMostBytes + 1, 'a')}, tokens), DecodeError);
}

TEST_CASE("constraint: banned texts are enforced alone and with a grammar") {
    const std::vector<std::string> texts{"</s>", "a", "b", "ab", "ba", "x"};
    const auto banned = [&](std::vector<std::string> what) {
        return std::make_shared<Bans>(std::move(what), texts_of(texts));
    };
    Constraint alone(banned({"aba"}));
    CHECK(!alone.has_grammar());
    CHECK(alone.complete(std::vector<TokenId>{1, 2}));
    const std::vector<TokenId> history{5, 1};
    CHECK(!alone.allows(history, 4));
    CHECK(!grammar::has_bit(alone.mask(history), 4));
    for (const TokenId id : {0, 1, 2, 3, 5}) CHECK(grammar::has_bit(alone.mask(history), id));
    CHECK(alone.allowed(history, std::vector<TokenId>{2, 5, 3, 1}) == 3);
    const std::vector<TokenId> forced{5, 1, 4};  // "aba" was forced nevertheless: the answer continues
    CHECK(alone.allows(forced, 1));
    CHECK(alone.allowed(forced, std::vector<TokenId>{1, 2, 1}) == 2);

    const auto index = std::make_shared<grammar::TokenIndex>(texts, std::vector<TokenId>{0});
    Constraint both(std::make_shared<grammar::Masks>(
        grammar::Machine(grammar::compile({.kind = grammar::Source::Kind::Regex, .text = "(a|b){2,}x?"})),
        index));
    both.ban(banned({"bb", "x"}));
    const std::vector<TokenId> begun{1, 2};
    CHECK(!grammar::has_bit(both.mask(begun), 2));
    CHECK(!grammar::has_bit(both.mask(begun), 4));
    CHECK(!grammar::has_bit(both.mask(begun), 5));
    for (const TokenId id : {0, 1, 3}) CHECK(grammar::has_bit(both.mask(begun), id));
    CHECK(both.ending(std::vector<TokenId>{1}).size() == 1);
    Constraint blocked = both;
    blocked.ban(banned({"aa", "ab"}));
    CHECK(blocked.ending(std::vector<TokenId>{1}).empty());
}
