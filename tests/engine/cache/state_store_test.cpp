// Which checkpoints remain when slots run out: how many tokens a change to a text would read again.
#include "engine/cache/state_store.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

using namespace runnel::cache;
using runnel::kernels::kBlockTokens;

namespace {

constexpr std::array<int32_t, kBlockTokens> kTokens{};

// One text that grows. A checkpoint's key is its position and the branch of the text.
class Text {
  public:
    explicit Text(StateStore &store) : store_(store) {}

    void keep(int32_t position, uint64_t branch = 0) {
        const StateId slot = store_.take(true);
        REQUIRE(slot != kNoState);
        store_.keep({static_cast<uint64_t>(position), branch}, kTokens, {position, slot},
                    {before(position - 1), find(before(position - 1))});
        store_.pool().release(slot);
        if (branch == 0) positions_.push_back(position);
    }

    StateId find(int32_t position) const {
        return store_.find({static_cast<uint64_t>(position), 0}, kTokens);
    }

    // The last checkpoint at or before a position; 0 if there is none.
    int32_t before(int32_t position) const {
        int32_t best = 0;
        for (const int32_t kept : positions_)
            if (kept <= position && find(kept) != kNoState) best = std::max(best, kept);
        return best;
    }

  private:
    StateStore &store_;
    std::vector<int32_t> positions_;  // all that were ever kept
};

TEST_CASE(
    "state store: a long text keeps its first checkpoint, and gaps that grow with the distance from the "
    "end") {
    for (uint32_t round = 0; round < 20; ++round) {
        CAPTURE(round);
        std::mt19937 random(round);
        StateStore store(18, 2);
        Text text(store);
        const bool turns = round % 2 == 1;  // with checkpoints where turns end, between those at intervals
        int32_t end = 0, last = 0;
        while (end < 10000) {
            end += kBlockTokens;
            const bool turn_ends = turns && random() % 28 == 0;
            if (end % kStateInterval != 0 && !turn_ends) continue;
            text.keep(end);
            last = end;
            CHECK(text.find(last) != kNoState);
            CHECK(text.before(kStateInterval + kBlockTokens) >= std::min(end, kBlockTokens));
            for (int32_t position = 0; position <= last; position += 8) {
                const int32_t gap = position - text.before(position);
                CAPTURE(position);
                CAPTURE(end);
                CHECK(gap <= std::max(3 * kStateInterval, end - position));
            }
        }
    }
}

TEST_CASE("state store: branches that end near a checkpoint do not replace the rest of the text") {
    StateStore store(18, 2);
    Text text(store);
    for (int32_t position = kStateInterval; position <= 8 * kStateInterval; position += kStateInterval)
        text.keep(position);
    for (uint64_t branch = 1; branch <= 40; ++branch) text.keep(8 * kStateInterval + kBlockTokens, branch);
    int kept = 0;
    for (int32_t position = kStateInterval; position <= 8 * kStateInterval; position += kStateInterval)
        kept += text.find(position) != kNoState;
    CHECK(kept >= 6);
    CHECK(text.find(8 * kStateInterval) != kNoState);
}

TEST_CASE("state store: a text that is not used any more makes room for others") {
    StateStore store(10, 2);
    Text text(store);
    text.keep(kStateInterval);
    for (int32_t other = 1; other <= 400; ++other) {
        const StateId slot = store.take(true);
        REQUIRE(slot != kNoState);
        store.keep({static_cast<uint64_t>(other), 99}, kTokens, {kStateInterval, slot}, {});
        store.pool().release(slot);
    }
    CHECK(text.find(kStateInterval) == kNoState);
}

}  // namespace
