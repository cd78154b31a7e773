#include "gguf/codebook_search.h"

#include <array>

#include "gguf/codebook_codes.h"

namespace runnel::gguf {
namespace {

constexpr int kDistances = 256;  // squared: at most 8 * 2^2 or 4 * 7^2

int level_of(uint32_t key, int k, int bits) {
    return static_cast<int>(key >> (bits * k) & ((1u << bits) - 1));
}

bool has_level_above(uint32_t key, int weights, int bits, int top) {
    for (int k = 0; k < weights; ++k)
        if (level_of(key, k, bits) > top) return true;
    return false;
}

}  // namespace

CodebookSearch::CodebookSearch(std::span<const uint16_t> codes, int weights, int bits, int top, int rings)
    : codes_(codes), places_(size_t{1} << (weights * bits), -1) {
    const size_t count = codes.size();
    for (size_t e = 0; e < count; ++e) places_[codes[e]] = static_cast<int32_t>(e);
    // [weights][entries], so that the loops over all entries vectorize.
    std::vector<uint8_t> levels(count * static_cast<size_t>(weights)), distances(count);
    for (int k = 0; k < weights; ++k)
        for (size_t e = 0; e < count; ++e)
            levels[static_cast<size_t>(k) * count + e] = static_cast<uint8_t>(level_of(codes[e], k, bits));

    for (uint32_t key = 0; key < places_.size(); ++key) {
        if (places_[key] >= 0 || has_level_above(key, weights, bits, top)) continue;
        std::fill(distances.begin(), distances.end(), uint8_t{0});
        for (int k = 0; k < weights; ++k) {
            const uint8_t *of_entries = levels.data() + static_cast<size_t>(k) * count;
            const auto own = static_cast<uint8_t>(level_of(key, k, bits));
            for (size_t e = 0; e < count; ++e) {
                const auto apart = static_cast<uint8_t>(of_entries[e] - own);
                distances[e] = static_cast<uint8_t>(distances[e] + apart * apart);
            }
        }
        std::array<int, kDistances> at_distance{};
        for (const uint8_t distance : distances) ++at_distance[distance];
        const size_t begin = lists_.size();
        places_[key] = -1 - static_cast<int32_t>(begin);
        lists_.push_back(0);
        int left = rings;
        for (int distance = 0; distance < kDistances && left > 0; ++distance) {
            if (at_distance[static_cast<size_t>(distance)] == 0) continue;
            for (size_t e = 0; e < count; ++e)
                if (distances[e] == distance) lists_.push_back(static_cast<uint16_t>(e));
            --left;
        }
        lists_[begin] = static_cast<uint16_t>(lists_.size() - begin - 1);
    }
}

const CodebookSearch &search_iq1() {
    static const CodebookSearch search(kCodesIQ1, 8, 2, 2, 3);
    return search;
}
const CodebookSearch &search_iq2_xxs() {
    static const CodebookSearch search(kCodesIQ2_XXS, 8, 2, 2, 2);
    return search;
}
const CodebookSearch &search_iq2_xs() {
    static const CodebookSearch search(kCodesIQ2_XS, 8, 2, 2, 2);
    return search;
}
const CodebookSearch &search_iq2_s() {
    static const CodebookSearch search(kCodesIQ2_S, 8, 2, 2, 1);
    return search;
}
const CodebookSearch &search_iq3_xxs() {
    static const CodebookSearch search(kCodesIQ3_XXS, 4, 3, 7, 2);
    return search;
}
const CodebookSearch &search_iq3_s() {
    static const CodebookSearch search(kCodesIQ3_S, 4, 3, 7, 3);
    return search;
}

}  // namespace runnel::gguf
