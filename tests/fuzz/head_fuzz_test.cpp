// Damaged draft heads, from the file to a drafted token: a file that still opens as GGUF must draft, or be refused with one
// printable line.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/decode/hidden_states.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/assistant_draft.h"
#include "engine/decode/speculation/dflash_draft.h"
#include "engine/decode/speculation/draft_block.h"
#include "engine/model/draft_block.h"
#include "engine/model/draft_head.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/assistant_pair.h"
#include "tests/support/damage.h"
#include "tests/support/dflash_pair.h"
#include "tests/support/eagle_pair.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::decode;
using namespace runnel::testing;

namespace {

using Pairs = HiddenStates::Pairs;

std::unique_ptr<StateDrafter> drafter_of(const model::DraftHead &head, const Executor &target,
                                         const std::shared_ptr<HiddenStates> &states) {
    const auto backend = [] { return kernels::cpu::make_cpu_backend(1); };
    if (head.kind == model::HeadKind::Assistant)
        return std::make_unique<AssistantDraft>(backend(), head, target, states);
    if (head.kind == model::HeadKind::DFlash)
        return std::make_unique<DFlashDraft>(backend, head, target, states);
    return std::make_unique<DraftBlock>(backend, std::span(&head.program, 1), target, states, 1, &head);
}

// Drafts two tokens with a head; the reason if it is refused.
std::string refusal_of(const gguf::File &target_file, const std::vector<std::byte> &bytes, Pairs pairs) {
    try {
        const gguf::File file = gguf::File::from_bytes(bytes, "broken");
        model::Model target = model::build(target_file);
        const model::DraftHead head = model::add_head(target, target_file, file);
        if ((head.kind == model::HeadKind::Eagle3) != (pairs == Pairs::WithNext))
            return "another kind of head";
        const auto states = std::make_shared<HiddenStates>(pairs);
        Executor executor(
            keep_hidden_states(kernels::cpu::make_cpu_backend(1), states, model::state_of(head.program)),
            target.program, {.context = 64, .batch = 8});
        const auto drafter = drafter_of(head, executor, states);
        SingleSequence sequence(executor);
        const std::vector<TokenId> text = {3, 5, 8};
        REQUIRE(sequence.feed(text));
        const cache::SequenceCache *cache = &sequence.sequence().cache();
        const int32_t most = std::min(2, drafter->most_steps());
        REQUIRE(drafter->begin({&cache, 1}, most, nullptr));
        for (int32_t i = 0; i < most; ++i) {
            const StateDrafter::Next next{0, 9};
            CHECK(drafter->step({&next, 1}).size() == static_cast<size_t>(executor.vocab()));
        }
        return "";
    } catch (const gguf::FileError &error) {
        return error.what();
    } catch (const model::ModelError &error) {
        return error.what();
    }
}

template <class Pair>
void check_damaged(Pair &pair, const std::filesystem::path &path, Pairs pairs, uint64_t seed) {
    (void)pair.file();
    const std::vector<std::byte> whole = read_bytes(path);
    REQUIRE(refusal_of(pair.target(), whole, pairs) == "");
    Random random(seed);
    int ran = 0, refused = 0;
    for (int round = 0; round < 1500; ++round) {
        CAPTURE(round);
        // Most edits change the metadata and the table of tensors.
        const size_t reach = random.below(8) == 0 ? whole.size() : std::min<size_t>(9000, whole.size());
        const auto middle = whole.begin() + static_cast<std::ptrdiff_t>(reach);
        std::vector<std::byte> bytes(whole.begin(), middle);
        mutate(bytes, random);
        bytes.insert(bytes.end(), middle, whole.end());
        const std::string refusal = refusal_of(pair.target(), bytes, pairs);
        CAPTURE(refusal);
        (refusal.empty() ? ran : refused) += 1;
        if (refusal.empty()) continue;
        CHECK(refusal.size() > 10);
        CHECK(refusal.size() < 600);
        CHECK(std::ranges::all_of(refusal, [](char c) { return c >= 0x20 && c < 0x7f; }));
    }
    MESSAGE("fuzz: " << ran << " heads drafted, " << refused << " were refused");
    CHECK(ran > 50);
    CHECK(refused > 200);
}

}  // namespace

TEST_CASE("fuzz: damaged draft heads draft or are refused") {
    const uint64_t seed = 20261126;
    CAPTURE(seed);
    EaglePair eagle({.rows = 40});
    check_damaged(eagle, eagle.head_path(), Pairs::WithNext, seed);
    AssistantPair assistant;
    check_damaged(assistant, assistant.path(), Pairs::WithBefore, seed + 1);
    DFlashPair drafter({.rows = 40, .block = 6, .window = 8});
    check_damaged(drafter, drafter.path(), Pairs::Alone, seed + 2);
}
