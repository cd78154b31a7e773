// `runnel quantize --method awq`, absmax and imatrix: the written files, what they report, and what is refused.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "gguf/quantize.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::testing;
namespace fs = std::filesystem;

namespace {

struct Files {
    TemporaryDirectory directory;
    std::string in = (directory / "f16.gguf").string(), out = (directory / "out.gguf").string(),
                text = (directory / "text").string(), im = (directory / "im").string();

    explicit Files(ModelShape shape) {
        shape.type = "F16";
        make_model(shape, in, {});
        std::ofstream file(text);
        for (int i = 0; i < 40; ++i)
            file << "It was the best of times, it was the worst of times, it was the age of wisdom "
                 << i * i * i
                 << ", it was the epoch of belief, it was the epoch of incredulity, it was the season of "
                    "light. ";
    }
    std::vector<std::string> awq(const std::string &to, const std::string &type) const {
        return {"quantize", in, to, type, "--method", "awq", "-f", text, "-c", "64", "--chunks", "12"};
    }
    void make_importance() const {
        const Result r = runnel_with(
            {"imatrix", in, "-f", text, "-c", "64", "--chunks", "12", "--process-output", "-o", im});
        REQUIRE(r.code == 0);
    }
};

ModelShape dense() {
    ModelShape shape;
    shape.width = 256, shape.ff = 512;
    return shape;
}

std::string bytes_of(const gguf::File &file, const std::string &name) {
    const gguf::Tensor *tensor = file.find_tensor(name);
    REQUIRE(tensor);
    return {reinterpret_cast<const char *>(tensor->data), tensor->bytes};
}

}  // namespace

TEST_CASE("quantize: awq writes an ordinary file, the same for any number of threads") {
    if (absent()) return;
    const Files files(dense());
    for (const char *threads : {"1", "3"}) {
        std::vector<std::string> arguments = files.awq((files.directory / threads).string(), "Q4_0");
        arguments.insert(arguments.end(), {"-t", threads});
        const Result r = runnel_with(arguments);
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        CHECK(r.err.find("inputs of matrices scaled on 768 tokens; relative squared error") != r.err.npos);
    }
    CHECK(read_bytes(files.directory / "1") == read_bytes(files.directory / "3"));
    REQUIRE(runnel_with({"quantize", files.in, files.out, "Q4_0"}).code == 0);
    const gguf::File plain = gguf::File::open(files.out), own = gguf::File::open(files.directory / "1");
    REQUIRE(plain.tensors().size() == own.tensors().size());
    for (const gguf::Tensor &tensor : plain.tensors()) {
        CAPTURE(tensor.name);
        CHECK(own.find_tensor(tensor.name)->type == tensor.type);
    }
    CHECK(own.metadata().size() == plain.metadata().size());
    // The norms and the matrices behind them are scaled.
    CHECK(bytes_of(own, "blk.0.ffn_norm.weight") != bytes_of(plain, "blk.0.ffn_norm.weight"));
    CHECK(bytes_of(own, "token_embd.weight") == bytes_of(plain, "token_embd.weight"));
    CHECK(runnel_with({"run", (files.directory / "1").string(), "ab", "-n", "3", "--temp", "0"}).code == 0);
    // A target chooses the types, and awq the scales.
    const Result both =
        runnel_with({"quantize", files.in, files.out, "--target-bpw", "5", "--target-types", "Q4_K,Q6_K",
                     "--method", "awq", "-f", files.text, "-c", "64", "--chunks", "4", "--overwrite"});
    CHECK(both.code == 0);
    CHECK(both.err.find("the types without awq") != both.err.npos);
}

TEST_CASE("quantize: awq quantizes what it does not scale as with the importance of the same text") {
    if (absent()) return;
    ModelShape shape = dense();
    shape.tied = true;
    const Files files(shape);
    files.make_importance();
    const Result r = runnel_with(files.awq(files.out, "Q4_K"));
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    CHECK(r.err.find("awq: 1 input (of tensor token_embd.weight): not scaled, because another step reads") !=
          r.err.npos);
    const std::string standard = (files.directory / "imatrix.gguf").string();
    REQUIRE(
        runnel_with({"quantize", files.in, standard, "Q4_K", "--method", "imatrix", "--imatrix", files.im})
            .code == 0);
    const gguf::File with = gguf::File::open(standard), own = gguf::File::open(files.out);
    CHECK(bytes_of(own, "token_embd.weight") == bytes_of(with, "token_embd.weight"));
    CHECK(bytes_of(own, "blk.0.ffn_gate.weight") != bytes_of(with, "blk.0.ffn_gate.weight"));
    // Matrices of other types than quantized ones have no error: their inputs are not scaled, and they are copied.
    const Result none = runnel_with(files.awq((files.directory / "f16-2").string(), "F16"));
    CHECK(none.code == 0);
    CHECK(none.err.find("awq: 0 inputs of matrices scaled") != none.err.npos);
}

TEST_CASE("quantize: awq scales experts one by one, and names those that the text does not reach") {
    if (absent()) return;
    ModelShape shape;
    shape.arch = "qwen3moe";
    shape.width = 64, shape.ff = 64;
    shape.experts.count = 32;
    const Files files(shape);
    std::vector<std::string> arguments = files.awq(files.out, "Q4_0");
    arguments.back() = "2";
    const Result r = runnel_with(arguments);
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    CHECK(r.err.find("fewer than 32 rows on this text") != r.err.npos);
    CHECK(runnel_with({"run", files.out, "ab", "-n", "3", "--temp", "0"}).code == 0);
}

TEST_CASE("quantize: --dry-run with awq lists what cannot be scaled, without a text") {
    if (absent()) return;
    ModelShape shape = dense();
    shape.tied = true;
    const Files files(shape);
    const Result text =
        runnel_with({"quantize", files.in, files.out, "Q4_K", "--method", "awq", "--dry-run"});
    CHECK(text.code == 0);
    CHECK(
        text.out.find("awq: 8 inputs of matrices can be scaled\nawq: 1 input (of tensor token_embd.weight): "
                      "not scaled, because another step reads one of the matrices, too\n") != text.out.npos);
    const Result r =
        runnel_with({"quantize", files.in, files.out, "Q4_K", "--method", "awq", "--dry-run", "--json"});
    const auto json = nlohmann::json::parse(r.out);
    CHECK(json["awq"]["scalable"] == 8);
    CHECK(json["awq"]["not_scaled"][0]["matrices"][0] == "token_embd.weight");
    CHECK_FALSE(fs::exists(files.out));
}

TEST_CASE("quantize: awq of the demo model diverges no more than the search with importance") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string f16 = (directory / "f16").string(), base = (directory / "base").string(),
                      im = (directory / "im").string(), text = held_out_text();
    REQUIRE(runnel_with({"quantize", demo_model(), f16, "F16", "--allow-requantize"}).code == 0);
    REQUIRE(runnel_with({"perplexity", f16, "-f", text, "-c", "128", "--chunks", "10", "--save-logits", base})
                .code == 0);
    REQUIRE(
        runnel_with({"imatrix", f16, "-f", text, "-c", "128", "--chunks", "40", "--process-output", "-o", im})
            .code == 0);
    const auto divergence = [&](std::vector<std::string> options) {
        const std::string out = (directory / "out").string();
        options.insert(options.begin(), {"quantize", f16, out, "Q4_0", "--pure", "--overwrite"});
        REQUIRE(runnel_with(options).code == 0);
        const Result r = runnel_with({"perplexity", out, "--kl-base", base});
        constexpr std::string_view kMark = "mean KL divergence: ";
        const size_t at = r.out.find(kMark);
        REQUIRE(at != r.out.npos);
        return std::stod(r.out.substr(at + kMark.size()));
    };
    CHECK(divergence({"--method", "awq", "-f", text, "-c", "128", "--chunks", "40"}) <
          1.01 * divergence({"--imatrix", im}));
}

TEST_CASE("quantize: awq, absmax and imatrix refuse what they cannot do with one line, and leave nothing") {
    if (absent()) return;
    const Files files(dense());
    files.make_importance();
    const auto refused = [&](std::vector<std::string> arguments, int code, const std::string &what) {
        arguments.insert(arguments.begin(), {"quantize", files.in, files.out});
        const Result r = runnel_with(arguments);
        check_message(r);
        CHECK(r.code == code);
        CHECK(r.err.find(what) != r.err.npos);
        CHECK_FALSE(fs::exists(files.out));
    };
    refused({"Q4_K", "--method", "awq"}, 2, "--method awq needs a text to calibrate on: -f FILE");
    refused({"Q4_K", "--method", "awq", "-f", files.text, "--prune-layers", "0"}, 2, "exclude each other");
    refused({"--target-bpw", "5", "--method", "awq", "-f", "-"}, 2, "reads the text twice");
    refused({"Q4_K", "--method", "awq", "-f", files.text, "-c", "60000"}, 5, "a chunk needs 60000");
    refused({"Q4_K", "--method", "imatrix"}, 2, "--method imatrix needs --imatrix FILE");
    refused({"Q4_K", "--method", "absmax", "--imatrix", files.im}, 2, "absmax ignores importance");
    refused({"--target-bpw", "5", "--method", "absmax"}, 2, "give a TYPE");
    refused({"IQ1_S", "--method", "absmax"}, 5, "a type with a codebook, which --method absmax cannot write");
    refused({"IQ3_S", "--method", "absmax"}, 5, "a type with a codebook, which --method absmax cannot write");
}

TEST_CASE("quantize: awq measures the importance that small types need") {
    if (absent()) return;
    const Files files(dense());
    const Result r =
        runnel_with({"quantize", files.in, files.out, "IQ2_XXS", "--method", "awq", "-f", files.text});
    CAPTURE(r.err);
    CHECK(r.code == 0);
    const gguf::File made = gguf::File::open(files.out);
    CHECK(made.find_tensor("blk.0.attn_q.weight")->type == gguf::Type::IQ2_XXS);
    // The text runs through the matrices only: a table of tokens that is nothing else has no importance.
    fs::remove(files.out);
    const Result table = runnel_with({"quantize", files.in, files.out, "Q4_K", "--method", "awq", "-f",
                                      files.text, "--token-embedding-type", "IQ2_XXS"});
    CAPTURE(table.err);
    CHECK(table.code == 5);
    CHECK(table.err.find(
              "token_embd.weight would become iq2_xxs, which needs importance, and the text has none") !=
          table.err.npos);
    CHECK_FALSE(fs::exists(files.out));
}

TEST_CASE(
    "quantize: absmax takes scales from the largest values, imatrix is llama.cpp's search with importance") {
    if (absent()) return;
    const Files files(dense());
    files.make_importance();
    const auto written = [&](const char *name, std::vector<std::string> options) {
        const std::string out = (files.directory / name).string();
        options.insert(options.begin(), {"quantize", files.in, out, "Q4_K_S"});
        const Result r = runnel_with(options);
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        return gguf::File::open(out);
    };
    const gguf::File absmax = written("absmax", {"--method", "absmax"}), standard = written("standard", {});
    const std::string name = "blk.0.ffn_gate.weight";
    const gguf::File source = gguf::File::open(files.in);
    const auto n = static_cast<size_t>(source.find_tensor(name)->elements());
    std::vector<float> values(n);
    gguf::dequantize_row(gguf::Type::F16, source.find_tensor(name)->data, values.data(),
                         static_cast<int64_t>(n));
    std::vector<std::byte> blocks(gguf::row_bytes(gguf::Type::Q4_K, static_cast<int64_t>(n)));
    gguf::quantize_row(gguf::Type::Q4_K, values.data(), blocks.data(), static_cast<int64_t>(n),
                       gguf::Effort::Plain);
    CHECK(bytes_of(absmax, name) ==
          std::string(reinterpret_cast<const char *>(blocks.data()), blocks.size()));
    CHECK(bytes_of(absmax, name) != bytes_of(standard, name));
    // llama.cpp's search would need an importance matrix for this mix; nothing is searched here.
    CHECK(runnel_with({"quantize", files.in, files.in + ".q2", "Q2_K_S", "--method", "absmax"}).code == 0);
    written("by method", {"--method", "imatrix", "--imatrix", files.im});
    written("by default", {"--imatrix", files.im});
    CHECK(read_bytes(files.directory / "by method") == read_bytes(files.directory / "by default"));
    CHECK(read_bytes(files.directory / "by method") != read_bytes(files.directory / "standard"));
}
