// A GPU with too little memory: the memory of drafts and comparisons is planned with the model, or a note
// says that it is missing. The tests' CUDA device is the emulator.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/commands/commands.h"
#include "engine/commands/generation.h"
#include "engine/decode/error.h"
#include "engine/decode/speculation/drafting.h"
#include "engine/model/first_layers.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "tests/simt/simt.h"
#include "tests/support/answers.h"
#include "tests/support/data.h"
#include "tests/support/model_maker.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::commands;
using testing::ModelShape;
using testing::TemporaryModel;

namespace {

// While this exists, the emulated device has `bytes` of memory.
struct SmallGpu {
    explicit SmallGpu(size_t bytes) { simt::settings().memory = bytes; }
    ~SmallGpu() { simt::settings() = {}; }
};

// Messages and results go to files; there is no input.
struct Files {
    Files() {
        io.in = open("/dev/null", O_RDONLY);
        io.out = Output(out, "a file");
        io.err = Output(err, "a file");
    }
    ~Files() {
        for (const int fd : {io.in, out, err}) close(fd);
    }
    Files(const Files &) = delete;
    Files &operator=(const Files &) = delete;

    static int temporary() {
        const testing::TemporaryDirectory directory;
        const int fd = open((directory / "file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        REQUIRE(fd >= 0);
        return fd;
    }
    static std::string read(int fd) {
        std::string all(1 << 16, ' ');
        const ssize_t count = pread(fd, all.data(), all.size(), 0);
        all.resize(count > 0 ? static_cast<size_t>(count) : 0);
        return all;
    }
    const int out = temporary(), err = temporary();
    Io io;
};

ModelShape shape_of(int32_t layers, const char *type = "Q8_0") {
    ModelShape shape;
    shape.layers = layers;
    shape.type = type;
    return shape;
}

constexpr int32_t kSequences = 24, kBatch = 32;

decode::EngineOptions options_for(const TemporaryModel &model) {
    decode::EngineOptions options{
        .model = model.path, .threads = 1, .batch = kBatch, .sequences = kSequences};
    options.device.device = "cuda";
    return options;
}

// GPU memory for a model alone, with all the cache that its sequences could fill, and with the least.
struct Need {
    size_t full, least;
};
Need need_of(const kernels::Program &program) {
    const decode::CacheShape shape{512 * kSequences, kSequences, kBatch, 256, {}};
    return {kernels::cuda::memory_need(program, cache_config(program, shape, 512), kBatch).all(),
            kernels::cuda::memory_need(program, {}, kBatch).all()};
}

// Makes drafts and returns the notes, which say where they are made.
std::vector<std::string> draft(decode::Engine &engine, const decode::DraftingOptions &how) {
    decode::Drafting drafting(how, engine, kSequences);
    const completion::PromptFormat format(engine.file(), engine.tokenizer());
    completion::CompletionQueue queue(engine, format,
                                      {.drafts = [&drafting] { return drafting.speculator(); }});
    queue.submit({.input = completion::Tokens{{5, 6, 7, 8}},
                  .sampling = {.temperature = 0, .logit_bias = {}},
                  .limits = {.max_tokens = 4, .ignore_end = true}});
    const completion::Done done = testing::answer_all(queue).begin()->second.done;
    CHECK(done.tokens.size() == 4);
    CHECK(done.speculation->failure == "");
    return drafting.notes();
}

}  // namespace

TEST_CASE("gpu memory: a model leaves memory for drafts by its first layers; if it cannot, the CPU drafts") {
    const TemporaryModel file(shape_of(3));
    const kernels::Program program = model::build(file.file).program;
    const Need whole = need_of(program), first = need_of(model::first_layers(program, 1));
    decode::EngineOptions options = options_for(file);
    {
        // The whole cache that the model could use does not fit next to the layers.
        const SmallGpu gpu(whole.full + first.least - (size_t{1} << 20));
        options.first_layers = 1;
        decode::Engine engine(options);
        CHECK(engine.placement() == "all layers on the GPU");
        CHECK(engine.executor().cells() < 512 * kSequences);
        CHECK(engine.executor().cells() > 256 * kSequences);
        CHECK(draft(engine, {.self_layers = 1}).empty());
    }
    {
        const SmallGpu gpu(whole.full - (size_t{1} << 20));
        decode::Engine engine(options);
        CHECK(engine.placement() == "all layers on the GPU");
        const auto notes = draft(engine, {.self_layers = 1});
        REQUIRE(notes.size() == 1);
        CHECK(notes[0] == "the GPU has no memory left for the drafts' cache: drafts are computed on the CPU");
    }
}

TEST_CASE("gpu memory: a model leaves memory for the draft model") {
    const TemporaryModel file(shape_of(3)), drafts(shape_of(1));
    const Need whole = need_of(model::build(file.file).program),
               small = need_of(model::build(drafts.file).program);
    const SmallGpu gpu(whole.full + small.least - (size_t{1} << 20));
    decode::EngineOptions options = options_for(file), of_drafts = options_for(drafts);
    options.beside = drafts.path;
    decode::Engine engine(options);
    CHECK(engine.placement() == "all layers on the GPU");
    CHECK(draft(engine, {.model = of_drafts}).empty());  // no note: the drafts' model is on the GPU as well
}

TEST_CASE("gpu memory: --spec-verify computes where the model is, which fills more than half of the GPU") {
    ModelShape shape = shape_of(2);
    shape.width = 256, shape.ff = 1024;
    const TemporaryModel file(shape);
    const kernels::Program program = model::build(file.file).program;
    RunOptions run_options;
    run_options.model.path = file.path;
    run_options.model.device = "cuda";
    run_options.model.batch = kBatch;
    run_options.model.context = 128;
    run_options.draft.lookup = true;
    run_options.verify_drafts = true;
    run_options.raw = true;
    run_options.prompt = "a b a b a b";
    run_options.generation.predict = 6;
    run_options.generation.ignore_eos = true;
    run_options.generation.sampling.temperature = 0;
    const auto need = [&](int32_t sequences) {
        const decode::CacheShape two{128 * sequences, sequences, kBatch, 256, {}};
        return kernels::cuda::memory_need(program, cache_config(program, two, 128), kBatch).all();
    };
    {
        const SmallGpu gpu(need(2));
        Files files;
        CHECK(run(run_options, files.io) == 0);
        CHECK(Files::read(files.err).find("--spec-verify: 6 tokens, no difference") != std::string::npos);
    }
    // The requested layers on the GPU leave too little memory for a second context.
    const SmallGpu gpu(need(2) - 1);
    run_options.model.gpu_layers = "all";
    Files files;
    CHECK_THROWS_WITH_AS(
        run(run_options, files.io),
        "--spec-verify decodes the text twice at the same time, but the cache holds 224 tokens, less than "
        "two contexts of 128: set -c to 112 or less",
        decode::DecodeError);
}

TEST_CASE("gpu memory: the loading of a draft model can be interrupted") {
    const TemporaryModel file(shape_of(2)), drafts(shape_of(1));
    decode::Engine engine(options_for(file));
    Files files;
    decode::StopRequest stop;
    stop.request(decode::StopRequest::Reason::Interrupt);
    DraftFlags flags;
    flags.model = drafts.path;
    flags.device = "cuda";
    try {
        drafting(flags, {}, engine, 1, files.io, stop);
        FAIL("loaded");
    } catch (const kernels::BackendError &error) {
        CHECK(error.kind == kernels::BackendError::Kind::Cancelled);
    }
}

TEST_CASE("gpu memory: inspect plans for the GPU that run would take") {
    const TemporaryModel file(shape_of(2));
    simt::settings().devices = 2;
    simt::settings().first_busy = simt::settings().memory - (size_t{1} << 20);
    Files files;
    InspectOptions options;
    options.path = file.path;
    options.json = true;
    CHECK(inspect(options, files.io) == 0);
    const auto gpu = nlohmann::json::parse(Files::read(files.out))["memory"]["gpu"];
    CHECK(gpu["free"] == simt::settings().memory);
    CHECK(gpu["gpu_layers"] == 3);
    CHECK(gpu["placement"] == "all layers on the GPU");
    simt::settings() = {};
}

TEST_CASE("gpu memory: --stats counts the experts that a GPU with --gpu-experts chose and fetched") {
    ModelShape shape = shape_of(2);
    shape.arch = "qwen3moe";
    const TemporaryModel file(shape);
    const testing::TemporaryDirectory directory;
    RunOptions options;
    options.model.path = file.path;
    options.model.device = "cuda";
    options.model.context = 64;
    options.model.batch = kBatch;
    options.model.gpu_experts = "3";
    options.raw = true;
    options.prompt = "a b a b";
    options.generation.predict = 3;
    options.generation.ignore_eos = true;
    options.stats.print = true;
    options.stats.file = (directory / "stats.json").string();
    Files files;
    CHECK(run(options, files.io) == 0);
    const std::string shown = Files::read(files.err);
    CAPTURE(shown);
    CHECK(shown.find("device   all layers on the GPU, with 3 of a layer's 8 experts at a time") !=
          std::string::npos);
    CHECK(shown.find(" of them fetched from host memory (") != std::string::npos);
    const auto json = nlohmann::json::parse(testing::read_file(options.stats.file));
    const uint64_t chosen = json["experts"]["chosen"], fetched = json["experts"]["fetched"];
    CHECK(fetched > 0);
    CHECK(fetched <= chosen);
    CHECK(json["experts"]["fetched_bytes"].get<uint64_t>() % fetched == 0);
    options.model.cpu_moe = true;
    CHECK_THROWS_WITH_AS(
        run(options, files.io),
        "--gpu-experts runs all experts on the GPU, --cpu-moe and --n-cpu-moe some on the CPU: leave "
        "one out",
        UsageError);
}
