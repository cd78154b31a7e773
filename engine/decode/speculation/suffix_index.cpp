#include "engine/decode/speculation/suffix_index.h"

#include <algorithm>
#include <cassert>

namespace runnel::decode {
namespace {

constexpr size_t kFirstTable = 256;  // a power of two
constexpr int kMostTold = 32;        // states that are updated with a new end

uint64_t hash(int32_t from, TokenId token) {
    const uint64_t key =
        static_cast<uint64_t>(static_cast<uint32_t>(from)) << 32 | static_cast<uint32_t>(token);
    const uint64_t product = key * 0x9e3779b97f4a7c15u;  // Fibonacci hashing (Knuth, TAOCP 3, 6.4)
    return product ^ product >> 32;
}

}  // namespace

SuffixIndex::SuffixIndex() : table_(kFirstTable, -1) {
    new_state({.length = 0, .link = -1, .last_end = 0, .first_edge = -1});
}

int32_t SuffixIndex::new_state(State state) {
    states_.push_back(state);
    return static_cast<int32_t>(states_.size() - 1);
}

size_t SuffixIndex::slot(int32_t from, TokenId token) const {
    const size_t mask = table_.size() - 1;
    for (size_t at = hash(from, token) & mask;; at = (at + 1) & mask) {
        if (table_[at] < 0) return at;
        const Edge &edge = edges_[static_cast<size_t>(table_[at])];
        if (edge.from == from && edge.token == token) return at;
    }
}

int32_t SuffixIndex::find_edge(int32_t from, TokenId token) const {
    return table_[slot(from, token)];
}

void SuffixIndex::grow_table() {
    table_.assign(2 * table_.size(), -1);
    for (size_t e = 0; e < edges_.size(); ++e)
        table_[slot(edges_[e].from, edges_[e].token)] = static_cast<int32_t>(e);
}

void SuffixIndex::add_edge(int32_t from, TokenId token, int32_t to) {
    if (2 * (edges_.size() + 1) > table_.size()) grow_table();
    State &state = states_[static_cast<size_t>(from)];
    table_[slot(from, token)] = static_cast<int32_t>(edges_.size());
    edges_.push_back({from, token, to, state.first_edge});
    state.first_edge = static_cast<int32_t>(edges_.size() - 1);
}

// Splits the state that the edge leads to: its substrings of up to length(from) + 1 tokens also end at the
// new place, so they become a state of their own, which is returned.
int32_t SuffixIndex::split(int32_t from, int32_t edge) {
    const int32_t old = edges_[static_cast<size_t>(edge)].to;
    const TokenId token = edges_[static_cast<size_t>(edge)].token;
    State copy = states_[static_cast<size_t>(old)];
    int32_t next = copy.first_edge;
    copy.length = states_[static_cast<size_t>(from)].length + 1;
    copy.first_edge = -1;
    const int32_t shorter = new_state(copy);
    for (; next >= 0; next = edges_[static_cast<size_t>(next)].next)
        add_edge(shorter, edges_[static_cast<size_t>(next)].token, edges_[static_cast<size_t>(next)].to);
    states_[static_cast<size_t>(old)].link = shorter;
    for (int32_t state = from; state >= 0; state = states_[static_cast<size_t>(state)].link) {
        const int32_t e = find_edge(state, token);
        if (e < 0 || edges_[static_cast<size_t>(e)].to != old) break;
        edges_[static_cast<size_t>(e)].to = shorter;
    }
    return shorter;
}

SuffixIndex::Match SuffixIndex::match_without(TokenId expected) const {
    constexpr int kMostEdges = 64, kMostStates = 8;
    int32_t state = states_[static_cast<size_t>(newest_)].link;
    for (int i = 0; i < kMostStates && state > 0; ++i) {
        const State &at = states_[static_cast<size_t>(state)];
        int32_t latest = 0, edge = at.first_edge;
        for (int e = 0; e < kMostEdges && edge >= 0; ++e) {
            const Edge &to = edges_[static_cast<size_t>(edge)];
            if (to.token != expected) latest = std::max(latest, states_[static_cast<size_t>(to.to)].last_end);
            edge = to.next;
        }
        if (latest > 0) return {at.length, latest - 1};
        state = at.link;
    }
    return {};
}

void SuffixIndex::append(TokenId token) {
    assert(size_ < 1 << 30);
    ++size_;
    const int32_t state = new_state({.length = size_, .link = 0, .last_end = size_, .first_edge = -1});
    int32_t suffix = newest_, edge = -1;
    for (; suffix >= 0; suffix = states_[static_cast<size_t>(suffix)].link) {
        edge = find_edge(suffix, token);
        if (edge >= 0) break;
        add_edge(suffix, token, state);
    }
    newest_ = state;
    match_ = {};
    if (suffix < 0) return;
    const int32_t seen = edges_[static_cast<size_t>(edge)].to;
    const bool whole =
        states_[static_cast<size_t>(seen)].length == states_[static_cast<size_t>(suffix)].length + 1;
    const int32_t link = whole ? seen : split(suffix, edge);
    states_[static_cast<size_t>(state)].link = link;
    match_ = {states_[static_cast<size_t>(link)].length, states_[static_cast<size_t>(link)].last_end};
    int32_t told = link;
    for (int i = 0; i < kMostTold && told > 0; ++i) {
        states_[static_cast<size_t>(told)].last_end = size_;
        told = states_[static_cast<size_t>(told)].link;
    }
}

}  // namespace runnel::decode
