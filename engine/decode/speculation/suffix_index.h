// Finds where the end of a text occurred before: an index of a growing text of tokens that knows, at any
// time, the longest suffix of the text that also occurs earlier.
//
// A suffix automaton (Blumer et al. 1985), built token by token: at most 2n states and 3n transitions, whose
// table is one hash table for all states. A state stands for all substrings that end at the same places; the
// link of the newest state leads to the longest suffix that ends elsewhere, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/text/token.h"

namespace runnel::decode {

using text::TokenId;

class SuffixIndex {
  public:
    SuffixIndex();

    // Amortized O(1) time, some 100 bytes per token. Precondition: size() < 2^30.
    void append(TokenId token);
    size_t size() const { return static_cast<size_t>(size_); }

    // The last `length` tokens also occur right before `end` < size(), and no longer suffix occurs earlier.
    // If there are several such places, `end` is a late one (the latest, unless the text repeats so much that
    // more than 32 states would need an update). {0, 0}: the last token did not occur before.
    struct Match {
        int32_t length = 0, end = 0;
    };
    Match match() const { return match_; }
    // As match(), but for the longest suffix that was once followed by a token other than `expected`: that
    // token is at index `end`, right after the suffix.
    Match match_without(TokenId expected) const;

  private:
    struct State {
        int32_t length;      // of the longest substring
        int32_t link;        // state of its longest suffix that ends elsewhere, too; -1: of the empty text
        int32_t last_end;    // a late place where all of them end
        int32_t first_edge;  // -1: none
    };
    struct Edge {
        int32_t from;
        TokenId token;
        int32_t to;
        int32_t next;  // of the same state; -1: none
    };
    int32_t new_state(State state);
    int32_t find_edge(int32_t from, TokenId token) const;  // -1: none
    void add_edge(int32_t from, TokenId token, int32_t to);
    int32_t split(int32_t from, int32_t edge);
    size_t slot(int32_t from, TokenId token) const;
    void grow_table();

    int32_t size_ = 0;
    int32_t newest_ = 0;  // state of the whole text
    Match match_;
    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> table_;  // of edges, open addressing, at most half full; -1: free
};

}  // namespace runnel::decode
