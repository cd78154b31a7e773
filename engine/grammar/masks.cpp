#include "engine/grammar/masks.h"

#include <algorithm>

namespace runnel::grammar {
namespace {

constexpr size_t kCacheBytes = 64u << 20;

void add(Bits &bits, const std::vector<TokenId> &order, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) set_bit(bits, order[i]);
}

}  // namespace

Masks::Masks(Machine machine, std::shared_ptr<TokenIndex> index)
    : machine_(std::move(machine)), index_(std::move(index)) {
    only_ends_.resize((static_cast<size_t>(index_->rows()) + 63) / 64);
    for (const TokenId id : index_->ends()) set_bit(only_ends_, id);
    most_cached_ = std::max<size_t>(16, kCacheBytes / (only_ends_.size() * sizeof(uint64_t) + 1));
}

const Bits &Masks::mask(StateId state) {
    if (state == kEnded) return only_ends_;
    if (const auto at = cache_.find(state); at != cache_.end()) return at->second;
    if (cache_.size() >= most_cached_) cache_.clear();
    Bits bits;
    const uint32_t run = machine_.plain_run(state);
    if (run >= index_->longest_plain() || (run > 0 && only_plain_run(state, run))) {
        bits = index_->plain(run);
        try_tokens(state, index_->not_plain(), bits);
    } else {
        bits.resize(only_ends_.size());
        try_tokens(state, index_->all(), bits);
    }
    for (const uint32_t set : machine_.next_token_sets(state)) {
        const Program::TokenSet &tokens = machine_.program().token_sets[set];
        if (tokens.negated) {
            for (TokenId id = 0; id < index_->rows(); ++id)
                if (index_->is_sampleable(id) && !index_->is_end(id) &&
                    !std::binary_search(tokens.tokens.begin(), tokens.tokens.end(), id))
                    set_bit(bits, id);
        } else {
            for (const TokenId id : tokens.tokens)
                if (id < index_->rows() && index_->is_sampleable(id)) set_bit(bits, id);
        }
    }
    if (machine_.accepts(state))
        for (const TokenId id : index_->ends()) set_bit(bits, id);
    if (std::all_of(bits.begin(), bits.end(), [](uint64_t word) { return word == 0; }))
        throw GrammarLimit("no token of this model continues the text as the grammar allows here");
    return cache_.emplace(state, std::move(bits)).first->second;
}

// Whether exactly `length` plain characters can follow, whichever they are.
bool Masks::only_plain_run(StateId state, uint32_t length) {
    for (;; --length) {
        if (machine_.plain_otherwise(state) || machine_.plain_run(state) != length) return false;
        if (length == 0) return true;
        state = machine_.step(state, 'a');
    }
}

void Masks::try_tokens(StateId state, TokenIndex::Trie &trie, Bits &bits) {
    for (uint32_t first = 0; first < 256; ++first) {
        const auto [begin, end] = trie.single[first];
        if (begin == end && trie.second[first].empty()) continue;
        const StateId behind = machine_.step(state, static_cast<uint8_t>(first));
        if (behind == kDead) continue;
        add(bits, trie.order, begin, end);
        for (const auto &[second, bucket] : trie.second[first]) {
            const StateId next = machine_.step(behind, second);
            if (next != kDead) try_bucket(next, trie, trie.buckets[bucket], bits);
        }
    }
}

void Masks::try_bucket(StateId state, TokenIndex::Trie &trie, TokenIndex::Bucket &bucket, Bits &bits) {
    index_->build(trie, bucket);
    add(bits, trie.order, bucket.begin, bucket.whole);
    if (path_.empty()) path_.resize(1 << 16);
    path_[0] = state;
    const std::vector<TokenIndex::Node> &nodes = bucket.nodes;
    for (uint32_t i = 0; i < nodes.size();) {
        const TokenIndex::Node &node = nodes[i];
        const StateId next = machine_.step(path_[node.depth], node.byte);
        if (next == kDead) {
            i = node.end;
            continue;
        }
        path_[node.depth + 1u] = next;
        add(bits, trie.order, node.first, node.last);
        ++i;
    }
}

StateId Masks::advance(StateId state, TokenId token) {
    if (state == kEnded || state == kDead || token < 0 || token >= index_->rows()) return kDead;
    if (!index_->is_sampleable(token)) return kDead;
    const bool named = machine_.program().has_tokens();
    StateId next = named ? machine_.step_token(state, token) : kDead;
    if (index_->is_end(token)) return machine_.accepts(state) ? kEnded : next;
    const std::string_view bytes = index_->text(token);
    if (!bytes.empty()) next = machine_.unite(next, machine_.advance(state, bytes));
    return next;
}

std::string Masks::forced(StateId state, size_t most) {
    std::string bytes;
    if (state == kEnded) return bytes;
    for (int byte; bytes.size() < most && (byte = machine_.forced_byte(state)) >= 0;) {
        bytes += static_cast<char>(byte);
        state = machine_.step(state, static_cast<uint8_t>(byte));
    }
    return bytes;
}

}  // namespace runnel::grammar
