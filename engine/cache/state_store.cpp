#include "engine/cache/state_store.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

namespace runnel::cache {
namespace {

// The largest power of two that divides a position, in intervals; 1 for a position between intervals.
double spacing(int32_t position) {
    if (position % kStateInterval != 0) return 1;
    const auto interval = static_cast<uint32_t>(position / kStateInterval);
    return static_cast<double>(uint32_t{1} << std::countr_zero(interval));
}

}  // namespace

StateId StateStore::find(BlockKey key, std::span<const int32_t> tokens) const {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return kNoState;
    const Entry &entry = found->second;
    return std::equal(tokens.begin(), tokens.end(), entry.tokens.begin(), entry.tokens.end()) ? entry.slot
                                                                                              : kNoState;
}

void StateStore::touch(BlockKey key) {
    if (const auto found = entries_.find(key); found != entries_.end()) found->second.used = ++clock_;
}

void StateStore::keep(BlockKey key, std::span<const int32_t> tokens, int32_t position, StateId slot) {
    assert(tokens.size() == static_cast<size_t>(kBlockTokens));
    if (entries_.contains(key)) return touch(key);
    Entry entry{{}, position, slot, ++clock_};
    std::copy(tokens.begin(), tokens.end(), entry.tokens.begin());
    entries_.emplace(key, entry);
    pool_.keep(slot);
}

bool StateStore::evict() {
    auto worst = entries_.end();
    double largest = -1;
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
        if (pool_.references(entry->second.slot) > 0) continue;
        const double score =
            static_cast<double>(clock_ - entry->second.used) / spacing(entry->second.position);
        if (score <= largest) continue;
        largest = score;
        worst = entry;
    }
    if (worst == entries_.end()) return false;
    pool_.unkeep(worst->second.slot);
    entries_.erase(worst);
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
