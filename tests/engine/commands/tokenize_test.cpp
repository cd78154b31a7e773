// `runnel tokenize`, run as a program. Needs $RUNNEL.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/engine/commands/program_support.h"

using namespace runnel::testing;
using nlohmann::json;

TEST_CASE("tokenize: ids, pieces and lines are printed and decoded again") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const Result list = runnel_with({"tokenize", model, "--ids", "hello"});
    REQUIRE(list.code == 0);
    const json ids = json::parse(list.out);
    CHECK(ids.size() > 1);
    CHECK(runnel_with({"tokenize", model, "--ids"}, "hello").out == list.out);
    CHECK(json::parse(runnel_with({"tokenize", model, "--ids", "--no-bos", "hello"}).out).size() ==
          ids.size() - 1);
    const Result table = runnel_with({"tokenize", model, "hello"});
    CHECK(std::count(table.out.begin(), table.out.end(), '\n') == static_cast<int64_t>(ids.size()));
    CHECK(table.out.starts_with(ids[0].dump() + "\t"));
    CHECK(runnel_with({"tokenize", model, "--decode", list.out}).out == "hello");
    CHECK(runnel_with({"tokenize", model, "--jsonl"}, "\"hello\"\n\n\"\\n\"\n").out.starts_with(list.out));
    CHECK(runnel_with({"tokenize", model, "--jsonl"}, "hello\n").code == 5);
    CHECK(runnel_with({"tokenize", model, "--jsonl", "\"hello\""}).out == list.out);
    std::string many, answers;  // more than a buffer holds; the last line lacks its newline
    for (int i = 0; i < 20000; ++i) many += "\"hello\"\n", answers += list.out;
    many.pop_back();
    CHECK(runnel_with({"tokenize", model, "--jsonl"}, many).out == answers);
    // A line is answered before the next one comes.
    Process talk = process({"tokenize", model, "--jsonl"});
    talk.terminal = true;
    talk.input = "\"hello\"\n";
    bool answered = false;
    talk.type = [&](const std::string &out, bool) -> std::string {
        if (answered || out.find(']') == std::string::npos) return "";
        return answered = true, "\x04";
    };
    CHECK(execute(talk).code == 0);
    CHECK(answered);
}
