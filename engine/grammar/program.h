// A grammar compiled to a pushdown automaton over bytes.
//
// Nodes are connected by what leads on without a byte (all kinds but Switch and Token) and by bytes. A stack
// has two kinds of frames: where a called rule returns to, and a counter of a repetition that is going on. So
// neither counts nor nesting need nodes of their own. machine.h runs it.
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
        Switch,  // a byte: edges [a, b), ascending
        Split,   // any of targets [a, b)
        Call,    // the rule that begins at `a`; then `b`
        Return,  // from the rule
        Enter,   // a counter of loop `a`, at 0; then `b`
        Tick,    // one more in loop `a`, if that is not too many; then `b`
        Guard,   // only with a count in guards[`a`]; then `b`
        Leave,   // the loop `a`, if that is enough; then `b`
        Insert,  // key `b` joins the set of keys, if it is not in it; then `a`
        Absent,  // only if key `b` is not in the set of keys; then `a`
        Token,   // one of token_sets[`a`]; then `b`
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
        // A set of keys instead of a count: Leave demands these.
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

    // Bytes that no Switch tells apart share a class.
    std::array<uint8_t, 256> byte_class{};
    std::vector<uint8_t> class_sample;  // [classes]: the first byte of each

    // Switches at the start of a character of a repetition that takes all plain text (token_index.h): the
    // loop that counts it, or kUnbounded when none does. Ascending by node.
    std::vector<std::pair<uint32_t, uint32_t>> plain_loops;

    size_t classes() const { return class_sample.size(); }
    bool has_tokens() const { return !token_sets.empty(); }
};

// Throws GrammarError: a rule that is not defined, left recursion (direct left recursion is rewritten), no
// text at all that matches, or more than kMaxNodes nodes. Of `grammar`, what can never be finished is left
// out.
Program compile(Grammar grammar);

// All characters but quotation mark, backslash and U+0000..U+001F: what stands for itself in a JSON string.
const CharSet &plain_characters();

}  // namespace runnel::grammar
