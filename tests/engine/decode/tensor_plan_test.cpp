// The context that devices or processes which run a model together have room for, next to what drafts on the first one.
#include "engine/decode/tensor_plan.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/error.h"
#include "engine/decode/speculation/drafting.h"
#include "engine/model/draft_block.h"
#include "engine/model/model.h"
#include "kernels/divided_groups.h"
#include "kernels/tensor_program.h"
#include "tests/support/draft_model.h"
#include "tests/support/split_ranks.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::decode;

namespace {

// The CPU of a machine with so much free memory.
class SmallMachine final : public kernels::Device {
  public:
    explicit SmallMachine(size_t free) : free_(free) {}
    std::string name() const override { return cpu_->name(); }
    kernels::DeviceInfo info() const override { return cpu_->info(); }
    size_t free_memory() const override { return free_; }
    kernels::MemoryNeed need(const kernels::Program &program, const kernels::CacheConfig &cache,
                             int32_t max_tokens) const override {
        return cpu_->need(program, cache, max_tokens);
    }
    size_t cache_need(const kernels::Program &program, const kernels::CacheConfig &cache,
                      int32_t max_tokens) const override {
        return cpu_->cache_need(program, cache, max_tokens);
    }
    std::vector<std::string> missing(const kernels::Program &program) const override {
        return cpu_->missing(program);
    }
    std::unique_ptr<kernels::Backend> backend() const override { return cpu_->backend(); }

  private:
    kernels::DevicePtr cpu_ = kernels::cpu_device(1);
    size_t free_;
};

// The message of the refusal, or "".
template <class Plan>
std::string refusal_of(const Plan &plan) {
    try {
        plan();
    } catch (const DecodeError &error) {
        CHECK(error.kind == DecodeError::Kind::OutOfMemory);
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("tensor plan: of several processes, the first one has room for what drafts, too") {
    const tests::TinyProgram tiny({.layers = 4, .type = gguf::Type::Q8_0}, 1);
    const kernels::Program &program = tiny.program();
    const auto machine = std::make_shared<SmallMachine>(size_t{64} << 20);
    ContextRequest request{.own = kMostContext, .batch = 32};
    const auto cells = [&](int processes) {
        return plan_processes(program, machine, processes, {}, request).context.cells;
    };
    const int64_t alone = cells(2);
    CHECK(alone > 1000);
    CHECK(alone < kMostContext);
    // As many bytes for each cell as the first process's half of the cache has.
    const size_t each = kernels::cache_block_bytes(program, 0) / kernels::kBlockTokens / 2;
    request.beside = [&](const CacheShape &shape, int64_t) {
        return static_cast<size_t>(shape.cells) * each;
    };
    CHECK(cells(2) <= alone / 2 + 32);
    CHECK(cells(2) >= alone / 2 - 64);
    request.cache_size = 1 << 20;  // of the model's cache alone, as with one process
    const int64_t given = cells(2);
    request.beside = {};
    CHECK(cells(2) == given);
}

TEST_CASE("tensor plan: a cache that does not fit beside that of the drafting layers is refused") {
    const tests::TinyProgram tiny({.layers = 2, .type = gguf::Type::Q8_0}, 2);
    const auto machine = std::make_shared<SmallMachine>(size_t{32} << 20);
    ContextRequest request{.own = 4096, .asked = 4096, .batch = 32};
    const auto plan = [&] { (void)plan_processes(tiny.program(), machine, 3, {}, request); };
    CHECK(refusal_of(plan) == "");
    request.beside = [](const CacheShape &, int64_t) { return size_t{33} << 20; };
    CHECK(refusal_of(plan) ==
          "the cache of this context and that of the drafting layers, which the first process has whole, do "
          "not fit into the free memory next to the weights: choose a shorter context with -c, or no drafts");
    request.beside = {};
    request.own = request.asked = 1 << 24;
    CHECK(refusal_of(plan) ==
          "the cache of this context does not fit into the free memory next to the weights: choose a shorter "
          "context with -c, or more machines");
}

TEST_CASE("tensor plan: the first of several GPUs has room for the cache of the draft block, too") {
    const tests::Gpus gpus(2);
    const testing::DraftModel made("glm4moe");
    const gguf::File file = made.write();
    const kernels::Program program = model::build(file).program;
    const std::vector<kernels::Program> blocks = model::draft_blocks(file);
    constexpr int32_t kBatch = 32, kSequences = 64;  // of 512 cells
    const kernels::DevicePtr gpu = kernels::devices(1).gpus.front();
    for (const Split split : {Split::Tensor, Split::Context}) {
        CAPTURE(static_cast<int>(split));
        const kernels::TensorProgram tensor =
            kernels::cut_program(program, std::vector<double>{1, 1},
                                 kernels::divided_groups(program, split == Split::Context ? 2 : 1));
        // The model's cache fits, and the block's without its cache.
        const CacheShape all{.cells = kSequences * 512, .sequences = kSequences, .batch = kBatch};
        const size_t cache = cache_bytes(program, all) / 2;
        simt::settings().memory = size_t{1} << 30;
        simt::settings().memory_of = {gpu->need(tensor.programs[0], {}, kBatch).all() +
                                          gpu->need(blocks.at(0), {}, kBatch).all() + cache +
                                          (size_t{2} << 20),
                                      size_t{1} << 30};
        const auto engine = [&](Mtp mtp) {
            EngineOptions options{.model = made.path(),
                                  .threads = 1,
                                  .batch = kBatch,
                                  .sequences = kSequences,
                                  .mtp = mtp,
                                  .device = {"cuda", {}, split}};
            return std::make_unique<Engine>(options);
        };
        const int64_t alone = engine(Mtp::Off)->executor().cells();
        CHECK(alone == all.cells);
        const auto drafting = engine(Mtp::On);
        CHECK(drafting->executor().cells() < alone);
        CHECK(drafting->executor().cells() > alone / 4);
        const std::unique_ptr<StateDrafter> block = state_drafter(*drafting, kSequences);
        CHECK(block->name() == "mtp");
    }
}
