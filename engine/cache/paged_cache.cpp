#include "engine/cache/paged_cache.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace runnel::cache {
namespace {

std::span<const int32_t> block_of(std::span<const int32_t> tokens, size_t block) {
    return tokens.subspan(block * size_t{kBlockTokens}, size_t{kBlockTokens});
}

// The largest n <= most such that a token after n blocks finds all blocks of its window and sinks in `found`.
size_t usable_blocks(std::span<const BlockId> found, const BlockTable &sequence, Reach reach, size_t most) {
    const size_t sinks = static_cast<size_t>((reach.sinks + kBlockTokens - 1) / kBlockTokens);
    const size_t head = static_cast<size_t>(std::find(found.begin(), found.end(), kNoBlock) - found.begin());
    if (reach.window == 0) return std::min(most, head);
    if (head < std::min(sinks, most)) most = head;
    std::vector<size_t> run(found.size() + 1, 0);  // run[n]: length of the run of known blocks before block n
    for (size_t n = 1; n <= most; ++n) run[n] = found[n - 1] == kNoBlock ? 0 : run[n - 1] + 1;
    for (size_t n = most; n > 0; --n) {
        const size_t first =
            static_cast<size_t>(sequence.first_block_seen(static_cast<int32_t>(n) * kBlockTokens));
        if (first >= n || run[n] >= n - first) return n;
    }
    return 0;
}

// Whether two blocks are in the same share of the pool. Also true if one is missing.
bool are_beside(const BlockPool &pool, BlockId a, BlockId b) {
    return a == kNoBlock || b == kNoBlock || pool.share_of(a) == pool.share_of(b);
}

}  // namespace

Checkpoint SequenceCache::checkpoint(int32_t length) const {
    size_t blocks = std::min(keys_.size(), static_cast<size_t>(length / kBlockTokens));
    if (!has_states()) return {static_cast<int32_t>(blocks) * kBlockTokens, kNoState};
    for (; blocks > 0; --blocks) {
        const StateId slot = states_.store()->find(keys_[blocks - 1], block_of(tokens_, blocks - 1));
        if (slot != kNoState) return {static_cast<int32_t>(blocks) * kBlockTokens, slot};
    }
    return {0, kNoState};
}

int32_t SequenceCache::truncatable(int32_t length) const {
    if (has_states()) {
        int32_t best = checkpoint(length).position;
        for (const SequenceStates::Held &held : states_.held())
            if (held.position <= length) best = std::max(best, held.position);
        length = best;
    }
    const bool seen = std::all_of(groups_.begin(), groups_.end(),
                                  [&](const BlockTable &group) { return group.can_truncate(length); });
    return seen ? length : 0;
}

void SequenceCache::truncate(int32_t length) {
    assert(length >= 0 && length <= this->length());
    if (has_states()) {
        const Checkpoint kept = checkpoint(length);
        states_.truncate(length);
        if (states_.held().empty() || states_.held().back().position < length) {
            states_.truncate(0);
            assert(kept.position == length);
            if (length > 0) {
                states_.store()->pool().retain(kept.slot);
                states_.store()->touch(keys_[static_cast<size_t>(length / kBlockTokens) - 1]);
                states_.add({length, kept.slot, false});
            }
        }
    }
    for (BlockTable &group : groups_) group.truncate(length);
    tokens_.resize(static_cast<size_t>(length));
    keys_.resize(std::min(keys_.size(), static_cast<size_t>(length / kBlockTokens)));
}

PagedCache::PagedCache(std::span<const GroupLayout> groups, int32_t slack, BlockKey root, StateLayout states)
    : slack_(slack), root_(root) {
    if (states.slots > 0) states_ = std::make_unique<StateStore>(states.slots, states.sequences);
    for (const GroupLayout &group : groups) {
        reaches_.push_back(group.reach);
        assert(group.shares == 1 || group.reach.window == 0);
        pools_.push_back(std::make_unique<BlockPool>(group.blocks, group.shares));
        indices_.emplace_back(*pools_.back());
    }
}

bool PagedCache::is_seen(size_t group, int32_t block, int32_t length) const {
    const auto [window, sinks] = reaches_[group];
    if (window == 0 || int64_t{block} * kBlockTokens < sinks) return true;
    return block >= std::max(0, length - window + 1) / kBlockTokens;
}

SequenceCache PagedCache::new_sequence() {
    SequenceCache sequence;
    for (size_t g = 0; g < groups(); ++g) sequence.groups_.emplace_back(*pools_[g], reaches_[g], slack_);
    if (states_) sequence.states_ = SequenceStates(*states_);
    return sequence;
}

SequenceCache PagedCache::fork(const SequenceCache &sequence) {
    SequenceCache copy;
    for (const BlockTable &group : sequence.groups_) copy.groups_.push_back(group.fork());
    copy.tokens_ = sequence.tokens_;
    copy.keys_ = sequence.keys_;
    copy.states_ = sequence.states_.fork();
    return copy;
}

// The largest n <= blocks at which all groups can continue. A prefix that one group can continue may lack
// blocks in the window of another group.
size_t PagedCache::usable(const SequenceCache &sequence, std::span<const std::vector<BlockId>> found,
                          size_t blocks) const {
    for (size_t last = blocks + 1; blocks < last;) {
        last = blocks;
        for (size_t g = 0; g < groups(); ++g)
            blocks = usable_blocks(found[g], sequence.groups_[g], reaches_[g], blocks);
    }
    return blocks;
}

int32_t PagedCache::attach(SequenceCache &sequence, std::span<const int32_t> tokens) {
    const size_t before = sequence.tokens_.size(), own = before / size_t{kBlockTokens};
    size_t blocks = tokens.empty() ? 0 : (tokens.size() - 1) / size_t{kBlockTokens};
    if ((groups() == 0 && !states_) || blocks <= own) return 0;
    assert(before <= tokens.size() &&
           std::equal(sequence.tokens_.begin(), sequence.tokens_.end(), tokens.begin()));
    std::vector<BlockKey> keys = sequence.keys_;
    for (size_t b = keys.size(); b < blocks; ++b)
        keys.push_back(next_key(b == 0 ? root_ : keys.back(), block_of(tokens, b)));
    std::vector<std::vector<BlockId>> found(groups());
    for (size_t g = 0; g < groups(); ++g)
        for (size_t b = 0; b < blocks; ++b) {
            const BlockId held = b < own ? sequence.groups_[g].table()[b] : kNoBlock;
            found[g].push_back(held != kNoBlock ? held : indices_[g].find(keys[b], block_of(tokens, b)));
            if (b % size_t{kRangeBlocks} > 0 && !are_beside(*pools_[g], found[g][b - 1], found[g][b]))
                found[g][b] = kNoBlock;
        }
    blocks = usable(sequence, found, blocks);
    StateId state = kNoState;
    if (states_) {
        const size_t known = groups() > 0 ? blocks : 0;
        const auto state_behind = [&](size_t n) {
            return states_->find(keys[n - 1], block_of(tokens, n - 1));
        };
        while (blocks > own && (state = state_behind(blocks)) == kNoState)
            blocks = usable(sequence, found, blocks - 1);
        if (blocks < known) sequence.wanted_checkpoint_ = static_cast<int32_t>(known) * kBlockTokens;
    }
    const size_t cells = blocks * size_t{kBlockTokens};
    if (cells <= before) return 0;
    for (size_t g = 0; g < groups(); ++g) sequence.groups_[g].adopt(std::span(found[g]).first(blocks));
    if (states_) {
        states_->pool().retain(state);
        states_->touch(keys[blocks - 1]);
        sequence.states_.truncate(0);
        sequence.states_.add({static_cast<int32_t>(cells), state, false});
    }
    keys.resize(blocks);
    sequence.keys_ = std::move(keys);
    sequence.tokens_.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(cells));
    touch(sequence);
    statistics_.reused_tokens += static_cast<int64_t>(cells - before);
    return static_cast<int32_t>(cells - before);
}

bool PagedCache::make_free(size_t group, const BlockTable::Growth &growth) {
    for (int32_t share = 0; share < pools_[group]->shares(); ++share) {
        const auto needed = std::ranges::count(growth.added, share) + (growth.copied == share ? 1 : 0);
        while (pools_[group]->free_blocks(share) < needed) {
            if (!indices_[group].evict(share)) return false;
            ++statistics_.evicted_blocks;
        }
    }
    return true;
}

bool PagedCache::grow(SequenceCache &sequence, std::span<const int32_t> tokens,
                      std::span<std::vector<kernels::BlockCopy>> copies, int32_t guesses, StateStep *states) {
    const int32_t count = static_cast<int32_t>(tokens.size());
    if (count == 0) return true;
    if (states_ && !states_->can_take(1)) return false;
    std::vector<BlockTable::Growth> growth(groups());
    for (size_t g = 0; g < groups(); ++g) {
        sequence.groups_[g].drop_unseen();
        const auto enough = [&] { return make_free(g, growth[g] = sequence.groups_[g].growth(count)); };
        if (enough()) continue;
        // Without a free block for a copy, the index gives up the kept last block, so that the sequence can
        // write to it.
        const std::span<const BlockId> table = sequence.groups_[g].table();
        if (table.empty() || table.back() == kNoBlock || !indices_[g].give_up(table.back()) || !enough())
            return false;
    }
    for (size_t g = 0; g < groups(); ++g) {
        if (const auto copy = sequence.groups_[g].make_writable()) {
            copies[g].push_back(*copy);
            ++statistics_.copied_blocks;
        }
        [[maybe_unused]] const bool grown = sequence.groups_[g].append(count, growth[g].added);
        assert(grown);
    }
    if (states_) grow_states(sequence, count, guesses, *states);
    sequence.tokens_.insert(sequence.tokens_.end(), tokens.begin(), tokens.end());
    return true;
}

namespace {

// Whether all blocks that the next token attends to are held.
bool holds_what_is_seen(const std::vector<bool> &held, const BlockTable &sequence, Reach reach) {
    const auto blocks = static_cast<int32_t>(held.size());
    const int32_t first = sequence.first_block_seen(blocks * kBlockTokens);
    for (int32_t block = 0; block < blocks; ++block)
        if (!held[static_cast<size_t>(block)] && (block >= first || block * kBlockTokens < reach.sinks))
            return false;
    return true;
}

}  // namespace

// Adds the state after the last token. If enough slots are free, also adds states after drafts, at
// checkpoints, and after the last whole block, where a later continuation may begin.
void PagedCache::grow_states(SequenceCache &sequence, int32_t count, int32_t guesses, StateStep &step) {
    const int32_t before = sequence.length(), end = before + count, settled = end - guesses;
    step.read = sequence.states_.last();
    const StateId last = states_->take(false);
    const auto is_checkpoint = [&](int32_t position) {
        if (position > settled || position % kBlockTokens != 0) return false;
        return position % kStateInterval == 0 || position == sequence.wanted_checkpoint_ ||
               (settled - before > 1 && settled - position < kBlockTokens);
    };
    for (int32_t position = before + 1; position < end; ++position) {
        const bool checkpoint = is_checkpoint(position);
        const bool guess = guesses > 0 && position >= settled && position < settled + kGuessStates;
        if (!checkpoint && !guess) continue;
        const StateId slot = states_->take(true);
        if (slot == kNoState) continue;
        sequence.states_.add({position, slot, checkpoint});
        step.writes.push_back({position - before, slot});
    }
    sequence.states_.add({end, last, is_checkpoint(end)});
    step.writes.push_back({count, last});
}

// Keeps the checkpoints among the first `length` cells, and holds the state from which the sequence continues.
void PagedCache::settle_states(SequenceCache &sequence, int32_t length) {
    for (const SequenceStates::Held &held : sequence.states_.held()) {
        if (!held.checkpoint || held.position > length || states_->pool().kept(held.slot)) continue;
        const auto block = static_cast<size_t>(held.position / kBlockTokens) - 1;
        states_->keep(sequence.keys_[block], block_of(sequence.tokens_, block), {held.position, held.slot},
                      sequence.checkpoint(held.position - 1));
    }
    sequence.states_.forget_before(length);
}

std::optional<SequenceCache> PagedCache::allocate(std::span<const int32_t> tokens, const HeldBlocks &held) {
    assert(held.size() == groups() && tokens.size() % size_t{kBlockTokens} == 0);
    SequenceCache sequence = new_sequence();
    std::vector<BlockTable::Growth> growth(groups());
    for (size_t g = 0; g < groups(); ++g) {
        growth[g] = sequence.groups_[g].growth(static_cast<int32_t>(held[g].size()) * kBlockTokens);
        // (Of a group in several shares, all blocks are held.)
        growth[g].added.resize(static_cast<size_t>(std::ranges::count(held[g], true)));
        if (!make_free(g, growth[g])) return std::nullopt;
    }
    if (states_ && !states_->can_take(1)) return std::nullopt;
    for (size_t g = 0; g < groups(); ++g)
        if (!holds_what_is_seen(held[g], sequence.groups_[g], reaches_[g])) return std::nullopt;
    if (states_ && !tokens.empty())
        sequence.states_.add({static_cast<int32_t>(tokens.size()), states_->take(false), true});
    for (size_t g = 0; g < groups(); ++g) {
        std::vector<BlockId> table;
        auto share = growth[g].added.begin();
        for (const bool is_held : held[g]) table.push_back(is_held ? pools_[g]->take(*share++) : kNoBlock);
        sequence.groups_[g].adopt(table);
        for (const BlockId block : table)
            if (block != kNoBlock) pools_[g]->release(block);  // the sequence holds the blocks that it needs
    }
    sequence.tokens_.assign(tokens.begin(), tokens.end());
    return sequence;
}

void PagedCache::publish(SequenceCache &sequence, int32_t length) {
    publish_blocks(sequence, length);
    if (states_) settle_states(sequence, length);
}

void PagedCache::publish_blocks(SequenceCache &sequence, int32_t length) {
    const auto tokens = std::span<const int32_t>(sequence.tokens_).first(static_cast<size_t>(length));
    const size_t full = tokens.size() / size_t{kBlockTokens};
    if (sequence.keys_.size() >= full) return;
    for (size_t b = sequence.keys_.size(); b < full; ++b) {
        const auto text = block_of(tokens, b);
        const BlockKey key = next_key(b == 0 ? root_ : sequence.keys_.back(), text);
        sequence.keys_.push_back(key);
        for (size_t g = 0; g < groups(); ++g) {
            const BlockId own = sequence.groups_[g].table()[b];
            if (own == kNoBlock) continue;
            const BlockId known = indices_[g].find(key, text);
            if (known == kNoBlock)
                indices_[g].insert(key, text, own);
            else if (known != own && are_beside(*pools_[g], known, own))
                sequence.groups_[g].replace(b, known);
        }
    }
    touch(sequence);
}

// Touches blocks from the last to the first: of blocks used at the same time, the last are then evicted
// first, and a prefix of the text remains.
void PagedCache::touch(const SequenceCache &sequence) {
    for (size_t g = 0; g < groups(); ++g) {
        const BlockTable &group = sequence.groups_[g];
        const auto first = static_cast<size_t>(group.first_block_seen(sequence.length()));
        const auto sinks = static_cast<size_t>((reaches_[g].sinks + kBlockTokens - 1) / kBlockTokens);
        for (size_t b = sequence.keys_.size(); b-- > 0;)
            if (b >= first || b < sinks) indices_[g].touch(sequence.keys_[b]);
    }
}

}  // namespace runnel::cache
