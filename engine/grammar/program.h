// A grammar compiled to a pushdown automaton over bytes.
//
// Switch nodes read a byte and Token nodes a token; all other kinds lead on without reading. A stack has two
// kinds of frames: the return address of a called rule, and the counter of a repetition in progress. So
// neither counts nor nesting need nodes of their own. machine.h runs the program.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/grammar/expression.h"

namespace runnel::grammar {

struct Program {
    enum class Op : uint8_t {
        Switch,  // reads a byte: edges [a, b), ascending
        Split,   // leads on to any of targets [a, b)
        Call,    // runs the rule that begins at `a`; then `b`
        Return,  // ends the rule
        Enter,   // starts a counter of loop `a` at 0; then `b`
        Tick,    // counts a round of loop `a`, unless at its maximum; then `b`
        Guard,   // only with a count in guards[`a`]; then `b`
        Leave,   // ends loop `a`, if its minimum is reached; then `b`
        Insert,  // adds key `b` to the set of keys, if it is not in it; then `a`
        Absent,  // only if key `b` is not in the set of keys; then `a`
        Token,   // reads one of token_sets[`a`]; then `b`
    };
    struct Node {
        Op op;
        uint32_t a = 0, b = 0;
    };
    struct Edge {
        uint8_t first, last;
        uint32_t target;
    };
    struct Loop {
        uint32_t min, max;
        // The frame holds a set of keys instead of a count. Leave requires the keys in `required`.
        bool is_set = false;
        std::vector<uint32_t> required = {};
    };
    struct TokenSet {
        std::vector<int32_t> tokens;  // ascending
        bool negated;
        bool operator==(const TokenSet &) const = default;
    };
    using Intervals = std::vector<std::pair<uint32_t, uint32_t>>;

    std::vector<Node> nodes;
    std::vector<Edge> edges;
    std::vector<uint32_t> targets;
    std::vector<Loop> loops;
    std::vector<Intervals> guards;
    std::vector<TokenSet> token_sets;
    uint32_t start = 0;

    // Bytes that every Switch treats alike share a class.
    std::array<uint8_t, 256> byte_class{};
    std::vector<uint8_t> class_sample;  // [classes]: the first byte of each

    // A node where a character begins, and where any text of plain characters (plain_characters()) may follow:
    // `most` characters (kUnbounded: any number), minus the present count of `loop` (kUnbounded: no loop).
    struct PlainLoop {
        uint32_t node, loop, most;
        bool alike;  // all these characters lead to the same node
    };
    std::vector<PlainLoop> plain_loops;

    size_t classes() const { return class_sample.size(); }
    bool has_tokens() const { return !token_sets.empty(); }
};

// Throws GrammarError for an undefined rule, for left recursion that is not direct, for a grammar that no
// text matches, and for more than kMaxNodes nodes. Parts of `grammar` that can never be finished are left
// out; direct left recursion is rewritten.
Program compile(Grammar grammar);

// All characters but quotation mark, backslash and U+0000..U+001F: what stands for itself in a JSON string.
const CharSet &plain_characters();

}  // namespace runnel::grammar
