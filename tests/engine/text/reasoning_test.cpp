#include "engine/text/reasoning.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/random.h"

using namespace runnel;
using text::ReasoningSplitter;
using text::ReasoningStyle;

namespace {

using Split = std::pair<std::string, std::string>;  // reasoning, answer

const ReasoningStyle kThink{ReasoningStyle::Kind::Marks, "<think>", "</think>"};
const ReasoningStyle kHarmony{ReasoningStyle::Kind::Harmony, "", ""};

// The text is pushed in pieces of random sizes.
Split split(const ReasoningStyle &style, const std::string &text, bool inside, testing::Random &random) {
    ReasoningSplitter splitter(style, inside);
    Split result;
    const auto take = [&](const std::vector<ReasoningSplitter::Piece> &pieces) {
        for (const auto &piece : pieces) (piece.is_reasoning ? result.first : result.second) += piece.text;
    };
    for (size_t at = 0; at < text.size();) {
        const size_t length = 1 + random.below(7);
        take(splitter.push(std::string_view(text).substr(at, length)));
        at += length;
    }
    take(splitter.flush());
    return result;
}

}  // namespace

TEST_CASE("reasoning: separated from the answer, however the text is split") {
    struct Case {
        ReasoningStyle style;
        const char *text;
        bool inside;
        Split expected;
    };
    const Case cases[] = {
        {kThink, "<think>\nHm, <b>.\n</think>\n\nYes.\n", false, {"Hm, <b>.", "Yes.\n"}},
        {kThink, "\n<think>a</think>b", false, {"a", "b"}},
        {kThink, "Hm.\n</think>\nYes </think> no", true, {"Hm.", "Yes </think> no"}},
        {kThink, "<think>\n\n</think>\n\nYes", false, {"", "Yes"}},
        {kThink, "Just <think> text", false, {"", "Just <think> text"}},
        {kThink, "  plain", false, {"", "  plain"}},
        {kThink, "<thi", false, {"", "<thi"}},
        {kThink, "<think>never ends </thi", false, {"never ends </thi", ""}},
        {{}, "<think>a</think>b", false, {"", "<think>a</think>b"}},
        {kHarmony,
         "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
         false,
         {"Hm.", "Yes."}},
        {kHarmony,
         "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}",
         false,
         {"", "to=functions.f {\"x\": 1}"}},
        {kHarmony, "plain", false, {"", "plain"}},
        {kHarmony, "<|channel|>final<|message|>a<|end", false, {"", "a<|end"}},
    };
    testing::Random random(7);
    for (const Case &c : cases)
        for (int round = 0; round < 50; ++round) {
            CAPTURE(c.text);
            CHECK(split(c.style, c.text, c.inside, random) == c.expected);
        }
}

TEST_CASE("reasoning: a tool call ends it, and is part of the answer") {
    const ReasoningStyle think{ReasoningStyle::Kind::Marks, "<think>", "</think>", "<tool_call>"};
    const ReasoningStyle harmony{ReasoningStyle::Kind::Harmony, "", "",
                                 "<|channel|>commentary to=functions."};
    const std::string call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}";
    for (uint64_t seed = 0; seed < 100; ++seed) {
        CAPTURE(seed);
        testing::Random random(seed);
        CHECK(split(think, "<think>\nHm.\n<tool_call>{}</think>", false, random) ==
              Split{"Hm.", "<tool_call>{}</think>"});
        CHECK(split(think, "Hm.</think><tool_call>{}", true, random) == Split{"Hm.", "<tool_call>{}"});
        const std::string thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
        CHECK(split(harmony, thought + call, false, random) == Split{"Hm.", call});
        // The recipient may come before the channel.
        const std::string other = " to=functions.f<|channel|>commentary json<|message|>{\"x\": 1}";
        CHECK(split(harmony, thought + other, false, random) == Split{"Hm.", call});
        CHECK(split(harmony, other, false, random) == Split{"", call});
    }
}

TEST_CASE("reasoning: held-back text is searched once, not for each piece") {
    // With 1.2 MB held back in 300,000 pieces, a search from its beginning for each piece takes hours.
    const auto pushed = [](const ReasoningStyle &style, const std::string &first, const std::string &piece,
                           const std::string &last) {
        ReasoningSplitter splitter(style, false);
        Split result;
        const auto take = [&](const std::vector<ReasoningSplitter::Piece> &pieces) {
            for (const auto &p : pieces) (p.is_reasoning ? result.first : result.second) += p.text;
        };
        take(splitter.push(first));
        for (int i = 0; i < 300'000; ++i) take(splitter.push(piece));
        take(splitter.push(last));
        take(splitter.flush());
        return result;
    };
    const ReasoningStyle calls{ReasoningStyle::Kind::Marks, "<think>", "</think>", "<tool_call>"};
    const std::string lines = "\n\n\n\n";
    CHECK(pushed(kThink, "<think>Hm.", lines, "</think>A") == Split{"Hm.", "A"});
    CHECK(pushed(calls, "<think>Hm.", lines, "<tool_call>") == Split{"Hm.", "<tool_call>"});
    CHECK(pushed(kThink, "\n", lines, "<think>Hm.</think>A") == Split{"Hm.", "A"});
    CHECK(pushed(kHarmony, "<|channel|>analysis<|message|>Hm.", lines, "<|end|>") == Split{"Hm.", ""});
    CHECK(pushed(kHarmony, "<|channel|>analysis", lines, "<|message|>Hm.") == Split{"Hm.", ""});
}

TEST_CASE("reasoning: detects whether the prompt already begins it") {
    CHECK(kThink.begins_inside("...<|im_start|>assistant\n<think>\n"));
    CHECK_FALSE(kThink.begins_inside("...<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    CHECK_FALSE(kThink.begins_inside("<|im_start|>assistant\n"));
    CHECK_FALSE(ReasoningStyle{}.begins_inside("<think>"));
}
