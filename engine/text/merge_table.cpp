#include "engine/text/merge_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string>

#include "engine/text/metadata.h"

namespace runnel::text {
namespace {

const std::string kMerges = "tokenizer.ggml.merges";

struct Parts {
    std::string_view left, right;
    uint64_t left_hash, right_hash;
    TokenId left_id, right_id, merged;
};

// A piece may start with a blank, so the separator is searched from the second byte on.
Parts split_merge(std::string_view merge, size_t rank) {
    const size_t blank = merge.find(' ', 1);
    if (blank == std::string_view::npos || blank + 1 == merge.size())
        fail(kMerges, "entry " + std::to_string(rank) + " is not two pieces with a blank between them");
    const std::string_view left = merge.substr(0, blank), right = merge.substr(blank + 1);
    return {left, right, hash_bytes(left), hash_bytes(right), kNoToken, kNoToken, kNoToken};
}

// Finds the merged token of two parts. Files list the merges of one token together, and tokens in the order
// of their merges, so checking the last result and the token after it usually avoids a search.
class UnionFinder {
  public:
    explicit UnionFinder(const Vocabulary &vocabulary) : vocabulary_(vocabulary) {}

    TokenId find(std::string_view left, std::string_view right) {
        for (const TokenId guess : {last_, last_ + 1})
            if (vocabulary_.contains(guess) && is_union(vocabulary_.piece(guess), left, right))
                return last_ = guess;
        text_.assign(left).append(right);
        const TokenId id = vocabulary_.find(text_);
        if (id != kNoToken) last_ = id;
        return id;
    }

  private:
    static bool is_union(std::string_view piece, std::string_view left, std::string_view right) {
        return piece.size() == left.size() + right.size() && piece.starts_with(left) &&
               piece.ends_with(right);
    }
    const Vocabulary &vocabulary_;
    TokenId last_ = 0;
    std::string text_;
};

[[noreturn]] void fail_unknown(size_t rank, std::string_view which) {
    fail(kMerges,
         "entry " + std::to_string(rank) + ": " + std::string(which) + " not in tokenizer.ggml.tokens");
}

void find_tokens(Parts &parts, size_t rank, const Vocabulary &vocabulary, UnionFinder &unions) {
    parts.left_id = vocabulary.find(parts.left, parts.left_hash);
    parts.right_id = vocabulary.find(parts.right, parts.right_hash);
    if (parts.left_id == kNoToken || parts.right_id == kNoToken) fail_unknown(rank, "one of its pieces is");
    parts.merged = unions.find(parts.left, parts.right);
    if (parts.merged == kNoToken) fail_unknown(rank, "the piece they make is");
}

}  // namespace

MergeTable MergeTable::load(const gguf::File &file, const Vocabulary &vocabulary) {
    const auto merges = require_strings(file, kMerges);
    if (merges.size() > (size_t{1} << 28)) fail(kMerges, "has more entries than any vocabulary needs");
    MergeTable table;
    table.slots_.resize(std::bit_ceil(merges.size() + merges.size() / 2 + 1));
    table.mask_ = table.slots_.size() - 1;
    UnionFinder unions(vocabulary);
    // In batches and three rounds (hashes, tokens, slots), so that the data of each round are
    // prefetched.
    std::array<Parts, 32> batch;
    for (size_t first = 0; first < merges.size(); first += batch.size()) {
        const std::span<Parts> parts(batch.data(), std::min(batch.size(), merges.size() - first));
        for (size_t i = 0; i < parts.size(); ++i) {
            parts[i] = split_merge(merges[first + i], first + i);
            vocabulary.prefetch(parts[i].left_hash);
            vocabulary.prefetch(parts[i].right_hash);
        }
        for (size_t i = 0; i < parts.size(); ++i) {
            find_tokens(parts[i], first + i, vocabulary, unions);
            __builtin_prefetch(&table.slots_[table.slot(parts[i].left_id, parts[i].right_id)], 1);
        }
        for (size_t i = 0; i < parts.size(); ++i)
            table.insert(parts[i].left_id, parts[i].right_id, static_cast<uint32_t>(first + i),
                         parts[i].merged);
    }
    return table;
}

void MergeTable::insert(TokenId left, TokenId right, uint32_t rank, TokenId merged) {
    const uint64_t key = pack(left, right);
    uint64_t at = slot(left, right);
    for (int probes = 0; slots_[at].merged != kNoToken; at = (at + 1) & mask_) {
        if (slots_[at].key == key) return;
        if (++probes > kMaxProbes) fail(kMerges, "too many merges collide: the file looks tampered with");
    }
    slots_[at] = {key, rank, merged};
}

}  // namespace runnel::text
