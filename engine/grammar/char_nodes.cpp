#include "engine/grammar/char_nodes.h"

#include <algorithm>

namespace runnel::grammar {
namespace {

// The part of `map` from `first` to `last`, with its characters renumbered to begin at 0.
CharMap clip(const CharMap &map, uint32_t first, uint32_t last) {
    CharMap part;
    auto at = std::lower_bound(map.begin(), map.end(), first,
                               [](const CharTarget &entry, uint32_t value) { return entry.last < value; });
    for (; at != map.end() && at->first <= last; ++at)
        part.push_back({std::max(at->first, first) - first, std::min(at->last, last) - first, at->target});
    return part;
}

}  // namespace

const CharSet &plain_characters() {
    static const CharSet set = CharSet{{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}.complement();
    return set;
}

uint32_t CharNodes::add(Program::Node node) {
    if (program_.nodes.size() >= kMaxNodes) throw GrammarError("the grammar needs too many states");
    program_.nodes.push_back(node);
    return static_cast<uint32_t>(program_.nodes.size() - 1);
}

uint32_t CharNodes::add_switch(std::vector<CharTarget> edges) {
    std::sort(edges.begin(), edges.end());
    std::vector<CharTarget> joined;
    for (const CharTarget &edge : edges) {
        if (!joined.empty() && joined.back().target == edge.target && joined.back().last + 1 == edge.first)
            joined.back().last = edge.last;
        else
            joined.push_back(edge);
    }
    const auto [at, added] = switches_.try_emplace(joined, 0);
    if (!added) return at->second;
    const auto begin = static_cast<uint32_t>(program_.edges.size());
    for (const CharTarget &edge : joined)
        program_.edges.push_back(
            {static_cast<uint8_t>(edge.first), static_cast<uint8_t>(edge.last), edge.target});
    return at->second = add({Program::Op::Switch, begin, static_cast<uint32_t>(program_.edges.size())});
}

uint32_t CharNodes::add_split(const std::vector<uint32_t> &targets) {
    if (targets.size() == 1) return targets[0];
    const auto begin = static_cast<uint32_t>(program_.targets.size());
    program_.targets.insert(program_.targets.end(), targets.begin(), targets.end());
    return add({Program::Op::Split, begin, static_cast<uint32_t>(program_.targets.size())});
}

uint32_t CharNodes::add_bytes(std::string_view bytes, uint32_t next) {
    for (size_t i = bytes.size(); i-- > 0;) {
        const auto byte = static_cast<uint8_t>(bytes[i]);
        next = add_switch({{byte, byte, next}});
    }
    return next;
}

uint32_t CharNodes::add_chars(const CharMap &map, Spelling spelling) {
    std::vector<CharTarget> edges;
    if (spelling == Spelling::Plain) {
        utf8_edges(map, edges);
        return add_switch(std::move(edges));
    }
    CharMap raw;
    for (const CharRange &range : plain_characters().ranges())
        for (const CharTarget &part : clip(map, range.first, range.last))
            raw.push_back({part.first + range.first, part.last + range.first, part.target});
    utf8_edges(raw, edges);
    edges.push_back({'\\', '\\', escape(map)});
    return add_switch(std::move(edges));
}

// Edges for the first UTF-8 byte of each character, to nodes for its other bytes; no overlong forms.
void CharNodes::utf8_edges(const CharMap &map, std::vector<CharTarget> &edges) {
    for (const CharTarget &entry : clip(map, 0, 0x7f)) edges.push_back(entry);
    constexpr struct {
        uint32_t first, last, lead;
        int more;
    } kLengths[] = {{0x80, 0x7ff, 0xc0, 1}, {0x800, 0xffff, 0xe0, 2}, {0x10000, 0x10ffff, 0xf0, 3}};
    for (const auto &length : kLengths) {
        const int shift = 6 * length.more;
        for (uint32_t block = length.first >> shift; block <= length.last >> shift; ++block) {
            const CharMap part = clip(map, std::max(block << shift, length.first),
                                      std::min(((block + 1) << shift) - 1, length.last));
            if (part.empty()) continue;
            CharMap from_block = part;
            const uint32_t skipped = std::max(block << shift, length.first) - (block << shift);
            for (CharTarget &entry : from_block) entry.first += skipped, entry.last += skipped;
            edges.push_back(
                {length.lead + block, length.lead + block, continuation(from_block, length.more)});
        }
    }
}

uint32_t CharNodes::continuation(const CharMap &map, int bytes) {
    const auto [known, added] = continuations_.try_emplace({bytes, map}, 0);
    if (!added) return known->second;
    std::vector<CharTarget> edges;
    const int shift = 6 * (bytes - 1);
    for (uint32_t block = 0; block < 64; ++block) {
        const CharMap part = clip(map, block << shift, ((block + 1) << shift) - 1);
        if (part.empty()) continue;
        edges.push_back(
            {0x80 + block, 0x80 + block, bytes == 1 ? part[0].target : continuation(part, bytes - 1)});
    }
    return known->second = add_switch(std::move(edges));
}

// The node after a backslash in a JSON string: short escapes and \uXXXX.
uint32_t CharNodes::escape(const CharMap &map) {
    constexpr struct {
        char letter, meaning;
    } kShort[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
                  {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'}};
    std::vector<CharTarget> edges;
    for (const auto &[letter, meaning] : kShort) {
        const auto c = static_cast<uint32_t>(meaning), l = static_cast<uint32_t>(letter);
        const CharMap part = clip(map, c, c);
        if (!part.empty()) edges.push_back({l, l, part[0].target});
    }
    // Code units: characters up to U+FFFF, and the first halves of surrogate pairs.
    CharMap units = clip(map, 0, 0xd7ff);
    for (uint32_t high = 0xd800; high <= 0xdbff; ++high) {
        const uint32_t base = 0x10000 + ((high - 0xd800) << 10);
        CharMap low = clip(map, base, base + 0x3ff);
        if (low.empty()) continue;
        for (CharTarget &entry : low) entry.first += 0xdc00, entry.last += 0xdc00;
        const uint32_t pair = add_bytes("\\u", hex(low, 4));
        if (!units.empty() && units.back().target == pair && units.back().last + 1 == high)
            units.back().last = high;
        else
            units.push_back({high, high, pair});
    }
    for (CharTarget entry : clip(map, 0xe000, 0xffff)) {
        entry.first += 0xe000, entry.last += 0xe000;
        units.push_back(entry);
    }
    if (!units.empty()) edges.push_back({'u', 'u', hex(units, 4)});
    return add_switch(std::move(edges));
}

uint32_t CharNodes::hex(const CharMap &map, int digits) {
    const auto [known, added] = hex_.try_emplace({digits, map}, 0);
    if (!added) return known->second;
    std::vector<CharTarget> edges;
    const int shift = 4 * (digits - 1);
    for (uint32_t digit = 0; digit < 16; ++digit) {
        const CharMap part = clip(map, digit << shift, ((digit + 1) << shift) - 1);
        if (part.empty()) continue;
        const uint32_t target = digits == 1 ? part[0].target : hex(part, digits - 1);
        if (digit < 10) {
            edges.push_back({'0' + digit, '0' + digit, target});
        } else {
            edges.push_back({'a' + digit - 10, 'a' + digit - 10, target});
            edges.push_back({'A' + digit - 10, 'A' + digit - 10, target});
        }
    }
    return known->second = add_switch(std::move(edges));
}

}  // namespace runnel::grammar
