// `runnel run --trace`: the spans of a timeline against what the run computed.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/measure/pass_cost.h"
#include "engine/model/model.h"
#include "gguf/base/trace.h"
#include "gguf/file.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::testing;
using nlohmann::json;

namespace {

// The complete events of a name, in order of time.
std::vector<json> spans(const json &trace, const std::string &name) {
    std::vector<json> found;
    for (const json &event : trace["traceEvents"])
        if (event["name"] == name && event["ph"] == "X") found.push_back(event);
    return found;
}

double end_of(const json &span) {
    return span["ts"].get<double>() + span["dur"].get<double>();
}

bool lies_in(const json &inner, const json &outer) {
    constexpr double kRounding = 1e-3;  // microseconds
    return inner["ts"] >= outer["ts"].get<double>() - kRounding && end_of(inner) <= end_of(outer) + kRounding;
}

}  // namespace

TEST_CASE("trace: every pass has its tokens, bytes and operations, and the text stays the same") {
    if (!program_under_test()) return;
    const TemporaryDirectory directory;
    const std::string file = directory / "trace.json", model = demo_model();
    std::vector<std::string> command = {"run",
                                        model,
                                        "Once upon a time there was a small boat",
                                        "-n",
                                        "12",
                                        "--temp",
                                        "0",
                                        "--device",
                                        "cpu",
                                        "--ubatch-size",
                                        "4",
                                        "--json"};
    const json plain = json::parse(runnel_with(command, "").out);
    command.insert(command.end(), {"--trace", file});
    const Result r = runnel_with(command, "");
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    const json traced = json::parse(r.out);
    CHECK(traced["text"] == plain["text"]);

    const json trace = json::parse(read_file(file));
    CHECK(trace["otherData"]["omitted_events"] == 0);
    for (const char *name : {"load model", "read prompt", "submit"}) CHECK(spans(trace, name).size() == 1);
    CHECK(spans(trace, "tokenize").size() >= 1);
    CHECK(lies_in(spans(trace, "tokenize").front(), spans(trace, "submit").front()));
    const std::vector<json> steps = spans(trace, "step"), passes = spans(trace, "pass");
    REQUIRE(!passes.empty());
    int64_t tokens = 0;
    const gguf::File opened = gguf::File::open(model);
    const model::Model built = model::build(opened);
    for (const json &pass : passes) {
        const json &numbers = pass["args"];
        CHECK(numbers["depth"] == tokens);
        tokens += numbers["tokens"].get<int64_t>();
        CHECK(numbers["tokens"] <= 4);
        CHECK(std::ranges::any_of(steps, [&](const json &step) { return lies_in(pass, step); }));
        const measure::PassCost cost = measure::pass_cost(built.program, numbers["depth"], numbers["tokens"],
                                                          {}, numbers["logits"].get<int64_t>());
        CHECK(numbers["weight_bytes"] == std::llround(cost.weights));
        CHECK(numbers["cache_bytes"] == std::llround(cost.cache_read));
        CHECK(numbers["operations"] == std::llround(cost.operations()));
    }
    // The last token is not computed.
    CHECK(tokens == traced["prompt_tokens"].get<int64_t>() + traced["completion_tokens"].get<int64_t>() - 1);
    for (size_t i = 1; i < steps.size(); ++i) CHECK(end_of(steps[i - 1]) <= steps[i]["ts"]);
}

TEST_CASE("trace: its file replaces an earlier trace, and nothing else") {
    if (!program_under_test()) return;
    const TemporaryDirectory directory;
    const std::string model = demo_model(), file = directory / "trace.json", foreign = directory / "notes";
    std::ofstream(foreign) << "mine";
    const auto traced = [&](const std::string &to, std::vector<std::string> more = {}) {
        std::vector<std::string> command = {"run",      model, "Once",    "-n", "2",
                                            "--device", "cpu", "--trace", to};
        command.insert(command.end(), more.begin(), more.end());
        return runnel_with(command, "");
    };
    CHECK(traced(file).code == 0);
    CHECK(traced(file).code == 0);
    CHECK(traced(foreign).code != 0);
    CHECK(read_file(foreign) == "mine");
    CHECK(traced(foreign, {"--overwrite"}).code == 0);
    CHECK(json::parse(read_file(foreign))["otherData"]["program"] == "runnel");
    CHECK(traced(model).code != 0);
    CHECK(std::filesystem::file_size(model) > 1000);
    CHECK(traced("-").code == 2);
    CHECK(traced(directory / "both", {"--stats-file", directory / "both"}).code == 2);
    CHECK(traced(directory / "both", {"--prompt-cache", directory / "both"}).code == 2);
    CHECK(!std::filesystem::exists(directory / "both"));
}

TEST_CASE("trace: spans are recorded while a Trace exists, up to a bound") {
    { base::TraceSpan span("before"); }
    base::Trace trace;
    {
        base::TraceSpan outer("outer");
        base::TraceSpan inner("inner");
        inner.note("tokens", 7);
        base::Trace::mark("point", {{"x", 1}});
    }
    REQUIRE(trace.events().size() == 3);
    CHECK(std::string(trace.events()[0].name) == "point");
    CHECK(trace.events()[0].seconds < 0);
    CHECK(std::string(trace.events()[1].name) == "inner");
    CHECK(trace.events()[1].notes[0].second == 7);
    CHECK(trace.events()[2].begin <= trace.events()[1].begin);
    CHECK(trace.events()[2].begin + trace.events()[2].seconds >=
          trace.events()[1].begin + trace.events()[1].seconds);
    for (size_t i = 0; i < base::Trace::kMostEvents; ++i) trace.add({"many", 0, 0, {}});
    CHECK(trace.events().size() == base::Trace::kMostEvents);
    CHECK(trace.omitted() == 3);
}
