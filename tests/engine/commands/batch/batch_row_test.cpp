#include "engine/commands/batch/batch_row.h"

#include <doctest/doctest.h>

#include "engine/commands/arguments.h"
#include "engine/commands/batch/batch_progress.h"
#include "tests/support/random.h"

using namespace runnel::commands;
using runnel::completion::FinishReason;
using runnel::completion::Reply;

namespace {

const Reply kAnswer{"Hi \xff", "", FinishReason::Stop, {.prompt_tokens = 4, .completion_tokens = 3}};

}  // namespace

TEST_CASE("batch row: prompt and settings are read") {
    const Row row = parse_row(R"({"id": "a", "prompt": "Hi", "max_tokens": 7, "temperature": 0, "top_p": 0.5,
        "seed": 18446744073709551615, "stop": ["x", "y"], "top_k": 3, "user": "ignored"})",
                              12);
    CHECK(row.error == "");
    CHECK(row.identity.line == 12);
    CHECK(row.identity.id == "a");
    CHECK(row.body.prompt == "Hi");
    CHECK(row.body.max_tokens == 7);
    CHECK(row.body.seed == 18446744073709551615u);
    CHECK(row.body.stops == std::vector<std::string>{"x", "y"});
    runnel::completion::Request request;
    request.sampling.min_p = 0.25f;
    request.limits.stops = {"z"};
    row.body.apply(request);
    CHECK(request.limits.max_tokens == 7);
    CHECK(request.limits.stops == std::vector<std::string>{"z", "x", "y"});
    const runnel::decode::SamplingOptions &options = request.sampling;
    CHECK(options.seed == 18446744073709551615u);
    CHECK(options.temperature == 0);
    CHECK(options.top_p == 0.5f);
    CHECK(options.top_k == 3);
    CHECK(options.min_p == 0.25f);
    CHECK(parse_row(R"({"prompt": "", "stop": null, "seed": -1})", 1).body.seed == ~uint64_t{0});
}

TEST_CASE("batch row: messages are read as text or in parts") {
    const Row row = parse_row(R"({"messages": [{"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        "stop": "x"})",
                              1);
    CHECK(row.error == "");
    REQUIRE(row.body.messages.size() == 2);
    CHECK(row.body.messages[0].content == "be kind");
    CHECK(row.body.messages[1].role == "user");
    CHECK(row.body.messages[1].content == "ab");
    CHECK(row.body.stops == std::vector<std::string>{"x"});
    CHECK_FALSE(row.body.prompt);
}

TEST_CASE("batch row: a row that cannot be answered gives the reason and keeps its id") {
    const std::pair<const char *, const char *> cases[] = {
        {"", "not JSON"},
        {"{\"prompt\": \"a\"", "not JSON"},
        {"[1]", "not a JSON object"},
        {R"({"id": "k"})", "neither"},
        {R"({"id": "k", "prompt": "a", "messages": [{"role": "user", "content": "b"}]})", "both"},
        {R"({"id": "k", "prompt": ["a"]})", "\"prompt\" must be a string"},
        {R"({"id": "k", "prompt": "a", "temperature": "hot"})", "temperature"},
        {R"({"id": "k", "prompt": "a", "temperature": 1e300})", "temperature"},
        {R"({"id": "k", "prompt": "a", "repeat_penalty": 0})", "repeat_penalty"},
        {R"({"id": "k", "prompt": "a", "temperature": -1})", "temperature"},
        {R"({"id": "k", "prompt": "a", "top_p": 7})", "top_p"},
        {R"({"id": "k", "prompt": "a", "min_p": -3})", "min_p"},
        {R"({"id": "k", "prompt": "a", "max_token": 3})", "did you mean 'max_tokens'?"},
        {R"({"id": "k", "prompt": "a", "max_tokens": 1.5})", "max_tokens"},
        {R"({"id": "k", "prompt": "a", "max_tokens": 18446744073709551615})", "max_tokens"},
        {R"({"id": "k", "prompt": "a", "stop": [1]})", "stop"},
        {R"({"id": "k", "prompt": "a", "seed": "x"})", "seed"},
        {R"({"id": "k", "prompt": "a", "n": 2})", "\"n\""},
        {R"({"id": "k", "prompt": "a", "tools": "f"})", "tools"},
        {R"({"id": "k", "prompt": "a", "functions": [{}]})", "functions"},
        {R"({"id": "k", "prompt": "a", "tool_choice": "any"})", "tool_choice"},
        {R"({"id": "k", "prompt": "a", "parallel_tool_calls": 1})", "parallel_tool_calls"},
        {R"({"id": "k", "messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]})",
         "tool_calls"},
        {R"({"id": "k", "messages": [{"role": "tool", "content": "", "tool_call_id": 1}]})", "tool_call_id"},
        {R"({"id": "k", "messages": []})", "messages"},
        {R"({"id": "k", "messages": [3]})", "messages"},
        {R"({"id": "k", "messages": [{"content": "a"}]})", "role"},
        {R"({"id": "k", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "not text"},
        {R"({"custom_id": "k", "body": 3})", "body"},
        {R"({"custom_id": "k", "url": "/v1/embeddings", "body": {"prompt": "a"}})", "url"},
        {R"({"custom_id": "k", "url": "/v1/chat/completions", "body": {"prompt": "a"}})", "messages"},
    };
    for (const auto &[line, part] : cases) {
        CAPTURE(line);
        const Row row = parse_row(line, 3);
        CAPTURE(row.error);
        CHECK(row.error.find(part) != std::string::npos);
        if (std::string_view(line).find("\"k\"") != std::string_view::npos) CHECK(row.identity.id == "k");
        const Json out = Json::parse(error_line(row.identity, row.error));
        CHECK(out["error"]["line"] == 3);
        const auto written = parse_written(error_line(row.identity, row.error));
        REQUIRE(written);
        CHECK(written->failed);
        CHECK(written->line == 3);
        CHECK(written->id == row.identity.id);
    }
}

TEST_CASE("batch row: unknown keys are listed, at most a hundred") {
    CHECK(parse_row(R"({"prompt": "a", "note": 1, "from": {}})", 1).unknown ==
          std::vector<std::string>{"note", "from"});
    std::string line = "{";
    for (int i = 0; i < 300'000; ++i) line += "\"k" + std::to_string(i) + "\":1,";
    const Row row = parse_row(line + "\"prompt\":\"a\"}", 1);
    CHECK(row.error == "");
    CHECK(row.unknown.size() == 100);
}

TEST_CASE("batch row: tools, their calls and results are read") {
    const Row row = parse_row(
        R"({"messages": [{"role": "user", "content": "?"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function",
             "function": {"name": "f", "arguments": "{\"n\": 1}"}}]},
            {"role": "tool", "tool_call_id": "a", "name": "f", "content": "2"}],
            "tools": [{"type": "function", "function": {"name": "f"}}, {"name": "g"}],
            "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false})",
        1);
    CHECK(row.error == "");
    CHECK(row.unknown.empty());
    REQUIRE(row.body.messages.size() == 3);
    CHECK(Json::parse(row.body.messages[1].tool_calls)[0]["function"]["arguments"] == "{\"n\": 1}");
    CHECK(row.body.messages[2].tool_call_id == "a");
    CHECK(row.body.messages[2].name == "f");
    const auto use = row.body.tool_use(nullptr);
    REQUIRE(use);
    CHECK(use->only == "f");
    CHECK(!use->parallel);
    CHECK(use->tools.size() == 2);

    // A row without tools uses those of the command line.
    runnel::completion::Body body;
    CHECK(!body.tool_use(nullptr));
    CHECK(body.tool_use(use) == use);
    body.tool_choice = "none";
    CHECK(!body.tool_use(nullptr));
    CHECK(body.tool_use(use)->choice == runnel::text::ToolUse::Choice::None);
    body.tool_choice = "required";
    CHECK_THROWS_AS(body.tool_use(nullptr), runnel::completion::BodyError);
    body.tool_choice = "h";
    CHECK_THROWS_AS(body.tool_use(use), runnel::completion::BodyError);
}

TEST_CASE("batch row: a tool may be named like a value of tool_choice, and an empty list means no tools") {
    using runnel::text::ToolUse;
    for (const std::string name : {"none", "auto", "required"}) {
        CAPTURE(name);
        const auto row = parse_row(R"({"prompt": "a", "tools": [{"name": "f"}, {"name": ")" + name +
                                       R"("}], "tool_choice": {"function": {"name": ")" + name + R"("}}})",
                                   1);
        CHECK(row.error == "");
        const auto use = row.body.tool_use(nullptr);
        CHECK(use->choice == ToolUse::Choice::Required);
        CHECK(use->only == name);
    }
    const auto run = std::make_shared<ToolUse>(runnel::text::read_tools(Json::parse(R"([{"name": "f"}])")));
    const auto empty = parse_row(R"({"prompt": "a", "tools": []})", 1);
    REQUIRE(empty.body.tool_use(run));
    CHECK(empty.body.tool_use(run)->tools.empty());
    CHECK(empty.body.tool_use(run)->definitions.empty());
    CHECK(!empty.body.tools);
    CHECK(parse_row(R"({"prompt": "a", "tools": null})", 1).body.tool_use(run) == run);
    const auto must = parse_row(R"({"prompt": "a", "tools": [], "tool_choice": "required"})", 1);
    CHECK_THROWS_AS(must.body.tool_use(run), runnel::completion::BodyError);
    const auto named = parse_row(R"({"prompt": "a", "tool_choice": {"function": {"name": "auto"}}})", 1);
    CHECK_THROWS_AS(named.body.tool_use(run), runnel::completion::BodyError);
    CHECK(parse_row(R"({"prompt": "a", "samplers": 5})", 1)
              .error.find("\"samplers\" must be text or a list of strings") != std::string::npos);
}

TEST_CASE("batch row: tool calls are written in OpenAI's form") {
    runnel::completion::Reply reply{.text = "", .reasoning = "", .calls = {{"abc", "f", "{\"n\":1}"}}};
    RowIdentity identity;
    identity.line = 4;
    const Json plain = Json::parse(answer_line(identity, reply, "m"));
    CHECK(plain["finish_reason"] == "tool_calls");
    CHECK(plain["text"] == "");
    CHECK(plain["tool_calls"] ==
          Json::parse(
              R"([{"id": "abc", "type": "function", "function": {"name": "f", "arguments": "{\"n\":1}"}}])"));
    identity.shape = RowIdentity::Shape::Chat;
    const Json chat = Json::parse(answer_line(identity, reply, "m"))["response"]["body"]["choices"][0];
    CHECK(chat["finish_reason"] == "tool_calls");
    CHECK(chat["message"]["content"].is_null());
    CHECK(chat["message"]["tool_calls"] == plain["tool_calls"]);
    reply.reason = runnel::completion::FinishReason::Length;
    CHECK(Json::parse(answer_line(identity, reply, "m"))["response"]["body"]["choices"][0]["finish_reason"] ==
          "length");
}

TEST_CASE("batch row: endless nesting is an error, not a crash") {
    const std::string deep(200'000, '[');
    CHECK(parse_row(deep, 1).error != "");
    const std::string closed = deep + std::string(200'000, ']');
    for (const std::string key : {"id", "custom_id", "prompt", "stop", "n", "tools", "messages"}) {
        CAPTURE(key);
        const Row row = parse_row("{\"" + key + "\": " + closed + ", \"body\": {\"prompt\": \"a\"}}", 1);
        CHECK((row.error != "" || row.identity.id.is_null()));
        CHECK(error_line(row.identity, row.error) != "");
    }
    CHECK_FALSE(parse_written("{\"line\": " + closed + "}"));
}

TEST_CASE("batch row: a written line may exceed the limits of input") {
    std::string line =
        R"({"line": 3, "text": ")" + std::string(size_t{65} << 20, 'a') + "\", \"logprobs\": [0";
    for (int i = 0; i < 1'100'000; ++i) line += ",1";
    const auto written = parse_written(line + "]}");
    REQUIRE(written);
    CHECK(written->line == 3);
    CHECK_FALSE(parse_row(line + "]}", 3).error.empty());
}

TEST_CASE("batch row: any bytes give a request or an error") {
    const std::string good =
        R"({"id":"a","prompt":"Hi","max_tokens":7,"temperature":0.5,"stop":["x"],"messages":null})";
    for (uint64_t seed = 0; seed < 3000; ++seed) {
        CAPTURE(seed);
        runnel::testing::Random random(seed);
        std::string line = good;
        for (uint64_t n = 1 + random.below(4); n-- > 0;)
            line[random.below(line.size())] = static_cast<char>(random.below(256));
        const Row row = parse_row(line, 1);
        CHECK((row.error != "" || row.body.prompt));
        CHECK(parse_written(error_line(row.identity, row.error)));
    }
}

TEST_CASE("batch row: answers are written plainly or in OpenAI's shape") {
    const Row plain = parse_row(R"({"prompt": "a", "id": 5})", 7);
    const std::string line = answer_line(plain.identity, kAnswer, "model.gguf");
    CHECK(line.ends_with("}\n"));
    const Json out = Json::parse(line);
    CHECK(out["id"] == 5);
    CHECK(out["line"] == 7);
    CHECK(out["text"] == "Hi \xef\xbf\xbd");
    CHECK(out["prompt_tokens"] == 4);
    CHECK(out["completion_tokens"] == 3);
    CHECK(out["finish_reason"] == "stop");
    CHECK_FALSE(Json::parse(answer_line(text_row("a", 7).identity, kAnswer, "m")).contains("id"));

    const Row chat = parse_row(
        R"({"custom_id": "c", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "gpt", "messages": [{"role": "user", "content": "a"}]}})",
        8);
    CHECK(chat.error == "");
    const Json answer = Json::parse(answer_line(chat.identity, kAnswer, "model.gguf"));
    CHECK(answer["custom_id"] == "c");
    CHECK(answer["error"].is_null());
    CHECK(answer["response"]["status_code"] == 200);
    const Json &body = answer["response"]["body"];
    CHECK(body["object"] == "chat.completion");
    CHECK(body["model"] == "gpt");
    CHECK(body["choices"][0]["message"]["role"] == "assistant");
    CHECK(body["choices"][0]["message"]["content"] == "Hi \xef\xbf\xbd");
    CHECK(body["choices"][0]["finish_reason"] == "stop");
    CHECK(body["usage"]["total_tokens"] == 7);

    const Row completion = parse_row(R"({"custom_id": "d", "body": {"prompt": "a"}})", 9);
    CHECK(completion.raw);
    const Json text = Json::parse(answer_line(completion.identity, kAnswer, "model.gguf"));
    CHECK(text["response"]["body"]["object"] == "text_completion");
    CHECK(text["response"]["body"]["choices"][0]["text"] == "Hi \xef\xbf\xbd");
    CHECK(text["response"]["body"]["model"] == "model.gguf");
    for (const Row *row : {&plain, &chat, &completion}) {
        const auto written = parse_written(answer_line(row->identity, kAnswer, "m"));
        REQUIRE(written);
        CHECK(written->line == row->identity.line);
        CHECK(written->id == row->identity.id);
        CHECK_FALSE(written->failed);
    }
    CHECK_FALSE(parse_written("{}"));
    CHECK_FALSE(parse_written("{\"line\": \"3\"}"));
    CHECK_FALSE(parse_written("{\"custom_id\": \"a\", \"id\": \"batch_req_x\"}"));
}

TEST_CASE("batch: shards and the progress line") {
    CHECK(parse_shard("2/5").part == 2);
    CHECK(parse_shard("5/5").parts == 5);
    for (const char *bad :
         {"", "1", "0/3", "4/3", "1/3x", "a/b", "1/", "/2", "-1/2", "1/99999999999999999999"}) {
        CAPTURE(bad);
        CHECK_THROWS(parse_shard(bad));
    }
    CHECK(progress_line({.rows = 12, .tokens = 500, .done = 0.5, .seconds = 10}) ==
          "[############------------]  50%  12 rows  50 tokens/s  0:10 left");
    // Rows of an earlier run do not count for the speed of this one.
    CHECK(progress_line({.rows = 12, .tokens = 500, .done = 0.5, .before = 0.25, .seconds = 1000}) ==
          "[############------------]  50%  12 rows  0 tokens/s  33:20 left");
    CHECK(progress_line({.rows = 1, .errors = 1, .tokens = 5, .done = -1, .seconds = 1}) ==
          "1 row (1 with errors)  5 tokens/s");
}
