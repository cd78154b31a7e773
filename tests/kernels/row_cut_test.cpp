#include "kernels/row_cut.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <set>

using namespace runnel::kernels;

namespace {

std::vector<double> random_shares(std::mt19937 &random, size_t ranks) {
    std::vector<double> shares(ranks);
    do
        for (double &share : shares)
            share = random() % 4 == 0 ? 0 : std::uniform_real_distribution(0.1, 4.0)(random);
    while (std::accumulate(shares.begin(), shares.end(), 0.0) == 0);
    return shares;
}

}  // namespace

TEST_CASE(
    "row cut: shares cover all units once, within one unit of the exact share, and none without a share") {
    std::mt19937 random(1);
    for (int round = 0; round < 500; ++round) {
        const std::vector<double> shares = random_shares(random, 1 + random() % 8);
        const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
        const int64_t rows = random() % 300, unit = 1 + random() % 20;
        const Cut cut = cut_rows(rows, unit, shares);
        REQUIRE(cut.size() == shares.size());
        int64_t at = 0;
        for (size_t r = 0; r < cut.size(); ++r) {
            CHECK(cut[r].begin == at);
            CHECK(cut[r].end >= at);
            CHECK((cut[r].begin % unit == 0 || cut[r].begin == rows));
            at = cut[r].end;
            if (shares[r] == 0) CHECK(cut[r].size() == 0);
            const double exact = static_cast<double>((rows + unit - 1) / unit) * shares[r] / all;
            CHECK(std::abs(static_cast<double>((cut[r].size() + unit - 1) / unit) - exact) < 1.0001);
        }
        CHECK(at == rows);
    }
    CHECK(cut_units(5, std::vector<double>{1, 1}) == Cut{{0, 3}, {3, 5}});
    CHECK(cut_units(10, std::vector<double>{3, 0, 1}) == Cut{{0, 8}, {8, 8}, {8, 10}});
}

TEST_CASE("row cut: every query head is on one rank, together with its K/V head") {
    std::mt19937 random(2);
    for (int round = 0; round < 500; ++round) {
        const std::vector<double> shares = random_shares(random, 1 + random() % 8);
        const auto kv_heads = static_cast<int32_t>(1 + random() % 9),
                   group = static_cast<int32_t>(1 + random() % 5);
        const HeadCut cut = cut_heads(kv_heads * group, kv_heads, shares);
        int64_t at = 0;
        std::set<int64_t> kv_found;
        for (size_t r = 0; r < shares.size(); ++r) {
            const Range heads = cut.heads[r], kv = cut.kv_heads[r];
            CHECK(heads.begin == at);
            at = heads.end;
            CHECK((heads.size() == 0) == (kv.size() == 0));
            if (heads.size() == 0) continue;
            // Attention of the rank maps its head i to its K/V head i / (heads / kv_heads).
            REQUIRE(heads.size() % kv.size() == 0);
            for (int64_t i = 0; i < heads.size(); ++i) {
                const int64_t used = kv.begin + i / (heads.size() / kv.size());
                CHECK(used == (heads.begin + i) / group);
                kv_found.insert(used);
            }
        }
        CHECK(at == kv_heads * group);
        CHECK(static_cast<int32_t>(kv_found.size()) == kv_heads);
        int64_t covered = 0;
        for (const Range &own : without_copies(cut.kv_heads)) {
            if (own.size() > 0) CHECK(own.begin == covered);
            covered += own.size();
        }
        CHECK(covered == kv_heads);
    }
    // Fewer K/V heads than ranks: they are repeated.
    const HeadCut repeated = cut_heads(8, 2, std::vector<double>(4, 1));
    CHECK(repeated.heads == Cut{{0, 2}, {2, 4}, {4, 6}, {6, 8}});
    CHECK(repeated.kv_heads == Cut{{0, 1}, {0, 1}, {1, 2}, {1, 2}});
}
