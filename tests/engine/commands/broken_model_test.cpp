// Commands on a model that computes numbers which are not finite, tested by running the program. Needs $RUNNEL (default
// build/runnel).
#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/edited_model.h"
#include "tests/support/process.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

Result on_broken_model(std::vector<std::string> arguments, std::optional<std::string> input = {}) {
    static const EditedModel broken = [] {
        ModelShape shape;
        shape.context = 4096;
        return EditedModel(shape).tensor("output_norm.weight", runnel::gguf::Type::F32, {shape.width},
                                         std::numeric_limits<float>::quiet_NaN());
    }();
    Process p{};
    arguments.insert(arguments.begin() + 1, {broken.write().string(), "-t", "1", "--device", "cpu"});
    p.arguments = std::move(arguments);
    p.input = std::move(input);
    return execute(p);
}

}  // namespace

TEST_CASE("a model whose numbers are not finite: every command fails with 1 and says so") {
    if (!program_under_test()) {
        FAIL("no program to test: set RUNNEL, or build build/runnel");
        return;
    }
    for (const std::vector<std::string> &arguments :
         std::vector<std::vector<std::string>>{{"run", "a"},
                                               {"run", "a", "--samples", "2"},
                                               {"run", "abc", "--json", "-n", "0", "--prompt-logprobs", "1"},
                                               {"bench", "-p", "0", "-n", "4", "--sequences", "2"},
                                               {"bench", "--lookup", "-n", "8"}}) {
        CAPTURE(arguments[0]);
        const Result got = on_broken_model(arguments);
        CHECK(got.code == 1);
        CHECK(got.out == "");
        CAPTURE(got.err);
        CHECK(got.err.find("not finite") != std::string::npos);
    }
    // An error of the model is not reported as an error of the row.
    const Result rows = on_broken_model({"batch"}, "{\"prompt\": \"a\"}\n");
    CHECK(rows.code == 1);
    CHECK(json::parse(rows.out)["error"]["message"].get<std::string>().find("not finite") !=
          std::string::npos);
    // bench does not sample, so it does not fail.
    CHECK(on_broken_model({"bench", "-p", "0", "-n", "4"}).code == 0);
}
