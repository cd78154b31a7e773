// The model file's sampling defaults in run, chat, batch and inspect. Needs $RUNNEL.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/edited_model.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

// A file whose default is greedy.
struct GreedyModel {
    GreedyModel() {
        edited.set("general.sampling.temp", 0.0f).set("general.sampling.top_p", 2.0f);
        path = edited.write().string();
    }
    EditedModel edited;
    std::string path;
};

}  // namespace

TEST_CASE("file sampling: the file's settings count unless the user chose others") {
    if (absent()) return;
    const GreedyModel model;
    const auto answer = [&](const std::vector<std::string> &more, std::vector<std::string> environment = {}) {
        Process p = process({"run", model.path, "ab", "-n", "20", "--ignore-eos", "-q"});
        p.arguments.insert(p.arguments.end(), more.begin(), more.end());
        p.environment = std::move(environment);
        const Result r = execute(p);
        CHECK(r.code == 0);
        return r.out;
    };
    const std::string greedy = answer({"--temp", "0"});
    CHECK(answer({"-s", "1"}) == greedy);
    CHECK(answer({"-s", "2"}) == greedy);
    CHECK(answer({"-s", "1", "--temp", "2"}) != greedy);
    CHECK(answer({"-s", "1"}, {"RUNNEL_TEMP=2"}) == answer({"-s", "1", "--temp", "2"}));
    const TemporaryDirectory directory;
    const std::string config = (directory / "c.toml").string();
    write_file(config, std::as_bytes(std::span(std::string_view("temp = 2\n"))));
    CHECK(answer({"-s", "1", "--config", config}) == answer({"-s", "1", "--temp", "2"}));
}

TEST_CASE("file sampling: --stats and inspect show the file's settings, and what is ignored is noted") {
    if (absent()) return;
    const GreedyModel model;
    const TemporaryDirectory directory;
    const std::string stats = (directory / "stats.json").string();
    const std::vector<std::string> arguments = {"run", model.path, "ab",           "-n",
                                                "2",   "--stats",  "--stats-file", stats};
    const Result shown = runnel_with(arguments);
    CHECK(shown.err.find("general.sampling.top_p of the file is ignored") != std::string::npos);
    CHECK(shown.err.find("sampling temp 0 (from the file)") != std::string::npos);
    CHECK(json::parse(read_file(stats))["file_sampling"] == json{{"temp", 0.0}});
    std::vector<std::string> chosen = arguments;
    chosen.insert(chosen.end(), {"--temp", "1"});
    CHECK(runnel_with(chosen).err.find("(from the file)") == std::string::npos);
    CHECK(json::parse(runnel_with({"inspect", model.path, "--json"}).out)["sampling"] == json{{"temp", 0.0}});
    CHECK(runnel_with({"inspect", model.path}).out.find("temp 0 unless an option says otherwise") !=
          std::string::npos);
}

TEST_CASE("file sampling: chat and batch use the file's settings") {
    if (absent()) return;
    const GreedyModel model;
    const auto batch = [&](std::string_view row) {
        const Result r = runnel_with({"batch", model.path, "--raw", "-n", "20", "--ignore-eos", "-q"},
                                     std::string(row) + "\n");
        return json::parse(r.out)["text"].get<std::string>();
    };
    const std::string greedy = batch(R"({"prompt": "ab", "temperature": 0})");
    CHECK(batch(R"({"prompt": "ab", "seed": 1})") == greedy);
    CHECK(batch(R"({"prompt": "ab", "seed": 2})") == greedy);
    CHECK(batch(R"({"prompt": "ab", "seed": 2, "temperature": 2})") != greedy);
    const auto list = [&](const std::string &commands) {
        return runnel_with({"chat", model.path}, commands).err;
    };
    CHECK(list("/set\n").find("temp 0\n") != std::string::npos);
    CHECK(list("/set temp 0.5\n/set\n").find("temp 0.5\n") != std::string::npos);
}
