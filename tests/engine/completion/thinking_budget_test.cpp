// When the closing mark of reasoning is forced: this depends on the text alone.
#include "engine/completion/thinking_budget.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

using namespace runnel::completion;
using runnel::text::ReasoningStyle;

namespace {

const ReasoningStyle kThink{ReasoningStyle::Kind::Marks, "<think>", "</think>"};
const ReasoningStyle kHarmony{ReasoningStyle::Kind::Harmony, "", ""};

const std::vector<std::string> kWords = {"</",       "think",       ">",       "a",         " b",
                                         "\xe2\x82", "\xac",        "<think>", "</think>",  "<|channel|>",
                                         "analysis", "<|message|>", "<|end|>", "<|start|>", "assistant",
                                         "final",    "commentary",  "\n",      "<tool_",    "call>"};

TokenId id(const std::string &word) {
    for (size_t i = 0; i < kWords.size(); ++i)
        if (kWords[i] == word) return static_cast<TokenId>(i);
    FAIL("no word " << word);
    return 0;
}

std::vector<TokenId> ids(const std::vector<std::string> &words) {
    std::vector<TokenId> all;
    for (const std::string &word : words) all.push_back(id(word));
    return all;
}

ThinkingBudget budget(const ReasoningStyle &style, bool inside, int64_t most, int64_t prompt = 2) {
    const bool channels = style.kind == ReasoningStyle::Kind::Harmony;
    const auto closing =
        channels ? ids({"<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>"})
                 : ids({"</", "think", ">"});
    return {style, inside, most, closing, [](TokenId i) { return kWords[static_cast<size_t>(i)]; }, prompt};
}

// The answer if the model generates these words whenever no token is forced.
std::string said(const ReasoningStyle &style, bool inside, int64_t most,
                 const std::vector<std::string> &model) {
    ThinkingBudget limit = budget(style, inside, most);
    std::vector<TokenId> history = {0, 1};
    std::string text;
    for (size_t next = 0;;) {
        const auto forced = limit(history, 0);
        if (!forced && next == model.size()) return text;
        history.push_back(forced ? *forced : id(model[next++]));
        text += kWords[static_cast<size_t>(history.back())];
    }
}

}  // namespace

TEST_CASE(
    "thinking budget: the closing mark comes after the given number of reasoning tokens, and only then") {
    CHECK(said(kThink, true, 2, {"a", "a", " b", "a"}) == "aa</think> ba");
    CHECK(said(kThink, true, 0, {"a", " b"}) == "</think>a b");
    CHECK(said(kThink, true, 9, {"a", "a", "</think>", "a"}) == "aa</think>a");
    CHECK(said(kThink, false, 1, {"<think>", "a", " b", "a", "<think>", "a", "a"}) ==
          "<think>a</think> ba<think>aa");
    CHECK(said(kThink, false, 1, {"\n", "<think>", "a", " b"}) == "\n<think>a</think> b");
    CHECK(said(kThink, false, 0, {"a", "a", "<think>", "a"}) == "aa<think>a");
    CHECK(said({}, false, 0, {"a", "<think>", "a"}) == "a<think>a");
}

TEST_CASE("thinking budget: never within a character, and not twice if the model has begun the mark") {
    CHECK(said(kThink, true, 1, {"\xe2\x82", "\xac", "a"}) == "\xe2\x82\xac</think>a");
    CHECK(said(kThink, true, 1, {"\xe2\x82", "a", "a"}) ==
          "\xe2\x82"
          "a</think>a");
    CHECK(said(kThink, true, 4, {"a", "</", "think", ">", "a", "a"}) == "a</think>aa");
    CHECK(said(kThink, true, 2, {"a", "</", "a"}) == "a</</think>a");
}

TEST_CASE("thinking budget: a tool call ends the reasoning") {
    ReasoningStyle style = kThink;
    style.call = "<tool_call>";
    CHECK(said(style, true, 3, {"a", "<tool_", "call>", "a", "a", " b", "a"}) == "a<tool_call>aa ba");
    CHECK(said(style, false, 3, {"<think>", "<tool_", "call>", "a", "a", "a"}) == "<think><tool_call>aaa");
    CHECK(said(style, true, 3, {"a", "a", "a", "<tool_", "call>", "a"}) == "aaa</think><tool_call>a");
    CHECK(said(kThink, true, 3, {"a", "<tool_", "call>", "a"}) == "a<tool_call></think>a");
}

TEST_CASE("thinking budget: with channels, the analysis ends and the final channel begins") {
    const std::string close = "<|end|><|start|>assistant<|channel|>final<|message|>";
    CHECK(said(kHarmony, false, 2, {"<|channel|>", "analysis", "<|message|>", "a", "a", " b", "a"}) ==
          "<|channel|>analysis<|message|>aa" + close + " ba");
    CHECK(said(kHarmony, false, 0, {"<|channel|>", "analysis", "<|message|>", " b"}) ==
          "<|channel|>analysis<|message|>" + close + " b");
    CHECK(said(kHarmony, false, 1, {"<|channel|>", "final", "<|message|>", "a", "a"}) ==
          "<|channel|>final<|message|>aa");
    CHECK(said(kHarmony, false, 1,
               {"<|channel|>", "commentary", "<|message|>", "a", "a", "<|end|>", "<|start|>", "assistant",
                "<|channel|>", "analysis", "<|message|>", "a", "a"}) ==
          "<|channel|>commentary<|message|>aa<|end|><|start|>assistant<|channel|>analysis<|message|>a" +
              close + "a");
}

TEST_CASE("thinking budget: depends on the tokens alone, also after roll-backs and a context shift") {
    int forced = 0;
    for (uint32_t seed = 0; seed < 200; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const ReasoningStyle &style = seed % 2 ? kThink : kHarmony;
        const bool inside = style.kind == ReasoningStyle::Kind::Marks && seed % 4 == 1;
        const auto most = static_cast<int64_t>(rng() % 6);
        ThinkingBudget used = budget(style, inside, most, 5);
        std::vector<TokenId> history(5, 3);
        int64_t dropped = 0;
        for (int step = 0; step < 60; ++step) {
            const auto token = used(history, dropped);
            forced += token.has_value();
            if (dropped == 0) {
                ThinkingBudget fresh = budget(style, inside, most, 5);
                CHECK(fresh(history, 0) == token);
            }
            std::vector<TokenId> guess = history;  // a draft that is not kept
            for (int i = 0; i < 3; ++i) {
                guess.push_back(static_cast<TokenId>(rng() % kWords.size()));
                ThinkingBudget copy = used;
                CHECK(used(guess, dropped) == copy(guess, dropped));
            }
            history.push_back(token.value_or(static_cast<TokenId>(rng() % kWords.size())));
            if (step == 40) {
                const auto expected = used(history, dropped);
                history.erase(history.begin(), history.begin() + 20);
                dropped += 20;
                CHECK(used(history, dropped) == expected);
            }
        }
    }
    CHECK(forced > 100);
}
