// Operations on sequences of the paged cache, one per two bytes, compared with a plain model of it: every
// cell holds a hash of the text up to it, and every sequence is a list of tokens.
//
// A round of speculation consists of the same operations: a fork grows by unpublished guesses and replaces
// its parent, or the parent is truncated.
#include <algorithm>
#include <map>
#include <vector>

#include "engine/cache/paged_cache.h"
#include "tests/fuzz/targets.h"

namespace runnel::fuzz {
namespace {

using namespace runnel::cache;
using Tokens = std::vector<int32_t>;
using runnel::kernels::BlockCopy;

constexpr size_t kMostSequences = 5;
constexpr int32_t kBlocks = 12;

class Model {
  public:
    Model(std::vector<Reach> reaches, int32_t slack)
        : reaches_(std::move(reaches)), cache_(layouts(reaches_), slack, BlockKey{1, 2}) {
        for (size_t g = 0; g < reaches_.size(); ++g)
            cells_.emplace_back(static_cast<size_t>(kBlocks) * kBlockTokens);
    }

    void step(uint8_t what, uint8_t value) {
        if (pairs_.empty()) return start(value);
        const size_t i = value % pairs_.size();
        switch (what % 8) {
            case 0:
                return start(value);
            case 1:
                if (pairs_.size() < kMostSequences)
                    pairs_.push_back({cache_.fork(pairs_[i].sequence), pairs_[i].text});
                return;
            case 2:
                pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(i));
                return;
            case 3:
                return truncate(pairs_[i], (what / 8) * 255 + value);
            case 4:
                return speculate(i, what, value);
            case 5:
                return reattach(pairs_[i], value);
            default:
                grow(pairs_[i], (what / 8) + value % 70, what % 2, true);
        }
    }

    void check() {
        for (Pair &pair : pairs_) {
            require(pair.sequence.tokens() == pair.text, "the sequence has its tokens");
            check_cells(pair);
        }
        for (size_t g = 0; g < cells_.size(); ++g) {
            std::map<BlockId, int32_t> held;
            for (const Pair &pair : pairs_)
                for (const BlockId block : pair.sequence.table(g))
                    if (block != kNoBlock) ++held[block];
            for (const auto &[block, count] : held)
                require(cache_.pool(g).references(block) == count, "a block's references are its holders");
            require(static_cast<int32_t>(held.size()) + cache_.pool(g).free_blocks() +
                            cache_.pool(g).idle_blocks() ==
                        kBlocks,
                    "no block is lost");
        }
    }

  private:
    struct Pair {
        SequenceCache sequence;
        Tokens text;
    };

    static std::vector<GroupLayout> layouts(const std::vector<Reach> &reaches) {
        std::vector<GroupLayout> result;
        for (const Reach &reach : reaches) result.push_back({kBlocks, reach});
        return result;
    }

    // Most tokens are equal, so that sequences often have a common prefix and share blocks.
    static int32_t token(size_t at, int32_t kind) { return at % 37 == 0 ? kind % 2 : 5; }

    void start(uint8_t value) {
        if (pairs_.size() >= kMostSequences) return;
        Pair pair{cache_.new_sequence(), {}};
        Tokens text(value);
        for (size_t at = 0; at < text.size(); ++at) text[at] = token(at, 0);
        if (!text.empty()) attach(pair, text);
        pairs_.push_back(std::move(pair));
    }

    void attach(Pair &pair, const Tokens &text) {
        const int32_t before = pair.sequence.length(), grown = cache_.attach(pair.sequence, text);
        require(grown >= 0 && pair.sequence.length() == before + grown, "attach() returns the added cells");
        require(grown == 0 || pair.sequence.length() < static_cast<int32_t>(text.size()),
                "a token is left to compute");
        pair.text.assign(text.begin(), text.begin() + pair.sequence.length());
    }

    void reattach(Pair &pair, uint8_t more) {
        Tokens text = pair.text;
        for (size_t n = 0; n < more; ++n) text.push_back(token(text.size(), more));
        if (text.size() > pair.text.size()) attach(pair, text);
    }

    void truncate(Pair &pair, int value) {
        const int32_t length = value % (pair.sequence.length() + 1);
        if (pair.sequence.truncatable(length) != length) return;
        pair.sequence.truncate(length);
        pair.text.resize(static_cast<size_t>(length));
    }

    bool grow(Pair &pair, int32_t count, int32_t kind, bool publishes) {
        Tokens more;
        for (int32_t n = 0; n < count; ++n) more.push_back(token(pair.text.size() + more.size(), kind));
        const int32_t past = pair.sequence.length();
        std::vector<std::vector<BlockCopy>> copies(cells_.size());
        if (!cache_.grow(pair.sequence, more, copies)) {
            require(pair.sequence.length() == past, "a grow() that fails changes nothing");
            return false;
        }
        for (size_t g = 0; g < copies.size(); ++g)
            for (const BlockCopy &copy : copies[g])
                std::copy_n(cells_[g].begin() + copy.from * kBlockTokens, kBlockTokens,
                            cells_[g].begin() + copy.to * kBlockTokens);
        pair.text.insert(pair.text.end(), more.begin(), more.end());
        const std::vector<uint64_t> hashes = prefix_hashes(pair.text);
        for (size_t g = 0; g < cells_.size(); ++g)
            for (int32_t c = past; c < pair.sequence.length(); ++c)
                cell(pair, g, c) = hashes[static_cast<size_t>(c)];
        if (publishes) cache_.publish(pair.sequence);
        return true;
    }

    void speculate(size_t parent, uint8_t what, uint8_t value) {
        Pair branch{cache_.fork(pairs_[parent].sequence), pairs_[parent].text};
        const int32_t past = branch.sequence.length();
        const bool right = grow(branch, 1 + value % 32, 1, false);
        grow(pairs_[parent], 1 + what / 8, 0, false);
        check_cells(branch);
        if (right && value % 2 != 0) {
            std::swap(pairs_[parent], branch);
            cache_.publish(pairs_[parent].sequence, past + 1);
        } else if (pairs_[parent].sequence.truncatable(past) == past) {
            pairs_[parent].sequence.truncate(past);
            pairs_[parent].text.resize(static_cast<size_t>(past));
        }
    }

    // Every cell that the next token sees holds what its text says.
    void check_cells(Pair &pair) {
        const std::vector<uint64_t> expected = prefix_hashes(pair.text);
        for (size_t g = 0; g < cells_.size(); ++g)
            for (int32_t c = 0; c < pair.sequence.length(); ++c) {
                const Reach reach = reaches_[g];
                if (reach.window > 0 && c >= reach.sinks && c <= pair.sequence.length() - reach.window)
                    continue;
                require(pair.sequence.table(g)[static_cast<size_t>(c / kBlockTokens)] != kNoBlock &&
                            cell(pair, g, c) == expected[static_cast<size_t>(c)],
                        "a cell that is seen holds its text");
            }
    }

    static std::vector<uint64_t> prefix_hashes(const Tokens &text) {
        std::vector<uint64_t> hashes;
        uint64_t hash = 7;
        for (const int32_t token : text)
            hashes.push_back(hash = (hash ^ static_cast<uint64_t>(token)) * 0x9e3779b97f4a7c15 + 1);
        return hashes;
    }
    uint64_t &cell(const Pair &pair, size_t group, int32_t c) {
        const BlockId block = pair.sequence.table(group)[static_cast<size_t>(c / kBlockTokens)];
        return cells_[group].at(static_cast<size_t>(block * kBlockTokens + c % kBlockTokens));
    }

    std::vector<Reach> reaches_;
    PagedCache cache_;
    std::vector<std::vector<uint64_t>> cells_;
    std::vector<Pair> pairs_;
};

}  // namespace

void cache(Input input) {
    const std::vector<std::vector<Reach>> kinds = {{{}},          {{}, {}},          {{70, 0}},
                                                   {{}, {33, 0}}, {{1, 0}, {64, 5}}, {{90, 40}, {}}};
    Bytes choices(input);
    const std::vector<Reach> &reaches = kinds[choices.below(kinds.size())];
    Model model(reaches, static_cast<int32_t>(choices.below(50)));
    while (!choices.empty()) {
        const uint8_t what = choices.byte();
        model.step(what, choices.byte());
        model.check();
    }
}

}  // namespace runnel::fuzz
