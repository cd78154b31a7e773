// Deterministic automata over characters, for what expressions cannot describe: intersection, complement,
// search, anchors inside a pattern. Patterns that need none of these stay expressions.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/grammar/char_set.h"
#include "engine/grammar/expression.h"

namespace runnel::grammar {

class Dfa {
  public:
    static constexpr uint32_t kDead = 0xffffffff;
    static constexpr size_t kMostStates = 20'000;

    // The automaton of an expression of Bytes (UTF-8), Chars, Sequence, Choice, Repeat, Words and Assert.
    // `search`: it accepts all texts that contain a match. Throws GrammarError above kMostStates.
    static Dfa of(const Expr &expression, bool search = false);
    static Dfa all();
    // next: [states][classes], the classes being a partition of all characters.
    static Dfa of(std::vector<CharSet> classes, std::vector<uint32_t> next, std::vector<bool> accepting);

    Dfa operator&(const Dfa &other) const;
    Dfa complement() const;

    bool matches(std::string_view text) const;  // false for text that is not UTF-8
    bool none() const;                          // accepts no word
    uint32_t states() const { return static_cast<uint32_t>(accepting_.size()); }
    uint32_t start() const { return 0; }
    bool accepting(uint32_t state) const { return accepting_[state]; }
    const std::vector<CharSet> &classes() const { return classes_; }
    // kDead, or a state from which a word can still be finished.
    uint32_t next(uint32_t state, size_t char_class) const {
        return next_[state * classes_.size() + char_class];
    }

    // For every state, the shortest and the longest distance to the end of a word, in characters; kUnbounded
    // if there is no longest. Precondition: !none().
    std::vector<uint32_t> shortest() const;
    std::vector<uint32_t> longest() const;

    // The states in which any text of these characters can be read, and a word can be completed after it.
    std::vector<bool> closed(const CharSet &characters) const;

    // live[state]: the numbers of characters read so far, as [first, last] pairs, with which a word of `min`
    // to `max` characters can still be finished. Throws GrammarError if the computation would be too large.
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> live(uint32_t min, uint32_t max) const;

  private:
    void trim();

    std::vector<CharSet> classes_;  // a partition of all characters
    std::vector<uint32_t> next_;    // [states][classes]
    std::vector<bool> accepting_;   // [states]; at least one state
};

}  // namespace runnel::grammar
