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

    void try_tokens(StateId state, TokenIndex::Trie &trie, Bits &bits);
    void try_bucket(StateId state, TokenIndex::Trie &trie, TokenIndex::Bucket &bucket, Bits &bits);
    bool only_plain_run(StateId state, uint32_t length);

    Machine machine_;
    std::shared_ptr<TokenIndex> index_;
    std::unordered_map<StateId, Bits> cache_;
    size_t most_cached_;
    std::vector<StateId> path_;
    Bits only_ends_;
};

}  // namespace runnel::grammar
