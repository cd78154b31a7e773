// Templates are untrusted: every one must render or be refused with one line, in little time and
// memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/jinja/template.h"
#include "tests/support/cpu_time.h"
#include "tests/support/damage.h"
#include "tests/support/data.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::testing;
using text::jinja::Template;
using text::jinja::TemplateError;
using text::jinja::Variables;

namespace {

using Json = nlohmann::ordered_json;

// "" when it rendered, otherwise the message.
std::string outcome(const std::string &source, const Json &context, const text::jinja::RenderOptions &how) {
    try {
        Template::parse(source).render(Variables::of(context), how);
        return "";
    } catch (const TemplateError &error) {
        return error.what();
    }
}

struct Corpus {
    std::vector<std::string> sources, pieces;
    Json context;
};

Corpus make_corpus() {
    Corpus corpus;
    std::ifstream lines("tests/engine/text/jinja/cases.jsonl");
    std::string line;
    std::getline(lines, line);
    corpus.context = Json::parse(line).at("context");
    while (std::getline(lines, line)) corpus.sources.push_back(Json::parse(line).at("template"));
    corpus.pieces = corpus.sources;
    if (has_shared_data("chat/templates"))
        for (const auto &entry : std::filesystem::directory_iterator(shared_data() / "chat/templates"))
            corpus.sources.push_back(read_file(entry.path()));
    std::sort(corpus.sources.begin(), corpus.sources.end());
    for (const char *piece : {"{%",
                              "%}",
                              "{{",
                              "}}",
                              "{#",
                              "#}",
                              "-%}",
                              "(",
                              ")",
                              "[",
                              "]",
                              "|",
                              ".",
                              "~",
                              "+",
                              "*",
                              "'",
                              "\"",
                              "\\",
                              " if ",
                              " else ",
                              " for x in ",
                              "{% endfor %}",
                              "{% endif %}",
                              "{% set ns.a = ns %}",
                              "{% set ns = namespace() %}",
                              "{% for i in range(99999) %}",
                              "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
                              " ** 99",
                              " * 99999999",
                              "[:-1]",
                              "[::-1]",
                              "| list",
                              "| join",
                              "| map('upper')",
                              "| tojson(indent=9)",
                              "loop",
                              "loop.changed(loop)",
                              "caller()",
                              "varargs",
                              "9999999999999999999",
                              "0x",
                              "1e999",
                              "\xff",
                              "\xe2\x82",
                              "not ",
                              "- ",
                              "is ",
                              "is in ",
                              "{% break %}",
                              "{% raw %}",
                              "{% endraw %}",
                              "self",
                              "messages",
                              "none"})
        corpus.pieces.emplace_back(piece);
    return corpus;
}

std::string mutated(const Corpus &corpus, Random &random) {
    std::string source = corpus.sources[random.below(corpus.sources.size())];
    for (uint64_t edits = 1 + random.below(6); edits > 0; --edits) {
        const std::string &piece = corpus.pieces[random.below(corpus.pieces.size())];
        const size_t at = random.below(source.size() + 1);
        if (random.below(3) > 0) {
            source.insert(at, piece);
        } else {
            std::vector<std::byte> bytes(source.size());
            std::transform(source.begin(), source.end(), bytes.begin(), [](char c) { return std::byte(c); });
            mutate(bytes, random);
            source.assign(reinterpret_cast<const char *>(bytes.data()), bytes.size());
        }
    }
    return source;
}

std::string repeated(const std::string &text, size_t count) {
    std::string result;
    for (size_t i = 0; i < count; ++i) result += text;
    return result;
}

}  // namespace

TEST_CASE("fuzz: mutated templates render or are refused") {
    const uint64_t seed = 20261121;
    CAPTURE(seed);
    const Corpus corpus = make_corpus();
    REQUIRE(corpus.sources.size() > 300);
    text::jinja::RenderOptions how;
    how.limits.steps = 20000, how.limits.memory = 4 << 20, how.limits.output = 1 << 20;
    Random random(seed);
    int rendered = 0, refused = 0;
    for (int round = 0; round < 20000; ++round) {
        const std::string source = mutated(corpus, random);
        CAPTURE(round);
        const double start = thread_seconds();
        const std::string message = outcome(source, corpus.context, how);
        if (thread_seconds() - start > kHang) FAIL_CHECK("this took long: " << source);
        if (message.size() > 2000 || message.find('\n') != message.npos)
            FAIL_CHECK("a message of several lines");
        (message.empty() ? rendered : refused) += 1;
    }
    MESSAGE("fuzz: " << rendered << " rendered, " << refused << " refused");
    CHECK(rendered > 1000);
    CHECK(refused > 1000);
}

TEST_CASE("fuzz: templates that run forever or take all memory are stopped") {
    const std::vector<std::string> sources = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{{ 'x' * 99999999999 }}",
        "{{ [0] * 99999999999 }}",
        "{{ 'x'.center(99999999999) }}{{ 'x'.ljust(99999999999999999) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'x' | indent(99999999999) }}",
        "{{ [1] | tojson(indent=999999999999) }}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s.replace('a', ns.s) %}{% "
        "endfor %}",
        "{% set ns = namespace(l=[0]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(l=[0]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ "
        "ns.l == ns.l }}",
        "{% set ns = namespace(l=[0]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ "
        "ns.l }}",
        "{% set ns = namespace(l=(0,)) %}{% for i in range(99) %}{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ "
        "{ns.l: 1} }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l].index %}{% endfor %}",
        "{% set ns = namespace(l=1) %}{% for i in range(99999) %}{% set ns.l = cycler(ns.l) %}{% endfor %}",
        "{% set ns = namespace(l=1) %}{% for i in range(99999) %}{% for j in [ns.l] %}{% set ns.l = loop "
        "%}{% endfor %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a | tojson }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}",
        "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}",
        "{{ " + repeated("[", 100000) + " }}",
        "{{ " + repeated("not ", 100000) + "1 }}",
        "{{ " + repeated("-", 100000) + "1 }}",
        "{{ 1" + repeated(" + 1", 100000) + " }}",
        "{{ a" + repeated(".a", 100000) + " }}",
        "{{ a" + repeated("|upper", 100000) + " }}",
        "{{ 1" + repeated(" if 1 else 1", 100000) + " }}",
        repeated("{% if 1 %}", 30000),
        repeated("{% for x in y %}", 30000),
        repeated("{{ 'x' }}", 500000),
        "{{ 2 ** 99999999 }}",
        "{{ 99999999 ** 99999999 }}",
    };
    for (const std::string &source : sources) {
        CAPTURE(source.substr(0, 120));
        const double start = thread_seconds();
        const std::string message = outcome(source, Json::object(), {});
        CHECK(message != "");
        CHECK(message.size() < 1000);
        CHECK(thread_seconds() - start < kHang);  // some 0.1 s each, without a sanitizer
    }
    // A long chain that is still below the limit.
    const std::string ladder = "{% if 0 %}" + repeated("{% elif 0 %}", 20000) + "{% endif %}";
    CHECK(outcome(ladder, Json::object(), {}) == "");
    CHECK(outcome("{{ ('a' * 200000 ~ 'b') in ('a' * 400000) }}", Json::object(), {}) == "");
}
