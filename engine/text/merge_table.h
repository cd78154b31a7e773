// The ranked merges of a byte-level BPE vocabulary: which pairs of tokens merge, and in which order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/text/hash.h"
#include "engine/text/merge.h"
#include "engine/text/vocabulary.h"
#include "gguf/file.h"

namespace runnel::text {

class MergeTable {
  public:
    // Reads tokenizer.ggml.merges: "left right", best first. Both parts and their union must be pieces of the
    // vocabulary; the first of duplicate merges counts. Throws TokenizerError.
    static MergeTable load(const gguf::File &file, const Vocabulary &vocabulary);

    std::optional<Merge> find(TokenId left, TokenId right) const {
        if (left < 0 || right < 0) return std::nullopt;
        const uint64_t key = pack(left, right);
        for (uint64_t at = slot(left, right); slots_[at].merged != kNoToken; at = (at + 1) & mask_)
            if (slots_[at].key == key) return Merge{slots_[at].rank, slots_[at].merged};
        return std::nullopt;
    }

  private:
    struct Slot {
        uint64_t key = 0;
        uint32_t rank = 0;
        TokenId merged = kNoToken;
    };
    static uint64_t pack(TokenId left, TokenId right) {
        return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    }
    uint64_t slot(TokenId left, TokenId right) const {
        return hash_pair(static_cast<uint32_t>(left), static_cast<uint32_t>(right)) & mask_;
    }
    void insert(TokenId left, TokenId right, uint32_t rank, TokenId merged);

    std::vector<Slot> slots_;  // open addressing, at most two thirds full
    uint64_t mask_ = 0;
};

}  // namespace runnel::text
