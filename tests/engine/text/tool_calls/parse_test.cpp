// Tool calls in every format, written by code that does not use the table of formats, and parsed.
#include "engine/text/tool_calls/parse.h"

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::text;
using testing::Random;

namespace {

struct Made {
    std::string name;
    Json arguments;
};
using Write = std::function<std::string(const std::vector<Made> &)>;

const ToolFormat &format_of(const std::string &name) {
    const ToolFormat *format = find_tool_format(name);
    REQUIRE(format);
    return *format;
}

ToolUse tools_of(const std::vector<Made> &calls) {
    Json list = Json::array();
    for (const Made &call : calls) {
        Json properties = Json::object();
        for (const auto &[key, value] : call.arguments.items())
            if (value.is_string()) properties[key] = {{"type", "string"}};
        list.push_back({{"type", "function"},
                        {"function", {{"name", call.name}, {"parameters", {{"properties", properties}}}}}});
    }
    return read_tools(list);
}

// A text that arrives in two pieces, wherever it is cut, is parsed as if it were whole.
void check_cuts(const ToolFormat &format, const ToolUse &tools, const std::string &text) {
    CAPTURE(text);
    const ParsedAnswer whole = parse_tool_calls(format, tools, text);
    for (size_t cut = 0; cut <= text.size(); ++cut) {
        CAPTURE(cut);
        ToolCallSplitter splitter(format, tools);
        std::string content = splitter.push(text.substr(0, cut));
        content += splitter.push(text.substr(cut));
        const ParsedAnswer rest = splitter.flush();
        CHECK(content + rest.content == whole.content);
        CHECK(rest.calls == whole.calls);
    }
}

std::string joined(const std::vector<Made> &calls, const std::function<std::string(const Made &)> &one,
                   const std::string &between = "") {
    std::string text;
    for (const Made &call : calls) text += (text.empty() ? "" : between) + one(call);
    return text;
}

// A string unchanged, any other value as JSON.
std::string raw(const Json &value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string each(const Json &arguments, const std::string &a, const std::string &b, const std::string &c) {
    std::string text;
    for (const auto &[key, value] : arguments.items()) text += a + key + b + raw(value) + c;
    return text;
}

// DeepSeek V3.2 and V4; section: the name of the mark around all calls.
std::string dsml(const std::string &section, const std::vector<Made> &calls) {
    return "<｜DSML｜" + section + ">\n" +
           joined(calls,
                  [](const Made &c) {
                      std::string text = "<｜DSML｜invoke name=\"" + c.name + "\">\n";
                      for (const auto &[key, value] : c.arguments.items())
                          text += "<｜DSML｜parameter name=\"" + key + "\" string=\"" +
                                  (value.is_string() ? "true" : "false") + "\">" + raw(value) +
                                  "</｜DSML｜parameter>\n";
                      return text + "</｜DSML｜invoke>\n";
                  }) +
           "</｜DSML｜" + section + ">";
}

std::string python_value(const Json &value) {
    if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
    if (value.is_null()) return "None";
    if (!value.is_array()) return value.dump();
    std::string text;
    for (const Json &item : value) text += (text.empty() ? "" : ", ") + python_value(item);
    return "[" + text + "]";
}

std::string python(const std::vector<Made> &calls) {
    return "[" +
           joined(
               calls,
               [](const Made &call) {
                   std::string text;
                   for (const auto &[key, value] : call.arguments.items())
                       text += (text.empty() ? "" : ", ") + key + "=" + python_value(value);
                   return call.name + "(" + text + ")";
               },
               ", ") +
           "]";
}

std::string field(const Json &value) {
    if (value.is_string()) return "<|\"|>" + value.get<std::string>() + "<|\"|>";
    if (!value.is_array()) return value.dump();
    std::string text;
    for (const Json &item : value) text += (text.empty() ? "" : ",") + field(item);
    return "[" + text + "]";
}

Json list_of(const std::vector<Made> &calls, const char *name, const char *arguments) {
    Json list = Json::array();
    for (const Made &call : calls) list.push_back({{name, call.name}, {arguments, call.arguments}});
    return list;
}

const std::map<std::string, Write> &writers() {
    static const std::map<std::string, Write> kWriters = {
        {"Hermes",
         [](const auto &calls) {
             return joined(
                 calls,
                 [](const Made &c) {
                     return "<tool_call>\n{\"name\": \"" + c.name +
                            "\", \"arguments\": " + c.arguments.dump() + "}\n</tool_call>";
                 },
                 "\n");
         }},
        {"Qwen3-Coder",
         [](const auto &calls) {
             return joined(
                 calls,
                 [](const Made &c) {
                     return "<tool_call>\n<function=" + c.name + ">\n" +
                            each(c.arguments, "<parameter=", ">\n", "\n</parameter>\n") +
                            "</function>\n</tool_call>";
                 },
                 "\n");
         }},
        {"Seed-OSS",
         [](const auto &calls) {
             return joined(calls, [](const Made &c) {
                 return "<seed:tool_call>\n<function=" + c.name + ">\n" +
                        each(c.arguments, "<parameter=", ">", "</parameter>\n") +
                        "</function>\n</seed:tool_call>";
             });
         }},
        {"GLM",
         [](const auto &calls) {
             return joined(calls, [](const Made &c) {
                 return "\n<tool_call>" + c.name + "\n" +
                        each(c.arguments, "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n") +
                        "</tool_call>";
             });
         }},
        {"MiniMax",
         [](const auto &calls) {
             return "<minimax:tool_call>\n" +
                    joined(calls,
                           [](const Made &c) {
                               return "<invoke name=\"" + c.name + "\">\n" +
                                      each(c.arguments, "<parameter name=\"", "\">", "</parameter>\n") +
                                      "</invoke>\n";
                           }) +
                    "</minimax:tool_call>";
         }},
        {"DeepSeek V3.2", [](const auto &calls) { return dsml("function_calls", calls); }},
        {"DeepSeek V4", [](const auto &calls) { return dsml("tool_calls", calls); }},
        {"Mistral (list)",
         [](const auto &calls) { return "[TOOL_CALLS]" + list_of(calls, "name", "arguments").dump(); }},
        {"Granite 3",
         [](const auto &calls) { return "<|tool_call|>" + list_of(calls, "name", "arguments").dump(); }},
        {"Firefunction",
         [](const auto &calls) { return "functools" + list_of(calls, "name", "arguments").dump(1); }},
        {"Nemotron",
         [](const auto &calls) {
             return "<TOOLCALL>" + list_of(calls, "name", "arguments").dump() + "</TOOLCALL>";
         }},
        {"Command",
         [](const auto &calls) {
             return "<|START_ACTION|>" + list_of(calls, "tool_name", "parameters").dump(2) + "<|END_ACTION|>";
         }},
        {"Command R+",
         [](const auto &calls) {
             return "Action:\n```json\n" + list_of(calls, "tool_name", "parameters").dump(4) + "\n```";
         }},
        {"Apertus",
         [](const auto &calls) {
             Json list = Json::array();
             for (const Made &call : calls) list.push_back({{call.name, call.arguments}});
             return "<|tools_prefix|>" + list.dump() + "<|tools_suffix|>";
         }},
        {"Mistral",
         [](const auto &calls) {
             return joined(calls, [](const Made &c) {
                 return "[TOOL_CALLS]" + c.name + "[ARGS]" + c.arguments.dump();
             });
         }},
        {"harmony",
         [](const auto &calls) {
             return joined(calls, [](const Made &c) {
                 return "<|channel|>commentary to=functions." + c.name + " <|constrain|>json<|message|>" +
                        c.arguments.dump() + "<|call|>";
             });
         }},
        {"Kimi",
         [](const auto &calls) {
             size_t n = 0;
             return "<|tool_calls_section_begin|>" +
                    joined(calls,
                           [&](const Made &c) {
                               return "<|tool_call_begin|>functions." + c.name + ":" + std::to_string(n++) +
                                      "<|tool_call_argument_begin|>" + c.arguments.dump() +
                                      "<|tool_call_end|>";
                           }) +
                    "<|tool_calls_section_end|>";
         }},
        {"DeepSeek",
         [](const auto &calls) {
             return "<｜tool▁calls▁begin｜>" +
                    joined(
                        calls,
                        [](const Made &c) {
                            return "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + c.name + "\n```json\n" +
                                   c.arguments.dump() + "\n```<｜tool▁call▁end｜>";
                        },
                        "\n") +
                    "<｜tool▁calls▁end｜>";
         }},
        {"DeepSeek V3.1",
         [](const auto &calls) {
             return "<｜tool▁calls▁begin｜>" +
                    joined(calls,
                           [](const Made &c) {
                               return "<｜tool▁call▁begin｜>" + c.name + "<｜tool▁sep｜>" +
                                      c.arguments.dump() + "<｜tool▁call▁end｜>";
                           }) +
                    "<｜tool▁calls▁end｜>";
         }},
        {"Functionary 3.1",
         [](const auto &calls) {
             return joined(calls, [](const Made &c) {
                 return "<function=" + c.name + ">" + c.arguments.dump() + "</function>";
             });
         }},
        {"Functionary 3.2",
         [](const auto &calls) {
             return joined(calls, [](const Made &c) { return ">>>" + c.name + "\n" + c.arguments.dump(); });
         }},
        {"LFM2",
         [](const auto &calls) { return "<|tool_call_start|>" + python(calls) + "<|tool_call_end|>"; }},
        {"Llama 4", [](const auto &calls) { return python(calls); }},
        {"Llama 3",
         [](const auto &calls) {
             return "{\"name\": \"" + calls[0].name + "\", \"parameters\": " + calls[0].arguments.dump() +
                    "}";
         }},
        {"Gemma 4",
         [](const auto &calls) {
             return joined(calls, [](const Made &c) {
                 std::string text;
                 for (const auto &[key, value] : c.arguments.items())
                     text += (text.empty() ? "" : ",") + key + ":" + field(value);
                 return "<|tool_call>call:" + c.name + "{" + text + "}<tool_call|>";
             });
         }},
    };
    return kWriters;
}

std::string word(Random &random, std::string_view letters, size_t most) {
    std::string text;
    for (size_t n = 1 + random.below(most); n > 0; --n) text += letters[random.below(letters.size())];
    return text;
}

// Random values. Strings contain no marks of a format; unless `simple`, they have characters that JSON
// escapes.
Json random_value(Random &random, bool simple) {
    const std::string_view letters = simple ? "abc XYZ019.,_" : "abc XYZ019.,{}[]\":\\/'\n\t=()<>";
    switch (random.below(simple ? 5 : 6)) {
        case 0:
            return static_cast<int64_t>(random.below(2000)) - 1000;
        case 1:
            return random.below(2) == 0;
        case 2:
            return static_cast<double>(random.below(1000)) / 8;
        case 3:
            return Json::array({1, "two", false});
        default:
            return word(random, letters, 12) + (random.below(4) == 0 ? "é\u2603" : "");
        case 5:
            return Json{{"inner", word(random, letters, 5)}, {"n", nullptr}};
    }
}

std::vector<Made> random_calls(Random &random, const ToolFormat &format) {
    // These formats write strings without escapes, so only simple ones can be written.
    const bool simple = format.body == ToolFormat::Body::Parameters ||
                        format.body == ToolFormat::Body::Fields || format.body == ToolFormat::Body::Python;
    std::vector<Made> calls;
    for (size_t n = format.repeats ? 1 + random.below(3) : 1; n > 0; --n) {
        Made call{word(random, "abcdefgh_-XYZ", 10), Json::object()};
        for (size_t k = random.below(4); k > 0; --k)
            call.arguments[word(random, "abcdefgh_", 6)] = random_value(random, simple);
        calls.push_back(std::move(call));
    }
    // Each call needs a name of its own, because a tool has one definition.
    for (size_t i = 1; i < calls.size(); ++i) calls[i].name += std::to_string(i);
    return calls;
}

void check_same(const std::vector<ToolCall> &found, const std::vector<Made> &calls) {
    REQUIRE(found.size() == calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
        CHECK(found[i].name == calls[i].name);
        CHECK(parse_json(found[i].arguments) == calls[i].arguments);
        CHECK(!found[i].id.empty());
    }
}

}  // namespace

TEST_CASE("tool calls: every format of the table is written and read back") {
    for (const ToolFormat &format : tool_formats()) {
        CAPTURE(format.name);
        REQUIRE(writers().contains(std::string(format.name)));
        const Write &write = writers().at(std::string(format.name));
        for (uint64_t seed = 0; seed < 60; ++seed) {
            CAPTURE(seed);
            Random random(seed);
            const std::vector<Made> calls = random_calls(random, format);
            const ToolUse tools = tools_of(calls);
            const std::string before = format.bare || seed % 2 == 0 ? "" : "Let me see: 1 < 2.";
            const std::string text = before + write(calls);
            CAPTURE(text);
            const ParsedAnswer answer = parse_tool_calls(format, tools, text, seed);
            CHECK(answer.content == before);
            CHECK(answer.note == "");
            check_same(answer.calls, calls);
        }
    }
}

TEST_CASE("tool calls: a text in two pieces, split anywhere, gives the same result") {
    for (const ToolFormat &format : tool_formats()) {
        CAPTURE(format.name);
        Random random(7);
        const std::vector<Made> calls = random_calls(random, format);
        const ToolUse tools = tools_of(calls);
        const std::string text =
            (format.bare ? "" : "I look. \n") + writers().at(std::string(format.name))(calls) + "\n";
        const ParsedAnswer whole = parse_tool_calls(format, tools, text);
        check_same(whole.calls, calls);
        check_cuts(format, tools, text);
        for (size_t cut = 0; cut <= text.size(); ++cut) {
            CAPTURE(cut);
            // An incomplete text is either a call, or content that is left unchanged.
            const std::string part = text.substr(0, cut);
            const ParsedAnswer begun = parse_tool_calls(format, tools, part);
            if (begun.calls.empty()) CHECK(begun.content == part);
        }
    }
}

TEST_CASE("tool calls: Functionary's prompt begins the first mark, and its text has a name") {
    const ToolFormat &format = format_of("Functionary 3.2");
    const ToolUse tools = tools_of({{"f", Json::object()}, {"all_of", Json::object()}});
    const std::string call = "f\n{\"a\": \"}>>>\"}", arguments = R"({"a":"}>>>"})";
    const struct {
        std::string text, content;
        size_t calls;
    } cases[] = {
        {call, "", 1},
        {"\n" + call + ">>>all_of\n{}\n", "", 2},
        {">>>" + call, "", 1},
        {"f{}", "", 1},
        {"all\nHello, world!\n", "Hello, world!\n", 0},
        {"all\nall\nsaid", "all\nsaid", 0},
        {"all\nHello.\n>>>" + call, "Hello.", 1},
        {"all\nf\n{}", "f\n{}", 0},
        {call + ">>>all\nThat was it.\n", "\nThat was it.", 1},
        {">>>all\nOne.>>>all\nTwo.", "One.\nTwo.", 0},
        {"all", "all", 0},
        {"all good", "all good", 0},
        {"f is a tool", "f is a tool", 0},
        {"alles\nklar", "alles\nklar", 0},
        {"Hello, world!", "Hello, world!", 0},
    };
    for (const auto &[text, content, calls] : cases) {
        CAPTURE(text);
        const ParsedAnswer whole = parse_tool_calls(format, tools, text);
        CHECK(trimmed(whole.content) == trimmed(content));
        CHECK(whole.note == "");
        REQUIRE(whole.calls.size() == calls);
        if (calls > 0 && text != "f{}") CHECK(whole.calls[0].arguments == arguments);
        check_cuts(format, tools, text);
    }
    // The text arrives as it is written, once it is clear that it is text.
    ToolCallSplitter splitter(format, tools);
    CHECK(splitter.push("al") == "");
    CHECK(splitter.push("l\nHel") == "Hel");
    CHECK(splitter.push("lo >> 1") == "lo >> 1");
    // Without tools, only the mark before text counts.
    const ToolUse none;
    ToolCallSplitter alone(format, none);
    CHECK(alone.push("all\nHi") == "Hi");
    CHECK(alone.flush().calls.empty());
    const ParsedAnswer bad = parse_tool_calls(format, tools, "f\n{\"a\": }");
    CHECK(bad.content == "f\n{\"a\": }");
    CHECK(bad.note.find("what looks like a tool call (Functionary 3.2) is part of the text") == 0);
}

TEST_CASE("tool calls: Functionary's marks in any order are the same whole and in pieces") {
    const ToolFormat &format = format_of("Functionary 3.2");
    const ToolUse tools = tools_of({{"f", Json::object()}});
    const std::string parts[] = {"all\n", ">>>all\n",         ">>>", "all", "x", " ", "\n",
                                 "f\n{}", ">>>f\n{\"s\": 1}", "f{}", "\1",  "{"};
    for (uint32_t seed = 0; seed < 600; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        std::string text;
        for (size_t n = 1 + random.below(5); n > 0; --n) text += parts[random.below(std::size(parts))];
        check_cuts(format, tools, text);
    }
}

TEST_CASE("tool calls: text without marks comes through as it arrives") {
    const ToolUse tools = tools_of({{"f", Json::object()}});
    ToolCallSplitter splitter(format_of("Hermes"), tools);
    CHECK(splitter.push("if a < b") == "if a < b");
    CHECK(splitter.push(" <") == "");  // may begin a mark
    CHECK(splitter.push("tool>") == " <tool>");
    CHECK(splitter.push(" \n") == "");
    CHECK(splitter.flush().content == " \n");
    ToolCallSplitter bare(format_of("Llama 3"), tools);
    CHECK(bare.push(" Hello {") == " Hello {");
    ToolCallSplitter json(format_of("Llama 3"), tools);
    CHECK(json.push("\n{\"a\": 1}") == "");
    CHECK(json.flush().content == "\n{\"a\": 1}");
}

TEST_CASE("tool calls: text that cannot be parsed is content, with a note") {
    const ToolUse tools = tools_of({{"f", Json::object()}});
    const auto check = [&](const std::string &name, const std::string &text) {
        CAPTURE(text);
        const ParsedAnswer answer = parse_tool_calls(format_of(name), tools, text);
        CHECK(answer.calls.empty());
        CHECK(answer.content == text);
        CHECK(answer.note.find("what looks like a tool call (" + name + ") is part of the text") == 0);
    };
    check("Hermes", "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>");  // no such tool
    check("Hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": [1]}\n</tool_call>");
    check("Hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": }}\n</tool_call>");
    check("Hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}");
    check("Hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}} and");
    check("Hermes", "x <tool_call>" + std::string(1000, '['));
    check("Hermes", "<tool_call>{\"name\": \"f\", \"arguments\": " + std::string(300, '[') +
                        std::string(300, ']') + "}</tool_call>");
    check("Qwen3-Coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n");
    check("Mistral", "[TOOL_CALLS]f[ARGS]nothing");
    check("LFM2", "<|tool_call_start|>[f(" + std::string(1000, '[') + "<|tool_call_end|>");
    check("LFM2", "<|tool_call_start|>[f(a=__import__('os'))]<|tool_call_end|>");
    check("Kimi", "<|tool_calls_section_begin|><|tool_call_begin|>");
    // An answer in JSON is not a call.
    CHECK(parse_tool_calls(format_of("Llama 3"), tools, "{\"name\": \"Bob\", \"parameters\": {}}").content ==
          "{\"name\": \"Bob\", \"parameters\": {}}");
    // A malformed call does not affect the others.
    const ParsedAnswer two = parse_tool_calls(format_of("Hermes"), tools,
                                              "<tool_call>{\"name\": \"g\"}</tool_call> "
                                              "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
    REQUIRE(two.calls.size() == 1);
    CHECK(two.calls[0].arguments == "{}");
    CHECK(two.content == "<tool_call>{\"name\": \"g\"}</tool_call>");
    CHECK(two.note != "");
}

TEST_CASE("tool calls: thousands of incomplete calls and open brackets stay content") {
    const ToolUse tools = tools_of({{"f", Json::object()}});
    for (const ToolFormat &format : tool_formats()) {
        CAPTURE(format.name);
        const std::string open(format.open), before(format.before), between(format.between);
        std::string marks;
        while (marks.size() < 300'000) marks += open + before + "{\"[";
        // Arguments of each kind: 100,000 lists within lists, closed and not.
        const std::string deep(100'000, '['), closed(100'000, ']');
        std::vector<std::string> texts = {marks, open + before + deep};
        for (const std::string &inner : std::vector<std::string>{deep, deep + closed})
            for (const std::string &begin :
                 std::vector<std::string>{"{\"name\": \"f\", \"arguments\": {\"a\": ",
                                          "[{\"name\": \"f\", \"arguments\": {\"a\": ", "f{a:", "[f(a="})
                texts.push_back(open + before + begin + inner);
        texts.push_back(open + before + "f" + between + "{\"a\": " + deep + closed + "}" +
                        std::string(format.after) + std::string(format.close));
        for (const std::string &text : texts) {
            const ParsedAnswer answer = parse_tool_calls(format, tools, text);
            // Parameters may contain brackets.
            if (format.body == ToolFormat::Body::Parameters && !answer.calls.empty()) continue;
            CHECK(answer.calls.empty());
            CHECK((answer.content == text));
        }
    }
}

TEST_CASE("tool calls: held-back whitespace is searched once, not for each piece") {
    // With 1.2 MB of whitespace in 300,000 pieces, a search from its beginning for each piece takes hours.
    const ToolUse tools = tools_of({{"f", Json::object()}});
    const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    for (const char *name : {"Hermes", "Llama 3"})
        for (const bool begun : {false, true}) {
            CAPTURE(name);
            CAPTURE(begun);
            ToolCallSplitter splitter(format_of(name), tools);
            std::string content = begun ? splitter.push("x") : "", space;
            for (int i = 0; i < 300'000; ++i) {
                content += splitter.push("\n\n\n\n");
                space += "\n\n\n\n";
            }
            CHECK(content == (begun ? "x" : ""));
            if (std::string(name) == "Llama 3") {
                content += splitter.push("y<");
                CHECK((content == (begun ? "x" : "") + space + "y"));
                continue;
            }
            CHECK(splitter.push("<tool") == "");
            CHECK(splitter.push(call.substr(5)) == "");
            const ParsedAnswer rest = splitter.flush();
            CHECK(rest.calls.size() == 1);
            CHECK(rest.content == "");
        }
}

TEST_CASE("tool calls: a malformed or incomplete call does not affect the valid ones beside it") {
    const ToolUse tools = tools_of({{"f", Json::object()}});
    const auto check = [&](const std::string &name, const std::string &text, size_t calls,
                           const std::string &content) {
        CAPTURE(text);
        const ParsedAnswer answer = parse_tool_calls(format_of(name), tools, text);
        CHECK(answer.calls.size() == calls);
        CHECK(answer.content == content);
        CHECK(answer.note != "");
    };
    const auto kimi = [](const std::string &tool) {
        return "<|tool_call_begin|>functions." + tool + ":0<|tool_call_argument_begin|>{}<|tool_call_end|>";
    };
    const std::string open = "<|tool_calls_section_begin|>", close = "<|tool_calls_section_end|>";
    const std::string cut = "<|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{\"a\":";
    check("Kimi", open + kimi("f") + kimi("g") + close, 1, kimi("g") + close);
    check("Kimi", open + kimi("f") + kimi("f") + cut, 2, cut);
    check("Kimi", open + kimi("g") + kimi("f") + close, 1, open + kimi("g"));
    check("Kimi", open + kimi("f") + kimi("g") + kimi("f") + close + " So.", 2, kimi("g") + " So.");
    // After the end of a section, calls outside of a section do not count.
    check("Kimi", open + kimi("g") + close + kimi("f"), 0, open + kimi("g") + close + kimi("f"));
    const auto minimax = [](const std::string &tool) {
        return "<invoke name=\"" + tool + "\">\n</invoke>\n";
    };
    check("MiniMax", "<minimax:tool_call>\n" + minimax("f") + minimax("g") + "</minimax:tool_call>", 1,
          "\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>");
    const std::string f = R"({"name": "f", "arguments": {}})", g = R"({"name":"g","arguments":{}})";
    check("Mistral (list)", "[TOOL_CALLS][" + f + ", " + g + ", " + f + "]", 2, "\n" + g);
    check("Mistral (list)", "[TOOL_CALLS][" + f + ", {\"name\": \"f\", \"argu", 1,
          ", {\"name\": \"f\", \"argu");
    check("Nemotron", "I look. <TOOLCALL>[" + g + ", " + f + "]</TOOLCALL>", 1, "I look.\n" + g);
    check("LFM2", "<|tool_call_start|>[f(a=1), g(), f()]<|tool_call_end|>", 2, "\ng()");
    check("LFM2", "<|tool_call_start|>[f(a=1), f(a=[1,", 1, ", f(a=[1,");
}

TEST_CASE("tool calls: an answer has at most kMaxToolCalls, what follows is content") {
    const ToolUse tools = tools_of({{"f", Json::object()}});
    const std::string call = R"({"name": "f", "arguments": {}})";
    std::string list = "[" + call;
    for (size_t i = 1; i < 600; ++i) list += ", " + call;
    const std::string two = "[TOOL_CALLS]" + list + "]\n[TOOL_CALLS]" + list + "]";
    const ParsedAnswer answer = parse_tool_calls(format_of("Mistral (list)"), tools, two);
    CHECK(answer.calls.size() == kMaxToolCalls);
    CHECK(answer.content.size() > 100);
    CHECK(answer.note.find("too many calls") != std::string::npos);
    std::string many;
    for (size_t i = 0; i < 1025; ++i) many += "<tool_call>" + call + "</tool_call>";
    const ParsedAnswer rest = parse_tool_calls(format_of("Hermes"), tools, many);
    CHECK(rest.calls.size() == kMaxToolCalls);
    CHECK(rest.content == "<tool_call>" + call + "</tool_call>");
    CHECK(rest.note.find("too many calls") != std::string::npos);
}

TEST_CASE("tool calls: a parameter that may be a string or another type is parsed as its schema allows") {
    const ToolUse tools =
        read_tools(parse_json(R"([{"name": "f", "parameters": {"$ref": "#/$defs/all", "$defs": {
        "all": {"properties": {
            "text": {"type": "string"},
            "unit": {"enum": ["C", "F"]},
            "mixed": {"enum": ["C", 1, null]},
            "name": {"type": ["string", "null"]},
            "count": {"type": ["string", "integer"]}}}}}}])"));
    const auto value = [&](const std::string &key, const std::string &text) {
        const ParsedAnswer answer = parse_tool_calls(format_of("Qwen3-Coder"), tools,
                                                     "<tool_call>\n<function=f>\n<parameter=" + key + ">\n" +
                                                         text + "\n</parameter>\n</function>\n</tool_call>");
        REQUIRE(answer.calls.size() == 1);
        return parse_json(answer.calls[0].arguments).at(key);
    };
    CHECK(value("text", "\"x\"") == "\"x\"");
    CHECK(value("unit", "C") == "C");
    CHECK(value("mixed", "\"C\"") == "C");
    CHECK(value("mixed", "C") == "C");
    CHECK(value("mixed", "1") == 1);
    CHECK(value("mixed", "null") == nullptr);
    CHECK(value("mixed", "true") == "true");
    CHECK(value("name", "null") == nullptr);
    CHECK(value("name", "\"Bob\"") == "Bob");
    CHECK(value("name", "Bob") == "Bob");
    CHECK(value("name", "12") == "12");
    CHECK(value("count", "12") == 12);
    CHECK(value("count", "[12]") == "[12]");
}

TEST_CASE("tool calls: alternative spellings are accepted") {
    const ToolUse tools = tools_of({{"f", {{"city", "Rome"}}}});
    const auto arguments = [&](const std::string &name, const std::string &text) {
        const ParsedAnswer answer = parse_tool_calls(format_of(name), tools, text);
        CAPTURE(text);
        CAPTURE(answer.note);
        CHECK(answer.calls.size() == 1);
        return answer.calls.empty() ? std::string() : answer.calls[0].id + answer.calls[0].arguments;
    };
    const auto ends_with = [](const std::string &text, const std::string &end) {
        return text.ends_with(end);
    };
    CHECK(ends_with(arguments("Hermes", "<tool_call>{\"arguments\":{\"city\":\"Rome\"},\"name\":\"f\"}"),
                    "{\"city\":\"Rome\"}"));
    CHECK(ends_with(
        arguments("Hermes", "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"n\\\":1}\"}</tool_call>"),
        "{\"n\":1}"));
    // Digits stay a string if that is the declared type. Undeclared parameters are JSON if they can be.
    CHECK(ends_with(arguments("Qwen3-Coder",
                              "<function=f>\n<parameter=city>\n12\n</parameter>\n<parameter=n>\n12\n"
                              "</parameter>\n</function>"),
                    R"({"city":"12","n":12})"));
    CHECK(
        ends_with(arguments("GLM", "<tool_call>f<arg_key>n</arg_key><arg_value>True</arg_value></tool_call>"),
                  R"({"n":true})"));
    CHECK(arguments("Mistral", "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}") == "123456789{}");
    CHECK(arguments("Mistral (list)", R"([TOOL_CALLS][{"name":"f","arguments":{},"id":"abc123def"}])") ==
          "abc123def{}");
    CHECK(arguments("Kimi",
                    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
                    "{}<|tool_call_end|><|tool_calls_section_end|>") == "functions.f:0{}");
    CHECK(
        ends_with(arguments("Llama 3", "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"city\": \"x\"}}"),
                  R"({"city":"x"})"));
    CHECK(ends_with(arguments("Llama 4", R"([f(city='it\'s é', x=None, y={"a": (1, 2)})])"),
                    R"({"city":"it's é","x":null,"y":{"a":[1,2]}})"));
}

TEST_CASE("tool calls: ids are nine letters and digits, and differ between turns") {
    const ToolUse tools = tools_of({{"f", Json::object()}});
    const std::string text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    const auto ids = [&](uint64_t salt) {
        std::vector<std::string> found;
        for (const ToolCall &call : parse_tool_calls(format_of("Hermes"), tools, text + text, salt).calls)
            found.push_back(call.id);
        return found;
    };
    const auto first = ids(10), again = ids(10), later = ids(11);
    REQUIRE(first.size() == 2);
    CHECK(first == again);
    CHECK(first[0] != first[1]);
    CHECK(first[0] != later[0]);
    CHECK(first[0].size() == 9);
}

TEST_CASE("tools: definitions are read, names that cannot be called are noted, the choice is checked") {
    std::vector<std::string> notes;
    ToolUse use = read_tools(parse_json(R"([
        {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}},
        {"name": "b.c/d-e_1", "input_schema": {"x": 1}}, {"name": "no blanks"}, {"name": "a"}, 7,
        {"function": {}}])"),
                             &notes);
    REQUIRE(use.tools.size() == 2);
    CHECK(use.tools[0].parameters == parse_json(R"({"type": "object"})"));
    CHECK(use.tools[1].parameters == parse_json(R"({"x": 1})"));
    CHECK(notes.size() == 4);
    CHECK(notes[1] == "tool 4 cannot be called: another one has its name");
    CHECK(use.definitions.size() == 6);
    CHECK(use.definitions[1] ==
          parse_json(R"({"type": "function", "function": {"name": "b.c/d-e_1", "parameters": {"x": 1}}})"));
    use.choose("a");
    CHECK(use.choice == ToolUse::Choice::Required);
    CHECK(use.only == "a");
    use.choose("required");
    CHECK(use.only == "");
    use.choose("none");
    CHECK(use.choice == ToolUse::Choice::None);
    CHECK_THROWS_AS(use.choose("nope"), std::invalid_argument);
    CHECK_THROWS_AS(ToolUse{}.choose("required"), std::invalid_argument);
    ToolUse{}.choose("auto");
}
