#include "engine/commands/chat/transcript.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "engine/commands/chat/settings.h"
#include "engine/commands/io.h"
#include "tests/support/temporary.h"

namespace runnel::commands {
namespace {

using testing::TemporaryDirectory;

Transcript example() {
    return {
        "be \"kind\"",
        {{"user", "one\ntwo"}, {"assistant", "\xc3\xbc \x01", "hm\n"}, {"user", "three"}, {"assistant", ""}}};
}

void write(const std::filesystem::path &path, const std::string &text) {
    std::ofstream(path, std::ios::binary) << text;
}

TEST_CASE("a conversation is read back from its file unchanged") {
    const TemporaryDirectory directory;
    const std::string path = (directory / "talk.json").string();
    for (const Transcript &t : {example(), Transcript{}, Transcript{"", {{"user", "x"}}}}) {
        t.save(path);
        const Transcript back = Transcript::load(path);
        CHECK(back.system == t.system);
        REQUIRE(back.messages.size() == t.messages.size());
        for (size_t i = 0; i < t.messages.size(); ++i) {
            CHECK(back.messages[i].role == t.messages[i].role);
            CHECK(back.messages[i].content == t.messages[i].content);
            CHECK(back.messages[i].reasoning == t.messages[i].reasoning);
        }
    }
    CHECK_FALSE(std::filesystem::exists(path + ".new"));
    CHECK_THROWS_AS(example().save((directory / "none/talk.json").string()), OutputError);
    CHECK_THROWS_AS(Transcript::load((directory / "none").string()), UsageError);
}

TEST_CASE("tool calls and their results are read back from a conversation's file") {
    const TemporaryDirectory directory;
    const std::string path = (directory / "talk.json").string();
    write(path, R"({"messages": [{"role": "user", "content": "?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": "2"}]})");
    const Transcript first = Transcript::load(path);
    REQUIRE(first.messages.size() == 3);
    CHECK(first.messages[1].content == "");
    CHECK(first.messages[1].tool_calls ==
          R"([{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}])");
    CHECK(first.messages[2].tool_call_id == "a");
    first.save(path, true);
    const Transcript again = Transcript::load(path);
    REQUIRE(again.messages.size() == 3);
    CHECK(again.messages[1].tool_calls == first.messages[1].tool_calls);
    CHECK(again.messages[2].name == "f");
    write(path, R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]})");
    CHECK_THROWS_AS(Transcript::load(path), InputError);
}

TEST_CASE("a file that is not a conversation is refused, whatever it contains") {
    const TemporaryDirectory directory;
    const std::string path = (directory / "bad.json").string();
    for (const char *text : {"", "[]", "{}", "{\"messages\": 1}", "{\"messages\": [1]}",
                             "{\"messages\": [{\"role\": \"user\"}]}",
                             "{\"messages\": [{\"role\": 1, \"content\": \"\"}]}", "{\"messages\": [null]}",
                             "\x80", "{\"messages\": [{\"role\": \"user\", \"content\": [\"parts\"]}]}"}) {
        CAPTURE(text);
        write(path, text);
        CHECK_THROWS_AS(Transcript::load(path), InputError);
    }
    std::filesystem::remove(path);
    example().save(path);
    std::ifstream in(path, std::ios::binary);
    const std::string whole{std::istreambuf_iterator<char>(in), {}};
    for (size_t n = 0; n + 2 < whole.size(); ++n) {  // the last two close the object
        write(path, whole.substr(0, n));
        CHECK_THROWS_AS(Transcript::load(path), InputError);
    }
    std::mt19937 random(7);
    for (int i = 0; i < 300; ++i) {
        std::string damaged = whole;
        damaged[random() % damaged.size()] = static_cast<char>(random());
        write(path, damaged);
        try {
            Transcript::load(path);
        } catch (const InputError &) {
        }
    }
}

TEST_CASE("settings have the names of the options, and refuse what these refuse") {
    GenerationFlags flags;
    set(flags, "temp", "0.25");
    set(flags, "top-k", "7");
    set(flags, "predict", "-1");
    set(flags, "seed", "18446744073709551615");
    CHECK(flags.sampling.temperature == 0.25f);
    CHECK(flags.sampling.top_k == 7);
    CHECK(flags.seed == 18446744073709551615u);
    CHECK(list_settings(flags).find("temp 0.25\n") != std::string::npos);
    for (const auto &[name, value] : {std::pair{"temp", "hot"},
                                      {"temp", "-1"},
                                      {"temp", "nan"},
                                      {"temp", "1e99"},
                                      {"top-k", "1.5"},
                                      {"seed", "-1"},
                                      {"predict", "-2"},
                                      {"warmth", "1"},
                                      {"num_ctx", "4096"},
                                      {"", ""},
                                      {"repeat-penalty", "0"}}) {
        CAPTURE(name);
        CAPTURE(value);
        CHECK_THROWS_AS(set(flags, name, value), InputError);
    }
    CHECK(flags.sampling.temperature == 0.25f);
    set(flags, "temperature", "0.5");
    set(flags, "top_k", "9");
    set(flags, "num_predict", "12");
    set(flags, "stop", "END");
    CHECK(flags.sampling.temperature == 0.5f);
    CHECK(flags.sampling.top_k == 9);
    CHECK(flags.predict == 12);
    CHECK(flags.stops == std::vector<std::string>{"END"});
}

}  // namespace
}  // namespace runnel::commands
