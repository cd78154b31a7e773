#include "tests/support/model_maker.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "engine/model/draft_block.h"
#include "tests/support/model_vocabulary.h"

using namespace runnel::gguf;
using namespace runnel::testing;

namespace {

std::vector<float> values_of(const File &file, std::string_view name) {
    const Tensor &tensor = *file.find_tensor(name);
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    dequantize_row(tensor.type, tensor.data, values.data(), tensor.elements());
    return values;
}

Type type_of(const TemporaryModel &model, std::string_view name) {
    return model.file.find_tensor(name)->type;
}

}  // namespace

TEST_CASE("model maker: the same weights in every format, whatever the number of threads") {
    ModelShape shape;
    shape.width = 256, shape.ff = 512;
    const TemporaryModel exact(shape);
    shape.type = "Q4_K_M", shape.threads = 1;
    const TemporaryModel quantized(shape);
    shape.dequantized = true, shape.threads = 3;
    const TemporaryModel dequantized(shape);
    REQUIRE(exact.file.tensors().size() == quantized.file.tensors().size());
    for (const Tensor &tensor : exact.file.tensors()) {
        CAPTURE(tensor.name);
        const std::vector<float> a = values_of(exact.file, tensor.name),
                                 b = values_of(quantized.file, tensor.name);
        double error = 0, power = 0;
        for (size_t i = 0; i < a.size(); ++i) {
            error += std::pow(a[i] - b[i], 2);
            power += std::pow(a[i], 2);
        }
        CHECK(error < 0.08 * 0.08 * power);
        CHECK(b == values_of(dequantized.file, tensor.name));
        CHECK(dequantized.file.find_tensor(tensor.name)->type == Type::F32);
    }
    shape.type = "F32", shape.dequantized = false;
    CHECK(read_bytes(exact.path) == read_bytes(TemporaryModel(shape).path));
    shape.seed = 2;
    CHECK(values_of(exact.file, "output.weight") != values_of(TemporaryModel(shape).file, "output.weight"));
}

TEST_CASE("model maker: a next-token-prediction block is one more layer with attention") {
    for (const char *arch : {"qwen35", "glm4moe", "deepseek2"}) {
        CAPTURE(arch);
        ModelShape shape;
        shape.arch = arch, shape.layers = 4;
        const TemporaryModel without(shape);
        shape.draft_block = true;
        const TemporaryModel with(shape);
        CHECK(with.file.tensors().size() > without.file.tensors().size());
        CHECK(values_of(with.file, "blk.3.attn_norm.weight") ==
              values_of(without.file, "blk.3.attn_norm.weight"));
        CHECK(runnel::model::draft_blocks(without.file).empty());
        CHECK(runnel::model::draft_blocks(with.file).size() == 1);
    }
}

TEST_CASE("model maker: weights are scaled to keep activations near one") {
    ModelShape shape;
    shape.width = 256, shape.ff = 512, shape.layers = 2;
    const TemporaryModel model(shape);
    const auto deviation = [&](std::string_view name) {
        double sum = 0, squares = 0;
        const std::vector<float> values = values_of(model.file, name);
        for (const float value : values) sum += value, squares += value * value;
        const auto n = static_cast<double>(values.size());
        CHECK(std::fabs(sum / n) < 0.02);
        return std::sqrt(squares / n);
    };
    CHECK(deviation("token_embd.weight") == doctest::Approx(1).epsilon(0.02));
    CHECK(deviation("blk.1.ffn_up.weight") == doctest::Approx(1 / 16.0).epsilon(0.02));
    CHECK(deviation("output.weight") == doctest::Approx(2.5 / 16).epsilon(0.02));
}

TEST_CASE("model maker: formats follow llama.cpp's rules") {
    ModelShape shape;
    shape.width = 256, shape.ff = 512, shape.layers = 8, shape.type = "Q4_K_M";
    const TemporaryModel mix(shape);
    CHECK(type_of(mix, "output.weight") == Type::Q6_K);
    CHECK(type_of(mix, "token_embd.weight") == Type::Q4_K);
    CHECK(type_of(mix, "blk.0.attn_v.weight") == Type::Q6_K);
    CHECK(type_of(mix, "blk.1.attn_v.weight") == Type::Q4_K);
    CHECK(type_of(mix, "blk.7.ffn_down.weight") == Type::Q6_K);
    CHECK(type_of(mix, "blk.0.attn_norm.weight") == Type::F32);
    CHECK(mix.file.find("general.file_type")->as_int() == 15);
    shape.width = 96, shape.ff = 100, shape.layers = 1;
    const TemporaryModel odd(shape);
    CHECK(type_of(odd, "output.weight") == Type::Q8_0);
    CHECK(type_of(odd, "blk.0.attn_q.weight") == Type::Q5_0);
    CHECK(type_of(odd, "blk.0.ffn_down.weight") == Type::F16);
    shape.type = "Q4_0", shape.pure = true;
    CHECK(type_of(TemporaryModel(shape), "output.weight") == Type::Q4_0);
}

TEST_CASE("model maker: options shape tensors and metadata, and wrong ones are refused") {
    ModelShape shape;
    shape.arch = "qwen3", shape.head_dim = 32, shape.tied = true, shape.rope_scaling = "yarn";
    const TemporaryModel qwen3(shape);
    CHECK(qwen3.file.find_tensor("output.weight") == nullptr);
    CHECK(qwen3.file.find_tensor("blk.0.attn_q_norm.weight")->shape[0] == 32);
    CHECK(qwen3.file.find_tensor("blk.1.attn_q.weight")->shape[1] == 4 * 32);
    CHECK(qwen3.file.find("qwen3.rope.scaling.type")->as_string() == "yarn");
    CHECK(qwen3.file.find("qwen3.rope.scaling.original_context_length")->as_int() == 128);
    ModelShape scaled;
    scaled.rope_scaling = "llama3", scaled.rope_factor = 8, scaled.context = 4096, scaled.head_dim = 64;
    const std::vector<float> divisors = values_of(TemporaryModel(scaled).file, "rope_freqs.weight");
    REQUIRE(divisors.size() == 32);
    CHECK(divisors.front() == 1);
    CHECK(divisors.back() == doctest::Approx(8));
    CHECK(std::is_sorted(divisors.begin(), divisors.end()));
    ModelShape hybrid;
    hybrid.arch = "qwen35", hybrid.state_heads = 6, hybrid.state_key_heads = 3, hybrid.state_dim = 8;
    const TemporaryModel qwen35(hybrid);
    CHECK(qwen35.file.find("qwen35.ssm.state_size")->as_int() == 8);
    CHECK(qwen35.file.find_tensor("blk.0.attn_qkv.weight")->shape[1] == (2 * 3 + 6) * 8);
    CHECK(qwen35.file.find_tensor("blk.0.ssm_out.weight")->shape[0] == 6 * 8);
    ModelShape bad;
    bad.kv_heads = 3;
    CHECK_THROWS_AS(TemporaryModel{bad}, std::invalid_argument);
    bad = {};
    bad.type = "Q9_9";
    CHECK_THROWS_AS(TemporaryModel{bad}, std::invalid_argument);
}

TEST_CASE("model maker: vocabularies are made up or copied from a file") {
    const std::vector<std::string> pieces = made_up_pieces(5000);
    CHECK(std::set<std::string>(pieces.begin(), pieces.end()).size() == 5000);
    ModelShape shape;
    const TemporaryModel own(shape);
    CHECK(own.file.find("tokenizer.ggml.tokens")->size() == 320);
    CHECK(own.file.find("tokenizer.ggml.tokens")->as_strings()[3 + 'A'] == "<0x41>");
    shape.vocab_from = own.path, shape.vocab = 1000;
    const TemporaryModel copy(shape);
    CHECK(copy.file.find_tensor("output.weight")->shape[1] == 320);
    CHECK(copy.file.find("tokenizer.ggml.scores")->as_floats() ==
          own.file.find("tokenizer.ggml.scores")->as_floats());
}

TEST_CASE("model maker: blocks of codebook entries, of the size that weights have") {
    for (const char *const type : {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}) {
        CAPTURE(type);
        ModelShape shape;
        shape.width = 256, shape.ff = 512, shape.layers = 1;
        const TemporaryModel exact(shape);
        shape.type = type, shape.pure = true;
        const TemporaryModel blocks(shape);
        shape.dequantized = true;
        const TemporaryModel values(shape);
        const std::string_view name = "blk.0.ffn_up.weight";
        CHECK(traits(type_of(blocks, name)).name.size() == std::string_view(type).size());
        CHECK(type_of(values, name) == Type::F32);
        CHECK(values_of(blocks.file, name) == values_of(values.file, name));
        const auto power = [&](const TemporaryModel &model) {
            double sum = 0;
            for (const float value : values_of(model.file, name)) sum += double{value} * value;
            return sum;
        };
        CHECK(power(blocks) == doctest::Approx(power(exact)).epsilon(0.01));
    }
}
