// Masks of the tokens that may come next under a grammar.
//
//   Masks masks(std::move(machine), index);
//   StateId state = masks.start();
//   const Bits &allowed = masks.mask(state);
//   state = masks.advance(state, token);
//
// States are numbers: keep, copy and compare them freely. To go back, use an older one.
#pragma once

#include <memory>
#include <unordered_map>

#include "engine/grammar/machine.h"
#include "engine/grammar/token_index.h"

namespace runnel::grammar {

class Masks {
  public:
    // The index may be shared by several constraints of one thread.
    Masks(Machine machine, std::shared_ptr<TokenIndex> index);

    StateId start() const { return machine_.start(); }
    // The tokens that may come next: text, tokens that the grammar names, and end tokens where the text may
    // end. Throws GrammarLimit, also if no token is left. Valid until the next call.
    const Bits &mask(StateId state);
    // The state after a token; kDead if it is refused. After an end token, nothing can follow.
    StateId advance(StateId state, TokenId token);
    bool allows(StateId state, TokenId token) { return advance(state, token) != kDead; }

    // Whether the text may end here.
    bool accepts(StateId state) const { return state == kEnded || machine_.accepts(state); }
    // The bytes that must come next, at most `most` of them.
    std::string forced(StateId state, size_t most);

    Machine &machine() { return machine_; }
    TokenIndex &index() { return *index_; }
    size_t cached() const { return cache_.size(); }  // masks

  private:
    static constexpr StateId kEnded = 0xfffffffe;

    // The bytes of a character that are still to come; the first of them is from `first` to `last`.
    struct Missing {
        int bytes = 0;
        uint8_t first = 0x80, last = 0xbf;
    };
    static Missing behind(uint8_t first_byte);

    // A state on the way through a trie, and the number of characters that began before it.
    struct Place {
        StateId state;
        uint32_t characters;
    };

    void try_tokens(StateId state, TokenIndex::Trie &trie, uint32_t known);
    void try_bucket(Place place, TokenIndex::Trie &trie, TokenIndex::Bucket &bucket, uint32_t known);
    void accept(uint32_t begin, uint32_t end);
    void set_accepted(const TokenIndex::Trie &trie, Bits &bits) const;
    Bits accepted_plain();
    bool only_plain_run(StateId state);
    uint32_t plain_run(StateId state, const Missing &missing);

    Machine machine_;
    std::shared_ptr<TokenIndex> index_;
    std::unordered_map<StateId, Bits> cache_;
    size_t most_cached_;
    std::vector<uint8_t> only_run_;  // [states]: 1 + only_plain_run(), or 0: not known
    std::vector<Place> path_;
    std::vector<std::pair<uint32_t, uint32_t>> accepted_;  // ranges of the order of a trie, ascending
    Bits only_ends_;
};

}  // namespace runnel::grammar
