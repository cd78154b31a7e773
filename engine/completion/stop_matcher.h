// Finds stop strings in a stream of text, even across tokens, before any part of them is printed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::completion {

// The text ends before the stop string that is complete first; of several that end at the same byte, before
// the longest. The output does not depend on how the text is divided into pieces. Bytes are held back only
// while they may be the beginning of a stop string. Takes linear time: one Knuth-Morris-Pratt automaton per
// string.
class StopMatcher {
  public:
    // Empty strings are ignored.
    explicit StopMatcher(const std::vector<std::string> &stops = {});

    // Adds bytes and returns the text that is certain now; nothing after stopped().
    std::string push(std::string_view bytes);
    // At the end of the stream: returns the text that was held back.
    std::string flush();
    bool stopped() const { return stopped_; }

  private:
    struct Automaton {
        std::string text;
        std::vector<size_t> failure;  // failure[n]: longest proper border of the first n bytes
        size_t matched = 0;           // longest prefix of `text` that the stream ends with

        bool advance(char byte);  // true when the whole text is matched
    };

    std::vector<Automaton> automata_;
    std::string pending_;
    bool stopped_ = false;
};

}  // namespace runnel::completion
