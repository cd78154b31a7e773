// Draft trees on the toy model: their gain, the state after them, and drafting for many sequences.
#include <doctest/doctest.h>

#include <limits>
#include <map>
#include <memory>
#include <string>

#include "engine/decode/error.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/lookup_draft.h"
#include "engine/decode/speculation/model_draft.h"
#include "engine/measure/synthetic_draft.h"
#include "tests/engine/decode/speculation/toy_draft.h"
#include "tests/support/answers.h"
#include "tests/support/toy_rig.h"

using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::measure;
using namespace runnel::testing;
namespace kernels = runnel::kernels;

namespace {

std::unique_ptr<Speculator> with(std::unique_ptr<DraftSource> source, int32_t most, int32_t branches) {
    std::vector<std::unique_ptr<DraftSource>> sources;
    sources.push_back(std::move(source));
    return std::make_unique<Speculator>(std::move(sources),
                                        SpeculationOptions{.length = {.most = most, .branches = branches}});
}

SamplingOptions greedy() {
    SamplingOptions how;
    how.temperature = 0;
    return how;
}

Done answer(Executor &executor, const std::vector<TokenId> &prompt, int64_t count,
            std::unique_ptr<Speculator> speculator) {
    return answer_one(executor, toy_letters(),
                      {.input = Tokens{prompt},
                       .sampling = greedy(),
                       .limits = {.max_tokens = count, .ignore_end = true}},
                      std::move(speculator))
        .done;
}

}  // namespace

TEST_CASE("tree: right second choices beside wrong first ones save passes") {
    const std::vector<TokenId> prompt = {3, 1, 4};
    ToyRig plain({.context = 400});
    std::vector<TokenId> truth = prompt;
    const std::vector<TokenId> expected = answer(plain.executor, prompt, 300, nullptr).tokens;
    truth.insert(truth.end(), expected.begin(), expected.end());
    std::map<double, double> accepted, passes;
    for (const double second : {0.0, 0.5, 1.0}) {
        CAPTURE(second);
        ToyRig rig({.context = 400});
        const Done done =
            answer(rig.executor, prompt, 300,
                   with(std::make_unique<SyntheticDraft>(truth, 0.5, 1, kToyVocab, second), 4, 5));
        CHECK(done.tokens == expected);
        accepted[second] = done.speculation->mean_accepted();
        passes[second] = static_cast<double>(rig.backend->records.size());
    }
    // Chains of 4 tokens at 50% give 15/16 accepted tokens per pass. A second choice that is always right
    // adds one token, except in the 1 of 16 passes whose chain was right to the end.
    CHECK(accepted[0.0] == doctest::Approx(0.94).epsilon(0.2));
    CHECK(accepted[1.0] == doctest::Approx(0.94 + 0.94).epsilon(0.15));
    CHECK(accepted[0.5] > 1.2 * accepted[0.0]);
    CHECK(passes[1.0] < 0.75 * passes[0.0]);
}

TEST_CASE("tree: shared prefixes of branches are computed once, and their blocks are freed") {
    ToyRig rig({.context = 200, .batch = 64});
    const FreeBlocks free = rig.executor.free_blocks();
    {
        SingleSequence session(rig.executor);
        REQUIRE(session.feed(std::vector<TokenId>(50, 2)));
        const FreeBlocks before = rig.executor.free_blocks();
        session.entry().append(std::vector<TokenId>{3});
        session.entry().append_drafts(std::vector<TokenId>{4, 5, 6});
        session.entry().append_branch(0, std::vector<TokenId>{7});
        session.entry().append_branch(2, std::vector<TokenId>{8, 9});
        CHECK(session.entry().branch_tokens() == 3);
        REQUIRE(session.compute());
        CHECK(rig.backend->records.back().tokens == 4 + 3);
        CHECK(rig.backend->records.back().sequences == 3);
        CHECK(rig.backend->records.back().rows == 4 + 3);
        std::vector<TokenId> text(50, 2);
        text.insert(text.end(), {3, 4, 5, 8, 9});
        const auto logits = session.entry().branches()[1].rows.whole();
        REQUIRE(logits.size() == 2 * size_t{kToyVocab});
        CHECK(logits[size_t{kToyVocab} + 1] == toy_logit(hash_tokens(text), 1));
        session.entry().choose_branch(1);
        CHECK(session.tokens() == text);
        CHECK(session.entry().branches().empty());
        CHECK(rig.executor.free_blocks() == before);
        REQUIRE(session.feed(std::vector<TokenId>{1}));
        text.push_back(1);
        CHECK(session.logits()[1] == toy_logit(hash_tokens(text), 1));
    }
    CHECK(rig.executor.free_blocks() == free);
}

TEST_CASE("tree: a branch without a free block or row is left out") {
    ToyRig small({.context = 64, .batch = 64}), narrow({.context = 64, .batch = 4});
    for (ToyRig *rig : {&small, &narrow}) {
        const bool full = rig == &small;
        SingleSequence session(rig->executor);
        REQUIRE(session.feed(std::vector<TokenId>(full ? 40 : 30, 2)));
        session.entry().append(std::vector<TokenId>{3});
        session.entry().append_drafts(std::vector<TokenId>{4, 5, 6});
        session.entry().append_branch(0, std::vector<TokenId>{7});
        REQUIRE(session.compute());
        CHECK(session.logits().size() == 4 * size_t{kToyVocab});
        CHECK(session.entry().branches()[0].rows.empty());
    }
}

TEST_CASE("tree: lookup drafts two earlier continuations, and the text continues with either") {
    // "1 2 3" was followed by 4 and by 9, in this order.
    const std::vector<TokenId> text = {1, 2, 3, 4, 5, 6, 8, 1, 2, 3, 9, 7, 7, 6, 8, 8, 1, 2, 3};
    LookupDraft lookup;
    const Draft draft = lookup.draft(text, 4, 0);
    REQUIRE(draft.branches.size() == 1);
    CHECK(draft.branches[0].shared == 0);
    const bool latest_first = draft.tokens[0] == 9;
    CHECK(draft.tokens ==
          (latest_first ? std::vector<TokenId>{9, 7, 7, 6} : std::vector<TokenId>{4, 5, 6, 8}));
    CHECK(draft.branches[0].tokens ==
          (latest_first ? std::vector<TokenId>{4, 5, 6, 8} : std::vector<TokenId>{9, 7, 7, 6}));
    CHECK(draft.branches[0].probabilities.size() == 4);

    // A model that continues with one or the other, at random.
    ToyRig plain({.context = 300}), rig({.context = 300});
    for (ToyRig *side : {&plain, &rig})
        side->backend->model = [](const std::vector<int32_t> &prefix, std::span<float> logits) {
            const size_t place = prefix.size() % 8;
            size_t next = place < 3 ? 1 + place : 10 + place;
            if (place == 3) next = mix(prefix.size()) % 2 ? 4 : 9;
            logits[next] = 100;
        };
    const Done done = answer(rig.executor, {1, 2, 3}, 250, with(std::make_unique<LookupDraft>(), 6, 3));
    CHECK(done.tokens == answer(plain.executor, {1, 2, 3}, 250, nullptr).tokens);
    CHECK(done.speculation->branches_accepted > 5);
}

TEST_CASE("tree: under the rejection rule, and with one branch, drafts are chains") {
    for (const bool rejection : {false, true}) {
        ToyRig rig({.context = 200});
        std::vector<std::unique_ptr<DraftSource>> sources;
        sources.push_back(std::make_unique<ToyDraft>(
            ToyDraftOptions{.vocab = kToyVocab, .doubt = 1, .with_distributions = rejection}, 1));
        const SpeculationOptions how{.length = {.most = 4, .branches = rejection ? 8 : 1},
                                     .rule = rejection ? DraftRule::Rejection : DraftRule::Same};
        const Done done =
            answer(rig.executor, {1}, 100, std::make_unique<Speculator>(std::move(sources), how));
        CHECK(done.speculation->passes > 10);
        CHECK(done.speculation->branches == 0);
    }
}

// --- models that draft -----------------------------------------------------------------------------------

TEST_CASE("model draft: in a batch, sequences draft in common passes, and get the same drafts as alone") {
    const auto run = [](int32_t parallel, ToyRig &target, ToyRig &draft) {
        CompletionQueue queue(target.executor, toy_letters(),
                              {.parallel = parallel, .drafts = [&draft] {
                                   return with(std::make_unique<ModelDraft>(draft.executor, "model"), 3, 2);
                               }});
        for (uint64_t key = 0; key < 4; ++key) {
            SamplingOptions how;
            how.seed = key;
            how.temperature = key % 2 ? 0.0f : 1.0f;
            queue.submit({.input = Tokens{std::vector<TokenId>(5 + key, 2)},
                          .sampling = how,
                          .limits = {.max_tokens = 41, .ignore_end = true}});
        }
        std::map<uint64_t, std::string> texts;
        for (const auto &[key, answered] : answer_all(queue)) texts[key.first] = answered.text;
        // First choices are right, second choices wrong.
        const SpeculationCounts counts = queue.speculation();
        CHECK(counts.drafted == counts.accepted + counts.branches);
        return texts;
    };
    const ExecutorOptions shape{.context = 100, .batch = 64, .sequences = 4};
    ToyRig target_alone(shape), draft_alone(shape), target(shape), draft(shape);
    CHECK(run(1, target_alone, draft_alone) == run(4, target, draft));
    size_t together = 0;
    for (const ToyBackend::Record &record : draft.backend->records) together += record.sequences == 4;
    CHECK(together > 25);
    CHECK(3 * draft.backend->records.size() < draft_alone.backend->records.size());
}

TEST_CASE("model draft: an interrupt while it reads the prompt ends the answer at once") {
    ToyRig target({.context = 400}), draft({.context = 400, .batch = 8});
    StopRequest stop;
    draft.backend->on_execute = [&](const kernels::Batch &batch) {
        if (batch.positions[0] >= 16) stop.request(StopRequest::Reason::Interrupt);
    };
    CompletionQueue queue(target.executor, toy_letters(), {.drafts = [&draft] {
                              return with(std::make_unique<ModelDraft>(draft.executor, "model"), 4, 1);
                          }});
    Request request{.input = Tokens{std::vector<TokenId>(300, 2)},
                    .sampling = greedy(),
                    .limits = {.ignore_end = true},
                    .keep = true};
    queue.submit(request);
    const Done done = answer_all(queue, &stop).begin()->second.done;
    CHECK(done.reason == FinishReason::Interrupt);
    CHECK(done.tokens.size() == 1);
    CHECK(draft.backend->records.size() == 3);  // of 38 passes without the stop
    CHECK(done.speculation->failure == "");
    // The next draft continues from the tokens that were computed.
    stop.reset();
    draft.backend->on_execute = nullptr;
    request.limits.max_tokens = 20;
    request.continue_from = done.kept;
    queue.submit(request);
    const Done again = answer_all(queue).begin()->second.done;
    CHECK(again.tokens.size() == 20);
    CHECK(again.speculation->accepted > 10);
}

TEST_CASE("model draft: a failure among drafts made together ends only that draft") {
    const ExecutorOptions shape{.context = 100, .batch = 64, .sequences = 3};
    ToyRig lost(shape), shared(shape), other(shape);
    lost.backend->on_execute = [](const kernels::Batch &) {
        throw kernels::BackendError(kernels::BackendError::Kind::Failed, "the device is gone");
    };
    shared.backend->model = [](const std::vector<int32_t> &prefix, std::span<float> logits) {
        if (prefix[0] == 7 && prefix.size() == 6) logits[3] = std::numeric_limits<float>::infinity();
    };
    struct Sequence {
        ToyRig *rig;
        std::vector<TokenId> text;
        const char *failure;
        std::unique_ptr<Speculator> speculator = {};
    };
    std::vector<Sequence> sequences;
    sequences.push_back({&lost, {1, 2, 3}, "the device is gone"});
    sequences.push_back({&shared, {1, 2, 3}, ""});
    sequences.push_back({&shared, {7, 2, 3, 4}, "not finite"});  // at its third guess
    sequences.push_back({&shared, {7, 2, 3, 4, 5, 6, 7}, ""});
    sequences.push_back({&other, {7, 2, 3, 4}, ""});
    Sampler sampler(greedy(), kToyVocab);
    std::vector<Speculator::Part> parts;
    for (Sequence &s : sequences) {
        s.speculator = with(std::make_unique<ModelDraft>(s.rig->executor, "model"), 5, 2);
        parts.push_back({s.speculator.get(), s.text, 5, 4, &sampler});
    }
    Speculator::propose_together(parts);
    for (const Sequence &s : sequences) {
        CAPTURE(s.failure);
        const std::string &why = s.speculator->counts().failure;
        CHECK(why.empty() == std::string(s.failure).empty());
        CHECK(why.find(s.failure) != std::string::npos);
        CHECK(s.speculator->drafts().size() == (why.empty() ? 5 : 0));
    }
    // A source that failed is not used again, and its cache is free for the others.
    Speculator::propose_together(parts);
    for (const Sequence &s : sequences)
        CHECK(s.speculator->drafts().size() == (s.speculator->counts().failure.empty() ? 5 : 0));
    sequences.clear();
    CHECK(shared.executor.free_blocks() == other.executor.free_blocks());
}

TEST_CASE("model draft: a failed draft is reported once, and does not affect the next one") {
    ToyRig rig({.context = 100, .batch = 64});
    bool damaged = true;
    rig.backend->model = [&](const std::vector<int32_t> &prefix, std::span<float> logits) {
        if (damaged && prefix.size() == 6) logits[3] = std::numeric_limits<float>::quiet_NaN();
    };
    ModelDraft source(rig.executor, "model");
    Sampler sampler(greedy(), kToyVocab);
    const std::vector<TokenId> text = {7, 2, 3, 4};
    CHECK_THROWS_AS(source.draft(text, 5, 0, sampler), DecodeError);
    CHECK_FALSE(source.entry().due());
    damaged = false;
    const Draft draft = source.draft(text, 5, 0, sampler);
    ToyRig sound({.context = 100, .batch = 64});
    CHECK(draft.tokens == ModelDraft(sound.executor, "model").draft(text, 5, 0, sampler).tokens);
    CHECK(draft.tokens.size() == 5);
}
