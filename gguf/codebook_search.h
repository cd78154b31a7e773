// Finds the entries of a codebook that are near a point, for the quantizers to IQ1..IQ3. Internal to gguf/.
//
// A point is a level for each weight of an entry, 0..2 for eight weights or 0..7 for four. Its key holds the
// levels as the codes of codebook_codes.h do: two or three bits each, the first weight's in the lowest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace runnel::gguf {

class CodebookSearch {
  public:
    // codes: the key of each entry; weights: per entry; bits: per level; levels are 0..top. The neighbors of
    // a point that is not an entry are all entries at the `rings` smallest distances that occur, sorted by
    // distance, then by number. Distances are Euclidean, in levels.
    CodebookSearch(std::span<const uint16_t> codes, int weights, int bits, int top, int rings);

    // The number of the entry that is the point itself, or -1. Precondition here and below: no level above `top`.
    int entry(uint32_t key) const { return places_[key] >= 0 ? places_[key] : -1; }

    // The neighbors of a point that is not an entry; never empty.
    std::span<const uint16_t> neighbors(uint32_t key) const {
        const uint16_t *list = lists_.data() + (-1 - places_[key]);
        return {list + 1, list[0]};
    }

    uint32_t code(int entry) const { return codes_[static_cast<size_t>(entry)]; }

  private:
    std::span<const uint16_t> codes_;
    std::vector<int32_t> places_;  // by key: its entry, or -(start of its list in lists_) - 1
    std::vector<uint16_t> lists_;  // each: its length, then the entries
};

// One for each codebook, made at the first call. Any thread may call.
const CodebookSearch &search_iq1();
const CodebookSearch &search_iq2_xxs();
const CodebookSearch &search_iq2_xs();
const CodebookSearch &search_iq2_s();
const CodebookSearch &search_iq3_xxs();
const CodebookSearch &search_iq3_s();

}  // namespace runnel::gguf
