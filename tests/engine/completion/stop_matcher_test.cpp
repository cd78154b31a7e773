#include "engine/completion/stop_matcher.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

using runnel::completion::StopMatcher;

namespace {

struct Expected {
    std::string text;
    bool stopped;
};

Expected naive(const std::string &text, const std::vector<std::string> &stops) {
    for (size_t end = 1; end <= text.size(); ++end) {
        size_t longest = 0;
        for (const std::string &s : stops)
            if (!s.empty() && s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0)
                longest = std::max(longest, s.size());
        if (longest > 0) return {text.substr(0, end - longest), true};
    }
    return {text, false};
}

// How many bytes at the end must be held back because one of `stops` may begin there.
size_t needed_hold(const std::string &text, const std::vector<std::string> &stops) {
    size_t hold = 0;
    for (const std::string &s : stops)
        for (size_t n = 1; n < s.size() && n <= text.size(); ++n)
            if (text.compare(text.size() - n, n, s, 0, n) == 0) hold = std::max(hold, n);
    return hold;
}

}  // namespace

TEST_CASE("stop: equals a naive search however the text is split, and holds back no more than necessary") {
    for (uint32_t seed = 0; seed < 3000; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const auto random_text = [&](size_t most) {
            std::string s;
            for (size_t n = rng() % (most + 1); n > 0; --n) s += static_cast<char>('a' + rng() % 2);
            return s;
        };
        std::vector<std::string> stops;
        for (size_t n = rng() % 4; n > 0; --n) stops.push_back(random_text(6));
        const std::string text = random_text(60);
        const Expected expected = naive(text, stops);
        StopMatcher matcher(stops);
        std::string out, seen;
        for (size_t at = 0; at < text.size();) {
            const size_t n = std::min<size_t>(text.size() - at, 1 + rng() % 5);
            out += matcher.push(text.substr(at, n));
            at += n;
            if (!matcher.stopped()) REQUIRE(at - out.size() == needed_hold(text.substr(0, at), stops));
        }
        out += matcher.flush();
        CHECK(out == expected.text);
        CHECK(matcher.stopped() == expected.stopped);
    }
}

TEST_CASE("stop: no part of a string that spans three tokens is shown") {
    StopMatcher matcher({"\nUser:"});
    CHECK(matcher.push("Hello") == "Hello");
    CHECK(matcher.push("!\nUs") == "!");
    CHECK(matcher.push("e") == "");
    CHECK(matcher.push("r: ha") == "");
    CHECK(matcher.stopped());
    CHECK(matcher.push("more") == "");
    CHECK(matcher.flush() == "");
}

TEST_CASE("stop: text that only begins like a stop string is shown at the end") {
    StopMatcher matcher({"END", ""});
    CHECK(matcher.push("the EN") == "the ");
    CHECK(matcher.push("T and E") == "ENT and ");
    CHECK(matcher.flush() == "E");
    CHECK_FALSE(matcher.stopped());
}
