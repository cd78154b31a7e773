// The tokens of earlier answers in a prompt: used only where they give the prompt's text.
#include "engine/completion/written_answer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/completion/prompt.h"
#include "tests/support/demo_model.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::completion;
using namespace runnel::testing;
using text::Segment;

namespace {

struct Demo {
    gguf::File file = gguf::File::open(demo_model());
    text::Tokenizer tokenizer = text::Tokenizer::load(file);
    PromptFormat format{file, tokenizer};

    std::vector<TokenId> prompt(const std::vector<text::Message> &turns,
                                const std::vector<WrittenAnswer> &written, PromptMark *mark = nullptr) const {
        const Prompt made = format.make({.input = Messages{turns, nullptr, written}}, 1 << 20);
        if (mark) *mark = made.mark;
        return made.tokens;
    }
    // The text as Answer would show it.
    std::string text(const std::vector<TokenId> &tokens) const {
        Answer answer(vocabulary_of(tokenizer), {.ignore_end = true});
        std::string all;
        for (const TokenId id : tokens) all += answer.take(id);
        return all + answer.end(FinishReason::Length);
    }
    // Tokens of words, spelled in another way than encode() does.
    std::vector<TokenId> letters(const std::string &text) const {
        std::vector<TokenId> ids;
        for (const char c : text) {
            const auto one = tokenizer.encode(std::string(1, c), {.add_special = false});
            ids.insert(ids.end(), one.begin(), one.end());
        }
        return ids;
    }
};

bool begins_with(const std::vector<TokenId> &all, const std::vector<TokenId> &begin) {
    return all.size() >= begin.size() && std::equal(begin.begin(), begin.end(), all.begin());
}

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId> &b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

}  // namespace

TEST_CASE("written answers: every prompt begins with the one before and the tokens of its answer") {
    const Demo demo;
    Random random(1);
    std::vector<text::Message> turns = {{"system", "Be brief."}};
    std::vector<WrittenAnswer> written;
    for (int turn = 0; turn < 12; ++turn) {
        CAPTURE(turn);
        turns.push_back({"user", "Question " + std::to_string(turn) + "?"});
        WrittenAnswer answer;
        const std::vector<TokenId> prompt = demo.prompt(turns, written, &answer.after);
        for (uint64_t i = 1 + random.below(40); i > 0; --i)  // any tokens but control tokens, so any bytes
            answer.tokens.push_back(static_cast<TokenId>(3 + random.below(2000)));
        turns.push_back({"assistant", demo.text(answer.tokens)});
        written.push_back(answer);
        turns.push_back({"user", "And then?"});
        const std::vector<TokenId> next = demo.prompt(turns, written);
        turns.pop_back();
        // Only the last token may be missing: an incomplete character at the end is shown as U+FFFD.
        std::vector<TokenId> expected = joined(prompt, answer.tokens);
        for (int cut = 0; cut < 3 && !begins_with(next, expected); ++cut) expected.pop_back();
        REQUIRE(begins_with(next, expected));
        std::string bytes;
        for (const TokenId id : next) bytes += demo.tokenizer.decode(id);
        CHECK(demo.text(next).ends_with("And then?\nassistant\n"));
    }
}

TEST_CASE("written answers: what does not fit the text is encoded as usual") {
    const Demo demo;
    const std::vector<text::Message> question = {{"user", "Who is it?"}};
    PromptMark mark;
    demo.prompt(question, {}, &mark);
    const std::string text = "The wolf and the fox";
    const auto turns_with = [&](const std::string &answer) {
        return std::vector<text::Message>{question[0], {"assistant", answer}, {"user", "Why?"}};
    };
    const std::vector<TokenId> plain = demo.prompt(turns_with(text), {}), letters = demo.letters(text);
    REQUIRE(letters.size() == text.size());
    CHECK(demo.prompt(turns_with(text), {{mark, letters}}) != plain);

    SUBCASE("another text, as when a template leaves out the reasoning") {
        CHECK(demo.prompt(turns_with(text), {{mark, demo.letters("The wolf and the hen")}}) == plain);
        CHECK(demo.prompt(turns_with(text), {{mark, demo.letters("Hm. " + text)}}) == plain);
        CHECK(demo.prompt(turns_with(text), {{mark, demo.letters(text + " and more")}}) == plain);
    }
    SUBCASE("after another prompt") {
        PromptMark other = mark;
        other.sum[0] ^= 1;
        CHECK(demo.prompt(turns_with(text), {{other, letters}}) == plain);
        for (const uint64_t bytes :
             {uint64_t{0}, mark.bytes - 1, mark.bytes + 1, uint64_t{1} << 40, UINT64_MAX})
            CHECK(demo.prompt(turns_with(text), {{{bytes, mark.sum}, letters}}) == plain);
    }
    SUBCASE("ids that are no tokens") {
        for (const TokenId id : {TokenId{-1}, TokenId{1 << 20}, INT32_MAX, INT32_MIN})
            CHECK(demo.prompt(turns_with(text), {{mark, {id}}}) == plain);
    }
    SUBCASE("the mark of a control token in an answer is text, not that token") {
        const TokenId end = *demo.tokenizer.find("<|im_end|>");
        const auto tricked = turns_with("Hi<|im_end|>");
        std::vector<TokenId> ids = demo.letters("Hi");
        ids.push_back(end);
        const auto prompt = demo.prompt(tricked, {{mark, ids}});
        CHECK(std::count(prompt.begin(), prompt.end(), end) == 3);  // of three turns
    }
    SUBCASE("blanks that a template trims: the tokens before them stay") {
        const auto prompt = demo.prompt(turns_with(text), {{mark, demo.letters(text + " \n")}});
        CHECK(prompt == demo.prompt(turns_with(text), {{mark, letters}}));
    }
    SUBCASE("the same answer twice, and answers in the wrong order") {
        const auto once = demo.prompt(turns_with(text), {{mark, letters}});
        CHECK(demo.prompt(turns_with(text), {{mark, letters}, {mark, letters}}) == once);
    }
}
