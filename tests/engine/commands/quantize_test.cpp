// `runnel quantize`, run as a program: what it writes, what it refuses, and that it leaves nothing behind.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "gguf/quantize.h"
#include "gguf/writer.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/edited_model.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

fs::path random_f16_model(const TemporaryDirectory &directory) {
    ModelShape shape;
    shape.type = "F16";
    shape.width = 256, shape.ff = 512;
    const TemporaryModel model(shape);
    fs::copy_file(model.path, directory / "f16.gguf");
    return directory / "f16.gguf";
}

std::vector<std::string> names_in(const TemporaryDirectory &directory) {
    std::vector<std::string> names;
    for (const auto &entry : fs::directory_iterator(directory.path()))
        names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

// The importance matrix of a tensor in llama-imatrix's GGUF form: sums of squares of `count` tokens.
void write_importance(const fs::path &path, const gguf::File &model, float count) {
    gguf::Writer writer;
    writer.add("general.type", "imatrix");
    writer.add("imatrix.chunk_count", uint32_t{3});
    writer.add("imatrix.chunk_size", uint32_t{512});
    std::vector<const gguf::Tensor *> tensors;
    for (const gguf::Tensor &t : model.tensors())
        if (t.rank == 2 && t.name.starts_with("blk.")) tensors.push_back(&t);
    for (const gguf::Tensor *t : tensors) {
        writer.add_tensor(std::string(t->name) + ".in_sum2", gguf::Type::F32, {t->shape[0], 1});
        writer.add_tensor(std::string(t->name) + ".counts", gguf::Type::F32, {1, 1});
    }
    writer.start(path);
    for (const gguf::Tensor *t : tensors) {
        std::vector<float> sums(static_cast<size_t>(t->shape[0]));
        for (size_t i = 0; i < sums.size(); ++i) sums[i] = count * static_cast<float>(1 + i % 7);
        writer.write(std::as_bytes(std::span(sums)));
        writer.write(std::as_bytes(std::span(&count, 1)));
    }
    writer.finish();
}

std::vector<float> values_of(const gguf::Tensor &t) {
    std::vector<float> values(static_cast<size_t>(t.elements()));
    gguf::dequantize_row(t.type, t.data, values.data(), t.elements());
    return values;
}

}  // namespace

TEST_CASE("quantize: the written model holds the quantized rows and runs") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const fs::path in = random_f16_model(directory), out = directory / "out.gguf";
    for (const char *type : {"q8_0", "Q4_K_M", "Q5_1", "BF16"}) {
        CAPTURE(type);
        const Result r = runnel_with({"quantize", in.string(), out.string(), type, "--overwrite"});
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        CHECK(r.out == "");
        CHECK(r.err.find("bits per weight") != r.err.npos);
        const gguf::File before = gguf::File::open(in), after = gguf::File::open(out);
        REQUIRE(after.tensors().size() == before.tensors().size());
        for (const gguf::Tensor &tensor : after.tensors()) {
            CAPTURE(tensor.name);
            const gguf::Tensor *source = before.find_tensor(tensor.name);
            REQUIRE(source);
            if (tensor.type == source->type) {
                CHECK(std::equal(tensor.data, tensor.data + tensor.bytes, source->data));
                continue;
            }
            const std::vector<float> values = values_of(*source);
            std::vector<std::byte> expected(tensor.bytes);
            gguf::quantize_standard(tensor.type, values, tensor.shape[0], {}, expected.data());
            CHECK(std::equal(expected.begin(), expected.end(), tensor.data));
        }
        CHECK(after.find("general.file_type")->as_int().has_value());
        CHECK(after.find("general.quantization_version")->as_int() == 2);
        const Result ran = runnel_with({"run", out.string(), "ab", "-n", "3", "--temp", "0"});
        CHECK(ran.code == 0);
    }
    CHECK(names_in(directory) == std::vector<std::string>{"f16.gguf", "out.gguf"});
}

TEST_CASE("quantize: threads change no byte") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = random_f16_model(directory).string();
    for (const char *threads : {"1", "3"})
        REQUIRE(runnel_with({"quantize", in, (directory / threads).string(), "Q3_K_M", "-t", threads}).code ==
                0);
    CHECK(read_bytes(directory / "1") == read_bytes(directory / "3"));
}

TEST_CASE("quantize: importance changes the bytes and is recorded") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const fs::path in = random_f16_model(directory);
    const gguf::File source = gguf::File::open(in);
    write_importance(directory / "a.imatrix", source, 10);
    REQUIRE(runnel_with({"quantize", in.string(), (directory / "plain").string(), "Q4_0"}).code == 0);
    REQUIRE(runnel_with({"quantize", in.string(), (directory / "weighted").string(), "Q4_0", "--imatrix",
                         (directory / "a.imatrix").string()})
                .code == 0);
    const gguf::File plain = gguf::File::open(directory / "plain"),
                     weighted = gguf::File::open(directory / "weighted");
    const gguf::Tensor *a = plain.find_tensor("blk.0.attn_q.weight"), *b = weighted.find_tensor(a->name);
    CHECK_FALSE(std::equal(a->data, a->data + a->bytes, b->data));
    CHECK(weighted.find("quantize.imatrix.file")->as_string() == "a.imatrix");
    CHECK(weighted.find("quantize.imatrix.chunks_count")->as_int() == 3);
    // A file that is not an importance matrix is refused.
    std::ofstream(directory / "bad.imatrix") << "no importance";
    const Result bad = runnel_with({"quantize", in.string(), (directory / "x").string(), "Q4_0", "--imatrix",
                                    (directory / "bad.imatrix").string()});
    CHECK(bad.code == 5);
    CHECK(bad.err.find("importance matrix") != bad.err.npos);
}

TEST_CASE("quantize: types with codebooks are written with importance, and run") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const fs::path in = random_f16_model(directory), out = directory / "out.gguf";
    write_importance(directory / "a.imatrix", gguf::File::open(in), 10);
    const std::string imatrix = (directory / "a.imatrix").string();
    for (const char *type : {"IQ1_S", "IQ2_XXS", "IQ2_M", "IQ3_XXS", "IQ3_M"}) {
        CAPTURE(type);
        const Result r =
            runnel_with({"quantize", in.string(), out.string(), type, "--imatrix", imatrix, "--overwrite"});
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        CHECK(runnel_with({"run", out.string(), "ab", "-n", "3", "--temp", "0"}).code == 0);
    }
    // The importance matrix has no entry for the token embeddings.
    const Result table = runnel_with({"quantize", in.string(), out.string(), "IQ2_XS", "--imatrix", imatrix,
                                      "--token-embedding-type", "IQ2_XS", "--overwrite"});
    CHECK(table.code == 5);
    CHECK(table.err.find("token_embd.weight would become iq2_xs, and the importance matrix has no entry") !=
          table.err.npos);
    // IQ3_M needs no importance.
    CHECK(runnel_with({"quantize", in.string(), out.string(), "IQ3_M", "--overwrite"}).code == 0);
}

TEST_CASE("quantize: values that are not finite, or too large for a type, are refused by name and row") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const auto result = [&](float value, const char *type, int threads = 2) {
        ModelShape shape;
        shape.type = "F32", shape.width = 256, shape.ff = 512;
        EditedModel model(shape);
        model.tensor("blk.0.ffn_up.weight", gguf::Type::F32, {256, 512}, value);
        fs::copy_file(model.write(), directory / "in", fs::copy_options::overwrite_existing);
        Result r = runnel_with({"quantize", (directory / "in").string(), (directory / "out").string(), type,
                                "--overwrite", "--threads", std::to_string(threads)});
        if (r.code != 0) CHECK(names_in(directory) == std::vector<std::string>{"in"});
        return r;
    };
    for (const float value : {std::nanf(""), INFINITY, -INFINITY}) {
        const Result r = result(value, "Q4_K_S");
        CHECK(r.code == 5);
        CHECK(r.err.find("blk.0.ffn_up.weight: row 0 has values that are not finite numbers") != r.err.npos);
    }
    for (const char *type : {"Q8_0", "Q5_K_S", "F16", "IQ3_S"}) {
        CAPTURE(type);
        // All rows are bad: the first is named whichever thread fails first.
        for (const int threads : {1, 2, 16}) {
            const Result r = result(1e30f, type, threads);
            CHECK(r.code == 5);
            CAPTURE(r.err);
            CHECK(r.err.find("blk.0.ffn_up.weight: row 0 has values too large for ") != r.err.npos);
        }
    }
    CHECK(result(1e30f, "BF16").code == 0);
}

TEST_CASE("quantize: --dry-run lists types and sizes and writes nothing") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = random_f16_model(directory).string();
    const Result r = runnel_with({"quantize", in, (directory / "x").string(), "Q8_0", "--dry-run", "--json",
                                  "--tensor-type", "attn_[qk]=F32"});
    REQUIRE(r.code == 0);
    const json plan = json::parse(r.out);
    CHECK(plan["bytes_after"] < plan["bytes_before"]);
    int wished = 0;
    for (const json &tensor : plan["tensors"])
        if (tensor["name"].get<std::string>().find("attn_q.") != std::string::npos) {
            CHECK(tensor["to"] == "f32");
            ++wished;
        }
    CHECK(wished > 0);
    CHECK(names_in(directory) == std::vector<std::string>{"f16.gguf"});
}

TEST_CASE("quantize: invalid requests are refused with one line") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = random_f16_model(directory).string(), q8 = (directory / "q8.gguf").string();
    REQUIRE(runnel_with({"quantize", in, q8, "Q8_0"}).code == 0);
    const std::vector<std::byte> before = read_bytes(in);
    const auto refused = [&](std::vector<std::string> arguments, int code, const std::string &what) {
        arguments.insert(arguments.begin(), "quantize");
        const Result r = runnel_with(arguments);
        CAPTURE(r.err);
        CHECK(r.code == code);
        CHECK(r.out == "");
        CHECK(r.err.find(what) != r.err.npos);
        CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
    };
    refused({in, in, "Q8_0", "--overwrite"}, 2, "this is the input file");
    fs::create_symlink(in, directory / "link.gguf");
    refused({in, (directory / "link.gguf").string(), "Q8_0", "--overwrite"}, 2, "this is the input file");
    refused({in, q8, "Q4_0"}, 2, "--overwrite");
    refused({q8, (directory / "y").string(), "Q4_0"}, 5, "--allow-requantize");
    refused({in, (directory / "y").string(), "Q9_K"}, 2, "there is no type");
    refused({in, (directory / "y").string(), "IQ1_S"}, 5, "importance matrix");
    refused({in, (directory / "y").string(), "Q8_0", "--tensor-type", "("}, 2, "PATTERN=TYPE");
    refused({in, (directory / "y").string(), "Q8_0", "--tensor-type", "(=F16"}, 2, "regular expression");
    refused({in, q8}, 2, "IN OUT TYPE");
    CHECK(read_bytes(in) == before);
    CHECK_FALSE(fs::exists(directory / "y"));
    CHECK(runnel_with({"quantize", q8, (directory / "y").string(), "Q4_0", "--allow-requantize"}).code == 0);
}

TEST_CASE("quantize: --prune-layers omits layers and renumbers the others") {
    if (absent()) return;
    const TemporaryDirectory directory;
    ModelShape shape;
    shape.layers = 4;
    static constexpr int32_t kPerLayer[] = {10, 11, 12, 13};
    EditedModel model(shape);
    const std::string in = model.set("llama.per_layer", std::span<const int32_t>(kPerLayer)).write().string();
    const std::string out = (directory / "out").string();
    const Result r = runnel_with({"quantize", in, out, "F32", "--prune-layers", "0,2"});
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    const gguf::File before = gguf::File::open(in), after = gguf::File::open(out);
    CHECK(after.find("llama.block_count")->as_int() == 2);
    CHECK(after.find("llama.per_layer")->as_ints() == std::vector<int64_t>{11, 13});
    CHECK(after.tensors().size() == before.tensors().size() / 2 + 2);
    for (const auto &[from, to] : {std::pair{"blk.1.", "blk.0."}, std::pair{"blk.3.", "blk.1."}})
        for (const char *name : {"attn_q.weight", "ffn_down.weight", "attn_norm.weight"}) {
            const gguf::Tensor *a = before.find_tensor(from + std::string(name)),
                               *b = after.find_tensor(to + std::string(name));
            REQUIRE(b);
            CHECK(std::equal(a->data, a->data + a->bytes, b->data));
        }
    CHECK(runnel_with({"run", out, "ab", "-n", "3", "--temp", "0"}).code == 0);
    const auto refused = [&](const char *layers) {
        return runnel_with({"quantize", in, (directory / "x").string(), "F32", "--prune-layers", layers});
    };
    CHECK(refused("4").err.find("layers 0 to 3") != std::string::npos);
    CHECK(refused("0,1,2,3").code == 5);
    CHECK_FALSE(fs::exists(directory / "x"));
}

TEST_CASE("inspect: --diff lists what quantizing changed, and nothing for a file and itself") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = random_f16_model(directory).string(), out = (directory / "q").string();
    REQUIRE(runnel_with({"quantize", in, out, "Q4_K_S", "--prune-layers", "1"}).code == 0);
    CHECK(runnel_with({"inspect", in, "--diff", in}).out.starts_with("0 metadata keys and 0 tensors differ"));
    const json all = json::parse(runnel_with({"inspect", in, "--diff", out, "--json"}).out);
    std::map<std::string, json> tensors, keys;
    for (const json &d : all["metadata"]) keys[d["key"]] = d;
    for (const json &d : all["tensors"]) tensors[d["name"]] = d;
    CHECK(keys.at("llama.block_count")["first"] == "2");
    CHECK(keys.at("llama.block_count")["second"] == "1");
    CHECK(keys.at("general.file_type")["second"] == "14");
    CHECK(tensors.at("blk.1.attn_q.weight")["second"] == "-");
    CHECK(tensors.at("blk.0.attn_q.weight")["first"] == "f16 256 x 256");
    CHECK(tensors.at("blk.0.attn_q.weight")["second"] == "q4_K 256 x 256");
    const double error = tensors.at("blk.0.attn_q.weight")["relative_error"];
    CHECK(error > 0.001);
    CHECK(error < 0.01);
    CHECK_FALSE(tensors.contains("blk.0.attn_norm.weight"));
    CHECK(all["same_tensors"] == 3);  // the norms that are left
    const Result table = runnel_with({"inspect", out, "--diff", in});
    CHECK(table.out.find("blk.1.attn_q.weight: - -> f16 256 x 256") != std::string::npos);
    CHECK(runnel_with({"inspect", in, "--diff", (directory / "none").string()}).code == 2);
}

TEST_CASE("imatrix: writes a file that quantize reads, and shows its statistics") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = random_f16_model(directory).string(), out = (directory / "a.imatrix").string(),
                      text = (directory / "text").string();
    std::ofstream(text) << std::string(400, 'a') << " some text, more text";
    const auto make = [&](std::vector<std::string> more) {
        std::vector<std::string> arguments{"imatrix", in, "-f", text, "-o", out, "-c", "64", "-t", "1"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return runnel_with(arguments);
    };
    const Result made = make({"--chunks", "2"});
    CAPTURE(made.err);
    REQUIRE(made.code == 0);
    CHECK(made.out == "");
    CHECK(make({}).code == 2);  // needs --overwrite: the file exists
    const Result shown = runnel_with({"imatrix", "--show", out, "--json"});
    REQUIRE(shown.code == 0);
    const json statistics = json::parse(shown.out);
    CHECK(statistics["chunks"] == 2);
    CHECK(statistics["tensors"].size() == 14);  // seven matrices in each of two layers
    for (const json &tensor : statistics["tensors"]) CHECK(tensor["fewest_rows"] == 128);
    CHECK(runnel_with({"imatrix", "--show", out}).out.find("blk.1.ffn_down.weight") != std::string::npos);
    // A file merged with itself has twice the sums and the same means.
    const std::string both = (directory / "both.imatrix").string();
    REQUIRE(runnel_with({"imatrix", "--merge", out, "--merge", out, "-o", both}).code == 0);
    REQUIRE(json::parse(runnel_with({"imatrix", "--show", both, "--json"}).out)["chunks"] == 4);
    for (const char *name : {"one", "two"})
        REQUIRE(runnel_with({"quantize", in, (directory / name).string(), "IQ2_XXS", "--imatrix",
                             name == std::string("one") ? out : both})
                    .code == 0);
    const gguf::File one = gguf::File::open(directory / "one"), two = gguf::File::open(directory / "two");
    for (const gguf::Tensor &t : one.tensors())
        CHECK(std::equal(t.data, t.data + t.bytes, two.find_tensor(t.name)->data));
    // Errors are one line.
    CHECK(runnel_with({"imatrix", in, "-f", text, "-o", in, "--overwrite"}).code != 0);
    const Result none = runnel_with({"imatrix", in, "-o", both});
    CHECK(none.code == 2);
    check_message(none);
    const Result small = make({"-c", "4096", "--overwrite"});
    CHECK(small.code == 5);
    check_message(small);
    std::ofstream(directory / "bad") << "no GGUF";
    CHECK(runnel_with({"imatrix", "--show", (directory / "bad").string()}).code != 0);
}

TEST_CASE("quantize: --override-kv replaces and adds metadata, and refuses another kind of value") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const fs::path in = random_f16_model(directory), out = directory / "out.gguf";
    const Result r = runnel_with(
        {"quantize", in.string(), out.string(), "Q8_0", "--override-kv", "general.name=str:a=b:c",
         "--override-kv", "my.truth=bool:true", "--override-kv", "my.number=float:0.5", "--override-kv",
         "my.count=int:7", "--override-kv", "my.count=int:-8", "--override-kv", "general.file_type=int:1"});
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    const gguf::File file = gguf::File::open(out);
    CHECK(file.find("general.name")->as_string() == "a=b:c");
    CHECK(file.find("my.truth")->as_bool() == true);
    CHECK(file.find("my.number")->as_float() == 0.5);
    CHECK(file.find("my.count")->as_int() == -8);
    CHECK(file.find("general.file_type")->as_int() == 1);
    CHECK(runnel_with({"run", out.string(), "ab", "-n", "2", "--temp", "0"}).code == 0);
    for (const auto &[text, code] : {std::pair{"general.name=int:3", 5},
                                     {"tokenizer.ggml.tokens=str:x", 5},
                                     {"general.alignment=int:64", 5},
                                     {"split.count=int:2", 5},
                                     {"x", 2},
                                     {"x=int", 2},
                                     {"=int:3", 2},
                                     {"x=int:3.5", 2},
                                     {"x=float:1e999", 2},
                                     {"x=bool:yes", 2},
                                     {"x=word:yes", 2},
                                     {"x=int:99999999999999999999", 2}}) {
        CAPTURE(text);
        const Result bad = runnel_with(
            {"quantize", in.string(), (directory / "bad.gguf").string(), "Q8_0", "--override-kv", text});
        CHECK(bad.code == code);
        check_message(bad);
        CHECK_FALSE(fs::exists(directory / "bad.gguf"));
    }
}

TEST_CASE("quantize: --tensor-type-file is read like --tensor-type, whose rules come first") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const fs::path in = random_f16_model(directory), out = directory / "out.gguf";
    std::ofstream(directory / "types") << "# comment\nattn_q=Q5_0\r\n\nattn=Q4_1\n";
    REQUIRE(runnel_with({"quantize", in.string(), out.string(), "Q8_0", "--tensor-type", "attn_k=Q4_0",
                         "--tensor-type-file", (directory / "types").string()})
                .code == 0);
    const gguf::File file = gguf::File::open(out);
    CHECK(file.find_tensor("blk.0.attn_k.weight")->type == gguf::Type::Q4_0);
    CHECK(file.find_tensor("blk.0.attn_q.weight")->type == gguf::Type::Q5_0);
    CHECK(file.find_tensor("blk.0.attn_v.weight")->type == gguf::Type::Q4_1);
    CHECK(file.find_tensor("blk.0.ffn_up.weight")->type == gguf::Type::Q8_0);
    CHECK(runnel_with({"quantize", in.string(), out.string(), "Q8_0", "--overwrite", "--tensor-type-file",
                       (directory / "none").string()})
              .code == 2);
}
