// `run --attention-map`: its JSON, its pictures, and what it refuses. The weights are checked in
// engine/measure/attention_map_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

Result map_of(const std::string &model, std::vector<std::string> more) {
    std::vector<std::string> all = {"run",         model,      "Once upon a time there was a little boat",
                                    "-n",          "12",       "--temp",
                                    "0",           "--device", "cpu",
                                    "--ignore-eos"};
    all.insert(all.end(), more.begin(), more.end());
    return runnel_with(std::move(all), "");
}

}  // namespace

TEST_CASE("attention-map: the file has the weights of every head and the first token's share") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string svg = directory / "map.svg";
    const json plain = json::parse(map_of(demo_model(), {"--json"}).out);
    const Result r = map_of(demo_model(), {"--json", "--layer", "1", "--attention-map", svg});
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    const json all = json::parse(r.out), &map = all["attention_map"];
    CHECK(all["text"] == plain["text"]);
    CHECK(map["layer"] == 1);
    CHECK(map["window"].is_number_integer());
    CHECK(map["sink_cells"] == 0);
    const size_t tokens = all["prompt_tokens"].get<size_t>() + all["completion_tokens"].get<size_t>();
    REQUIRE(map["tokens"].size() == tokens);
    REQUIRE(!map["heads"].empty());
    for (size_t head = 0; head < map["heads"].size(); ++head) {
        const json &one = map["heads"][head];
        CHECK(one["head"] == head);
        REQUIRE(one["weights"].size() == tokens);
        double first = 0;
        for (size_t query = 0; query < tokens; ++query) {
            const json &row = one["weights"][query];
            REQUIRE(row.size() == query + 1);
            double sum = 0;
            for (const json &weight : row) sum += weight.get<double>();
            CHECK(sum == doctest::Approx(1));
            if (query > 0) first += row[0].get<double>();
        }
        CHECK(one["first_token_share"].get<double>() ==
              doctest::Approx(first / static_cast<double>(tokens - 1)));
    }
    CHECK(read_file(svg).starts_with("<svg xmlns"));
    CHECK(read_file(svg).find("Layer 1: ") != std::string::npos);
    // One head is the same as among all.
    const json one = json::parse(
        map_of(demo_model(), {"--json", "--layer", "1", "--head", "1", "--attention-map", svg}).out);
    REQUIRE(one["attention_map"]["heads"].size() == 1);
    CHECK(one["attention_map"]["heads"][0] == map["heads"][1]);
}

TEST_CASE("attention-map: text on stderr works, long texts are cut, wrong options are refused") {
    if (absent()) return;
    const Result small = map_of(demo_model(), {"--attention-map", "-", "--head", "0"});
    CHECK(small.code == 0);
    CHECK(small.err.find("of the attention of head 0 goes to the first token") != std::string::npos);
    const Result large = map_of(demo_model(), {"--attention-map", "-", "-n", "200"});
    CHECK(large.code == 0);
    CHECK(large.err.find("shows the first 128 of ") != std::string::npos);
    for (const Result &r : {small, large}) {
        std::istringstream in(r.err);
        for (std::string line; std::getline(in, line);) {
            CAPTURE(line);
            CHECK(std::count_if(line.begin(), line.end(), [](char c) {
                      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
                  }) <= 100);
        }
    }
    CHECK(map_of(demo_model(), {"--attention-map", "-", "--layer", "99"}).code == 2);
    CHECK(map_of(demo_model(), {"--attention-map", "-", "--head", "99"}).code == 2);
    CHECK(map_of(demo_model(), {"--attention-map", "map.png"}).code == 2);
    CHECK(map_of(demo_model(), {"--attention-map", "-", "--samples", "2"}).code == 2);
    CHECK(map_of(demo_model(), {"--layer", "1"}).code == 2);
    ModelShape shape;
    shape.arch = "mamba";
    const TemporaryModel recurrent(shape);
    const Result refused = map_of(recurrent.path.string(), {"--attention-map", "-"});
    CHECK(refused.code == 2);
    CHECK(refused.err.find("no layer of this model has attention") != std::string::npos);
}
