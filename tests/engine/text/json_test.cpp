// The JSON parser: the same values as nlohmann's, within limits, in linear time.
#include "engine/text/json.h"

#include <doctest/doctest.h>

#include <atomic>
#include <string>

#include "tests/support/random.h"

using namespace runnel;
using text::Json;
using text::JsonError;
using text::parse_json;

namespace {

// Kind and message of the failure; the test fails if there is none.
std::pair<JsonError::Kind, std::string> failure(std::string_view text, const text::JsonLimits &limits = {},
                                                const std::atomic<bool> *stop = nullptr) {
    try {
        parse_json(text, limits, stop);
    } catch (const JsonError &error) {
        return {error.kind, error.what()};
    }
    FAIL("accepted: " << text.substr(0, 80));
    return {};
}

std::string repeated(std::string_view text, size_t times) {
    std::string all;
    for (size_t i = 0; i < times; ++i) all += text;
    return all;
}

Json random_json(testing::Random &random, int depth) {
    switch (random.below(depth > 0 ? 8 : 6)) {
        case 0:
            return nullptr;
        case 1:
            return random.below(2) == 0;
        case 2:
            return random.below(1u << 20);
        case 3:
            return -static_cast<int64_t>(random.below(1u << 20));
        case 4:
            return static_cast<double>(random.below(1000)) / 7;
        case 5:
            return "text " + std::to_string(random.below(50)) + "\n\xc3\xa4\"";
        case 6: {
            Json list = Json::array();
            for (uint64_t n = random.below(6); n-- > 0;) list.push_back(random_json(random, depth - 1));
            return list;
        }
        default: {
            Json object = Json::object();
            for (uint64_t n = random.below(6); n-- > 0;)
                object["key " + std::to_string(random.below(8))] = random_json(random, depth - 1);
            return object;
        }
    }
}

}  // namespace

TEST_CASE("json: written values read back") {
    for (uint64_t seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        testing::Random random(seed);
        const Json value = random_json(random, 5);
        CHECK(parse_json(value.dump()) == value);
        CHECK(parse_json(value.dump(2)).dump() == value.dump());
    }
    CHECK(parse_json(R"({"a": 1, "b": 2, "a": {"c": 3}, "b": 4, "d": 5})").dump() ==
          R"({"a":{"c":3},"b":4,"d":5})");
    CHECK(parse_json("18446744073709551615").get<uint64_t>() == UINT64_MAX);
}

TEST_CASE("json: invalid text is refused in one line with its position") {
    using Kind = JsonError::Kind;
    CHECK(failure("{\"a\": 1,\n \"b\": }").second == "line 2, column 7: unexpected '}'");
    CHECK(failure("{\"a\": [1, 2").second.find("unexpected end") != std::string::npos);
    CHECK(failure("").first == Kind::Syntax);
    CHECK(failure("[1e999]").second.find("too large") != std::string::npos);
    for (const char *text : {"nul", "[1,]", "{\"a\" 1}", "\"\xff\"", "\"\x01\"", "1 2", "{'a': 1}",
                             "[\"\\ud800\"]", "\"\x1b[31m", "NaN", "[1e999999]", "\xef\xbb"}) {
        const auto [kind, what] = failure(text);
        CAPTURE(what);
        CHECK(kind == Kind::Syntax);
        CHECK(what.find("json.exception") == std::string::npos);
        for (const char c : what) CHECK(static_cast<unsigned char>(c) >= ' ');
    }
}

TEST_CASE("json: depth, values and bytes are bounded, and a stop request ends it") {
    using Kind = JsonError::Kind;
    CHECK(parse_json(repeated("[", 200) + repeated("]", 200)).is_array());
    for (const char *open : {"[", "{\"a\":"})
        for (const size_t depth : {size_t{201}, size_t{150'000}, size_t{5'000'000}}) {
            CHECK(failure(repeated(open, depth)).second == "nested deeper than 200 levels");
        }
    CHECK(failure("[" + repeated("[],", 21'000'000) + "1]").second == "more than 1000000 values");
    CHECK(failure(std::string((size_t{64} << 20) + 1, ' ')).second == "longer than 64 MiB");
    CHECK(failure("[1,2,3]", {.values = 3}).first == Kind::Limit);
    CHECK(parse_json("[1,2]", {.values = 3}).size() == 2);
    const std::atomic<bool> stop{true};
    CHECK(failure("[" + repeated("1,", 5000) + "1]", {}, &stop).first == Kind::Stopped);
}

// A parser that searches all earlier keys for each key takes minutes here.
TEST_CASE("json: many keys and many messages are read in linear time") {
    std::string keys = "{";
    for (int i = 0; i < 300'000; ++i) keys += "\"key " + std::to_string(i % 299'999) + "\":1,";
    keys += "\"last\":2}";
    CHECK(parse_json(keys).size() == 300'000);
    const std::string messages =
        "{\"messages\":[" + repeated(R"({"role":"user","content":"hi"},)", 200'000) + "1]}";
    CHECK(parse_json(messages)["messages"].size() == 200'001);
}
