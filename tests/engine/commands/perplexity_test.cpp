// `runnel perplexity`, run as a program. Needs $RUNNEL.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/engine/commands/program_support.h"
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
