#include "engine/grammar/char_set.h"

#include <algorithm>
#include <map>

#include "engine/text/utf8.h"

namespace runnel::grammar {
namespace {

constexpr CharRange kSurrogates{0xd800, 0xdfff};

}  // namespace

CharSet::CharSet(std::initializer_list<CharRange> ranges) : CharSet(std::vector<CharRange>(ranges)) {}

CharSet::CharSet(std::vector<CharRange> ranges) {
    std::vector<CharRange> parts;
    for (const CharRange &range : ranges) {
        const uint32_t last = std::min(range.last, kLastCodePoint);
        if (range.first > last) continue;
        if (range.first < kSurrogates.first)
            parts.push_back({range.first, std::min(last, kSurrogates.first - 1)});
        if (last > kSurrogates.last) parts.push_back({std::max(range.first, kSurrogates.last + 1), last});
    }
    std::sort(parts.begin(), parts.end());
    for (const CharRange &part : parts) {
        const bool over_surrogates = !ranges_.empty() && ranges_.back().last == kSurrogates.first - 1 &&
                                     part.first == kSurrogates.last + 1;
        if (!ranges_.empty() && (part.first <= ranges_.back().last + 1) && !over_surrogates)
            ranges_.back().last = std::max(ranges_.back().last, part.last);
        else
            ranges_.push_back(part);
    }
}

CharSet CharSet::all() {
    return CharSet{{0, kLastCodePoint}};
}

bool CharSet::contains(uint32_t code_point) const {
    const auto after =
        std::upper_bound(ranges_.begin(), ranges_.end(), code_point,
                         [](uint32_t value, const CharRange &range) { return value < range.first; });
    return after != ranges_.begin() && code_point <= std::prev(after)->last;
}

bool CharSet::contains(const CharSet &other) const {
    return (other - *this).empty();
}

uint64_t CharSet::size() const {
    uint64_t count = 0;
    for (const CharRange &range : ranges_) count += range.last - range.first + 1;
    return count;
}

CharSet CharSet::complement() const {
    std::vector<CharRange> gaps;
    uint32_t from = 0;
    for (const CharRange &range : ranges_) {
        if (range.first > from) gaps.push_back({from, range.first - 1});
        from = range.last + 1;
    }
    if (from <= kLastCodePoint) gaps.push_back({from, kLastCodePoint});
    return CharSet(std::move(gaps));
}

CharSet CharSet::operator|(const CharSet &other) const {
    std::vector<CharRange> both = ranges_;
    both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
    return CharSet(std::move(both));
}

CharSet CharSet::operator&(const CharSet &other) const {
    std::vector<CharRange> common;
    for (size_t i = 0, j = 0; i < ranges_.size() && j < other.ranges_.size();) {
        const CharRange &a = ranges_[i], &b = other.ranges_[j];
        const uint32_t first = std::max(a.first, b.first), last = std::min(a.last, b.last);
        if (first <= last) common.push_back({first, last});
        (a.last < b.last ? i : j)++;
    }
    return CharSet(std::move(common));
}

std::vector<CharSet> partition(const std::vector<CharSet> &sets) {
    // Between two borders, each set has all characters or none; the signature lists the sets that have them.
    std::map<uint32_t, std::vector<size_t>> toggles;
    toggles[0];
    for (size_t i = 0; i < sets.size(); ++i)
        for (const CharRange &range : sets[i].ranges()) {
            toggles[range.first].push_back(i);
            toggles[range.last + 1].push_back(i);
        }
    std::map<std::vector<bool>, std::vector<CharRange>> parts;
    std::vector<bool> signature(sets.size());
    for (auto at = toggles.begin(); at != toggles.end() && at->first <= kLastCodePoint; ++at) {
        for (const size_t i : at->second) signature[i] = !signature[i];
        const auto next = std::next(at);
        const uint32_t last = next == toggles.end() ? kLastCodePoint : next->first - 1;
        parts[signature].push_back({at->first, last});
    }
    std::vector<CharSet> result;
    for (auto &[key, ranges] : parts) {
        CharSet part(std::move(ranges));
        if (!part.empty()) result.push_back(std::move(part));
    }
    return result;
}

bool next_code_point(const char *text, size_t size, size_t &at, uint32_t &code_point) {
    const text::Utf8Char c = text::first_char({text + at, size - at});
    if (!c.valid) return false;
    code_point = c.code_point;
    at += c.bytes;
    return true;
}

void append_utf8(std::vector<uint8_t> &bytes, uint32_t c) {
    const auto add = [&](uint32_t byte) { bytes.push_back(static_cast<uint8_t>(byte)); };
    if (c < 0x80) {
        add(c);
    } else if (c < 0x800) {
        add(0xc0 | c >> 6), add(0x80 | (c & 63));
    } else if (c < 0x10000) {
        add(0xe0 | c >> 12), add(0x80 | (c >> 6 & 63)), add(0x80 | (c & 63));
    } else {
        add(0xf0 | c >> 18), add(0x80 | (c >> 12 & 63)), add(0x80 | (c >> 6 & 63)), add(0x80 | (c & 63));
    }
}

}  // namespace runnel::grammar
