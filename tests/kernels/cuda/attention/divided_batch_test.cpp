// The lists of what each of several devices does with a batch (kernels/cuda/attention/divided_batch.h).
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/divided_batch.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::kernels::cuda;

namespace {

constexpr int32_t kRangeBlocks = kRangeCells / kBlockTokens, kGroupBlocks = 40 * kRangeBlocks;

template <class T>
std::vector<T> items(const std::vector<int32_t> &words, size_t at, int32_t count) {
    const auto *first = reinterpret_cast<const T *>(words.data() + at);
    return {first, first + count};
}

struct Sequences {
    std::vector<std::vector<BlockId>> tables;
    std::vector<SequenceSpan> spans;
    Batch batch() const {
        Batch batch{};
        batch.sequences = spans;
        return batch;
    }
};

// Sequences of random lengths, whose ranges are on the devices in turn; some begin with the range of another.
Sequences random_sequences(int32_t ranks, std::mt19937 &random) {
    Sequences all;
    std::vector<int32_t> next(static_cast<size_t>(ranks));
    int32_t first = 0;
    for (int i = 0; i < 6; ++i) {
        const auto past = static_cast<int32_t>(random() % 3000);
        const auto count = static_cast<int32_t>(random() % 2 ? 1 + random() % 16 : 17 + random() % 60);
        std::vector<BlockId> table;
        for (int32_t range = 0; range * kRangeCells < past + count; ++range) {
            const auto rank = static_cast<size_t>(range % ranks);
            const int32_t at = range == 0 && i % 2 ? 0 : next[rank]++;
            for (int32_t b = 0; b < kRangeBlocks; ++b)
                table.push_back(static_cast<int32_t>(rank) * kGroupBlocks + at * kRangeBlocks + b);
        }
        all.tables.push_back(std::move(table));
        all.spans.push_back({first, count, past, {}});
        first += count;
    }
    for (size_t i = 0; i < all.spans.size(); ++i) all.spans[i].tables = {all.tables[i]};
    return all;
}

// The sequences whose splits the rounds join, and the places of a rank's splits.
void check_rounds(const DividedGroup &group, const Sequences &all, const DividedBatch &batch,
                  const std::vector<int32_t> &words, std::set<int32_t> &few) {
    for (const DividedBatch::Round &round : batch.rounds) {
        const auto held = items<HeldSplit>(words, round.held, round.held_splits);
        std::map<std::pair<int32_t, int32_t>, int32_t> own;
        for (const HeldSplit &h : held) own[{h.sequence, h.split}] = h.place;
        std::set<int32_t> taken;
        for (const auto &one : items<DividedSequence>(words, round.divided, round.sequences)) {
            const SequenceSpan &s = all.spans[static_cast<size_t>(one.sequence)];
            CHECK(few.insert(one.sequence).second);
            CHECK(s.count <= round.most_tokens);
            CHECK(one.splits == (s.past + s.count + kAttentionSplit - 1) / kAttentionSplit);
            const auto places =
                items<int32_t>(words, round.places + static_cast<size_t>(one.first), one.splits);
            for (int32_t split = 0; split < one.splits; ++split) {
                const int32_t place = places[static_cast<size_t>(split)];
                const auto rank = static_cast<size_t>(
                    s.tables[0][static_cast<size_t>(split * kAttentionSplit / kBlockTokens)] / kGroupBlocks);
                CHECK(place >= (rank == 0 ? 0 : round.ends[rank - 1]));
                CHECK(place + s.count <= round.ends[rank]);
                for (int32_t t = 0; t < s.count; ++t) CHECK(taken.insert(place + t).second);
                const auto mine = own.find({one.sequence, split});
                CHECK((mine != own.end()) == (static_cast<int32_t>(rank) == group.rank));
                if (mine != own.end()) CHECK(mine->second == place);
            }
        }
        CHECK(round.ends.back() == static_cast<int64_t>(taken.size()));
        CHECK(round.ends.back() <= group.room);
    }
}

}  // namespace

TEST_CASE("divided batch: every split, token and page of a batch is on one rank, as all ranks say") {
    std::mt19937 random(5);
    size_t rounds = 0;
    for (const int32_t ranks : {2, 3, 5})
        for (const int64_t room : {20, 90, 400}) {
            const Sequences all = random_sequences(ranks, random);
            std::vector<DividedBatch::Run> own_runs;
            for (int32_t rank = 0; rank < ranks; ++rank) {
                const DividedGroup group{0, ranks, rank, kGroupBlocks, room};
                std::vector<int32_t> words = {7};
                const DividedBatch batch = divide_batch(group, all.batch(), words);
                std::set<int32_t> few;
                check_rounds(group, all, batch, words, few);
                rounds = std::max(rounds, batch.rounds.size());
                // The others: each block once, on its rank; their tokens are cut.
                std::set<BlockId> blocks;
                int32_t tokens = 0;
                const auto sequences = static_cast<int32_t>(all.spans.size());
                const bool many = batch.many_tokens > 0;
                for (int32_t i = 0; i < sequences; ++i) {
                    const SequenceSpan &s = all.spans[static_cast<size_t>(i)];
                    const bool is_few = few.contains(i);
                    CHECK(is_few == (s.count <= kFewTokens &&
                                     int64_t{s.count} * ((s.past + s.count + 255) / 256) <= room));
                    if (!is_few) {
                        tokens += s.count;
                        for (int32_t b = 0; b * kBlockTokens < s.past + s.count; ++b)
                            blocks.insert(s.tables[0][static_cast<size_t>(b)]);
                    }
                    if (!many) continue;
                    const auto whole =
                        items<SequenceInfo>(words, batch.whole, sequences)[static_cast<size_t>(i)];
                    CHECK(whole.count == (is_few ? 0 : s.count));
                    const auto own = items<SequenceInfo>(words, batch.own, sequences)[static_cast<size_t>(i)];
                    if (own.count > 0) CHECK(own.past - own.first == s.past - s.first);
                }
                CHECK(batch.many_tokens == tokens);
                if (!many) continue;
                REQUIRE(batch.page_ends.size() == static_cast<size_t>(ranks));
                const auto pages = items<BlockId>(words, batch.pages, batch.page_ends.back());
                CHECK(std::set(pages.begin(), pages.end()) == blocks);
                CHECK(pages.size() == blocks.size());
                for (size_t i = 0; i < pages.size(); ++i)
                    CHECK(batch.page_ends[static_cast<size_t>(pages[i] / kGroupBlocks)] >
                          static_cast<int32_t>(i));
                // All ranks cut alike, and every token is on one of them.
                if (rank == 0) own_runs = batch.own_runs;
                std::set<int32_t> of_ranks;
                REQUIRE(batch.own_runs.size() == own_runs.size());
                for (size_t i = 0; i < own_runs.size(); ++i) {
                    const DividedBatch::Run &run = batch.own_runs[i];
                    CHECK(run.rank == own_runs[i].rank);
                    CHECK(run.first == own_runs[i].first);
                    for (int32_t t = 0; t < run.count; ++t) CHECK(of_ranks.insert(run.first + t).second);
                }
                CHECK(of_ranks.size() == static_cast<size_t>(tokens));
            }
        }
    CHECK(rounds > 1);
}
