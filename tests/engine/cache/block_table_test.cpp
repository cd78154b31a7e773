#include "engine/cache/block_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

using namespace runnel::cache;

TEST_CASE("cache: a sequence owns just the blocks that its cells need") {
    BlockPool pool(10);
    BlockTable sequence(pool);
    REQUIRE(sequence.append(1));
    CHECK(sequence.table().size() == 1);
    REQUIRE(sequence.append(kBlockTokens - 1));
    CHECK(sequence.table().size() == 1);
    REQUIRE(sequence.append(1));
    CHECK(sequence.table().size() == 2);
    CHECK(pool.free_blocks() == 8);
    sequence.truncate(kBlockTokens);
    CHECK(sequence.table().size() == 1);
    sequence.truncate(0);
    CHECK(pool.free_blocks() == 10);
}

TEST_CASE("cache: an append that does not fit changes nothing") {
    BlockPool pool(3);
    BlockTable sequence(pool);
    REQUIRE(sequence.append(40));
    CHECK_FALSE(sequence.append(57));
    CHECK(sequence.length() == 40);
    CHECK(sequence.table().size() == 2);
    CHECK(pool.free_blocks() == 1);
    CHECK(sequence.append(56));
    CHECK(pool.free_blocks() == 0);
}

TEST_CASE("cache: moved sequences keep their blocks, dropped ones return them") {
    BlockPool pool(4);
    {
        BlockTable a(pool);
        REQUIRE(a.append(64));
        BlockTable b(std::move(a));
        CHECK(a.length() == 0);
        CHECK(b.length() == 64);
        BlockTable c(pool);
        REQUIRE(c.append(32));
        c = std::move(b);
        CHECK(c.length() == 64);
        CHECK(pool.free_blocks() == 2);
    }
    CHECK(pool.free_blocks() == 4);
}

TEST_CASE("cache: random appends and truncations never share or lose a block") {
    const unsigned seed = 20261;
    CAPTURE(seed);
    std::mt19937 random(seed);
    BlockPool pool(50);
    std::vector<BlockTable> sequences;
    for (int i = 0; i < 6; ++i) sequences.emplace_back(pool);
    for (int step = 0; step < 5000; ++step) {
        BlockTable &s = sequences[random() % sequences.size()];
        if (random() % 3 == 0) {
            s.truncate(static_cast<int32_t>(random() % static_cast<unsigned>(s.length() + 1)));
        } else {
            const int32_t before = s.length(), count = static_cast<int32_t>(random() % 100);
            if (!s.append(count)) CHECK(s.length() == before);
        }
        std::set<BlockId> used;
        size_t owned = 0;
        for (const BlockTable &each : sequences) {
            owned += each.table().size();
            used.insert(each.table().begin(), each.table().end());
            REQUIRE(each.table().size() ==
                    static_cast<size_t>((each.length() + kBlockTokens - 1) / kBlockTokens));
        }
        REQUIRE(used.size() == owned);
        REQUIRE(static_cast<int32_t>(owned) + pool.free_blocks() == pool.size());
    }
}
