// Finds the tokens that are recognized as a whole in text: control tokens and user-defined ones.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/text/token.h"

namespace runnel::text {

// A trie over the bytes of the tokens' texts.
class SpecialMatcher {
  public:
    SpecialMatcher() { roots_.fill(0); }
    // `always`: user-defined, found in every text; the others only in the stretches that the caller allows.
    void add(std::string_view text, TokenId id, bool always);

    struct Match {
        size_t begin = 0, bytes = 0;
        TokenId id = kNoToken;  // kNoToken: nothing found
    };
    // The leftmost match at or after `from`, the longest among those that start there (as in Hugging Face's
    // added vocabulary). Tokens that are not `always` found are searched only within `special`, stretches of
    // the text in ascending order. Time is linear in the text, times the length of the longest token at worst.
    struct Stretch {
        size_t begin, end;
    };
    Match find(std::string_view text, size_t from, std::span<const Stretch> special) const;

  private:
    struct Node {
        uint8_t byte = 0;
        bool always = false;
        TokenId id = kNoToken;
        uint32_t child = 0, sibling = 0;  // 0: none
    };
    uint32_t find_child(uint32_t node, uint8_t byte) const;

    std::array<uint32_t, 256> roots_;  // first byte -> node, 0: no token starts with it
    std::vector<Node> nodes_{Node{}};
};

}  // namespace runnel::text
