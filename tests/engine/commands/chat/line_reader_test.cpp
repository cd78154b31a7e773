#include "engine/commands/chat/line_reader.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/random.h"

using runnel::commands::LineReader;
using runnel::testing::Random;

namespace {

constexpr int kHangs = 120'000;  // milliseconds

struct Pipe {
    std::array<int, 2> ends{};
    Pipe() { REQUIRE(pipe(ends.data()) == 0); }
    ~Pipe() {
        close(ends[0]);
        finish();
    }
    void finish() {
        if (ends[1] >= 0) close(ends[1]);
        ends[1] = -1;
    }
    void say(std::string_view text) {
        REQUIRE(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    }
};

}  // namespace

TEST_CASE("line reader: a line is returned as soon as it is complete") {
    Pipe pipe;
    LineReader reader(pipe.ends[0], "pipe", 1000);
    std::string line;
    CHECK(reader.next(line, 0) == LineReader::State::NotYet);
    pipe.say("\xef\xbb\xbfone\r\ntw");
    REQUIRE(reader.next(line, 0) == LineReader::State::Line);
    CHECK(line == "one");
    CHECK(reader.number() == 1);
    CHECK(reader.ended());
    CHECK(reader.next(line, 0) == LineReader::State::NotYet);
    pipe.say("o\n\nlast");
    REQUIRE(reader.next(line, 0) == LineReader::State::Line);
    CHECK(line == "two");
    REQUIRE(reader.next(line, 0) == LineReader::State::Line);
    CHECK(line == "");
    CHECK(reader.next(line, 0) == LineReader::State::NotYet);
    pipe.finish();
    REQUIRE(reader.next(line, 0) == LineReader::State::Line);
    CHECK(line == "last");
    CHECK_FALSE(reader.ended());
    CHECK(reader.number() == 4);
    CHECK(reader.next(line, 0) == LineReader::State::End);
    CHECK(reader.next(line, 0) == LineReader::State::End);
}

TEST_CASE("line reader: any lines in any pieces are read, and too long ones cut") {
    for (uint64_t seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        const size_t longest = 1 + random.below(300);
        std::vector<std::string> lines;
        std::string all;
        for (uint64_t n = random.below(30); n-- > 0;) {
            const size_t size = random.below(4) == 0 ? random.below(200'000) : random.below(50);
            lines.emplace_back(size, static_cast<char>('a' + random.below(26)));
            all += lines.back() + "\n";
        }
        Pipe pipe;
        std::thread writer([&] {
            for (size_t at = 0; at < all.size();) {
                const size_t size = std::min<size_t>(1 + random.below(70'000), all.size() - at);
                pipe.say(std::string_view(all).substr(at, size));
                at += size;
            }
            pipe.finish();
        });
        LineReader reader(pipe.ends[0], "pipe", longest);
        std::string line;
        uint64_t offset = 0;
        for (const std::string &expected : lines) {
            REQUIRE(reader.next(line, kHangs) == LineReader::State::Line);
            REQUIRE(line == expected.substr(0, longest));
            REQUIRE(reader.cut() == (expected.size() > longest));
            offset += expected.size() + 1;
            REQUIRE(reader.offset() == offset);
        }
        CHECK(reader.next(line, kHangs) == LineReader::State::End);
        writer.join();
    }
}
