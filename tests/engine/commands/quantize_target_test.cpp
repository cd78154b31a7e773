// `runnel quantize --target-size`, `--target-bpw`: sizes, determinism, the sensitivity file, and what is refused.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

fs::path model_in(const TemporaryDirectory &directory, int64_t width, int64_t ff, bool tied = false,
                  const char *arch = "llama") {
    ModelShape shape;
    shape.arch = arch;
    shape.type = "F16", shape.tied = tied;
    shape.width = width, shape.ff = ff;
    make_model(shape, directory / "f16.gguf", {.overwrite = true});
    return directory / "f16.gguf";
}

// Options that leave few types, for speed.
const std::vector<std::string> kFewTypes{"--target-types", "Q3_K,Q4_K,Q6_K,Q8_0,Q4_0,Q5_0"};

json plan_for(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "quantize");
    arguments.insert(arguments.end(), {"--dry-run", "--json"});
    const Result r = runnel_with(arguments);
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    return json::parse(r.out);
}

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string> &b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

}  // namespace

TEST_CASE("quantize: a file for --target-size is never larger, and never needlessly small") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string out = (directory / "out.gguf").string();
    struct Case {
        int64_t width, ff;
        bool tied;
        const char *arch;
    };
    Random random(1);
    for (const Case &c :
         {Case{256, 512, false, "llama"}, {64, 160, false, "llama"}, {256, 256, true, "qwen3"}}) {
        CAPTURE(c.width);
        const std::string in = model_in(directory, c.width, c.ff, c.tied, c.arch).string();
        const json range = plan_for(joined({in, out, "--target-bpw", "32"}, kFewTypes));
        CHECK(range["target"]["bytes"] == range["target"]["largest"]);  // the source's own types
        const uint64_t whole = fs::file_size(in);
        const json size = plan_for(joined({in, out, "--target-size", std::to_string(2 * whole)}, kFewTypes));
        const auto smallest = size["target"]["smallest"].get<uint64_t>(),
                   largest = size["target"]["largest"].get<uint64_t>();
        REQUIRE(smallest < largest);
        for (int i = 0; i < 3; ++i) {
            const uint64_t target = i == 0 ? smallest : smallest + random.below(largest - smallest);
            CAPTURE(target);
            const Result r = runnel_with(joined(
                {"quantize", in, out, "--target-size", std::to_string(target), "--overwrite"}, kFewTypes));
            CAPTURE(r.err);
            REQUIRE(r.code == 0);
            CHECK(fs::file_size(out) <= target);
            CHECK(r.err.find("(" + std::to_string(fs::file_size(out)) + " bytes)") != r.err.npos);
            if (i == 0) CHECK(fs::file_size(out) == smallest);
            // The largest step of a tensor is less than a tenth of these models.
            CHECK(fs::file_size(out) + largest / 10 >= target);
        }
        CHECK(runnel_with({"run", out, "ab", "-n", "3", "--temp", "0"}).code == 0);
    }
}

TEST_CASE("quantize: --target-bpw limits the tensors' bits; options for single tensors hold") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = model_in(directory, 256, 512).string(), out = (directory / "out.gguf").string();
    const json plan = plan_for(
        joined({in, out, "--target-bpw", "5", "--tensor-type", "attn_q=Q8_0", "--output-tensor-type", "F16"},
               kFewTypes));
    CHECK(plan["bits_per_weight"] <= 5.0);
    CHECK(plan["bits_per_weight"] > 4.5);
    std::map<std::string, int> types;
    for (const json &tensor : plan["tensors"]) {
        const std::string name = tensor["name"];
        if (name.find("attn_q.") != name.npos) CHECK(tensor["to"] == "q8_0");
        if (name == "output.weight") CHECK(tensor["to"] == "f16");
        ++types[tensor["to"]];
    }
    CHECK(types.size() >= 4);  // not the same for all
    // Without an importance matrix, no type that needs one; with --target-types no other one.
    for (const auto &[type, count] : types) CHECK(type.find("iq") == type.npos);
}

TEST_CASE("quantize: a target gives the same file with any number of threads") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = model_in(directory, 256, 512).string();
    for (const char *threads : {"1", "3"})
        REQUIRE(runnel_with(
                    {"quantize", in, (directory / threads).string(), "--target-bpw", "4.5", "-t", threads})
                    .code == 0);
    CHECK(read_bytes(directory / "1") == read_bytes(directory / "3"));
}

TEST_CASE("quantize: sensitivity is measured on a text, kept in a file and read from it") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = model_in(directory, 256, 512).string(), out = (directory / "out.gguf").string(),
                      text = (directory / "text").string(), kept = (directory / "s.json").string();
    std::ofstream(text)
        << "It was the best of times, it was the worst of times, it was the age of wisdom, it was "
           "the age of foolishness, it was the epoch of belief, it was the epoch of incredulity";
    const std::vector<std::string> target =
        joined({in, out, "--target-bpw", "5", "--sensitivity", kept}, kFewTypes);
    const json measured = plan_for(joined(target, {"-f", text, "-c", "32", "--chunks", "2"}));
    CHECK(measured["target"]["measured"] == true);
    const json file = json::parse(std::ifstream(kept));
    CHECK(file["tokens"] == 30);  // positions 16 to 30 of 2 chunks
    CHECK(file["tensors"].size() == 16);
    for (const json &tensor : file["tensors"]) {
        CAPTURE(tensor.dump());
        CHECK(tensor["slope"] > 0);
    }
    const json read = plan_for(target);
    CHECK(read["target"] == measured["target"]);
    CHECK(read["tensors"] == measured["tensors"]);
    // The values in the file are used: a tensor whose slope is 0 gets the smallest type.
    json edited = file;
    for (json &tensor : edited["tensors"])
        if (tensor["name"] == "blk.0.attn_v.weight") tensor["slope"] = 0;
    std::ofstream(kept) << edited.dump();
    const json changed = plan_for(target);
    for (const json &tensor : changed["tensors"])
        if (tensor["name"] == "blk.0.attn_v.weight") CHECK(tensor["to"] == "q3_K");
    // A file of another model, and files that hold no sensitivities.
    edited["tensors"].erase(edited["tensors"].begin());
    for (const std::string &bad :
         {edited.dump(), std::string("{}"), std::string("{\"format\": "),
          std::string("{\"format\":\"runnel-sensitivity-1\",\"tensors\":[{\"name\":\"a\","
                      "\"elements\":1,\"slope\":-1}]}")}) {
        std::ofstream(kept) << bad;
        const Result r = runnel_with(joined({"quantize"}, target));
        CHECK(r.code == 5);
        CHECK(r.err.find("s.json") != r.err.npos);
        CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
        CHECK_FALSE(fs::exists(out));
    }
    // Neither the file nor the model is replaced by accident.
    CHECK(runnel_with(joined(joined({"quantize"}, target), {"-f", text, "-c", "32"})).code == 2);
    CHECK(runnel_with({"quantize", in, out, "--target-bpw", "5", "-f", text, "-c", "32", "--sensitivity", in,
                       "--overwrite"})
              .code == 2);
    const Result small = runnel_with({"quantize", in, out, "--target-bpw", "5", "-f", text, "-c", "4096"});
    CHECK(small.code == 5);
    CHECK(small.err.find("a chunk needs 4096") != small.err.npos);
}

TEST_CASE("quantize: --report compares attention and feed-forward matrices") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = model_in(directory, 256, 512).string(), out = (directory / "out.gguf").string();
    const std::vector<std::string> arguments = joined({in, out, "--target-bpw", "5", "--report"}, kFewTypes);
    const Result r = runnel_with(joined({"quantize"}, joined(arguments, {"--dry-run"})));
    REQUIRE(r.code == 0);
    CHECK(r.out.find("attn_v") != r.out.npos);
    CHECK(r.out.find("asked for 5.000 bits per weight") != r.out.npos);
    std::map<std::string, json> lines;
    const json plan = plan_for(arguments);
    for (const json &line : plan["target"]["report"]) lines[line["kind"]] = line;
    // Width 256, 4 heads, 2 for keys and values, 2 layers, feed-forward 512.
    CHECK(lines.at("attention")["weights"] == 2 * 256 * (256 + 128 + 128 + 256));
    CHECK(lines.at("feed-forward")["weights"] == 2 * 3 * 256 * 512);
    double sum = 0;
    for (const char *kind : {"ffn_gate", "ffn_up", "ffn_down"})
        sum += lines.at(kind)["damage_at_3_bits"].get<double>();
    CHECK(lines.at("feed-forward")["damage_at_3_bits"].get<double>() == doctest::Approx(sum));
}

TEST_CASE("quantize: impossible targets and contradictions are refused with one line") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = model_in(directory, 256, 512).string(), out = (directory / "out.gguf").string();
    const auto refused = [&](std::vector<std::string> arguments, int code, const std::string &what) {
        arguments.insert(arguments.begin(), "quantize");
        const Result r = runnel_with(arguments);
        check_message(r);
        CHECK(r.code == code);
        CHECK(r.err.find(what) != r.err.npos);
        CHECK_FALSE(fs::exists(out));
    };
    refused({in, out, "--target-size", "1k"}, 5, "too small: the types allow ");
    refused({in, out, "--target-bpw", "1.5"}, 5, "1.500 bits per weight is too small");
    refused({in, out, "--target-bpw", "4", "--target-size", "1M"}, 2, "exclude each other");
    refused({in, out, "Q4_K", "--target-size", "1M"}, 2, "TYPE and --target-size");
    refused({in, out, "--target-size", "1M", "--pure"}, 2, "--pure");
    refused({in, out, "--target-size", "1M", "--target-types", "Q4_K,Q9"}, 2, "--target-types");
    refused({in, out, "--target-bpw", "0"}, 2, "--target-bpw");
    refused({in, out, "Q4_K", "--report"}, 2, "--report needs --target-size");
    refused({in, out, "Q4_K", "-f", in}, 2, "-f needs --target-size");
    refused({in, out, "Q4_K", "--sensitivity", "x"}, 2, "--sensitivity needs");
    refused({in, out}, 2, "usage: runnel quantize IN OUT TYPE");
    refused({in, "--target-size", "1M"}, 2, "usage: runnel quantize IN OUT TYPE");
}

TEST_CASE("quantize: the target counts all parts with --keep-split, and no pruned layers") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = model_in(directory, 256, 512).string(), stem = (directory / "out").string();
    REQUIRE(runnel_with({"split", in, "--size", "1M", "-o", (directory / "part").string()}).code == 0);
    std::string first;
    size_t parts = 0;
    for (const auto &entry : fs::directory_iterator(directory.path())) {
        const std::string path = entry.path().string();
        if (path.find("part-0") != path.npos) ++parts;
        if (path.find("part-00001") != path.npos) first = path;
    }
    REQUIRE(parts > 1);
    constexpr uint64_t kTarget = 1'200'000;
    const std::vector<std::string> target = joined({"--target-size", std::to_string(kTarget)}, kFewTypes);
    REQUIRE(runnel_with(joined({"quantize", first, stem, "--keep-split"}, target)).code == 0);
    uint64_t bytes = 0;
    size_t written = 0;
    for (const auto &entry : fs::directory_iterator(directory.path()))
        if (entry.path().filename().string().starts_with("out-")) bytes += entry.file_size(), ++written;
    CHECK(written == parts);
    CHECK(bytes <= kTarget);
    CHECK(bytes > kTarget * 9 / 10);
    const std::string pruned = (directory / "pruned.gguf").string();
    REQUIRE(runnel_with(joined({"quantize", in, pruned, "--prune-layers", "0"}, target)).code == 0);
    CHECK(fs::file_size(pruned) <= kTarget);
    CHECK(fs::file_size(pruned) > kTarget * 8 / 10);  // more bits for the layer that is left
}

TEST_CASE("quantize: sensitivity of experts is measured, those of a layer together") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = model_in(directory, 64, 64, false, "qwen3moe").string(),
                      text = (directory / "text").string();
    std::ofstream(text)
        << "It was the season of light, it was the season of darkness, it was the spring of hope";
    const json plan = plan_for({in, (directory / "out.gguf").string(), "--target-bpw", "6", "--target-types",
                                "Q4_0,Q5_0,Q8_0", "-f", text, "-c", "32", "--chunks", "1"});
    size_t experts = 0;
    for (const json &tensor : plan["target"]["tensors"]) {
        CAPTURE(tensor.dump());
        if (tensor["name"].get<std::string>().find("_exps") != std::string::npos) ++experts;
        CHECK(tensor["slope"] > 0);
    }
    CHECK(experts == 6);
}
