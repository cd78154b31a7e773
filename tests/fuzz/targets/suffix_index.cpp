// Compares the index behind n-gram drafts with a search by brute force.
#include <algorithm>
#include <vector>

#include "engine/decode/speculation/suffix_index.h"
#include "tests/fuzz/targets.h"

namespace runnel::fuzz {
namespace {

using Text = std::vector<text::TokenId>;

// How many tokens before `end` equal those at the end of the text.
int32_t alike(const Text &text, size_t end) {
    size_t length = 0;
    while (length < end && text[text.size() - 1 - length] == text[end - 1 - length]) ++length;
    return static_cast<int32_t>(length);
}

}  // namespace

void suffix_index(Input input) {
    decode::SuffixIndex index;
    Text text;
    for (const uint8_t byte : input) {
        text.push_back(byte % 5);
        index.append(text.back());
        int32_t longest = 0;
        for (size_t end = 1; end < text.size(); ++end) longest = std::max(longest, alike(text, end));
        const auto match = index.match();
        require(match.length == longest, "the match is the longest");
        if (match.length > 0)
            require(match.end > 0 && static_cast<size_t>(match.end) < text.size() &&
                        alike(text, static_cast<size_t>(match.end)) >= match.length,
                    "the text matches where the index says");
        const auto other = index.match_without(byte % 5);
        require(other.length <= longest, "a match with a condition is no longer");
        if (other.length > 0)
            require(alike(text, static_cast<size_t>(other.end)) >= other.length &&
                        text[static_cast<size_t>(other.end)] != byte % 5,
                    "another token follows");
    }
}

}  // namespace runnel::fuzz
