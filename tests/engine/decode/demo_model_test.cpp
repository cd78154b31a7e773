// The models that ship with the product: properties that only trained weights show.
#include <doctest/doctest.h>

#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/decode/engine.h"
#include "engine/measure/perplexity.h"
#include "gguf/quantize.h"
#include "gguf/writer.h"
#include "tests/support/answers.h"
#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel::decode;
using namespace runnel::measure;
using namespace runnel::testing;
namespace completion = runnel::completion;
namespace gguf = runnel::gguf;
using nlohmann::json;

namespace {

constexpr int32_t kContext = 512;

bool absent() {
    if (std::filesystem::exists(demo_model())) return false;
    FAIL("tests run from the root of the sources");
    return true;
}

Engine engine_of(const std::filesystem::path &model, int threads = 2) {
    EngineOptions options;
    options.model = model;
    options.threads = threads;
    options.context = kContext;
    return Engine(options);
}

// Perplexity over the first chunks of the held-out text. Logits are saved to a file, or compared with those
// in a file.
struct Scoring {
    int32_t chunks = 6;
    std::filesystem::path save{}, base{};
};

Perplexity score(const std::filesystem::path &model, const Scoring &scoring) {
    Engine engine = engine_of(model);
    std::string text = read_file(held_out_text());
    if (text.ends_with('\n')) text.pop_back();  // as the command reads it
    std::vector<TokenId> tokens = engine.tokenizer().encode(text);
    const size_t wanted = static_cast<size_t>(scoring.chunks) * kContext;
    REQUIRE(tokens.size() >= wanted);
    tokens.resize(wanted);

    std::optional<LogitsWriter> writer;
    std::optional<LogitsReader> reader;
    const int32_t vocab = engine.executor().vocab();
    if (!scoring.save.empty()) writer.emplace(scoring.save, kContext, vocab, tokens);
    if (!scoring.base.empty()) reader.emplace(scoring.base, vocab);
    PerplexityRun run(engine.executor(), tokens, kContext, engine.tokenizer().bos(),
                      writer ? &*writer : nullptr, reader ? &*reader : nullptr);
    while (run.done() < run.chunks()) run.step();
    if (writer) writer->commit();
    return run.result();
}

// The demo model with every matrix in another format.
void requantize(gguf::Type type, const std::filesystem::path &out) {
    const gguf::File file = gguf::File::open(demo_model());
    gguf::Writer writer;
    for (const auto &[key, value] : file.metadata()) writer.add(key, value);
    for (const gguf::Tensor &t : file.tensors())
        writer.add_tensor(t.name, t.rank == 2 ? type : t.type, std::span(t.shape, t.rank));
    writer.start(out);
    for (const gguf::Tensor &t : file.tensors()) {
        if (t.rank != 2) {
            writer.write({t.data, t.bytes});
            continue;
        }
        const int64_t n = t.elements();
        std::vector<float> values(static_cast<size_t>(n));
        std::vector<std::byte> blocks(gguf::row_bytes(type, n));
        gguf::dequantize_row(t.type, t.data, values.data(), n);
        gguf::quantize_row(type, values.data(), blocks.data(), n, gguf::Effort::Fast);
        writer.write(blocks);
    }
    writer.finish();
}

// The most probable continuation of a text.
std::string greedy(const std::string &prompt, int64_t most, int threads) {
    Engine engine = engine_of(demo_model(), threads);
    const completion::PromptFormat format(engine.file(), engine.tokenizer());
    completion::CompletionQueue queue(engine, format, {});
    SamplingOptions sampling;
    sampling.temperature = 0;
    queue.submit(
        {.input = completion::RawText{prompt}, .sampling = sampling, .limits = {.max_tokens = most}});
    return answer_all(queue).begin()->second.text;
}

// One list of expected results.
json expected(const char *list) {
    return json::parse(read_file("tests/models/expected.json"))[list];
}

}  // namespace

TEST_CASE("demo model: the perplexity of unseen text equals what llama.cpp measures") {
    if (absent()) return;
    for (const json &p : expected("perplexity")) {
        CAPTURE(p.dump());
        const Perplexity found =
            score("tests/models/" + p["model"].get<std::string>(), {.chunks = p["chunks"].get<int32_t>()});
        CHECK(found.value == doctest::Approx(p["value"].get<double>()).epsilon(0.001));
    }
}

TEST_CASE("demo model: greedy text equals llama.cpp's, with any number of threads") {
    if (absent()) return;
    for (const json &c : expected("continuations")) {
        const std::string prompt = c["prompt"];
        CAPTURE(prompt);
        for (const int threads : {1, 2})
            CHECK(greedy(prompt, c["n"].get<int64_t>(), threads) == c["text"].get<std::string>());
    }
}

TEST_CASE("demo model: tokens are those of the library that made the vocabulary") {
    if (absent()) return;
    const gguf::File file = gguf::File::open(demo_model());
    const auto tokenizer = runnel::text::Tokenizer::load(file);
    for (const json &t : expected("tokens")) {
        const std::string text = t["text"];
        CAPTURE(text);
        const std::vector<TokenId> ids = tokenizer.encode(text, {.add_special = false});
        CHECK(ids == t["ids"].get<std::vector<TokenId>>());
        CHECK(tokenizer.decode(ids) == text);
    }
    // There are tokens for any bytes.
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
    CHECK(tokenizer.decode(tokenizer.encode(all, {.add_special = false})) == all);
}

TEST_CASE("demo model: fewer bits give a larger divergence from the original") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const double original = score(demo_model(), {.save = directory / "base"}).value;
    const auto divergence = [&](gguf::Type type) {
        std::filesystem::remove(directory / "model.gguf");  // a file that was read is not overwritten
        requantize(type, directory / "model.gguf");
        const Perplexity found = score(directory / "model.gguf", {.base = directory / "base"});
        CAPTURE(gguf::traits(type).name);
        CHECK(found.value < 2 * original);
        return found.divergence->mean;
    };
    using gguf::Type;
    double last = divergence(Type::F32);  // the error of activations in Q8_0's kernels
    CHECK(last < 1e-3);
    for (const Type type : {Type::Q6_K, Type::Q5_K, Type::Q4_K, Type::Q3_K, Type::Q2_K}) {
        CAPTURE(gguf::traits(type).name);
        const double found = divergence(type);
        CHECK(found > last);
        last = found;
    }
}

TEST_CASE("demo model: the draft model predicts the same text often enough") {
    if (absent()) return;
    const gguf::File demo = gguf::File::open(demo_model()), draft = gguf::File::open(demo_draft());
    for (const auto &[key, value] : demo.metadata()) {
        if (!key.starts_with("tokenizer.")) continue;
        CAPTURE(key);
        REQUIRE(draft.find(key));
    }
    const auto a = runnel::text::Tokenizer::load(demo), b = runnel::text::Tokenizer::load(draft);
    REQUIRE(a.size() == b.size());
    for (TokenId id = 0; id < a.size(); ++id) REQUIRE(a.piece(id) == b.piece(id));

    const TemporaryDirectory directory;
    score(demo_model(), {.save = directory / "base"});
    const Perplexity found = score(demo_draft(), {.base = directory / "base"});
    CHECK(found.divergence->same_top > 0.45);  // measured: 0.527
}

TEST_CASE("demo model: answers in a chat read like tales, and end") {
    if (absent()) return;
    if (!program_under_test()) {
        FAIL("no program to test: set RUNNEL, or build build/runnel");
        return;
    }
    int ended = 0;
    constexpr int kAnswers = 6;
    for (int seed = 1; seed <= kAnswers; ++seed) {
        CAPTURE(seed);
        Process process{};
        process.stdout_limit = static_cast<size_t>(-1);
        process.arguments = {"run",
                             demo_model().string(),
                             "Tell me a story about a fox and a well.",
                             "--json",
                             "--temp",
                             "0.6",
                             "--seed",
                             std::to_string(seed)};
        const Result result = execute(process);
        REQUIRE(result.code == 0);
        const json answer = json::parse(result.out);
        const std::string text = answer["text"];
        CAPTURE(text);
        ended += answer["finish_reason"] == "stop";
        CHECK(text.size() > 40);
        const bool opens = std::isupper(static_cast<unsigned char>(text.front())) != 0 || text.front() == '"';
        CHECK(opens);
        CHECK(text.find("<|") == std::string::npos);
    }
    CHECK(ended >= kAnswers - 1);
}

TEST_CASE("demo model: the files are small and their metadata is complete") {
    if (absent()) return;
    CHECK(std::filesystem::file_size(demo_model()) <= 6'000'000);
    CHECK(std::filesystem::file_size(demo_draft()) <= 1'000'000);
    for (const auto &path : {demo_model(), demo_draft()}) {
        CAPTURE(path.string());
        const gguf::File file = gguf::File::open(path);
        for (const char *key : {"general.name", "general.author", "general.license", "general.date",
                                "general.training_data", "tokenizer.chat_template"}) {
            CAPTURE(key);
            CHECK(file.find(key) != nullptr);
        }
    }
}
