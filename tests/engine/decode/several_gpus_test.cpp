// Models on several emulated GPUs: which GPUs they get, and that the text has the bits of one GPU.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/completion/queue.h"
#include "engine/decode/error.h"
#include "engine/decode/gpu_selection.h"
#include "engine/decode/prompt_file.h"
#include "engine/decode/speculation/drafting.h"
#include "engine/model/layers.h"
#include "kernels/split_program.h"
#include "tests/engine/decode/computed_text.h"
#include "tests/simt/nccl.h"
#include "tests/simt/simt.h"
#include "tests/support/answers.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using namespace runnel::decode;
using testing::ModelShape;
using testing::TemporaryModel;

namespace {

constexpr size_t kGiB = size_t{1} << 30;

// While this exists, there are this many emulated GPUs.
struct Gpus {
    explicit Gpus(int count) {
        simt::settings() = {};
        simt::settings().devices = count;
    }
    ~Gpus() { simt::settings() = {}; }
    simt::Settings *operator->() { return &simt::settings(); }
};

EngineOptions options_for(const TemporaryModel &model, std::vector<double> shares = {}) {
    EngineOptions options{.model = model.path, .threads = 1, .context = 96, .batch = 32};
    options.device = {"cuda", {{}, {}, std::move(shares)}};
    return options;
}

EngineOptions tensor_options(const TemporaryModel &model, std::vector<double> shares) {
    EngineOptions options = options_for(model, std::move(shares));
    options.device.split = Split::Tensor;
    return options;
}

bool same(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

ModelShape shape_of(const char *arch, int64_t layers, const char *type = "Q8_0") {
    ModelShape shape;
    shape.arch = arch, shape.layers = layers, shape.type = type;
    shape.width = 32, shape.ff = 64, shape.heads = 2, shape.kv_heads = 1, shape.head_dim = 32,
    shape.vocab = 300;
    return shape;
}

}  // namespace

TEST_CASE("several GPUs: two to eight give the bits of one, in every kind of family") {
    struct Case {
        const char *arch;
        int32_t layers, gpus;
        CacheTypes types;
    };
    using enum kernels::CacheType;
    for (const auto &[arch, layers, gpus, types] :
         {Case{"llama", 7, 8, {Q4_0, FP8}}, Case{"qwen3moe", 2, 2, {Q8_0, Q8_0}},
          Case{"gemma3", 6, 4, {F16, F16}}, Case{"deepseek2-lite", 2, 3, {F16, F16}},
          Case{"qwen35", 4, 5, {F16, F16}}, Case{"mamba2", 5, 6, {F16, F16}},
          Case{"rwkv7", 3, 3, {F16, F16}}}) {
        CAPTURE(arch);
        CAPTURE(gpus);
        const Gpus emulated(gpus);
        simt::settings().peers = gpus != 4;
        const TemporaryModel model(shape_of(arch, layers));
        EngineOptions options = options_for(model);
        options.cache.types = types;
        options.device.device = "cuda:0";
        Engine one(options);
        CHECK(one.executor().device().kind == "cuda");
        const ComputedText expected = compute(one);
        options.device = {"cuda", {{}, {}, std::vector<double>(static_cast<size_t>(gpus), 1)}};
        Engine several(options);
        CHECK(several.placement().starts_with("all layers on " + std::to_string(gpus) + " GPUs ("));
        simt::take_host_traffic();
        const ComputedText got = compute(several);
        CHECK((simt::take_host_traffic().peer_copies > 0) == simt::settings().peers);
        CHECK(same(got.logits, expected.logits));
        CHECK(same(got.last, expected.last));
        CHECK(got.greedy == expected.greedy);
    }
}

TEST_CASE("several GPUs: cut by rows, two to eight give the bits of one, in every kind of family") {
    using enum kernels::CacheType;
    struct Case {
        const char *arch;
        int32_t layers, gpus;
        CacheTypes types;
    };
    for (const auto &[arch, layers, gpus, types] :
         {Case{"llama", 2, 8, {Q5_0, IQ4_NL}}, Case{"qwen3moe", 1, 2, {Q8_0, Q8_0}},
          Case{"gemma3", 6, 2, {F16, F16}}, Case{"deepseek2-lite", 1, 3, {F16, F16}},
          Case{"qwen35", 4, 3, {F16, F16}}, Case{"rwkv7", 2, 2, {F16, F16}}}) {
        CAPTURE(arch);
        CAPTURE(gpus);
        const Gpus emulated(gpus);
        std::optional<simt::WithNccl> nccl;
        if (gpus == 2) nccl.emplace();
        ModelShape shape = shape_of(arch, layers);
        shape.heads = 4, shape.kv_heads = 2;
        const TemporaryModel model(shape);
        EngineOptions options = options_for(model);
        options.cache.types = types;
        options.device.device = "cuda:0";
        Engine one(options);
        const ComputedText expected = compute(one);
        options.device = {"cuda", {}, Split::Tensor};
        if (gpus == 3) options.device.placement.shares = {1, 0, 2};
        Engine several(options);
        CHECK(several.placement() ==
              "all layers on " + std::to_string(gpus) + " GPUs, each with some rows of every matrix");
        CHECK(several.placement_details() ==
              several.placement() + (nccl ? ", gathers by NCCL 2.28.9"
                                          : ", gathers through host memory (no NCCL is installed on the "
                                            "emulated devices)"));
        CHECK(several.executor().device().kind.starts_with("cuda+cuda"));
        const ComputedText got = compute(several);
        CHECK(same(got.logits, expected.logits));
        CHECK(same(got.last, expected.last));
        CHECK(got.greedy == expected.greedy);
    }
}

TEST_CASE(
    "several GPUs: a model that one GPU cannot hold fits two by rows; what does not fit or work is refused") {
    Gpus emulated(2);
    ModelShape shape = shape_of("llama", 4);
    shape.width = 256, shape.ff = 1024, shape.heads = 8, shape.kv_heads = 4;
    const TemporaryModel model(shape);
    const auto error_of = [](const EngineOptions &options) -> std::string {
        try {
            Engine engine(options);
        } catch (const std::runtime_error &error) {
            return error.what();
        }
        return "";
    };
    const kernels::Program program = model::build(model.file).program;
    const kernels::Devices found = kernels::devices(1);
    const DeviceList devices = {found.gpus[0], found.cpu};
    const auto on_one = [&](size_t memory) {
        return plan_placement(program, devices, {memory, kGiB}, {}, {.own = 96, .asked = 96, .batch = 32});
    };
    const size_t whole = on_one(kGiB)->gpu.all();
    CHECK(!on_one(kGiB)->divided);
    emulated->memory = whole - (size_t{64} << 10);
    const auto reduced = on_one(emulated->memory);
    CHECK((!reduced || reduced->divided));
    CHECK(error_of(tensor_options(model, {1, 1})) == "");
    emulated->memory = whole / 8;
    const std::string small = error_of(tensor_options(model, {1, 3}));
    CHECK(small.starts_with("the model does not fit with --split tensor: cuda:1 has "));
    CHECK(small.ends_with(
        ": choose a smaller context with -c, other shares with --tensor-split, or --split layer"));
    emulated->memory = size_t{1} << 30;
    EngineOptions partly = tensor_options(model, {});
    partly.device.placement.gpu_layers = 4;
    CHECK(error_of(partly) ==
          "--split tensor runs all layers on the GPUs: leave out --gpu-layers, or choose --split layer");
    partly.device.placement.gpu_layers = 5;
    CHECK(error_of(partly) == "");
    partly.device.placement.cpu_experts = 1;
    CHECK(error_of(partly) ==
          "--split tensor runs all experts on the GPUs: leave out --cpu-moe and --n-cpu-moe, or choose "
          "--split layer");
    emulated->broken_device = 1;
    CHECK(error_of(tensor_options(model, {})).find("unavailable") != std::string::npos);
}

TEST_CASE("several GPUs: cut by columns, two give the bits of one, and say how many matrices are") {
    for (const char *arch : {"llama", "gemma2"}) {
        CAPTURE(arch);
        const Gpus emulated(2);
        const simt::WithNccl nccl;
        ModelShape shape = shape_of(arch, 1, "Q4_K_M");
        shape.width = 256, shape.ff = 512, shape.heads = 8, shape.kv_heads = 2, shape.head_dim = 64;
        const TemporaryModel model(shape);
        EngineOptions options = options_for(model);
        options.device.device = "cuda:0";
        Engine one(options);
        const ComputedText expected = compute(one);
        options.device = {"cuda", {}, Split::Columns};
        Engine several(options);
        CHECK(several.placement() ==
              "all layers on 2 GPUs, each with some rows of every matrix (of 2 matrices some columns)");
        CHECK(several.placement_details().ends_with(", gathers by NCCL 2.28.9"));
        const ComputedText got = compute(several);
        CHECK(same(got.logits, expected.logits));
        CHECK(same(got.last, expected.last));
        CHECK(got.greedy == expected.greedy);
    }
    const Gpus emulated(2);
    const TemporaryModel small(shape_of("llama", 1));
    EngineOptions options = options_for(small);
    options.device = {"cuda", {}, Split::Columns};
    const Engine engine(options);
    CHECK(engine.placement() == "all layers on 2 GPUs, each with some rows of every matrix");
    REQUIRE(engine.notes().size() == 1);
    CHECK(engine.notes().front().starts_with("--split columns: no matrix of this model can be cut"));
}

TEST_CASE("several GPUs: batches, drafts and preemption give the text of one GPU") {
    const Gpus emulated(3);
    const TemporaryModel model(shape_of("llama", 2));
    // The texts of three answers with drafts, in a cache too small for them together.
    const auto texts = [&](const std::vector<double> &shares, bool drafts, Split split = Split::Layer) {
        EngineOptions options = options_for(model, shares);
        options.device.split = split;
        if (shares.empty()) options.device.device = "cuda:0";
        options.sequences = 3;
        options.first_layers = drafts ? 1 : 0;
        const gguf::File file = gguf::File::open(model.path);
        options.cache.size = static_cast<int64_t>(cache_bytes(model::build(file).program, 128));
        Engine engine(options);
        const completion::PromptFormat format(engine.file(), engine.tokenizer());
        // (A fixed length: measured times would decide how often drafts are made.)
        Drafting drafting(
            {.self_layers = drafts ? 1 : 0, .lookup = true, .how = {.length = {.most = 3, .fixed = true}}},
            engine, 3);
        CHECK(drafting.notes().empty());
        completion::CompletionQueue queue(
            engine, format, {.parallel = 3, .drafts = [&drafting] { return drafting.speculator(); }});
        for (int32_t i = 0; i < 3; ++i) {
            std::vector<text::TokenId> prompt;
            for (int32_t k = 0; k < 18 + 2 * i; ++k) prompt.push_back(1 + (k % 7 + i) * 7 % 290);
            queue.submit({.input = completion::Tokens{prompt},
                          .sampling = {.temperature = 0, .logit_bias = {}},
                          .limits = {.max_tokens = 56, .ignore_end = true}});
        }
        std::vector<std::vector<text::TokenId>> all;
        for (const auto &[key, answer] : testing::answer_all(queue)) {
            CHECK(answer.done.error == "");
            all.push_back(answer.done.tokens);
        }
        CHECK(queue.schedule().preemptions > 0);
        CHECK(queue.speculation().drafted > 0);
        return all;
    };
    for (const bool drafts : {false, true}) {
        CAPTURE(drafts);
        const auto expected = texts({}, drafts);
        CHECK(expected.size() == 3);
        CHECK(texts({1, 1, 1}, drafts) == expected);
        CHECK(texts({1, 2, 1}, drafts, Split::Tensor) == expected);
    }
}

TEST_CASE("several GPUs: a stored prompt is read again by the same split, and rejected by another") {
    const Gpus emulated(3);
    const TemporaryModel model(shape_of("qwen35", 5));
    const testing::TemporaryDirectory directory;
    const auto path = directory / "prompt";
    const std::vector<text::TokenId> prompt(70, 5);
    std::vector<float> expected;
    const auto identity_of = [](Engine &engine) {
        return prompt_identity(engine.file(), engine.model().program, engine.executor().device().kind,
                               engine.executor().types());
    };
    {
        Engine engine(options_for(model, {1, 1, 1}));
        SingleSequence session(engine.executor());
        REQUIRE(session.feed(prompt));
        expected.assign(session.logits().begin(), session.logits().end());
        save_prompt_file(path, identity_of(engine), engine.executor(), session.sequence().cache(),
                         prompt.size());
    }
    Engine engine(options_for(model, {1, 1, 1}));
    const PromptFileResult loaded = load_prompt_file(path, identity_of(engine), engine.executor());
    CHECK(loaded.state == PromptFileResult::State::Loaded);
    CHECK(loaded.tokens.size() == 64);
    SingleSequence session(engine.executor());
    REQUIRE(session.feed(prompt));
    CHECK(same({session.logits().begin(), session.logits().end()}, expected));
    // Cut by rows, its bytes are others, and other shares are another cut.
    Engine rows(tensor_options(model, {1, 1, 1}));
    CHECK(load_prompt_file(path, identity_of(rows), rows.executor()).state ==
          PromptFileResult::State::Rejected);
    SingleSequence by_rows(rows.executor());
    REQUIRE(by_rows.feed(prompt));
    CHECK(same({by_rows.logits().begin(), by_rows.logits().end()}, expected));
    const auto rows_path = directory / "rows";
    save_prompt_file(rows_path, identity_of(rows), rows.executor(), by_rows.sequence().cache(),
                     prompt.size());
    Engine rows_again(tensor_options(model, {1, 1, 1}));
    CHECK(load_prompt_file(rows_path, identity_of(rows_again), rows_again.executor()).tokens.size() == 64);
    SingleSequence again(rows_again.executor());
    REQUIRE(again.feed(prompt));
    CHECK(same({again.logits().begin(), again.logits().end()}, expected));
    Engine other(options_for(model, {1, 1}));
    CHECK(load_prompt_file(path, identity_of(other), other.executor()).state ==
          PromptFileResult::State::Rejected);
}

TEST_CASE(
    "several GPUs: one GPU is used if it holds the model, the fastest first; otherwise the first that do") {
    Gpus emulated(4);
    const TemporaryModel model(shape_of("llama", 7));
    const kernels::Program program = model::build(model.file).program;
    const size_t whole = [&] {
        const kernels::Devices found = kernels::devices(1);
        const DeviceList devices = {found.gpus[0], found.cpu};
        return plan_placement(program, devices, {kGiB, kGiB}, {}, {.own = 96, .asked = 96, .batch = 32})
            ->gpu.all();
    }();
    const size_t some = whole - (size_t{64} << 10);
    struct Case {
        std::vector<size_t> memory;
        std::vector<double> bandwidth;
        std::set<int> opened;
        const char *placement;
    };
    for (const Case &c : {
             Case{{whole, whole, whole, whole}, {1, 1, 1, 1}, {0}, "all layers on the GPU"},
             Case{{whole, whole, whole, whole}, {1, 1, 3, 2}, {2}, "all layers on the GPU"},
             Case{{some, some, some, whole}, {4, 3, 2, 1}, {0, 1, 2, 3}, "all layers on the GPU"},
             Case{{some, some, some, some}, {1, 1, 1, 2}, {0, 1, 2, 3}, "all layers on 2 GPUs ("},
         }) {
        CAPTURE(c.placement);
        emulated->memory_of = c.memory, emulated->bandwidth_of = c.bandwidth;
        emulated->opened.clear();
        Engine engine(options_for(model));
        CHECK(engine.placement().starts_with(c.placement));
        CHECK(emulated->opened == c.opened);
    }
    // The last case: the fastest, which is the last, has as many layers as fit, then comes the first of the others.
    Engine engine(options_for(model));
    CHECK(engine.placement().find(" on cuda:3, ") != std::string::npos);
    CHECK(engine.placement().find(" on cuda:0)") != std::string::npos);
    // A busy or broken GPU is passed over.
    emulated->memory_of.clear(), emulated->bandwidth_of.clear();
    emulated->first_busy = emulated->memory - (size_t{1} << 20);
    emulated->broken_device = 1;
    emulated->opened.clear();
    Engine third(options_for(model));
    CHECK(third.placement() == "all layers on the GPU");
    CHECK(emulated->opened == std::set<int>{0, 2});
    // One that is named is not.
    EngineOptions named = options_for(model);
    named.device.device = "cuda:1,cuda:2";
    CHECK_THROWS_AS(Engine{named}, kernels::BackendError);
}

TEST_CASE("several GPUs: a GPU whose allocation fails is one error that names it, or a note and the CPU") {
    Gpus emulated(3);
    emulated->device_without_memory = 1;
    const TemporaryModel model(shape_of("llama", 3));
    EngineOptions options = options_for(model, {1, 1, 1});
    std::string error;
    try {
        Engine engine(options);
    } catch (const kernels::BackendError &failure) {
        error = failure.what();
    }
    CHECK(error.starts_with("cuda:1: emulated device: no memory for "));
    CHECK(error.find('\n') == std::string::npos);
    options.device = {"auto", {}};
    emulated->memory_of = {size_t{1} << 20, kGiB, size_t{1} << 20};
    Engine engine(options);
    CHECK(engine.placement() == "all layers on the CPU");
    REQUIRE(!engine.notes().empty());
    CHECK(engine.notes()[0].find("no memory for ") != std::string::npos);
    CHECK(engine.notes()[0].ends_with("; everything runs on the CPU"));
}

TEST_CASE("several GPUs: what does not fit on them runs on the CPU") {
    Gpus emulated(2);
    const TemporaryModel model(shape_of("llama", 6, "F16"));
    EngineOptions options = options_for(model);
    options.device.device = "cpu";
    Engine cpu(options);
    const ComputedText expected = compute(cpu);
    options.device = {"cuda:0,cuda:1", {{5}, {}, {1, 2}}};
    Engine divided(options);
    CHECK(divided.placement() == "5 of 7 layers on 2 GPUs (2 on cuda:0, 3 on cuda:1), the others on the CPU");
    CHECK(divided.executor().device().kind == "cuda+cuda+cpu [2-3] [4-5] [0-1]");
    CHECK(compute(divided).greedy == expected.greedy);
}

TEST_CASE("several GPUs: random memories are filled in order, and none gets more than it has") {
    std::mt19937 random(7);
    ModelShape shape = shape_of("llama", 12);
    shape.width = 256, shape.ff = 512;
    const TemporaryModel model(shape);
    const kernels::Program program = model::build(model.file).program;
    const model::Layers layers = model::layers_of(program);
    const ContextRequest context{.own = 4096, .asked = 4096, .batch = 64};
    int whole = 0, on_cpu = 0;
    for (int round = 0; round < 40; ++round) {
        CAPTURE(round);
        const auto gpus = static_cast<int>(2 + random() % 7);
        const Gpus emulated(gpus);
        const kernels::Devices found = kernels::devices(1);
        DeviceList devices = found.gpus;
        devices.push_back(found.cpu);
        const size_t all =
            plan_placement(program, {found.gpus[0], found.cpu}, {kGiB, kGiB}, {}, context)->gpu.all();
        const size_t work = found.gpus[0]->need(program, {}, context.batch).work;
        FreeMemory free;
        for (int gpu = 0; gpu < gpus; ++gpu)
            free.push_back(work + random() % (3 * (all - work) / static_cast<size_t>(gpus)));
        free.push_back(kGiB);
        // Layer by layer: the GPUs of `placement` take what fits, in order; false if layers are left.
        const CacheShape cells{.cells = context.asked, .batch = context.batch};
        const auto fill = [&](Placement &placement) {
            placement.each.assign(static_cast<size_t>(gpus), 0);
            int32_t left = placement.gpu_layers;
            for (size_t gpu = 0; gpu < placement.each.size(); ++gpu)
                for (; left > 0; --left) {
                    Placement more = placement;
                    ++more.each[gpu];
                    const auto split =
                        kernels::split_program(program, assign_steps(program, devices, more), devices.size());
                    const kernels::CacheConfig cache = cache_config(program, cells, context.asked);
                    if (devices[gpu]->need(split.programs[gpu], cache, context.batch).all() > free[gpu])
                        break;
                    placement = more;
                }
            return left == 0;
        };
        Placement expected{12, 13, true, 0};
        while (expected.gpu_layers > 0 && !fill(expected))
            if (!std::exchange(expected.embedding, false)) --expected.gpu_layers;
        const auto plan = plan_placement(program, devices, free, {}, context);
        REQUIRE(plan);
        const Placement &placement = plan->placement;
        CHECK(placement.gpu_layers == expected.gpu_layers);
        CHECK(placement.embedding == expected.embedding);
        CHECK(placement.each == expected.each);
        ++(plan->divided ? on_cpu : whole);
        const std::vector<uint8_t> device = assign_steps(program, devices, placement);
        const auto place = [&](uint8_t d) { return d == gpus ? 0 : d + 1; };  // the CPU, then the GPUs
        CHECK(std::ranges::is_sorted(device, {}, place));
    }
    CHECK(whole > 5);
    CHECK(on_cpu > 5);
}

TEST_CASE("several GPUs: requested shares are kept, and what does not fit is refused with the numbers") {
    const Gpus emulated(3);
    const TemporaryModel model(shape_of("llama", 7));
    const kernels::Program program = model::build(model.file).program;
    const kernels::Devices found = kernels::devices(1);
    const DeviceList devices = {found.gpus[0], found.gpus[1], found.gpus[2], found.cpu};
    const ContextRequest context{.own = 256, .asked = 256};
    const auto each = [&](std::vector<double> shares, std::optional<int64_t> layers = {}) {
        return plan_placement(program, devices, {kGiB, kGiB, kGiB, kGiB}, {layers, {}, std::move(shares)},
                              context)
            ->placement.each;
    };
    CHECK(each({1, 1, 2}) == std::vector<int32_t>{2, 2, 4});
    CHECK(each({3, 0, 1}) == std::vector<int32_t>{6, 0, 2});
    CHECK(each({0, 0, 1}) == std::vector<int32_t>{0, 0, 8});
    CHECK(each({1, 1, 2}, 4) == std::vector<int32_t>{1, 1, 2});
    const size_t little = size_t{1} << 20;
    CHECK_THROWS_WITH_AS(
        plan_placement(program, devices, {little, little, little, kGiB}, {99, {}, {}}, context),
        doctest::Contains("the GPUs have 3 MiB free"), DecodeError);
    // The embedding goes with the first layer, not with a GPU that has none.
    const std::vector<uint8_t> device = assign_steps(program, devices, {7, 8, true, 0, {0, 3, 5}});
    CHECK(std::ranges::count(device, 0) == 0);
    CHECK(device.front() == 1);
}
