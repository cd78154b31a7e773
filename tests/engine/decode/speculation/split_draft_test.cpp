// Drafts of draft blocks and EAGLE-3 heads for a model that several devices or processes compute together (--split tensor,
// --split context): they are those for a model on one device.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/completion/queue.h"
#include "engine/decode/engine.h"
#include "engine/decode/hidden_states.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/draft_block.h"
#include "engine/decode/speculation/drafting.h"
#include "engine/model/draft_block.h"
#include "engine/model/eagle3.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/group_backend.h"
#include "kernels/tensor_backend.h"
#include "tests/simt/nccl.h"
#include "tests/simt/simt.h"
#include "tests/support/dflash_pair.h"
#include "tests/support/draft_model.h"
#include "tests/support/draft_rig.h"
#include "tests/support/eagle_pair.h"
#include "tests/support/program_runs.h"
#include "tests/support/split_ranks.h"

using namespace runnel;
using namespace runnel::decode;
using namespace runnel::testing;

namespace {

// A model, and what drafts for it.
struct Drafted {
    explicit Drafted(const gguf::File &file)
        : model(model::build(file)), programs(model::draft_blocks(file)) {}
    explicit Drafted(EaglePair &pair) : model(model::build(pair.target())) {
        head = model::add_eagle3(model, pair.target(), pair.file());
        programs = {head->program};
    }

    model::Model model;
    std::vector<kernels::Program> programs;
    std::optional<model::DraftHead> head;
};

// How CPUs divide a model.
struct Division {
    std::vector<double> shares = {1};  // of the rows of each matrix
    bool processes = false;            // here threads, with a communicator each; else devices of one backend
    bool cells = false;                // of the cache, in ranges of 512; else K/V heads
};

// Ranks above 0, which follow the backend of the leader until it is destroyed. The last one fails while `armed`.
class Followers {
  public:
    Followers(std::vector<double> shares, kernels::Program program, const std::atomic<bool> &armed)
        : program_(std::move(program)),
          shares_(std::move(shares)),
          communicators_(
              kernels::make_local_communicators(static_cast<int>(shares_.size()), std::chrono::seconds(60))),
          errors_(std::make_shared<std::vector<std::string>>(shares_.size())) {
        for (size_t r = 1; r < shares_.size(); ++r)
            threads_.emplace_back([this, r, last = r + 1 == shares_.size(), &armed] {
                std::unique_ptr<kernels::Backend> device = kernels::cpu::make_cpu_backend(1);
                if (last) device = std::make_unique<tests::FailingBackend>(std::move(device), armed);
                try {
                    kernels::follow(*device, *communicators_[r], program_, shares_);
                } catch (const kernels::BackendError &error) {
                    (*errors_)[r] = error.what();
                }
            });
    }
    ~Followers() {
        for (std::thread &thread : threads_) thread.join();
    }
    std::unique_ptr<kernels::Backend> leader() {
        return kernels::make_leading_backend(kernels::cpu::make_cpu_backend(1), *communicators_[0], shares_);
    }
    // What each of them has thrown when this object is destroyed; empty: nothing.
    std::shared_ptr<const std::vector<std::string>> errors() const { return errors_; }

  private:
    const kernels::Program program_;
    const std::vector<double> shares_;
    std::vector<std::unique_ptr<kernels::Communicator>> communicators_;
    std::shared_ptr<std::vector<std::string>> errors_;
    std::vector<std::thread> threads_;
};

// A model that CPUs compute together, and what drafts for it on the first one.
struct SplitRig {
    SplitRig(Drafted of, const Division &division, int32_t batch = 48, int32_t context = kRigContext)
        : drafted(std::move(of)),
          states(std::make_shared<HiddenStates>(drafted.head ? HiddenStates::Pairs::WithNext
                                                             : HiddenStates::Pairs::WithBefore)),
          followers(division.processes ? division.shares : std::vector<double>{1},
                    with_state_part(drafted.model.program, state()), follower_fails),
          executor(keep_hidden_states(backend(division), states, state()), drafted.model.program,
                   {.context = context,
                    .batch = batch,
                    .sequences = 6,
                    .ranks = division.cells ? static_cast<int32_t>(division.shares.size()) : 1}),
          block(
              [this] {
                  return std::make_unique<tests::FailingBackend>(kernels::cpu::make_cpu_backend(1),
                                                                 block_fails);
              },
              drafted.programs, executor, states, 3, drafted.head ? &*drafted.head : nullptr),
          sampler(sampling_of(0), static_cast<int32_t>(kDraftVocab)) {}
    SplitRig(const SplitRig &) = delete;

    const kernels::SlotInfo &state() const { return model::state_of(drafted.programs.front()); }
    std::unique_ptr<kernels::Backend> backend(const Division &division) {
        if (division.processes) return followers.leader();
        std::vector<std::unique_ptr<kernels::Backend>> cpus;
        for (size_t r = 0; r < division.shares.size(); ++r) cpus.push_back(kernels::cpu::make_cpu_backend(1));
        return kernels::make_tensor_backend(std::move(cpus), division.shares);
    }
    Draft draft(const SingleSequence &sequence, TokenId last, int32_t most) {
        return draft_of(block, sampler, {&sequence, last, most});
    }
    std::vector<Draft> draft_all(std::span<const Asked> asked) { return drafts_of(block, sampler, asked); }
    // Of a fixed length, so that the numbers of drafted and accepted tokens do not depend on measured times.
    MakeSpeculator speculators() {
        return [this] {
            std::vector<std::unique_ptr<DraftSource>> sources;
            sources.push_back(std::make_unique<StateDraft>(block, false));
            return std::make_unique<Speculator>(
                std::move(sources), SpeculationOptions{.length = {.most = 3, .fixed = true}}, nullptr);
        };
    }

    Drafted drafted;
    std::atomic<bool> follower_fails = false, block_fails = false;
    std::shared_ptr<HiddenStates> states;
    Followers followers;
    Executor executor;
    DraftBlock block;
    Sampler sampler;
};

const Division kDivisions[] = {{.shares = {1, 2}},
                               {.shares = {0, 1, 2}},  // the first device has no rows, but the states
                               {.shares = {1, 1}, .cells = true},
                               {.shares = {2, 1}, .processes = true},
                               {.shares = {1, 0, 2}, .processes = true, .cells = true}};

}  // namespace

TEST_CASE(
    "split draft: drafts are those for one device, after any chunks, roll-backs, forks and shared prefixes") {
    uint32_t seed = 0;
    for (const Division &division : kDivisions) {
        CAPTURE(division.shares.size());
        CAPTURE(division.processes);
        CAPTURE(division.cells);
        for (const char *arch : {"glm4moe", "qwen35", "mimo2"}) {
            CAPTURE(arch);
            DraftModel model(arch);
            const int32_t blocks = arch == std::string("mimo2") ? 3 : 1;  // before the last norm, and chained
            model.chain(blocks);
            const gguf::File file = model.write();
            SplitRig whole(Drafted(file), {}, 128), rig(Drafted(file), division, 16);
            check_changed_sequences(whole, rig, ++seed, blocks == 1 ? 6 : 3);
        }
        for (const char *arch : {"llama", "qwen35"}) {
            CAPTURE(arch);
            EaglePair pair({.layers = {1, 2, 4}, .seed = seed + 1}, arch);
            SplitRig whole(Drafted(pair), {}, 128), rig(Drafted(pair), division, 21);
            check_changed_sequences(whole, rig, ++seed, 6);
        }
    }
}

TEST_CASE("split draft: drafts made together are those made alone for one device") {
    uint32_t seed = 0;
    for (const Division &division : kDivisions)
        for (const char *arch : {"glm4moe", "qwen35", "eagle"}) {
            CAPTURE(division.shares.size());
            CAPTURE(division.processes);
            CAPTURE(division.cells);
            CAPTURE(arch);
            DraftModel model(arch == std::string("eagle") ? "glm4moe" : arch);
            const gguf::File file = model.write();
            EaglePair pair;
            const auto drafted = [&] { return arch == std::string("eagle") ? Drafted(pair) : Drafted(file); };
            SplitRig rig(drafted(), division, 17 + static_cast<int32_t>(++seed)), other(drafted(), {});
            check_common_passes(rig, other, text_of(40 + seed, seed), seed, 7);
        }
}

TEST_CASE(
    "split draft: over several ranges of cells, each on another rank, drafts are those for one device") {
    constexpr int32_t kLong = 1200;
    for (const bool processes : {false, true})
        for (const bool eagle : {false, true}) {
            CAPTURE(processes);
            CAPTURE(eagle);
            const DraftModel model("glm4moe");
            const gguf::File file = model.write();
            EaglePair pair;
            const auto drafted = [&] { return eagle ? Drafted(pair) : Drafted(file); };
            SplitRig one(drafted(), {}, 400, kLong),
                rig(drafted(), {.shares = {1, 1, 1}, .processes = processes, .cells = true}, 300, kLong);
            const std::vector<TokenId> text = text_of(1100, 7);
            SingleSequence a(one.executor), b(rig.executor);
            for (const size_t length : {size_t{510}, size_t{1100}, size_t{515}, size_t{1030}}) {
                CAPTURE(length);
                for (SingleSequence *sequence : {&a, &b}) {
                    const size_t has = sequence->tokens().size();
                    if (has > length) sequence->truncate(length);
                    if (has < length) REQUIRE(sequence->feed(std::span(text).subspan(has, length - has)));
                }
                const Draft expected = one.draft(a, 6, 6), got = rig.draft(b, 6, 6);
                CHECK(got.tokens.size() == 6);
                CHECK(got.tokens == expected.tokens);
                CHECK(got.probabilities == expected.probabilities);
            }
        }
}

TEST_CASE("split draft: several answers have the texts of plain decoding, and the acceptance of one device") {
    for (const bool eagle : {false, true})
        for (const float temperature : {0.0f, 0.9f}) {
            CAPTURE(eagle);
            CAPTURE(temperature);
            const DraftModel model("qwen35");
            const gguf::File file = model.write();
            EaglePair pair = EaglePair::ruled(kEagleVocab);
            const auto drafted = [&] { return eagle ? Drafted(pair) : Drafted(file); };
            Executor plain(kernels::cpu::make_cpu_backend(1), drafted().model.program,
                           {.context = kRigContext, .batch = 48, .sequences = 6});
            const Texts expected = answers(plain, {}, 5, temperature);
            SplitRig one(drafted(), {});
            const Texts alone = answers(one.executor, one.speculators(), 5, temperature);
            CHECK(alone.tokens == expected.tokens);
            CHECK(alone.counts.accepted > 0);
            for (const Division &division : kDivisions) {
                CAPTURE(division.shares.size());
                CAPTURE(division.processes);
                CAPTURE(division.cells);
                SplitRig rig(drafted(), division);
                const Texts texts = answers(rig.executor, rig.speculators(), 5, temperature);
                CHECK(texts.tokens == expected.tokens);
                CHECK(texts.counts.failure == "");
                CHECK(texts.counts.drafted == alone.counts.drafted);
                CHECK(texts.counts.accepted == alone.counts.accepted);
            }
        }
}

TEST_CASE("split draft: a process that fails while the first one drafts ends the next pass with one error") {
    const DraftModel model("glm4moe");
    const gguf::File file = model.write();
    std::shared_ptr<const std::vector<std::string>> errors;
    {
        SplitRig rig(Drafted(file), {.shares = {1, 1, 1}, .processes = true});
        errors = rig.followers.errors();
        SingleSequence sequence(rig.executor);
        REQUIRE(sequence.feed(text_of(20, 1)));
        const Draft draft = rig.draft(sequence, 5, 3);
        rig.follower_fails = true;
        CHECK(rig.draft(sequence, 5, 3).tokens == draft.tokens);  // by the first process alone
        CHECK_THROWS_WITH_AS((void)sequence.feed(text_of(2, 2)), "rank 2: the device is lost",
                             kernels::BackendError);
    }
    CHECK(*errors == std::vector<std::string>{"", "rank 2: the device is lost", "the device is lost"});
}

TEST_CASE("split draft: when a block fails, the texts go on without drafts, and no process fails") {
    const DraftModel model("glm4moe");
    const gguf::File file = model.write();
    std::shared_ptr<const std::vector<std::string>> errors;
    {
        SplitRig one(Drafted(file), {}), rig(Drafted(file), {.shares = {1, 1}, .processes = true});
        errors = rig.followers.errors();
        rig.block_fails = true;
        const Texts texts = answers(rig.executor, rig.speculators(), 3, 0);
        CHECK(texts.tokens == answers(one.executor, {}, 3, 0).tokens);
        CHECK(texts.counts.failure == "the device is lost");
        CHECK(texts.counts.drafted == 0);
    }
    CHECK(*errors == std::vector<std::string>{"", ""});
}

namespace {

struct SplitAnswers {
    std::vector<std::vector<TokenId>> tokens;
    SpeculationCounts counts;
};

// Two answers in one batch, on emulated GPUs; drafts have a fixed length.
SplitAnswers answers_on_gpus(const std::filesystem::path &model, const std::filesystem::path &head,
                             const DeviceRequest &device) {
    EngineOptions options{.model = model, .threads = 1, .context = 96, .batch = 32, .sequences = 2};
    options.device = device;
    options.mtp = head.empty() ? Mtp::On : Mtp::Off;
    options.head = head;
    Engine engine(options);
    CHECK(engine.no_draft_block() == "");
    const completion::PromptFormat format(engine.file(), engine.tokenizer());
    Drafting drafting(
        {.mtp = options.mtp, .head = !head.empty(), .how = {.length = {.most = 3, .fixed = true}}}, engine,
        2);
    CHECK(drafting.notes().empty());
    completion::CompletionQueue queue(engine, format,
                                      {.parallel = 2, .drafts = [&] { return drafting.speculator(); }});
    for (uint32_t i = 0; i < 2; ++i)
        queue.submit({.input = completion::Tokens{text_of(6 + 28 * i, i)},
                      .sampling = sampling_of(0),
                      .limits = {.max_tokens = 8, .ignore_end = true}});
    SplitAnswers all;
    for (const auto &[key, answer] : answer_all(queue)) {
        CHECK(answer.done.error == "");
        all.tokens.push_back(answer.done.tokens);
    }
    all.counts = queue.speculation();
    return all;
}

}  // namespace

TEST_CASE(
    "split draft: on (emulated) GPUs with some rows or cells each, texts and acceptance are those of one") {
    const tests::Gpus gpus(3);
    const DraftModel attention("glm4moe"), hybrid("qwen35");
    (void)attention.write();
    (void)hybrid.write();
    EaglePair pair = EaglePair::ruled(kEagleVocab);
    (void)pair.file();
    DFlashPair drafter({.block = 4});
    (void)drafter.file();
    struct Case {
        std::filesystem::path model, head;
        bool nccl;
        DeviceRequest device;
    };
    const DeviceRequest rows{"cuda", {{}, {}, {1, 2, 1}}, Split::Tensor}, cells{"cuda", {}, Split::Context},
        two{"cuda:0,cuda:1", {}, Split::Tensor};
    for (const Case &c : {Case{attention.path(), {}, false, cells}, Case{hybrid.path(), {}, true, rows},
                          Case{pair.target_path(), pair.head_path(), false, two},
                          Case{drafter.target_path(), drafter.path(), true, rows},
                          Case{drafter.target_path(), drafter.path(), false, cells}}) {
        CAPTURE(c.model.string());
        const SplitAnswers alone = answers_on_gpus(c.model, c.head, {"cuda:0"});
        std::optional<simt::WithNccl> nccl;
        if (c.nccl) nccl.emplace();
        const SplitAnswers split = answers_on_gpus(c.model, c.head, c.device);
        CHECK(split.tokens == alone.tokens);
        CHECK(alone.counts.drafted > 0);
        CHECK(split.counts.drafted == alone.counts.drafted);
        CHECK(split.counts.accepted == alone.counts.accepted);
        CHECK(split.counts.failure == "");
    }
}
