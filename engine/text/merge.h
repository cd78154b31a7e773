// Byte-pair merging of one word: what both tokenizer families do, with different rules for which pairs merge.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/text/merge_queue.h"
#include "engine/text/token.h"

namespace runnel::text {

// A stretch of the word. It is stored at the index of its first byte; the entries between are unused.
struct Symbol {
    uint32_t bytes;     // 0: has become part of the symbol before
    TokenId id;         // kNoToken if the vocabulary does not have it
    uint32_t previous;  // kNoSymbol for the first
    uint32_t next;      // the word's length for the last
};
inline constexpr uint32_t kNoSymbol = UINT32_MAX;

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
// to: std::optional<Merge>. O(n log n) for n bytes, whatever the ranks are.
template <class Find>
void merge_symbols(MergeScratch &scratch, uint32_t bytes, Find find) {
    Symbol *const symbols = scratch.symbols.data();
    const auto propose = [&](uint32_t left, uint32_t right) {
        const std::optional<Merge> merge = find(left, right);
        if (merge)
            scratch.queue.push(merge->rank, {left, symbols[left].bytes + symbols[right].bytes, merge->id});
    };
    scratch.queue.start(bytes);
    for (uint32_t at = 0; symbols[at].next < bytes; at = symbols[at].next) propose(at, symbols[at].next);
    while (const auto candidate = scratch.queue.pop()) {
        __builtin_prefetch(&symbols[scratch.queue.upcoming()]);
        Symbol &left = symbols[candidate->position];
        if (left.bytes == 0 || left.next >= bytes) continue;
        Symbol &right = symbols[left.next];
        if (left.bytes + right.bytes != candidate->bytes) continue;
        left.id = candidate->id;
        left.bytes += right.bytes;
        left.next = right.next;
        right.bytes = 0;
        if (left.next < bytes) symbols[left.next].previous = candidate->position;
        if (left.previous != kNoSymbol) propose(left.previous, candidate->position);
        if (left.next < bytes) propose(candidate->position, left.next);
    }
}

}  // namespace runnel::text
