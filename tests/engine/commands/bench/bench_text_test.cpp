// What the program reports about its tokenizers: `bench --text`, `tokenize --llama-compatible`, `inspect
// --supported`. Needs $RUNNEL (default build/runnel).
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/text/vocabulary_file.h"
#include "tests/support/data.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

bool absent() {
    if (program_under_test()) return false;
    FAIL("no program to test: set RUNNEL, or build build/runnel");
    return true;
}

Result runnel_with(std::vector<std::string> arguments) {
    Process process{};
    process.arguments = std::move(arguments);
    return execute(process);
}

std::string save(const VocabularyFile &file, const std::filesystem::path &path) {
    const auto loaded = file.load();
    std::ofstream out(path, std::ios::binary);
    const auto bytes = loaded.bytes.span();
    out.write(reinterpret_cast<const char *>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path.string();
}

// A small byte-level vocabulary for the pre-tokenizer `pre`.
std::string write_vocabulary(const TemporaryDirectory &directory, const std::string &pre) {
    return save(byte_pair_file({"a b", "\u0120 ab"}, {"<|end|>"}, pre), directory / (pre + ".gguf"));
}

}  // namespace

TEST_CASE("bench --text measures without a model's weights") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string path = write_vocabulary(directory, "gpt-2");
    const Result result = runnel_with({"bench", path, "--text", "-r", "1", "--json"});
    REQUIRE(result.code == 0);
    const json measured = json::parse(result.out);
    REQUIRE(measured["texts"].size() == 4);
    for (const json &row : measured["texts"]) {
        CHECK(row["bytes"] == 1'000'000);
        CHECK(row["bytes_per_second"].get<double>() > 0);
    }
    CHECK(measured["texts"][2]["tokens"] == 1'000'000);  // of one letter
    CHECK(measured["vocabulary"] == 98);
    CHECK(measured["load_ms"].get<double>() > 0);
    CHECK(measured["render_ms"].is_null());
    CHECK(runnel_with({"bench", path, "-f", path}).code == 2);
}

TEST_CASE(
    "tokenize splits as the model does, or as llama.cpp on request; an unknown pre-tokenizer is noted") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const json data = json::parse(read_file("tests/data/pre_tokenizers.json"));
    VocabularyFile file;
    file.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "gpt-4o");
    file.strings("tokenizer.ggml.tokens", data["tokens"].get<std::vector<std::string>>());
    file.strings("tokenizer.ggml.merges", data["merges"].get<std::vector<std::string>>());
    const std::string path = save(file, directory / "gpt-4o.gguf");
    size_t different = 0;
    for (const size_t i : {3, 6, 8}) {  // plain English, Hindi, Bengali
        const std::string text = data["texts"][i];
        const Result model = runnel_with({"tokenize", path, "--ids", text}),
                     llama = runnel_with({"tokenize", path, "--ids", "--llama-compatible", text});
        CHECK(model.err.empty());
        CHECK(json::parse(model.out) == data["kinds"]["gpt-4o"]["ids"][i]);
        different += json::parse(llama.out) != json::parse(model.out);
    }
    CHECK(different == 2);
    const Result result = runnel_with({"tokenize", write_vocabulary(directory, "qwen9"), "--ids", "ab"});
    CHECK(result.code == 0);
    CHECK(json::parse(result.out).size() == 1);
    CHECK(result.err.starts_with("runnel: tokenizer.ggml.pre: pre-tokenizer 'qwen9' is unknown"));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
}

TEST_CASE("inspect --supported lists tokenizers with what was checked") {
    if (absent()) return;
    const json all = json::parse(runnel_with({"inspect", "--supported", "--json"}).out);
    size_t names = 0;
    for (const json &row : all["tokenizers"]) {
        CHECK_FALSE(row["evidence"].get<std::string>().empty());
        if (row.contains("pre")) names += row["pre"].size();
    }
    CHECK(names > 70);
    CHECK(runnel_with({"inspect", "--supported"}).out.find("  gpt2: qwen2, deepseek-r1-qwen") !=
          std::string::npos);
}
