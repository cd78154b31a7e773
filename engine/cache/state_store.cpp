#include "engine/cache/state_store.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace runnel::cache {

StateId StateStore::find(BlockKey key, std::span<const int32_t> tokens) const {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return kNoState;
    const Entry &entry = found->second;
    return std::equal(tokens.begin(), tokens.end(), entry.tokens.begin(), entry.tokens.end())
               ? entry.checkpoint.slot
               : kNoState;
}

void StateStore::touch(BlockKey key) {
    if (const auto found = entries_.find(key); found != entries_.end()) found->second.used = ++clock_;
}

void StateStore::keep(BlockKey key, std::span<const int32_t> tokens, Checkpoint checkpoint,
                      Checkpoint before) {
    assert(tokens.size() == static_cast<size_t>(kBlockTokens));
    assert(before.position < checkpoint.position);
    if (entries_.contains(key)) return touch(key);
    Entry entry{{}, checkpoint, before, ++clock_};
    std::copy(tokens.begin(), tokens.end(), entry.tokens.begin());
    entries_.emplace(key, entry);
    pool_.keep(checkpoint.slot);
}

double StateStore::eviction_score(const Entry &entry) const {
    constexpr double kBeginning = 16.0 * kStateInterval;  // tokens; up to there, age counts in proportion
    const double age = static_cast<double>(clock_ - entry.used) *
                       std::min(1.0, static_cast<double>(entry.checkpoint.position) / kBeginning);
    return age / static_cast<double>(entry.checkpoint.position - entry.before.position);
}

bool StateStore::evict() {
    auto worst = entries_.end();
    double largest = -1;
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
        if (pool_.references(entry->second.checkpoint.slot) > 0) continue;
        const double score = eviction_score(entry->second);
        if (score < largest || (score == largest && entry->second.used > worst->second.used)) continue;
        largest = score;
        worst = entry;
    }
    if (worst == entries_.end()) return false;
    const Entry evicted = worst->second;
    entries_.erase(worst);
    for (auto &[key, entry] : entries_)
        if (entry.before.slot == evicted.checkpoint.slot) entry.before = evicted.before;
    pool_.unkeep(evicted.checkpoint.slot);
    return true;
}

StateId StateStore::take(bool spare) {
    if (!can_take(spare ? reserved_ + 1 : 1)) return kNoState;
    if (pool_.free_blocks() == 0 && !evict()) return kNoState;
    return pool_.take();
}

SequenceStates::SequenceStates(SequenceStates &&other) noexcept
    : store_(other.store_), held_(std::exchange(other.held_, {})) {}

SequenceStates &SequenceStates::operator=(SequenceStates &&other) noexcept {
    if (this != &other) {
        truncate(0);
        store_ = other.store_;
        held_ = std::exchange(other.held_, {});
    }
    return *this;
}

SequenceStates SequenceStates::fork() const {
    SequenceStates copy;
    copy.store_ = store_;
    copy.held_ = held_;
    for (const Held &held : held_) store_->pool().retain(held.slot);
    return copy;
}

void SequenceStates::truncate(int32_t length) {
    while (!held_.empty() && (held_.back().position > length || length == 0)) {
        store_->pool().release(held_.back().slot);
        held_.pop_back();
    }
}

void SequenceStates::forget_before(int32_t length) {
    const auto after =
        std::find_if(held_.begin(), held_.end(), [&](const Held &held) { return held.position > length; });
    if (after == held_.begin()) return;
    for (auto held = held_.begin(); held != after - 1; ++held) store_->pool().release(held->slot);
    held_.erase(held_.begin(), after - 1);
}

}  // namespace runnel::cache
