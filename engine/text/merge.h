// Byte-pair merging of one word, shared by both tokenizer families, which differ in the pairs that merge.
//
// Adjacent symbols merge in the order of their pair's rank, lowest first, leftmost first among equals. A word
// is often five bytes long, but can be a megabyte (a text without blanks). A heap over all of it would spend
// its time in cache misses, so a long word is merged window by window. This is exact:
//
// Within a window, merging proceeds as in the whole word up to an *edge*. Symbols right of the edge are
// unknown, because they may have merged with text beyond the window. At first, the edge is the window's end.
// For the symbol before the edge, the lowest rank is known at which it could merge with any piece that begins
// the text after the edge. When merging reaches that rank, this symbol becomes unknown, too: the edge moves
// to its start. In the end nothing before the edge can merge across it, and nothing could have earlier. So
// the tokens before it are those of the whole word, and the next window starts at the edge, which has mostly
// moved by only a few tokens.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <queue>
#include <string_view>
#include <vector>

#include "engine/text/token.h"

namespace runnel::text {

// A symbol of the window. The entry at its first byte has its length and token; the entry after its last byte
// has its length again, as `bytes_before`. So both neighbors are found without links.
struct Symbol {
    uint16_t bytes;         // of the symbol that starts here (at most kMaxPieceBytes); 0: none
    uint16_t bytes_before;  // of the symbol that ends here; 0 at the start of the window
    TokenId id;             // kNoToken if it is not in the vocabulary
};

struct Merge {
    uint32_t rank;
    TokenId id;
};

struct MergeCandidate {
    uint64_t order;  // the rank of the pair, then (lower half) the position of the left symbol
    uint32_t bytes;  // of both symbols: shows whether one of them has changed since
    TokenId id;      // the result; kEdge: the symbol may merge across the edge

    MergeCandidate(uint32_t rank, size_t position, size_t both, TokenId merged)
        : order(static_cast<uint64_t>(rank) << 32 | position),
          bytes(static_cast<uint32_t>(both)),
          id(merged) {}
    size_t position() const { return order & UINT32_MAX; }
    // std::priority_queue takes the greatest first.
    bool operator<(const MergeCandidate &other) const { return order > other.order; }
    static constexpr TokenId kEdge = -2;
};

// Work memory, reused between words.
struct MergeScratch {
    std::vector<Symbol> symbols;  // one more than the bytes of the window
    std::priority_queue<MergeCandidate> queue;
};

// The rules of a tokenizer family, for one word. Positions count from the start of the window.
template <class Rules>
concept MergeRules = requires(Rules rules, size_t position, std::vector<Symbol> &symbols) {
    // Creates the first symbols of a window of (about) this many bytes from `position` of
    // the word; returns its bytes.
    { rules.start(position, position, symbols) } -> std::same_as<size_t>;
    // The merge of the symbols at two positions.
    { rules.find(position, position) } -> std::same_as<std::optional<Merge>>;
    // The lowest rank at which the symbol at the first position may merge with the text from the second one on.
    { rules.lowest_rank_across(position, position) } -> std::same_as<std::optional<uint32_t>>;
    // The text from a position on, as far as that rank depends on it.
    { rules.ahead(position) } -> std::same_as<std::string_view>;
    // Outputs the symbols from the window's start to a position.
    rules.emit(position);
};

// Caches the lowest rank across an edge, which a run of equal symbols needs again and again.
template <MergeRules Rules>
class EdgeRank {
  public:
    EdgeRank(Rules &rules, const Symbol *symbols) : rules_(rules), symbols_(symbols) {}
    std::optional<uint32_t> find(size_t last, size_t edge) {
        const std::string_view ahead = rules_.ahead(edge);
        if (id_ == kNoToken || id_ != symbols_[last].id || ahead_ != ahead) {
            id_ = symbols_[last].id;
            ahead_ = ahead;
            rank_ = rules_.lowest_rank_across(last, edge);
        }
        return rank_;
    }

  private:
    Rules &rules_;
    const Symbol *symbols_;
    TokenId id_ = kNoToken;
    std::string_view ahead_;
    std::optional<uint32_t> rank_;
};

// Merges the symbols of the window and returns the edge. `is_open`: the word continues after the window.
// Gives up when the edge has moved back more than half of the window.
template <MergeRules Rules>
size_t merge_window(MergeScratch &scratch, size_t bytes, bool is_open, Rules &rules) {
    Symbol *const symbols = scratch.symbols.data();
    auto &queue = scratch.queue;
    size_t edge = bytes;
    EdgeRank<Rules> across(rules, symbols);
    const auto propose = [&](size_t left, size_t right) {
        if (const std::optional<Merge> merge = rules.find(left, right)) {
            const size_t both = static_cast<size_t>(symbols[left].bytes) + symbols[right].bytes;
            queue.push({merge->rank, left, both, merge->id});
        }
    };
    const auto watch = [&](size_t last) {
        if (!is_open) return;
        if (const std::optional<uint32_t> rank = across.find(last, edge))
            queue.push({*rank, last, symbols[last].bytes, MergeCandidate::kEdge});
    };
    for (size_t left = 0, right = symbols[0].bytes; right < bytes;
         left = right, right += symbols[right].bytes)
        propose(left, right);
    watch(bytes - symbols[bytes].bytes_before);
    while (!queue.empty()) {
        const MergeCandidate candidate = queue.top();
        queue.pop();
        const size_t at = candidate.position(), right = at + symbols[at].bytes, end = at + candidate.bytes;
        if (candidate.id == MergeCandidate::kEdge) {
            if (right != edge || end != edge) continue;
            edge = at;
            if (2 * edge < bytes) {
                queue = {};
                break;
            }
            watch(edge - symbols[edge].bytes_before);
            continue;
        }
        // One of the two has merged with another symbol meanwhile, or is now unknown.
        if (right == at || right >= edge || right + symbols[right].bytes != end) continue;
        symbols[right].bytes = 0;
        symbols[at].bytes = symbols[end].bytes_before = static_cast<uint16_t>(candidate.bytes);
        symbols[at].id = candidate.id;
        if (at > 0) propose(at - symbols[at].bytes_before, at);
        if (end < edge) {
            propose(at, end);
        } else {
            watch(at);
        }
    }
    return edge;
}

// The size of the first window. Finding the lowest rank across an edge takes as many look-ups as the longest
// piece has bytes, so a vocabulary with huge pieces gets no windows.
inline size_t first_window(size_t word_bytes, size_t longest_piece) {
    constexpr size_t window = 1024;
    return longest_piece <= window ? window : word_bytes;
}

// Merges a word of `bytes` > 0 bytes and outputs its tokens in order. A window whose edge moves too far is
// tried again at four times the size, up to the whole word: n log n at worst.
template <MergeRules Rules>
void merge_word(MergeScratch &scratch, size_t bytes, Rules rules, size_t first_size) {
    size_t window = first_size;
    for (size_t begin = 0; begin < bytes;) {
        const size_t size = rules.start(begin, std::min(window, bytes - begin), scratch.symbols);
        const bool is_open = begin + size < bytes;
        const size_t edge = merge_window(scratch, size, is_open, rules);
        if (is_open && 2 * edge < size) {
            window *= 4;
            continue;
        }
        rules.emit(edge);
        begin += edge;
        window = first_size;
    }
}

}  // namespace runnel::text
