#include "engine/grammar/masks.h"

#include <algorithm>
#include <utility>

namespace runnel::grammar {
namespace {

constexpr size_t kCacheBytes = 64u << 20;

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
    if (run >= index_->longest_plain() || (run > 0 && only_plain_run(state))) {
        bits = index_->plain(run);
    } else if (run > 0) {
        bits = index_->plain(run);
        try_tokens(state, index_->plain(), run);
        set_accepted(index_->plain(), bits);
    } else {
        try_tokens(state, index_->plain(), 0);
        bits = accepted_plain();
    }
    try_tokens(state, index_->not_plain(), 0);
    set_accepted(index_->not_plain(), bits);
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
        throw GrammarLimit("the grammar allows no token of this model's vocabulary here");
    return cache_.emplace(state, std::move(bits)).first->second;
}

// Whether exactly plain_run() plain characters can follow, whichever they are, and then none.
bool Masks::only_plain_run(StateId state) {
    constexpr uint32_t kLongest = 1000;
    if (state < only_run_.size() && only_run_[state] > 0) return only_run_[state] > 1;
    const uint32_t run = machine_.plain_run(state);
    bool only = run <= kLongest && !machine_.plain_otherwise(state);
    if (only && run > 0) {
        const StateId next = machine_.step(state, 'a');
        only = machine_.plain_run(next) == run - 1 && only_plain_run(next);
    }
    if (only_run_.size() <= state) only_run_.resize(machine_.states());
    only_run_[state] = 1 + only;
    return only;
}

// By UTF-8, which has no overlong forms, surrogates or characters above U+10FFFF.
Masks::Missing Masks::behind(uint8_t first_byte) {
    if (first_byte < 0xc0) return {};
    if (first_byte < 0xe0) return {1};
    if (first_byte < 0xf0)
        return {2, static_cast<uint8_t>(first_byte == 0xe0 ? 0xa0 : 0x80),
                static_cast<uint8_t>(first_byte == 0xed ? 0x9f : 0xbf)};
    return {3, static_cast<uint8_t>(first_byte == 0xf0 ? 0x90 : 0x80),
            static_cast<uint8_t>(first_byte == 0xf4 ? 0x8f : 0xbf)};
}

// A lower bound on how many plain characters can follow, whatever the missing bytes and these characters are. 0 if
// some values of the missing bytes are refused.
uint32_t Masks::plain_run(StateId state, const Missing &missing) {
    if (missing.bytes == 0) return machine_.plain_run(state);
    uint32_t run = kUnbounded;
    StateId last = kDead;
    for (uint32_t byte = missing.first; byte <= missing.last && run > 0; ++byte) {
        const StateId next = machine_.step(state, static_cast<uint8_t>(byte));
        if (next == kDead) return 0;
        if (next != std::exchange(last, next)) run = std::min(run, plain_run(next, {missing.bytes - 1}));
    }
    return run;
}

// Finds the tokens of a trie that can follow. May omit tokens of at most `known` characters, all of which can follow.
void Masks::try_tokens(StateId state, TokenIndex::Trie &trie, uint32_t known) {
    accepted_.clear();
    const bool plain = &trie == &index_->plain();
    for (uint32_t first = 0; first < 256; ++first) {
        const uint32_t begin = trie.begin[first], end = trie.begin[first + 1];
        if (begin == end || trie.longest[first] + 1 <= known) continue;
        const StateId one = machine_.step(state, static_cast<uint8_t>(first));
        if (one == kDead) continue;
        const Missing missing = behind(static_cast<uint8_t>(first));
        if (plain && plain_run(one, missing) >= trie.longest[first]) {
            accept(begin, end);
            continue;
        }
        accept(begin, trie.single[first]);
        for (const auto &[second, number] : trie.second[first]) {
            TokenIndex::Bucket &bucket = trie.buckets[number];
            if (bucket.longest + 2 <= known) continue;
            const StateId two = machine_.step(one, second);
            if (two == kDead) continue;
            const Missing left = first < 0x80 ? behind(second) : Missing{missing.bytes - 1};
            if (plain && plain_run(two, left) >= bucket.longest)
                accept(bucket.begin, bucket.end);
            else
                try_bucket({two, 1u + (first < 0x80)}, trie, bucket, known);
        }
    }
}

void Masks::try_bucket(Place place, TokenIndex::Trie &trie, TokenIndex::Bucket &bucket, uint32_t known) {
    index_->build(trie, bucket);
    accept(bucket.begin, bucket.whole);
    if (path_.empty()) path_.resize(1 << 16);
    path_[0] = place;
    const bool plain = &trie == &index_->plain();
    const std::vector<TokenIndex::Node> &nodes = bucket.nodes;
    for (uint32_t i = 0; i < nodes.size();) {
        const TokenIndex::Node &node = nodes[i];
        if (node.depth + 3u + node.below <= known && node.below < TokenIndex::kMostBelow) {
            i = node.end;
            continue;
        }
        const StateId next = machine_.step(path_[node.depth].state, node.byte);
        if (next == kDead) {
            i = node.end;
            continue;
        }
        const uint32_t run = plain ? machine_.plain_run(next) : 0;
        if (run > 0 && (run == kUnbounded || (node.below < TokenIndex::kMostBelow && run >= node.below))) {
            accept(node.first, nodes[node.end - 1].last);
            i = node.end;
            continue;
        }
        const uint32_t characters = path_[node.depth].characters + ((node.byte & 0xc0) != 0x80);
        if (characters + run <= known && only_plain_run(next)) {
            i = node.end;
            continue;
        }
        path_[node.depth + 1u] = {next, characters};
        accept(node.first, node.last);
        ++i;
    }
}

void Masks::accept(uint32_t begin, uint32_t end) {
    if (begin == end) return;
    if (!accepted_.empty() && accepted_.back().second == begin)
        accepted_.back().second = end;
    else
        accepted_.emplace_back(begin, end);
}

void Masks::set_accepted(const TokenIndex::Trie &trie, Bits &bits) const {
    for (const auto &[begin, end] : accepted_)
        for (uint32_t i = begin; i < end; ++i) set_bit(bits, trie.order[i]);
}

// Sets the accepted plain tokens or clears the others, whichever are fewer.
Bits Masks::accepted_plain() {
    const TokenIndex::Trie &trie = index_->plain();
    size_t count = 0;
    for (const auto &[begin, end] : accepted_) count += end - begin;
    if (count * 2 <= trie.order.size()) {
        Bits bits(only_ends_.size());
        set_accepted(trie, bits);
        return bits;
    }
    Bits bits = index_->plain(index_->longest_plain());
    uint32_t at = 0;
    for (const auto &[begin, end] : accepted_) {
        for (; at < begin; ++at) clear_bit(bits, trie.order[at]);
        at = end;
    }
    for (; at < trie.order.size(); ++at) clear_bit(bits, trie.order[at]);
    return bits;
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
