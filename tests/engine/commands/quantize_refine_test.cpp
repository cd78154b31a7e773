// `runnel quantize --target-kl`, `--rounds`, `--held-out`, `--cost`: choices measured with the whole model.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "gguf/writer.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char *kText =
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of light, "
    "it was the season of darkness, it was the spring of hope, it was the winter of despair";
constexpr const char *kOther =
    "We had everything before us, we had nothing before us, we were all going direct to heaven, we were all "
    "going direct the other way; in short, the period was so far like the present period";

struct Bench {
    TemporaryDirectory directory;
    std::string in = (directory / "f16.gguf").string(), out = (directory / "out.gguf").string(),
                text = (directory / "text").string(), other = (directory / "other").string(),
                types = "Q3_K,Q4_K,Q6_K";

    explicit Bench(const char *arch = "llama", int64_t width = 256, int64_t ff = 256, bool tied = false) {
        ModelShape shape;
        shape.arch = arch, shape.type = "F16", shape.tied = tied, shape.width = width, shape.ff = ff;
        make_model(shape, in, {.overwrite = true});
        std::ofstream(text) << kText;
        std::ofstream(other) << kOther;
    }
    std::vector<std::string> words(const std::vector<std::string> &more) const {
        std::vector<std::string> all{"quantize", in, out, "-c", "32", "--target-types", types, "--overwrite"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    json plan(std::vector<std::string> more) const {
        more.insert(more.end(), {"--dry-run", "--json"});
        const Result r = runnel_with(words(more));
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        return json::parse(r.out);
    }
};

double number_after(const std::string &text, const std::string &label) {
    const size_t at = text.find(label);
    CAPTURE(text);
    REQUIRE(at != text.npos);
    return std::strtod(text.c_str() + at + label.size(), nullptr);
}

}  // namespace

TEST_CASE("quantize: perplexity --kl-base finds the divergence that --target-kl measured, within the limit") {
    if (absent()) return;
    const Bench bench;
    const double all = bench.plan(
        {"--target-bpw", "3.6", "-f", bench.text, "--held-out", bench.other})["held_out"]["divergence"];
    REQUIRE(all > 0);
    const std::string base = (bench.directory / "base").string();
    REQUIRE(
        runnel_with({"perplexity", bench.in, "-f", bench.other, "-c", "32", "--save-logits", base}).code ==
        0);
    uint64_t before = UINT64_MAX;
    for (const double share : {0.05, 0.3, 0.8}) {
        const double limit = share * all;
        CAPTURE(limit);
        const std::vector<std::string> target{"--target-kl", std::to_string(limit), "-f",       bench.text,
                                              "--held-out",  bench.other,           "--chunks", "-1"};
        const json plan = bench.plan(target);
        const double measured = plan["held_out"]["divergence"];
        CHECK(measured <= std::stod(std::to_string(limit)));
        const Result written = runnel_with(bench.words(target));
        REQUIRE(written.code == 0);
        CHECK(written.err.find("other (") != written.err.npos);
        const Result judged = runnel_with({"perplexity", bench.out, "--kl-base", base});
        REQUIRE(judged.code == 0);
        CHECK(number_after(judged.out, "mean KL divergence: ") ==
              doctest::Approx(measured).epsilon(1e-3).scale(1e-3));
        CHECK(plan["target"]["asked_divergence"] == std::stod(std::to_string(limit)));
        CHECK(fs::file_size(bench.out) <= before);  // a higher limit never needs a larger file
        before = fs::file_size(bench.out);
    }
}

TEST_CASE("quantize: measuring around the choice never makes it worse by its own measure") {
    if (absent()) return;
    Bench bench;
    bench.types = "Q2_K,Q3_K,Q4_K,Q5_K,Q6_K,Q8_0";
    int kept = 0;
    for (const char *bits : {"3", "3.3", "3.7", "4", "4.5", "5", "5.5", "6"}) {
        CAPTURE(bits);
        const std::vector<std::string> target{"--target-bpw", bits, "-f", bench.text};
        const auto with_rounds = [&](const char *rounds) {
            std::vector<std::string> words = target;
            words.insert(words.end(), {"--rounds", rounds});
            return bench.plan(words);
        };
        const json single = with_rounds("0"), refined = with_rounds("3");
        CHECK(single["held_out"]["rounds"] == 0);
        CHECK(single["held_out"]["divergence"] == single["held_out"]["first_divergence"]);
        CHECK(refined["held_out"]["first_divergence"] == single["held_out"]["divergence"]);
        CHECK(refined["held_out"]["rounds"] >= 1);
        CHECK(refined["held_out"]["divergence"] <= single["held_out"]["divergence"]);
        CHECK(refined["target"]["bytes"] <= refined["target"]["asked"]);
        if (refined["held_out"]["kept"] > 0) ++kept;
        // Without a --held-out text, chunks of the text that were not used to choose.
        CHECK(refined["held_out"]["text"].get<std::string>().find("chunks ") == 0);
        const uint64_t limit = single["target"]["bytes"];
        const json smaller = bench.plan(
            {"--target-kl", single["held_out"]["divergence"].dump(), "-f", bench.text, "--rounds", "0"});
        CHECK(smaller["target"]["bytes"] <= limit + limit / 50);
    }
    MESSAGE("sizes at which a later choice was better: ", kept, " of 8");
}

TEST_CASE("quantize: kept sensitivity with a held-out text is judged without the first text") {
    if (absent()) return;
    const Bench bench;
    const std::string kept = (bench.directory / "s.json").string();
    bench.plan({"--target-bpw", "4.5", "-f", bench.text, "--sensitivity", kept});
    const json plan = bench.plan({"--target-bpw", "4.5", "--sensitivity", kept, "--held-out", bench.other});
    CHECK(plan["held_out"]["rounds"] == 0);
    CHECK(plan["held_out"]["text"] == bench.other);
    CHECK(plan["held_out"]["divergence"] > 0);
    CHECK_FALSE(bench.plan({"--target-bpw", "4.5", "--sensitivity", kept}).contains("held_out"));
}

TEST_CASE("quantize: --cost read counts the used share of experts and one row of the token table") {
    if (absent()) return;
    const Bench bench("qwen3moe");
    const auto types = [&](const char *cost) {
        std::map<std::string, std::string> result;
        const json plan = bench.plan({"--target-bpw", "4.5", "--cost", cost});
        CHECK(plan["target"]["cost"] == cost);
        CHECK(plan["target"]["bytes"] <= plan["target"]["asked"]);
        for (const json &tensor : plan["tensors"]) result[tensor["name"]] = tensor["to"];
        return std::pair(result, plan["target"]["asked"].get<uint64_t>());
    };
    const auto [disk, disk_bytes] = types("disk");
    const auto [read, read_bytes] = types("read");
    CHECK(read_bytes < disk_bytes);
    CHECK(disk.at("token_embd.weight") != "f16");
    CHECK(read.at("token_embd.weight") == "f16");  // a row costs next to nothing
    // By hand, from the file.
    const gguf::File file = gguf::File::open(bench.in);
    const auto count = [&](const char *key) {
        return static_cast<double>(file.find(std::string("qwen3moe.") + key)->as_int().value());
    };
    double weights = 0;
    for (const gguf::Tensor &tensor : file.tensors()) {
        const auto all = static_cast<double>(tensor.elements());
        if (tensor.name == "token_embd.weight")
            weights += static_cast<double>(tensor.shape[0]);
        else if (tensor.name.find("_exps") != tensor.name.npos)
            weights += all * count("expert_used_count") / count("expert_count");
        else
            weights += all;
    }
    CHECK(static_cast<double>(read_bytes) == doctest::Approx(weights * 4.5 / 8).epsilon(1e-4));
    // Tied, the table is the output matrix too and read whole.
    const Bench tied("qwen3", 256, 256, true);
    CHECK(tied.plan({"--target-bpw", "4.5", "--cost", "read"})["tensors"] ==
          tied.plan({"--target-bpw", "4.5"})["tensors"]);
}

TEST_CASE("quantize: contradictions of measured choices are refused with one line, and nothing is written") {
    if (absent()) return;
    const Bench bench;
    const auto refused = [&](const std::vector<std::string> &more, int code, const std::string &what) {
        const Result r = runnel_with(bench.words(more));
        check_message(r);
        CHECK(r.code == code);
        CAPTURE(r.err);
        CHECK(r.err.find(what) != r.err.npos);
        CHECK_FALSE(fs::exists(bench.out));
    };
    refused({"--target-kl", "0.1"}, 2, "it needs -f TEXT");
    refused({"--target-kl", "0.1", "--sensitivity", "x"}, 2, "it needs -f TEXT");
    refused({"--target-kl", "0.1", "--target-bpw", "4", "-f", bench.text}, 2, "exclude each other");
    refused({"--target-kl", "0", "-f", bench.text}, 2, "--target-kl");
    refused({"--target-kl", "nan", "-f", bench.text}, 2, "--target-kl");
    refused({"--target-kl", "0.1", "-f", bench.text, "--prune-layers", "0"}, 2, "pruned layers");
    refused({"--target-size", "1M", "--cost", "read"}, 2, "use --target-bpw or --target-kl");
    refused({"--target-bpw", "4", "--cost", "memory"}, 2, "--cost");
    refused({"--target-bpw", "4", "-f", bench.text, "--held-out", bench.text}, 2, "another text");
    refused({"--target-bpw", "4", "--held-out", bench.other}, 2, "--held-out needs");
    for (const std::vector<std::string> &more :
         {std::vector<std::string>{"--cost", "read"}, {"--held-out", bench.other}}) {
        std::vector<std::string> words{"quantize", bench.in, bench.out, "Q4_K"};
        words.insert(words.end(), more.begin(), more.end());
        const Result r = runnel_with(words);
        check_message(r);
        CHECK(r.code == 2);
        CHECK(r.err.find(more[0] + " needs --target-size") != r.err.npos);
    }
    refused({"--target-kl", "0.000001", "-f", bench.text, "--tensor-type", "ffn_down=Q3_K"}, 5,
            "cannot be kept: with the largest types allowed the divergence is ");
    std::ofstream(bench.other) << "short";
    refused({"--target-bpw", "4", "-f", bench.text, "--held-out", bench.other}, 5, "a chunk needs 32");
    refused({"--target-bpw", "4", "-f", bench.text, "--held-out", bench.other + "x"}, 2, "otherx");
    std::ofstream(bench.text) << "It was the best of times, it was the worst of";
    refused({"--target-kl", "0.1", "-f", bench.text}, 5, "has one chunk only");
    const json plan = bench.plan({"--target-bpw", "4.5", "-f", bench.text});
    CHECK_FALSE(plan.contains("held_out"));  // a choice as before, without a measurement
}

TEST_CASE("quantize: the alignment of the source does not pad the output") {
    if (absent()) return;
    const TemporaryDirectory directory;
    constexpr uint32_t kHostile = 1 << 22;
    constexpr int kTensors = 40;  // 160 MiB if each were padded
    for (const int number : {0, 1}) {
        gguf::Writer writer(number == 0 ? kHostile : 32);
        if (number == 0) writer.add("general.architecture", "llama");
        writer.add("split.no", static_cast<uint16_t>(number));
        writer.add("split.count", uint16_t{2});
        const std::vector<std::byte> data(4 * 32 * 4);
        const int64_t shape[] = {32, 4};
        const int count = number == 0 ? 0 : kTensors;
        for (int i = 0; i < count; ++i)
            writer.add_tensor("t" + std::to_string(i) + ".weight", gguf::Type::F32, shape);
        writer.start(directory / ("p" + gguf::part_ending(number, 2)), {.overwrite = true});
        for (int i = 0; i < count; ++i) writer.write(data);
        writer.finish();
    }
    const fs::path out = directory / "out.gguf";
    const Result r = runnel_with({"quantize", directory / "p-00001-of-00002.gguf", out, "Q8_0"});
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    CHECK(fs::file_size(out) < 64 << 10);
    CHECK(gguf::File::open(out).tensors().size() == kTensors);
}
