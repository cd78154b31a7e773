// Stop strings in a stream of text: found wherever tokens cut it, never printed in part.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::completion {

// The text ends in front of the stop string whose last byte comes first in the stream; of several that end
// there, in front of the longest. What is given out does not depend on how the text is cut into pieces. Bytes
// are kept back only while they may be the beginning of a stop string. Linear time: one Knuth-Morris-Pratt
// automaton per string.
class StopMatcher {
  public:
    // Empty strings are ignored.
    explicit StopMatcher(const std::vector<std::string> &stops = {});

    // Text that is certain now. After stopped(), nothing any more.
    std::string push(std::string_view bytes);
    // The stream is over: what was kept back.
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
