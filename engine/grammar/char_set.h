// Sets of Unicode scalar values: U+0000..U+10FFFF without the surrogates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace runnel::grammar {

inline constexpr uint32_t kLastCodePoint = 0x10ffff;

struct CharRange {
    uint32_t first, last;
    bool operator==(const CharRange &) const = default;
    auto operator<=>(const CharRange &) const = default;
};

// Ascending ranges that neither overlap nor touch.
class CharSet {
  public:
    CharSet() = default;
    CharSet(std::initializer_list<CharRange> ranges);
    explicit CharSet(std::vector<CharRange> ranges);  // in any order; surrogates are left out

    static CharSet all();
    static CharSet of(uint32_t code_point) { return CharSet{{code_point, code_point}}; }

    const std::vector<CharRange> &ranges() const { return ranges_; }
    bool empty() const { return ranges_.empty(); }
    bool contains(uint32_t code_point) const;
    bool contains(const CharSet &other) const;
    uint64_t size() const;  // code points

    CharSet complement() const;
    CharSet operator|(const CharSet &other) const;
    CharSet operator&(const CharSet &other) const;
    CharSet operator-(const CharSet &other) const { return *this & other.complement(); }
    bool operator==(const CharSet &) const = default;
    auto operator<=>(const CharSet &) const = default;

  private:
    std::vector<CharRange> ranges_;
};

// The coarsest partition of all code points such that every given set is a union of its parts.
std::vector<CharSet> partition(const std::vector<CharSet> &sets);

// Decodes the character at text[at] and moves `at` past it. False for bytes that are not UTF-8.
bool next_code_point(const char *text, size_t size, size_t &at, uint32_t &code_point);
void append_utf8(std::vector<uint8_t> &bytes, uint32_t code_point);

}  // namespace runnel::grammar
