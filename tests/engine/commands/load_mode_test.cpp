// --load-mode: where the CPU's weights are changes no text, and what cannot be done is said.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "engine/commands/generation.h"
#include "engine/decode/engine.h"
#include "engine/decode/error.h"
#include "kernels/cpu/linear.h"
#include "tests/engine/commands/program_support.h"
#include "tests/engine/decode/computed_text.h"
#include "tests/support/mpirun.h"

using namespace runnel;
using namespace runnel::testing;
using nlohmann::json;

namespace {

const std::string kModel = "tests/models/demo-q8_0.gguf", kDraft = "tests/models/demo-draft-q8_0.gguf";

std::vector<std::string> story(std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "run",  kModel, "Once upon a time there was a king who", "--raw", "-n", "24", "--temp", "0", "--json",
        "-dev", "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
}

// Whether the notes are empty or say only that the weights are not locked: the tests may run without the right to lock memory.
bool only_of_locks(const std::string &notes) {
    return notes.empty() || (notes.starts_with("runnel: the weights are not locked in memory: ") &&
                             std::ranges::count(notes, '\n') == 1);
}

}  // namespace

TEST_CASE("load mode: every mode gives the same text, with drafts and in a batch") {
    if (absent()) return;
    const json expected = answer_of(runnel_with(story({})));
    for (const char *mode : {"mmap", "copy", "mlock", "mmap+mlock", "auto", "none", "dio"}) {
        CAPTURE(mode);
        const Result alone = runnel_with(story({"--load-mode", mode}));
        CHECK(answer_of(alone) == expected);
        CHECK(only_of_locks(alone.err));
        const Result drafted = runnel_with(story({"-lm", mode, "-md", kDraft}));
        CHECK(answer_of(drafted) == expected);
    }
    const std::string row = R"({"prompt": "Once upon a time there was a king who"})"
                            "\n";
    std::set<std::string> answers;
    for (const char *mode : {"mmap", "copy"}) {
        const Result batch = runnel_with(
            {"batch", kModel, "--raw", "-n", "24", "--temp", "0", "-dev", "cpu", "--load-mode", mode},
            row + row);
        CAPTURE(batch.err);
        CHECK(batch.code == 0);
        answers.insert(batch.out);
    }
    CHECK(answers.size() == 1);
}

TEST_CASE("load mode: bench compares modes, and names them") {
    if (absent()) return;
    const Result got = runnel_with(
        {"bench", kModel, "-p", "8", "-n", "0", "-r", "1", "-lm", "mmap,copy", "-dev", "cpu", "-o", "jsonl"});
    CAPTURE(got.err);
    REQUIRE(got.code == 0);
    const size_t end = got.out.find('\n');
    CHECK(json::parse(got.out.substr(0, end))["load_mode"] == "mmap");
    CHECK(json::parse(got.out.substr(end + 1))["load_mode"] == "copy");
}

TEST_CASE("load mode: an unknown mode is refused with the known ones") {
    if (absent()) return;
    const Result got = runnel_with(story({"--load-mode", "ram"}));
    CHECK(got.code == 2);
    CHECK(got.err.find("auto, mmap, copy, mlock or mmap+mlock") != std::string::npos);
}

TEST_CASE("load mode: copies count as memory, tables of which single rows are read do not") {
    const gguf::File file = gguf::File::open(kModel);
    const model::Model model = model::build(file);
    const auto mapped = kernels::cpu_device(1)->need(model.program, {}, 16),
               copied = kernels::cpu_device(1, {.copied = true})->need(model.program, {}, 16);
    CHECK(mapped.mapped);
    CHECK_FALSE(copied.mapped);
    CHECK(copied.weights > 0);
    CHECK(copied.weights <= mapped.weights + 64 * model.program.weights.size());
    // A device without room for them.
    const auto device = kernels::cpu_device(1, {.copied = true});
    try {
        decode::plan_context(model.program, *device, copied.weights - 1, {.own = 64, .asked = 64});
        FAIL("not refused");
    } catch (const decode::DecodeError &error) {
        CHECK(error.kind == decode::DecodeError::Kind::OutOfMemory);
        CHECK(std::string(error.what()).starts_with("a copy of the weights needs "));
    }
    CHECK_NOTHROW(decode::plan_context(model.program, *kernels::cpu_device(1), copied.weights - 1,
                                       {.own = 64, .asked = 64}));
}

TEST_CASE("load mode: one-bit weights are rearranged by default, for few sequences, and change no text") {
    ModelShape shape;
    shape.type = "Q1_0";
    shape.width = 256, shape.ff = 384;
    const TemporaryModel model(shape);
    const auto load = [&](kernels::WeightStorage storage, int32_t sequences) {
        std::set<size_t> totals;
        decode::EngineOptions options{.model = model.path, .threads = 1, .context = 256};
        options.sequences = sequences, options.weights = storage;
        options.progress = [&](size_t, size_t all) {
            totals.insert(all);
            return true;
        };
        decode::Engine engine(options);
        return std::pair(totals, decode::compute(engine).last);
    };
    const auto [none, expected] = load({}, 1);
    CHECK(none.empty());
    const auto [whole, text] = load({.rearranged = true}, 1);
    CHECK(whole.size() == (kernels::cpu::linear_avx2() == nullptr ? 0 : 1));
    CHECK(text == expected);
    CHECK(load({.rearranged = true}, kernels::kRearrangedSequences + 1).first.empty());
    if (absent()) return;
    const auto run = [&](const char *mode) {
        return runnel_with(
            {"run", model.path, "a", "--raw", "-n", "24", "--temp", "0", "-dev", "cpu", "-lm", mode});
    };
    const Result got = run("mmap");
    CHECK(got.code == 0);
    for (const char *mode : {"auto", "copy"}) {
        CAPTURE(mode);
        CHECK(run(mode).out == got.out);
    }
}

TEST_CASE("load mode: few tokens do not pay for another order of the weights") {
    const auto mode = [](const char *given, int64_t predict) {
        commands::ModelOptions model;
        if (given) model.load_mode = given;
        commands::GenerationFlags generation;
        generation.predict = predict;
        return commands::model_for(model, generation).load_mode;
    };
    CHECK(mode(nullptr, -1) == "auto");
    CHECK(mode(nullptr, 16) == "auto");
    CHECK(mode(nullptr, 15) == "mmap");
    CHECK(mode("copy", 1) == "copy");
}

TEST_CASE("load mode: an interrupt ends the copying") {
    decode::EngineOptions options{.model = kModel, .threads = 1, .context = 64};
    options.weights = {.copied = true};
    int calls = 0;
    options.progress = [&](size_t, size_t) { return ++calls == 0; };
    try {
        const decode::Engine engine(options);
        FAIL("loaded");
    } catch (const kernels::BackendError &error) {
        CHECK(error.kind == kernels::BackendError::Kind::Cancelled);
    }
    CHECK(calls == 1);
}

TEST_CASE("load mode: of a model partly on a GPU, only the CPU's layers are copied") {
    ModelShape shape;
    shape.layers = 4;
    const TemporaryModel model(shape);
    // Of 4 layers, 0 or 2 on the GPU: the totals that loading reports.
    const auto load = [&](int64_t gpu_layers, bool copy, decode::ComputedText &text) {
        std::set<size_t> totals;
        decode::EngineOptions options{.model = model.path, .threads = 1, .context = 256};
        options.device = {"cuda", {gpu_layers, {}}};
        options.weights = {.copied = copy};
        options.progress = [&](size_t, size_t all) {
            totals.insert(all);
            return true;
        };
        decode::Engine engine(options);
        text = decode::compute(engine);
        return totals;
    };
    decode::ComputedText mapped, copied;
    CHECK(load(0, false, mapped).empty());
    const std::set<size_t> whole = load(0, true, copied);
    CHECK(copied.logits == mapped.logits);
    REQUIRE(whole.size() == 1);
    const std::set<size_t> uploaded = load(2, false, mapped);
    REQUIRE(uploaded.size() == 1);
    std::set<size_t> both = load(2, true, copied);
    CHECK(copied.logits == mapped.logits);
    CHECK(copied.last == mapped.last);
    REQUIRE(both.size() == 2);
    CHECK(both.erase(*uploaded.begin()) == 1);
    CHECK(*both.begin() < *whole.begin());
}

TEST_CASE("load mode: several processes copy their shares") {
    if (!has_mpi()) return;
    const std::string command = "build/runnel-mpi run " + kModel + " 'A king' --raw -n 12 --temp 0 -t 1 ";
    const Job whole = mpirun(1, command), shared = mpirun(2, command + "--split tensor --load-mode copy");
    CHECK(whole.code == 0);
    CHECK(shared.code == 0);
    CHECK(shared.out == whole.out);
    CHECK(shared.err == "");
}
