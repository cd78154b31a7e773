// `runnel convert`, tested by running the program.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/hub_folder.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

// A qwen3 of two layers that answers nonsense, with every byte as a token.
void write_model(const fs::path &folder) {
    constexpr int64_t kVocab = 260, kWidth = 32;
    SafetensorsBytes w;
    float seed = 0;
    const auto add = [&](const std::string &name, std::vector<int64_t> shape) {
        int64_t count = 1;
        for (const int64_t n : shape) count *= n;
        std::vector<float> numbers = counted(count, ++seed);
        for (float &x : numbers) x = std::sin(37 * x) / 4;
        w.add(name, shape, numbers);
    };
    add("model.embed_tokens.weight", {kVocab, kWidth});
    add("model.norm.weight", {kWidth});
    for (int i = 0; i < 2; ++i) {
        const std::string layer = "model.layers." + std::to_string(i) + ".";
        for (const char *const norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
            add(layer + norm, {kWidth});
        for (const char *const norm : {"self_attn.q_norm.weight", "self_attn.k_norm.weight"})
            add(layer + norm, {16});
        add(layer + "self_attn.q_proj.weight", {32, kWidth});
        add(layer + "self_attn.k_proj.weight", {16, kWidth});
        add(layer + "self_attn.v_proj.weight", {16, kWidth});
        add(layer + "self_attn.o_proj.weight", {kWidth, 32});
        add(layer + "mlp.gate_proj.weight", {64, kWidth});
        add(layer + "mlp.up_proj.weight", {64, kWidth});
        add(layer + "mlp.down_proj.weight", {kWidth, 64});
    }
    write_text(folder / "model.safetensors", w.bytes());
    write_text(folder / "tokenizer.json", bare_tokenizer().dump());
    write_text(folder / "tokenizer_config.json",
               R"({"eos_token": "<|im_end|>", "chat_template": "{{ messages[0].content }}"})");
    write_text(folder / "config.json",
               json{{"architectures", {"Qwen3ForCausalLM"}},
                    {"num_hidden_layers", 2},
                    {"hidden_size", kWidth},
                    {"num_attention_heads", 2},
                    {"num_key_value_heads", 1},
                    {"head_dim", 16},
                    {"intermediate_size", 64},
                    {"max_position_embeddings", 128},
                    {"rms_norm_eps", 1e-6},
                    {"hidden_act", "silu"},
                    {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
                    {"tie_word_embeddings", true}}
                   .dump());
}

Result convert(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "convert");
    return runnel_with(std::move(arguments));
}

TEST_CASE("convert command: the file runs, and is never replaced unasked") {
    const TemporaryDirectory directory;
    const std::string folder = directory.path().native(), out = (directory / "out.gguf").native();
    write_model(directory.path());
    const Result dry = convert({folder, out, "--dry-run"});
    CHECK(dry.code == 0);
    CHECK(dry.out.find("qwen3, 24 tensors") == 0);
    CHECK_FALSE(fs::exists(out));
    const Result made = convert({folder, out});
    CHECK_MESSAGE(made.code == 0, made.err);
    CHECK(made.out == "");
    CHECK(made.err.find("qwen3, 24 tensors") != std::string::npos);
    const Result run = runnel_with({"run", out, "ab", "-n", "8", "--temp", "0", "--raw", "--ignore-eos"});
    CHECK_MESSAGE(run.code == 0, run.err);
    CHECK_FALSE(run.out.empty());
    const Result again = convert({folder, out});
    CHECK(again.code == 2);
    CHECK(again.err.find("exists already; --overwrite replaces it") != std::string::npos);
    CHECK(convert({folder, out, "--overwrite", "--type", "bf16"}).code == 0);
    // An output that is one of the inputs.
    const std::string weights = (directory / "model.safetensors").native(), before = read_file(weights);
    const Result own = convert({folder, weights, "--overwrite"});
    CHECK(own.code == 2);
    CHECK(read_file(weights) == before);
}

TEST_CASE("convert command: wrong uses and damaged folders") {
    const TemporaryDirectory directory;
    const std::string folder = directory.path().native(), out = (directory / "out.gguf").native();
    CHECK(convert({}).code == 2);
    CHECK(convert({folder}).code == 2);
    CHECK(convert({folder, out, "more"}).code == 2);
    CHECK(convert({folder + "/none", out}).err.find("no such folder") != std::string::npos);
    const Result empty = convert({folder, out});
    CHECK(empty.code == 2);
    CHECK(empty.err.find("has no model.safetensors") != std::string::npos);
    write_model(directory.path());
    CHECK(convert({(directory / "config.json").native(), out})
              .err.find("is a file; convert takes the folder") != std::string::npos);
    CHECK(convert({folder, folder}).err.find("is a folder") != std::string::npos);
    CHECK(convert({folder, out, "--type", "q8_0"}).code == 2);
    write_text(directory / "config.json", "{");
    const Result damaged = convert({folder, out});
    CHECK(damaged.code == 3);
    CHECK(damaged.err.find("config.json: line 1") != std::string::npos);
    CHECK_FALSE(fs::exists(out));
}

}  // namespace
