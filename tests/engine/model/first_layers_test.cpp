#include "engine/model/first_layers.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "engine/decode/single_sequence.h"
#include "engine/model/model.h"
#include "gguf/writer.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

std::vector<float> logits_of(const kernels::Program &program) {
    decode::Executor executor(kernels::cpu::make_cpu_backend(1), program, {.context = 64});
    decode::SingleSequence session(executor);
    std::vector<text::TokenId> tokens;
    for (text::TokenId i = 0; i < 40; ++i) tokens.push_back(i * i % 300);
    REQUIRE(session.feed(tokens));
    return {session.logits().begin(), session.logits().end()};
}

// Writes the file without layer `layers` and all later ones.
void write_first_layers(const gguf::File &file, const std::string &arch, int32_t layers,
                        const std::filesystem::path &out) {
    gguf::Writer writer;
    for (const auto &[key, value] : file.metadata())
        if (key != arch + ".block_count") writer.add(key, value);
    writer.add(arch + ".block_count", static_cast<uint32_t>(layers));
    std::vector<const gguf::Tensor *> kept;
    for (const gguf::Tensor &t : file.tensors()) {
        const std::string_view name = t.name;
        if (!name.starts_with("blk.") || std::stoi(std::string(name.substr(4))) < layers) kept.push_back(&t);
    }
    for (const gguf::Tensor *t : kept) writer.add_tensor(t->name, t->type, std::span(t->shape, t->rank));
    std::filesystem::remove(out);  // a file that this process has read must not be overwritten
    writer.start(out);
    for (const gguf::Tensor *t : kept) writer.write({t->data, t->bytes});
    writer.finish();
}

}  // namespace

TEST_CASE("first layers: the result is that of a model with this many layers") {
    for (const char *arch : {"llama", "gemma2", "command-r", "olmo2", "qwen2moe", "deepseek2", "phi2"}) {
        CAPTURE(arch);
        ModelShape shape;
        shape.arch = arch;
        shape.layers = 4;
        const TemporaryModel whole(shape);
        const model::Model model = model::build(whole.file);
        for (const int32_t layers : {1, 3}) {
            CAPTURE(layers);
            write_first_layers(whole.file, arch, layers, whole.directory / "small.gguf");
            const gguf::File small = gguf::File::open(whole.directory / "small.gguf");
            const auto expected = logits_of(model::build(small).program);
            const kernels::Program cut = model::first_layers(model.program, layers);
            CHECK(cut.cache_layers.size() == static_cast<size_t>(layers));
            const auto got = logits_of(cut);
            REQUIRE(got.size() == expected.size());
            CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
        }
        for (const int32_t layers : {-1, 0, 4, 5})
            CHECK_THROWS_WITH_AS(model::first_layers(model.program, layers), doctest::Contains("1 to 3"),
                                 model::ModelError);
    }
}
