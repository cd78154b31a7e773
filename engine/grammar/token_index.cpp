#include "engine/grammar/token_index.h"

#include <algorithm>

#include "engine/text/utf8.h"

namespace runnel::grammar {
namespace {

// The number of characters of a plain text; 0 for one that is not plain. Quick for ASCII.
uint32_t plain_characters_of(std::string_view text) {
    uint32_t count = 0;
    for (size_t at = 0; at < text.size(); ++count) {
        const auto byte = static_cast<uint8_t>(text[at]);
        if (byte < 0x80) {
            if (byte < 0x20 || byte == '"' || byte == '\\') return 0;
            ++at;
            continue;
        }
        const text::Utf8Char c = text::first_char(text.substr(at));
        if (!c.valid) return 0;
        at += c.bytes;
    }
    return count;
}

}  // namespace

TokenIndex::TokenIndex(const text::Tokenizer &tokenizer, int32_t rows) : rows_(rows) {
    sampleable_.resize((static_cast<size_t>(rows) + 63) / 64);
    offsets_.reserve(static_cast<size_t>(rows) + 1);
    for (TokenId id = 0; id < rows; ++id) {
        offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
        if (!tokenizer.is_sampleable(id)) continue;
        set_bit(sampleable_, id);
        if (tokenizer.is_end_of_generation(id))
            ends_.push_back(id);
        else
            bytes_ += tokenizer.decode(id);
    }
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    index();
}

TokenIndex::TokenIndex(const std::vector<std::string> &texts, std::vector<TokenId> ends)
    : rows_(static_cast<int32_t>(texts.size())), ends_(std::move(ends)) {
    std::sort(ends_.begin(), ends_.end());
    sampleable_.assign((texts.size() + 63) / 64, ~uint64_t{0});
    for (TokenId id = 0; id < rows_; ++id) {
        offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
        if (!is_end(id)) bytes_ += texts[static_cast<size_t>(id)];
    }
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    index();
}

bool TokenIndex::is_end(TokenId token) const {
    return std::binary_search(ends_.begin(), ends_.end(), token);
}

void TokenIndex::index() {
    // A token may end inside a character only if there are tokens for every byte that can complete it.
    std::array<bool, 256> has_byte{};
    for (TokenId id = 0; id < rows_; ++id)
        if (text(id).size() == 1) has_byte[static_cast<uint8_t>(text(id)[0])] = true;
    const bool has_bytes =
        std::all_of(has_byte.begin() + 0x80, has_byte.begin() + 0xc0, [](bool b) { return b; });
    std::vector<TokenId> plain, rest;
    plain_by_length_.resize(1);
    for (TokenId id = 0; id < rows_; ++id) {
        const std::string_view bytes = text(id);
        if (bytes.empty()) continue;
        if (!has_bytes && !text::is_valid_utf8(bytes)) {
            clear_bit(sampleable_, id);
            continue;
        }
        const uint32_t count = plain_characters_of(bytes);
        if (count == 0) {
            rest.push_back(id);
            continue;
        }
        if (plain_by_length_.size() <= count) plain_by_length_.resize(count + 1);
        plain_by_length_[count].push_back(id);
        plain.push_back(id);
    }
    plain_trie_ = sorted(plain);
    not_plain_ = sorted(rest);
}

// Sorts tokens by their first two bytes (counting sort).
TokenIndex::Trie TokenIndex::sorted(const std::vector<TokenId> &tokens) const {
    constexpr uint32_t kKeys = 256 * 257;  // second byte + 1; 0: there is none
    const auto key = [&](TokenId id) {
        const std::string_view bytes = text(id);
        const uint32_t second = bytes.size() > 1 ? static_cast<uint8_t>(bytes[1]) + 1u : 0;
        return static_cast<uint8_t>(bytes[0]) * 257u + second;
    };
    std::vector<uint32_t> starts(kKeys + 1);
    for (const TokenId id : tokens) ++starts[key(id) + 1];
    for (uint32_t i = 0; i < kKeys; ++i) starts[i + 1] += starts[i];
    Trie trie;
    trie.order.resize(tokens.size());
    std::vector<uint32_t> next(starts.begin(), starts.end() - 1);
    for (const TokenId id : tokens) trie.order[next[key(id)]++] = id;
    for (uint32_t first = 0; first < 256; ++first) {
        trie.begin[first] = starts[first * 257];
        trie.single[first] = starts[first * 257 + 1];
        for (uint32_t second = 0; second < 256; ++second) {
            const uint32_t at = first * 257 + second + 1;
            if (starts[at] == starts[at + 1]) continue;
            trie.second[first].emplace_back(static_cast<uint8_t>(second),
                                            static_cast<uint32_t>(trie.buckets.size()));
            trie.buckets.push_back({starts[at], starts[at + 1]});
            TokenIndex::Bucket &bucket = trie.buckets.back();
            for (uint32_t i = bucket.begin; i < bucket.end; ++i)
                bucket.longest =
                    std::max(bucket.longest, static_cast<uint32_t>(text(trie.order[i]).size()) - 2);
            trie.longest[first] = std::max(trie.longest[first], bucket.longest + 1);
        }
    }
    trie.begin[256] = starts[kKeys];
    return trie;
}

void TokenIndex::build(Trie &trie, Bucket &bucket) {
    if (bucket.built) return;
    bucket.built = true;
    const auto begin = trie.order.begin() + bucket.begin, end = trie.order.begin() + bucket.end;
    struct Entry {
        uint64_t key;  // the eight bytes after the second, which mostly determine the order
        TokenId id;
    };
    std::vector<Entry> entries;
    for (auto at = begin; at != end; ++at) {
        const std::string_view bytes = text(*at).substr(2);
        uint64_t key = 0;
        for (size_t i = 0; i < 8; ++i)
            key = key << 8 | (i < bytes.size() ? static_cast<uint8_t>(bytes[i]) : 0);
        entries.push_back({key, *at});
    }
    std::sort(entries.begin(), entries.end(), [&](const Entry &a, const Entry &b) {
        if (a.key != b.key) return a.key < b.key;
        const int order = text(a.id).compare(text(b.id));
        return order != 0 ? order < 0 : a.id < b.id;
    });
    std::transform(entries.begin(), entries.end(), begin, [](const Entry &entry) { return entry.id; });
    uint32_t at = bucket.begin;
    while (at < bucket.end && text(trie.order[at]).size() == 2) ++at;
    bucket.whole = at;
    std::vector<uint32_t> path;  // the nodes on the way to the last token
    std::string_view last;
    std::vector<Node> &nodes = bucket.nodes;
    const auto close = [&](size_t depth) {
        for (; path.size() > depth; path.pop_back()) {
            Node &node = nodes[path.back()];
            node.end = static_cast<uint32_t>(nodes.size());
            if (path.size() < 2) continue;
            Node &above = nodes[path[path.size() - 2]];
            above.below =
                std::max<uint8_t>(above.below, node.below < kMostBelow ? node.below + 1 : node.below);
        }
    };
    for (; at < bucket.end; ++at) {
        const std::string_view bytes = text(trie.order[at]).substr(2);
        size_t common = 0;
        while (common < std::min(last.size(), bytes.size()) && last[common] == bytes[common]) ++common;
        close(common);
        for (size_t i = common; i < bytes.size(); ++i) {
            path.push_back(static_cast<uint32_t>(nodes.size()));
            nodes.push_back({0, at, at, static_cast<uint16_t>(i), static_cast<uint8_t>(bytes[i]), 0});
        }
        nodes[path.back()].last = at + 1;
        last = bytes;
    }
    close(0);
}

const Bits &TokenIndex::plain(uint32_t characters) {
    const uint32_t most = std::min(characters, longest_plain());
    const auto [at, added] = plain_.try_emplace(most);
    if (added) {
        at->second.resize(sampleable_.size());
        for (uint32_t i = 1; i <= most; ++i)
            for (const TokenId id : plain_by_length_[i]) set_bit(at->second, id);
    }
    return at->second;
}

}  // namespace runnel::grammar
