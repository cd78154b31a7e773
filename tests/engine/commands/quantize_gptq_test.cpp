// `runnel quantize --method gptq`: the written file, what it reports, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gguf/file.h"
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
                text = (directory / "text").string();

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
};

ModelShape dense() {
    ModelShape shape;
    shape.width = 256, shape.ff = 512;
    return shape;
}

std::vector<std::string> gptq(const Files &files, const std::string &out, const std::string &type) {
    return {"quantize", files.in,   out,  type, "--method", "gptq",
            "-f",       files.text, "-c", "64", "--chunks", "12"};
}

std::string bytes_of(const gguf::File &file, const std::string &name) {
    const gguf::Tensor *tensor = file.find_tensor(name);
    REQUIRE(tensor);
    return {reinterpret_cast<const char *>(tensor->data), tensor->bytes};
}

}  // namespace

TEST_CASE("quantize: gptq writes an ordinary file, the same for any number of threads") {
    if (absent()) return;
    const Files files(dense());
    for (const char *threads : {"1", "3"}) {
        std::vector<std::string> arguments = gptq(files, (files.directory / threads).string(), "Q4_K_M");
        arguments.insert(arguments.end(), {"-t", threads});
        const Result r = runnel_with(arguments);
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        // 7 matrices in each of 2 layers, and the output matrix.
        CHECK(r.err.find("gptq: 15 matrices on 768 tokens") != r.err.npos);
        CHECK(r.err.find("1 matrix (tensor token_embd.weight): not calibrated") != r.err.npos);
    }
    CHECK(read_bytes(files.directory / "1") == read_bytes(files.directory / "3"));
    REQUIRE(runnel_with({"quantize", files.in, files.out, "Q4_K_M"}).code == 0);
    const gguf::File plain = gguf::File::open(files.out), own = gguf::File::open(files.directory / "1");
    REQUIRE(plain.tensors().size() == own.tensors().size());
    for (const gguf::Tensor &tensor : plain.tensors()) {
        CAPTURE(tensor.name);
        const std::string name(tensor.name);
        CHECK(own.find_tensor(name)->type == tensor.type);
        const bool is_calibrated = tensor.rank == 2 && name != "token_embd.weight";
        CHECK((bytes_of(own, name) != bytes_of(plain, name)) == is_calibrated);
    }
    CHECK(runnel_with({"run", (files.directory / "1").string(), "ab", "-n", "3", "--temp", "0"}).code == 0);
    CHECK(own.find("general.file_type")->as_int() == plain.find("general.file_type")->as_int());
    // A target chooses the types, and gptq the weights.
    const Result both =
        runnel_with({"quantize", files.in, files.out, "--target-bpw", "5", "--target-types", "Q4_K,Q6_K",
                     "--method", "gptq", "-f", files.text, "-c", "64", "--chunks", "4", "--overwrite"});
    CHECK(both.code == 0);
    CHECK(both.err.find("gptq: 15 matrices on 256 tokens") != both.err.npos);
}

TEST_CASE("quantize: gptq names what it quantizes in another way") {
    if (absent()) return;
    const Files files(dense());
    std::vector<std::string> arguments = gptq(files, files.out, "Q4_0");
    arguments.insert(arguments.end(), {"--tensor-type", "ffn_up=IQ3_S", "--tensor-type", "attn_q=F16"});
    const Result types = runnel_with(arguments);
    CAPTURE(types.err);
    REQUIRE(types.code == 0);
    CHECK(types.err.find("gptq: 11 matrices on") != types.err.npos);
    CHECK(types.err.find(
              "gptq: 2 matrices (tensor blk.0.ffn_up.weight, ...): of a type that GPTQ cannot round") !=
          types.err.npos);
    // A text of 64 tokens is too short for 512 columns, not for 256.
    const Result few = runnel_with({"quantize", files.in, files.out, "Q4_0", "--method", "gptq", "-f",
                                    files.text, "-c", "64", "--chunks", "1", "--overwrite"});
    CHECK(few.code == 0);
    CHECK(few.err.find("gptq: 13 matrices on 64 tokens") != few.err.npos);
    CHECK(few.err.find("gptq: 2 matrices (tensor blk.0.ffn_down.weight, ...): fewer input rows") !=
          few.err.npos);
}

TEST_CASE("quantize: gptq calibrates a table that is also the output matrix") {
    if (absent()) return;
    ModelShape shape = dense();
    shape.tied = true;
    const Files files(shape);
    const Result r = runnel_with(gptq(files, files.out, "Q4_0"));
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    CHECK(r.err.find("gptq: 15 matrices on 768 tokens") != r.err.npos);
    CHECK(r.err.find("not calibrated") == r.err.npos);
}

TEST_CASE("quantize: gptq calibrates every expert on the tokens routed to it") {
    if (absent()) return;
    ModelShape shape;
    shape.arch = "qwen3moe";
    shape.width = 64, shape.ff = 64;
    const Files files(shape);
    const Result r = runnel_with(gptq(files, files.out, "Q4_0"));
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    CHECK(r.err.find("gptq: ") != r.err.npos);
    REQUIRE(runnel_with({"quantize", files.in, (files.directory / "plain").string(), "Q4_0"}).code == 0);
    const gguf::File own = gguf::File::open(files.out), plain = gguf::File::open(files.directory / "plain");
    for (const char *name :
         {"blk.0.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"}) {
        CAPTURE(name);
        const std::string a = bytes_of(own, name), b = bytes_of(plain, name);
        REQUIRE(a.size() == b.size());
        constexpr size_t kExperts = 8;
        for (size_t e = 0; e < kExperts; ++e) {
            const size_t size = a.size() / kExperts;
            CHECK(a.substr(e * size, size) != b.substr(e * size, size));
        }
    }
    CHECK(runnel_with({"run", files.out, "ab", "-n", "3", "--temp", "0"}).code == 0);
}

TEST_CASE("quantize: gptq of the demo model diverges less than the search with importance") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string f16 = (directory / "f16").string(), base = (directory / "base").string(),
                      im = (directory / "im").string(), text = held_out_text();
    REQUIRE(runnel_with({"quantize", demo_model(), f16, "F16", "--allow-requantize"}).code == 0);
    REQUIRE(runnel_with({"perplexity", f16, "-f", text, "-c", "128", "--chunks", "10", "--save-logits", base})
                .code == 0);
    REQUIRE(runnel_with({"imatrix", f16, "-f", text, "-c", "128", "--chunks", "40", "-o", im}).code == 0);
    const auto divergence = [&](std::vector<std::string> options) {
        const std::string out = (directory / "out").string();
        options.insert(options.begin(), {"quantize", f16, out, "Q3_K", "--pure", "--overwrite"});
        REQUIRE(runnel_with(options).code == 0);
        const Result r = runnel_with({"perplexity", out, "--kl-base", base});
        constexpr std::string_view kMark = "mean KL divergence: ";
        const size_t at = r.out.find(kMark);
        REQUIRE(at != r.out.npos);
        return std::stod(r.out.substr(at + kMark.size()));
    };
    CHECK(divergence({"--method", "gptq", "-f", text, "-c", "128", "--chunks", "40"}) <
          0.9 * divergence({"--imatrix", im}));
}

TEST_CASE("quantize: gptq refuses what it cannot do with one line, and leaves nothing") {
    if (absent()) return;
    const Files files(dense());
    const auto refused = [&](std::vector<std::string> arguments, int code, const std::string &what) {
        arguments.insert(arguments.begin(), {"quantize", files.in, files.out});
        arguments.insert(arguments.end(), {"--method", "gptq"});
        const Result r = runnel_with(arguments);
        check_message(r);
        CHECK(r.code == code);
        CHECK(r.err.find(what) != r.err.npos);
        CHECK_FALSE(fs::exists(files.out));
    };
    refused({"Q4_K"}, 2, "--method gptq needs a text to calibrate on: -f FILE");
    refused({"Q4_K", "-f", files.text, "--prune-layers", "0"}, 2, "exclude each other");
    refused({"--target-bpw", "5", "-f", "-"}, 2, "reads the text twice");
    refused({"Q4_K", "-f", files.text, "--chunks", "0"}, 2, "--chunks");
    refused({"Q4_K", "-f", files.text, "-c", "60000"}, 5, "a chunk needs 60000");
    refused({"Q4_K", "-f", (files.directory / "absent").string()}, 2, "absent");
    // The text is not replaced, and this is said before it is calibrated on.
    const Result own = runnel_with({"quantize", files.in, files.text, "Q4_K", "--method", "gptq", "-f",
                                    files.text, "-c", "64", "--overwrite"});
    check_message(own);
    CHECK(own.err.find("this run reads that file") != own.err.npos);
}
