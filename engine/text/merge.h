// Byte-pair merging of one word: what both tokenizer families do, with different rules for which pairs merge.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/text/merge_queue.h"
#include "engine/text/token.h"

namespace runnel::text {

// A stretch of the word. Its length and token stand at the index of its first byte, its length once more, as
// `bytes_before`, at the index behind its last byte: so both neighbours are found without links, in eight
// bytes.
struct Symbol {
    uint16_t bytes;         // of the symbol that starts here (at most kMaxPieceBytes); 0: none does
    uint16_t bytes_before;  // of the symbol that ends here; 0 at the start of the word
    TokenId id;             // kNoToken if the vocabulary does not have it
};
struct Merge {
    uint32_t rank;
    TokenId id;
};

// Working memory, reused from word to word.
struct MergeScratch {
    explicit MergeScratch(size_t ranks) : queue(ranks) {}
    std::vector<Symbol> symbols;
    MergeQueue queue;
};

// Merges until no pair can merge any more. `find(left, right)` says what the symbols at these indices merge
// to: std::optional<Merge>. O(n log n) for n bytes, whatever the ranks are. scratch.symbols has an entry more
// than the word has bytes.
template <class Find>
void merge_symbols(MergeScratch &scratch, uint32_t bytes, Find find) {
    Symbol *const symbols = scratch.symbols.data();
    const auto propose = [&](uint32_t left, uint32_t right) {
        const std::optional<Merge> merge = find(left, right);
        if (!merge) return;
        const auto both = static_cast<uint32_t>(symbols[left].bytes + symbols[right].bytes);
        scratch.queue.push(merge->rank, {left, both, merge->id});
    };
    scratch.queue.start(bytes);
    for (uint32_t left = 0, right = symbols[0].bytes; right < bytes;
         left = right, right += symbols[right].bytes)
        propose(left, right);
    while (const auto candidate = scratch.queue.pop()) {
        __builtin_prefetch(&symbols[scratch.queue.upcoming()]);
        const uint32_t at = candidate->position, right = at + symbols[at].bytes, end = at + candidate->bytes;
        // One of the two has merged with something else meanwhile.
        if (right == at || right >= bytes || right + symbols[right].bytes != end) continue;
        symbols[right].bytes = 0;
        symbols[at].bytes = symbols[end].bytes_before = static_cast<uint16_t>(candidate->bytes);
        symbols[at].id = candidate->id;
        if (at > 0) propose(at - symbols[at].bytes_before, at);
        if (end < bytes) propose(at, end);
    }
}

}  // namespace runnel::text
