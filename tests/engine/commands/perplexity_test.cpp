// `runnel perplexity`, run as a program. Needs $RUNNEL.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

TEST_CASE("perplexity: a full disk leaves no file behind; a saved base is read back") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = tiny().path.string(), text = (directory / "t.txt").string(),
                      base = (directory / "base").string();
    std::string words;
    for (int i = 0; i < 400; ++i) words += "word" + std::to_string(i * 7919 % 1000) + " ";
    write_file(text, std::as_bytes(std::span(words)));
    const Result full =
        runnel_with({"perplexity", model, "-f", text, "-c", "32", "--save-logits", "/dev/full", "-q"});
    CHECK(full.code == 1);
    check_message(full);
    const Result saved = runnel_with({"perplexity", model, "-f", text, "-c", "32", "--save-logits", base});
    REQUIRE(saved.code == 0);
    CHECK(saved.out.starts_with("perplexity: "));
    CHECK(saved.out.find(" +/- ") != std::string::npos);
    CHECK(saved.err.starts_with("[1]"));
    const Result again = runnel_with({"perplexity", model, "--kl-base", base, "-q"});
    REQUIRE(again.code == 0);
    CHECK(again.out.ends_with(saved.out));
    CHECK(again.out.find("top-1 agreement: 100.000%") != std::string::npos);
    const json j = json::parse(runnel_with({"perplexity", model, "--kl-base", base, "--json", "-q"}).out);
    CHECK(std::abs(j["mean_kl"].get<double>()) < 1e-6);
    CHECK(j["top1_agreement"] == 1.0);
    CHECK(j["tokens"].get<int>() > 0);
}

TEST_CASE(
    "perplexity: multiple-choice tasks from a file and from a pipe; what does not belong together is "
    "refused") {
    if (absent()) return;
    const std::string model = demo_model().string(), folder = "tests/data/choice/";
    const Result text = runnel_with({"perplexity", model, "-f", folder + "hellaswag.txt", "--hellaswag"});
    REQUIRE(text.code == 0);
    CHECK(text.out == "tasks: 40\nright: 10\nby chance: 25.00%\naccuracy: 25.0000% [14.1871%, 40.1940%]\n");
    CHECK(text.err.find("[40]25.00%,\n") != std::string::npos);
    const json j =
        json::parse(runnel_with({"perplexity", model, "-bf", folder + "questions.bin", "--multiple-choice",
                                 "--multiple-choice-tasks", "15", "--json", "-q"})
                        .out);
    CHECK(j["kind"] == "multiple-choice");
    CHECK(j["tasks"] == 15);
    CHECK(j["right"] == 5);
    CHECK(j["interval"][0].get<double>() < j["accuracy"].get<double>());

    const auto refused = [&](std::vector<std::string> arguments, int code, const std::string &message) {
        arguments.insert(arguments.begin(), {"perplexity", model});
        const Result result = runnel_with(arguments);
        CAPTURE(result.err);
        CHECK(result.code == code);
        CHECK(result.out.empty());
        CHECK(result.err.find(message) != std::string::npos);
        check_message(result);
    };
    const std::string tasks = folder + "hellaswag.txt";
    refused({"-f", tasks, "--hellaswag", "--winogrande"}, 2, "exclude each other");
    refused({"--hellaswag"}, 2, "-f FILE");
    refused({"-f", tasks, "--hellaswag", "--ppl-stride", "8"}, 2, "--ppl-stride");
    refused({"-f", tasks, "--hellaswag", "-c", "20"}, 2, "the longest text has");
    refused({"-f", tasks, "--winogrande"}, 5, "line 1: expected five fields");
    refused({"-f", tasks, "--multiple-choice"}, 5, "another format");
    refused({"-f", tasks, "--tasks", "3"}, 2, "--tasks needs");
    refused({"-f", "tests/data/held-out.txt", "-c", "64", "--ppl-stride", "64"}, 2, "less than the context");
    refused({"-f", "tests/data/held-out.txt", "-c", "64", "--ppl-stride", "8", "--save-logits", "x"}, 2,
            "do not overlap");
}

TEST_CASE("perplexity: a stride uses the context before each token; compare shows models side by side") {
    if (absent()) return;
    const std::string model = demo_model().string(), text = "tests/data/held-out.txt";
    const auto perplexity_of = [&](std::vector<std::string> more) {
        more.insert(more.begin(), {"perplexity", model, "-f", text, "-c", "128", "--json", "-q"});
        return json::parse(runnel_with(more).out);
    };
    const json stride = perplexity_of({"--ppl-stride", "32", "--chunks", "20"});
    CHECK(stride["tokens"] == 20 * 32);
    CHECK(stride["perplexity"].get<double>() > 10);
    CHECK(stride["perplexity"].get<double>() < 60);

    const Result result = runnel_with({"compare", model, "tests/models/demo-draft-q8_0.gguf", "-f", text,
                                       "-r", "2", "-pg", "8,4", "--json", "-q"});
    REQUIRE(result.code == 0);
    const json models = json::parse(result.out)["models"];
    REQUIRE(models.size() == 2);
    CHECK(models[0]["file_bytes"] == std::filesystem::file_size(model));
    CHECK(models[1]["mean_kl"].get<double>() > 0.01);
    CHECK(models[1]["perplexity"].get<double>() > models[0]["perplexity"].get<double>());
    const Result table = runnel_with({"compare", model, model, "-r", "1", "-pg", "8,4", "-q"});
    CHECK(table.code == 0);
    CHECK(table.out.find("-f FILE compares the quality") != std::string::npos);
    for (const Result &wrong :
         {runnel_with({"compare", model}), runnel_with({"compare", model, "absent.gguf"})}) {
        CHECK(wrong.code != 0);
        check_message(wrong);
    }
}
