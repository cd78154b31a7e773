// Compares the interpreter with Python's jinja2: ../shared/data/chat/README.md.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/jinja/template.h"
#include "tests/support/chat_cases.h"
#include "tests/support/data.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::testing;

TEST_CASE("jinja: every case of the shared data, as Python renders it") {
    if (!has_shared_data("chat/cases.jsonl")) {
        skip("no " + (shared_data() / "chat").string());
        return;
    }
    std::map<std::string, std::string> sources;
    int cases = 0;
    for (const char *file : {"chat/jinja-cases.jsonl", "chat/cases.jsonl"}) {
        std::ifstream lines(shared_data() / file);
        for (std::string line; std::getline(lines, line); ++cases) {
            const Json test = Json::parse(line);
            CAPTURE(test.at("name").get<std::string>());
            std::string source = test.value("template", "");
            if (test.contains("template_file")) {
                std::string &known = sources[test.at("template_file")];
                if (known.empty()) known = read_file(shared_data() / "chat" / test.at("template_file"));
                source = known;
            }
            check_case(test, source);
        }
    }
    MESSAGE(cases << " cases");
    CHECK(cases > 1000);
}
