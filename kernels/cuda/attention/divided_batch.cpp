#include "kernels/cuda/attention/divided_batch.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>

#include "kernels/cuda/attention/attention.h"

namespace runnel::kernels::cuda {
namespace {

constexpr int32_t kSplitBlocks = kAttentionSplit / kBlockTokens;
static_assert(kRangeCells % kAttentionSplit == 0);  // a split is on one device

int32_t cells_of(const SequenceSpan &s) {
    return s.past + s.count;
}
int32_t divided_splits(const SequenceSpan &s) {
    return (cells_of(s) + kAttentionSplit - 1) / kAttentionSplit;
}

template <class T>
size_t append_words(std::vector<int32_t> &words, const std::vector<T> &items) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(int32_t) == 0);
    const size_t at = words.size(), size = items.size() * (sizeof(T) / sizeof(int32_t));
    words.resize(at + size);
    if (size > 0) std::memcpy(words.data() + at, items.data(), size * sizeof(int32_t));
    return at;
}

// Where the tokens of a sequence are cut so that the ranks attend to about as many cells: ranks + 1 offsets. If later tokens
// are visible to all (both_ways), one rank takes them together.
std::vector<int32_t> token_cuts(const SequenceSpan &s, int32_t ranks, size_t number) {
    std::vector<int32_t> cuts(static_cast<size_t>(ranks) + 1, s.count);
    cuts[0] = 0;
    if (s.both_ways) {
        std::fill_n(cuts.begin(), number % static_cast<size_t>(ranks) + 1, 0);
        return cuts;
    }
    const auto work = [&](int64_t tokens) { return tokens * s.past + tokens * (tokens + 1) / 2; };
    int32_t at = 0;
    for (int32_t r = 1; r < ranks; ++r) {
        while (at < s.count && work(at) * ranks < work(s.count) * r) ++at;
        cuts[static_cast<size_t>(r)] = at;
    }
    return cuts;
}

class Divider {
  public:
    Divider(const DividedGroup &group, const Batch &batch, std::vector<int32_t> &words)
        : group_(group), spans_(batch.sequences), words_(words) {}

    DividedBatch run() {
        for (size_t first = 0; first < spans_.size();) {
            int64_t taken = 0;
            size_t end = first;
            std::vector<size_t> round;
            for (; end < spans_.size(); ++end) {
                if (!is_few(spans_[end])) continue;
                if (!round.empty() && taken + room_of(spans_[end]) > group_.room) break;
                taken += room_of(spans_[end]);
                round.push_back(end);
            }
            if (!round.empty()) add_round(round);
            first = end;
        }
        add_many();
        return std::move(out_);
    }

  private:
    static int64_t room_of(const SequenceSpan &s) { return int64_t{s.count} * divided_splits(s); }
    bool is_few(const SequenceSpan &s) const { return s.count <= kFewTokens && room_of(s) <= group_.room; }
    std::span<const BlockId> table(size_t sequence) const {
        return spans_[sequence].tables[static_cast<size_t>(group_.group)];
    }
    int32_t rank_of_split(size_t sequence, int32_t split) const {
        return group_.rank_of(table(sequence)[static_cast<size_t>(split * kSplitBlocks)]);
    }

    // The places of a rank's splits are adjacent, so that they are sent as they are.
    void add_round(const std::vector<size_t> &sequences) {
        DividedBatch::Round round{};
        std::vector<DividedSequence> divided;
        std::vector<size_t> ranks;  // by split of all sequences
        round.ends.assign(static_cast<size_t>(group_.ranks), 0);
        for (const size_t s : sequences) {
            const int32_t splits = divided_splits(spans_[s]);
            divided.push_back({static_cast<int32_t>(s), static_cast<int32_t>(ranks.size()), splits});
            for (int32_t split = 0; split < splits; ++split) {
                ranks.push_back(static_cast<size_t>(rank_of_split(s, split)));
                round.ends[ranks.back()] += spans_[s].count;
            }
            round.most_tokens = std::max(round.most_tokens, spans_[s].count);
        }
        std::vector<int64_t> next(round.ends.size());
        std::exclusive_scan(round.ends.begin(), round.ends.end(), next.begin(), int64_t{0});
        std::vector<int32_t> places;
        std::vector<HeldSplit> held;
        for (const DividedSequence &one : divided)
            for (int32_t split = 0; split < one.splits; ++split) {
                const size_t rank = ranks[places.size()];
                places.push_back(static_cast<int32_t>(next[rank]));
                next[rank] += spans_[static_cast<size_t>(one.sequence)].count;
                if (static_cast<int32_t>(rank) == group_.rank)
                    held.push_back({one.sequence, split, places.back()});
            }
        round.ends = std::move(next);
        round.held_splits = static_cast<int32_t>(held.size());
        round.sequences = static_cast<int32_t>(divided.size());
        round.held = append_words(words_, held);
        round.divided = append_words(words_, divided);
        round.places = append_words(words_, places);
        out_.rounds.push_back(std::move(round));
    }

    void add_many() {
        if (std::ranges::all_of(spans_, [&](const SequenceSpan &s) { return is_few(s); })) return;
        std::vector<SequenceInfo> whole(spans_.size()), own(spans_.size());
        std::vector<std::vector<BlockId>> pages(static_cast<size_t>(group_.ranks));
        std::vector<char> listed(static_cast<size_t>(group_.ranks) * static_cast<size_t>(group_.blocks));
        std::vector<std::vector<DividedBatch::Run>> runs(static_cast<size_t>(group_.ranks));
        for (size_t i = 0; i < spans_.size(); ++i) {
            const SequenceSpan &s = spans_[i];
            if (is_few(s)) continue;
            whole[i] = own[i] = {s.first, s.count, s.past, 0, 0, s.both_ways ? cells_of(s) : 0};
            if (!out_.runs.empty() && out_.runs.back().first + out_.runs.back().count == s.first)
                out_.runs.back().count += s.count;
            else
                out_.runs.push_back({0, s.first, s.count});
            out_.many_tokens += s.count;
            const std::vector<int32_t> cuts = token_cuts(s, group_.ranks, i);
            for (size_t rank = 0; rank < runs.size(); ++rank)
                if (const int32_t count = cuts[rank + 1] - cuts[rank]; count > 0)
                    runs[rank].push_back({static_cast<int32_t>(rank), s.first + cuts[rank], count});
            const auto mine = static_cast<size_t>(group_.rank);
            own[i].first += cuts[mine], own[i].past += cuts[mine];
            own[i].count = cuts[mine + 1] - cuts[mine];
            if (own[i].count == 0) own[i] = {};
            for (const BlockId block : table(i).first(static_cast<size_t>(blocks_of(s)))) {
                if (std::exchange(listed[static_cast<size_t>(block)], 1) == 0)
                    pages[static_cast<size_t>(group_.rank_of(block))].push_back(block);
            }
        }
        out_.whole = append_words(words_, whole);
        out_.own = append_words(words_, own);
        out_.pages = words_.size();
        for (size_t rank = 0; rank < pages.size(); ++rank) {
            append_words(words_, pages[rank]);
            out_.page_ends.push_back(static_cast<int32_t>(words_.size() - out_.pages));
            out_.own_runs.insert(out_.own_runs.end(), runs[rank].begin(), runs[rank].end());
        }
    }
    static int32_t blocks_of(const SequenceSpan &s) {
        return (cells_of(s) + kBlockTokens - 1) / kBlockTokens;
    }

    const DividedGroup &group_;
    const std::span<const SequenceSpan> spans_;
    std::vector<int32_t> &words_;
    DividedBatch out_;
};

}  // namespace

DividedBatch divide_batch(const DividedGroup &group, const Batch &batch, std::vector<int32_t> &words) {
    return Divider(group, batch, words).run();
}

}  // namespace runnel::kernels::cuda
