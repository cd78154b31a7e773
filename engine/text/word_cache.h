// Remembers the tokens of repeated words during one call of encode, as positions in the output.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/text/hash.h"
#include "engine/text/token.h"

namespace runnel::text {

// Direct-mapped: a newer word replaces an older one. The words must outlive the cache.
class WordCache {
  public:
    // Sized for a text of this many bytes.
    explicit WordCache(size_t text_bytes)
        : entries_(std::bit_ceil(std::clamp<size_t>(text_bytes / 16, 16, 32768))) {}

    // Appends the tokens of `word` and returns true if it is known.
    bool append(std::string_view word, std::vector<TokenId> &output) {
        if (word.size() > kLongest) return false;
        const Entry &entry = entries_[hash_bytes(word) & (entries_.size() - 1)];
        if (entry.word != word) return false;
        for (size_t i = 0; i < entry.count; ++i) output.push_back(output[entry.first + i]);
        return true;
    }
    // Records that the tokens of `word` are those of output from `first` to its end.
    void remember(std::string_view word, size_t first, const std::vector<TokenId> &output) {
        if (word.size() > kLongest) return;
        entries_[hash_bytes(word) & (entries_.size() - 1)] = {word, first, output.size() - first};
    }

  private:
    static constexpr size_t kLongest = 64;
    struct Entry {
        std::string_view word;
        size_t first = 0, count = 0;
    };
    std::vector<Entry> entries_;
};

}  // namespace runnel::text
