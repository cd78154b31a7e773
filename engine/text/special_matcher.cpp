#include "engine/text/special_matcher.h"

#include <algorithm>

namespace runnel::text {

uint32_t SpecialMatcher::find_child(uint32_t node, uint8_t byte) const {
    uint32_t child = nodes_[node].child;
    while (child && nodes_[child].byte != byte) child = nodes_[child].sibling;
    return child;
}

void SpecialMatcher::add(std::string_view text, TokenId id, bool always) {
    if (text.empty()) return;
    const auto append = [&](uint8_t byte, uint32_t sibling) {
        nodes_.push_back({byte, false, kNoToken, 0, sibling});
        return static_cast<uint32_t>(nodes_.size() - 1);
    };
    uint32_t &root = roots_[static_cast<uint8_t>(text[0])];
    if (!root) root = append(static_cast<uint8_t>(text[0]), 0);
    uint32_t node = root;
    for (const char c : text.substr(1)) {
        const auto byte = static_cast<uint8_t>(c);
        uint32_t child = find_child(node, byte);
        if (!child) nodes_[node].child = child = append(byte, nodes_[node].child);
        node = child;
    }
    nodes_[node].id = id;
    nodes_[node].always = always;
}

SpecialMatcher::Match SpecialMatcher::find(std::string_view text, size_t from,
                                           std::span<const Stretch> special) const {
    // A text with many matches calls this for each of them, so the next stretch is found by binary search.
    const auto passed = [from](const Stretch &stretch) { return stretch.end <= from; };
    special = {std::partition_point(special.begin(), special.end(), passed), special.end()};
    for (size_t begin = from; begin < text.size(); ++begin) {
        uint32_t node = roots_[static_cast<uint8_t>(text[begin])];
        if (!node) continue;
        while (!special.empty() && special.front().end <= begin) special = special.subspan(1);
        const size_t special_end =
            !special.empty() && special.front().begin <= begin ? special.front().end : 0;
        Match best;
        for (size_t at = begin + 1; node; ++at) {
            if (nodes_[node].id != kNoToken && (at <= special_end || nodes_[node].always))
                best = {begin, at - begin, nodes_[node].id};
            node = at < text.size() ? find_child(node, static_cast<uint8_t>(text[at])) : 0;
        }
        if (best.id != kNoToken) return best;
    }
    return {};
}

}  // namespace runnel::text
