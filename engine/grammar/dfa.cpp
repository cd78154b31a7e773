#include "engine/grammar/dfa.h"

#include <algorithm>
#include <deque>
#include <map>

namespace runnel::grammar {
namespace {

const CharSet kWordChars{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};

// Limit of visited nodes while states are built: about a second.
constexpr size_t kMostSteps = 100'000'000;

[[noreturn]] void too_large() {
    throw GrammarError("a pattern needs more than " + std::to_string(Dfa::kMostStates) +
                       " states to combine with other patterns or lengths");
}

// Thompson's construction, from the end to the start: every part is built with the node that follows it.
class Nfa {
  public:
    struct Node {
        enum class Kind : uint8_t { Chars, Split, Assert, Match, Word } kind;
        Assertion assertion{};
        uint32_t set = 0;                    // Chars: of sets
        std::vector<uint32_t> targets = {};  // Chars: exactly one
    };
    std::vector<Node> nodes;
    std::vector<CharSet> sets;
    uint32_t start = 0;

    explicit Nfa(const Expr &expression, bool search) {
        const uint32_t match = add({Node::Kind::Match});
        uint32_t next = match;
        if (search) next = star(CharSet::all(), next);
        start = build(*expression, next);
        if (search) start = star(CharSet::all(), start);
    }

  private:
    uint32_t add(Node node) {
        if (nodes.size() > 20 * Dfa::kMostStates) too_large();
        nodes.push_back(std::move(node));
        return static_cast<uint32_t>(nodes.size() - 1);
    }
    uint32_t chars(const CharSet &set, uint32_t next) {
        const auto found = set_ids_.try_emplace(set, static_cast<uint32_t>(sets.size()));
        if (found.second) sets.push_back(set);
        return add({Node::Kind::Chars, {}, found.first->second, {next}});
    }
    uint32_t star(const CharSet &set, uint32_t next) {
        const uint32_t loop = add({Node::Kind::Split});
        const uint32_t body = chars(set, loop);
        nodes[loop].targets = {body, next};
        return loop;
    }
    uint32_t build(const Expression &e, uint32_t next) {
        switch (e.kind) {
            case Kind::Never:
                return add({Node::Kind::Split});
            case Kind::Empty:
                return next;
            case Kind::Bytes: {
                std::vector<uint32_t> characters;
                uint32_t c = 0;
                for (size_t at = 0; at < e.text.size();) {
                    if (!next_code_point(e.text.data(), e.text.size(), at, c))
                        throw GrammarError("a pattern is not UTF-8");
                    characters.push_back(c);
                }
                for (size_t i = characters.size(); i-- > 0;) next = chars(CharSet::of(characters[i]), next);
                return next;
            }
            case Kind::Chars:
                return chars(e.chars, next);
            case Kind::Sequence:
                for (size_t i = e.parts.size(); i-- > 0;) next = build(*e.parts[i], next);
                return next;
            case Kind::Choice: {
                std::vector<uint32_t> targets;
                for (const Expr &part : e.parts) targets.push_back(build(*part, next));
                return add({Node::Kind::Split, {}, 0, std::move(targets)});
            }
            case Kind::Repeat:
                return build_repeat(e, next);
            case Kind::Words:
                return build_words(e, next);
            case Kind::Assert:
                return add({Node::Kind::Assert, e.assertion, 0, {next}});
            default:
                throw GrammarError("a pattern must not refer to a rule");
        }
    }
    uint32_t build_repeat(const Expression &e, uint32_t next) {
        if (e.max == kUnbounded) {
            const uint32_t loop = add({Node::Kind::Split});
            const uint32_t body = build(*e.parts[0], loop);
            nodes[loop].targets = {body, next};
            next = loop;
        } else {
            const uint32_t end = next;
            for (uint32_t i = e.min; i < e.max; ++i) {
                const uint32_t body = build(*e.parts[0], next);
                next = add({Node::Kind::Split, {}, 0, {body, end}});
            }
        }
        for (uint32_t i = 0; i < e.min; ++i) next = build(*e.parts[0], next);
        return next;
    }
    uint32_t build_words(const Expression &e, uint32_t next) {
        if (e.min != 0 || e.max != kUnbounded)
            throw GrammarError("a text of limited length inside a pattern is not supported");
        const Dfa &dfa = *e.dfa;
        std::vector<uint32_t> entries;
        for (uint32_t q = 0; q < dfa.states(); ++q) entries.push_back(add({Node::Kind::Split}));
        for (uint32_t q = 0; q < dfa.states(); ++q) {
            std::vector<uint32_t> targets;
            for (size_t c = 0; c < dfa.classes().size(); ++c)
                if (dfa.next(q, c) != Dfa::kDead)
                    targets.push_back(chars(dfa.classes()[c], entries[dfa.next(q, c)]));
            if (dfa.accepting(q)) targets.push_back(next);
            nodes[entries[q]].targets = std::move(targets);
        }
        return entries[0];
    }

    std::map<CharSet, uint32_t> set_ids_;
};

// What is next to a position: the edge of the text, a character of \w, or another one.
enum Side : uint8_t { kEdge, kWord, kOther };

bool holds(Assertion assertion, Side before, Side behind) {
    switch (assertion) {
        case Assertion::Start:
            return before == kEdge;
        case Assertion::End:
            return behind == kEdge;
        case Assertion::WordBoundary:
            return (before == kWord) != (behind == kWord);
        case Assertion::NoWordBoundary:
            return (before == kWord) == (behind == kWord);
    }
    return false;
}

class Closure {
  public:
    explicit Closure(const Nfa &nfa) : nfa_(nfa), seen_(nfa.nodes.size()) {}

    // The Chars and Match nodes that can be reached from `from` without reading a character.
    std::vector<uint32_t> of(const std::vector<uint32_t> &from, Side before, Side behind) {
        ++round_;
        std::vector<uint32_t> open(from.rbegin(), from.rend()), reached;
        while (!open.empty()) {
            const uint32_t at = open.back();
            open.pop_back();
            ++steps_;
            if (std::exchange(seen_[at], round_) == round_) continue;
            const Nfa::Node &node = nfa_.nodes[at];
            using Kind = Nfa::Node::Kind;
            if (node.kind == Kind::Chars || node.kind == Kind::Match)
                reached.push_back(at);
            else if (node.kind != Kind::Assert || holds(node.assertion, before, behind))
                open.insert(open.end(), node.targets.begin(), node.targets.end());
        }
        return reached;
    }
    // Number of node visits so far.
    size_t steps() const { return steps_; }

  private:
    const Nfa &nfa_;
    std::vector<uint64_t> seen_;
    uint64_t round_ = 0;
    size_t steps_ = 0;
};

}  // namespace

Dfa Dfa::of(const Expr &expression, bool search) {
    const Nfa nfa(expression, search);
    bool has_words = false;
    for (const Nfa::Node &node : nfa.nodes)
        has_words |= node.kind == Nfa::Node::Kind::Assert && node.assertion != Assertion::Start &&
                     node.assertion != Assertion::End;
    std::vector<CharSet> sets = nfa.sets;
    if (has_words) sets.push_back(kWordChars);
    Dfa dfa;
    dfa.classes_ = partition(sets);
    const size_t classes = dfa.classes_.size();
    std::vector<std::vector<bool>> in_set(nfa.sets.size(), std::vector<bool>(classes));
    std::vector<Side> side(classes, kOther);
    for (size_t c = 0; c < classes; ++c) {
        const uint32_t sample = dfa.classes_[c].ranges()[0].first;
        for (size_t s = 0; s < nfa.sets.size(); ++s) in_set[s][c] = nfa.sets[s].contains(sample);
        if (has_words && kWordChars.contains(sample)) side[c] = kWord;
    }
    // A state: the nodes reached by the last character, and the kind of that character. The nodes are
    // expanded only when the next character is known, because assertions depend on it.
    using Key = std::pair<std::vector<uint32_t>, Side>;
    std::map<Key, uint32_t> ids;
    std::vector<const Key *> keys;
    const auto id_of = [&](Key key) {
        const auto [at, added] = ids.try_emplace(std::move(key), static_cast<uint32_t>(keys.size()));
        if (added) keys.push_back(&at->first);
        if (keys.size() > kMostStates) too_large();
        return at->second;
    };
    Closure closure(nfa);
    id_of({{nfa.start}, kEdge});
    size_t targets_tried = 0;
    for (size_t q = 0; q < keys.size(); ++q) {
        const Key &key = *keys[q];
        const std::vector<uint32_t> at_end = closure.of(key.first, key.second, kEdge);
        dfa.accepting_.push_back(std::any_of(at_end.begin(), at_end.end(), [&](uint32_t node) {
            return nfa.nodes[node].kind == Nfa::Node::Kind::Match;
        }));
        std::vector<uint32_t> reached[3];
        for (const Side behind : {kWord, kOther})
            if (behind == kOther || has_words) reached[behind] = closure.of(key.first, key.second, behind);
        for (size_t c = 0; c < classes; ++c) {
            targets_tried += reached[side[c]].size();
            if (closure.steps() + targets_tried > kMostSteps)
                throw GrammarError("a pattern takes too long to combine with other patterns or lengths");
            std::vector<uint32_t> targets;
            for (const uint32_t node : reached[side[c]])
                if (nfa.nodes[node].kind == Nfa::Node::Kind::Chars && in_set[nfa.nodes[node].set][c])
                    targets.push_back(nfa.nodes[node].targets[0]);
            std::sort(targets.begin(), targets.end());
            targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
            dfa.next_.push_back(targets.empty() ? kDead
                                                : id_of({std::move(targets), has_words ? side[c] : kOther}));
        }
    }
    dfa.trim();
    return dfa;
}

Dfa Dfa::of(std::vector<CharSet> classes, std::vector<uint32_t> next, std::vector<bool> accepting) {
    Dfa dfa;
    dfa.classes_ = std::move(classes);
    dfa.next_ = std::move(next);
    dfa.accepting_ = std::move(accepting);
    dfa.trim();
    return dfa;
}

Dfa Dfa::all() {
    Dfa dfa;
    dfa.classes_ = {CharSet::all()};
    dfa.next_ = {0};
    dfa.accepting_ = {true};
    return dfa;
}

// Removes states from which no word can be finished, and merges equivalent states (Moore's algorithm).
void Dfa::trim() {
    const size_t classes = classes_.size(), count = accepting_.size();
    std::vector<std::vector<uint32_t>> before(count);
    for (size_t q = 0; q < count; ++q)
        for (size_t c = 0; c < classes; ++c)
            if (next_[q * classes + c] != kDead)
                before[next_[q * classes + c]].push_back(static_cast<uint32_t>(q));
    std::vector<bool> useful(count);
    std::vector<uint32_t> open;
    for (uint32_t q = 0; q < count; ++q)
        if (accepting_[q]) open.push_back(q);
    while (!open.empty()) {
        const uint32_t q = open.back();
        open.pop_back();
        if (useful[q]) continue;
        useful[q] = true;
        open.insert(open.end(), before[q].begin(), before[q].end());
    }
    for (uint32_t &target : next_)
        if (target != kDead && !useful[target]) target = kDead;

    constexpr size_t kMostToMerge = 500;  // merging more would take too long
    std::vector<uint32_t> group(count);
    for (uint32_t q = 0; q < count; ++q) group[q] = count > kMostToMerge ? q : accepting_[q] ? 1 : 0;
    for (size_t groups = 0; count <= kMostToMerge;) {
        std::map<std::vector<uint32_t>, uint32_t> ids;
        std::vector<uint32_t> refined(count), key;
        for (size_t q = 0; q < count; ++q) {
            key.assign(1, group[q]);
            for (size_t c = 0; c < classes; ++c) {
                const uint32_t target = next_[q * classes + c];
                key.push_back(target == kDead ? kDead : group[target]);
            }
            refined[q] = ids.try_emplace(key, static_cast<uint32_t>(ids.size())).first->second;
        }
        group = std::move(refined);
        if (ids.size() == std::exchange(groups, ids.size())) break;
    }
    // Numbered as they are reached, so that equal languages are equal automata.
    std::vector<uint32_t> number(count, kDead), sample;
    std::vector<uint32_t> next;
    std::vector<bool> accepting;
    number[group[0]] = 0;
    sample.push_back(0);
    for (size_t i = 0; i < sample.size(); ++i) {
        accepting.push_back(accepting_[sample[i]]);
        for (size_t c = 0; c < classes; ++c) {
            const uint32_t target = next_[sample[i] * classes + c];
            if (target == kDead) {
                next.push_back(kDead);
                continue;
            }
            uint32_t &id = number[group[target]];
            if (id == kDead) {
                id = static_cast<uint32_t>(sample.size());
                sample.push_back(target);
            }
            next.push_back(id);
        }
    }
    next_ = std::move(next);
    accepting_ = std::move(accepting);
}

Dfa Dfa::operator&(const Dfa &other) const {
    Dfa both;
    std::vector<CharSet> sets = classes_;
    sets.insert(sets.end(), other.classes_.begin(), other.classes_.end());
    both.classes_ = partition(sets);
    const auto index_in = [](const std::vector<CharSet> &classes, const CharSet &part) {
        for (size_t i = 0; i < classes.size(); ++i)
            if (classes[i].contains(part.ranges()[0].first)) return i;
        return size_t{0};
    };
    std::vector<size_t> mine, theirs;
    for (const CharSet &part : both.classes_) {
        mine.push_back(index_in(classes_, part));
        theirs.push_back(index_in(other.classes_, part));
    }
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> ids{{{0, 0}, 0}};
    std::vector<std::pair<uint32_t, uint32_t>> pairs{{0, 0}};
    for (size_t q = 0; q < pairs.size(); ++q) {
        const auto [a, b] = pairs[q];
        both.accepting_.push_back(accepting_[a] && other.accepting_[b]);
        for (size_t c = 0; c < both.classes_.size(); ++c) {
            const std::pair<uint32_t, uint32_t> target{next(a, mine[c]), other.next(b, theirs[c])};
            if (target.first == kDead || target.second == kDead) {
                both.next_.push_back(kDead);
                continue;
            }
            const auto [at, added] = ids.try_emplace(target, static_cast<uint32_t>(pairs.size()));
            if (added) pairs.push_back(target);
            if (pairs.size() > kMostStates) too_large();
            both.next_.push_back(at->second);
        }
    }
    both.trim();
    return both;
}

Dfa Dfa::complement() const {
    Dfa result = *this;
    const auto sink = states();
    result.accepting_.push_back(false);
    result.next_.insert(result.next_.end(), classes_.size(), sink);
    for (uint32_t &target : result.next_)
        if (target == kDead) target = sink;
    result.accepting_.flip();
    result.trim();
    return result;
}

bool Dfa::matches(std::string_view text) const {
    uint32_t q = start(), c = 0;
    for (size_t at = 0; at < text.size();) {
        if (!next_code_point(text.data(), text.size(), at, c)) return false;
        size_t in = 0;
        while (!classes_[in].contains(c)) ++in;
        q = next(q, in);
        if (q == kDead) return false;
    }
    return accepting_[q];
}

bool Dfa::none() const {
    return std::find(accepting_.begin(), accepting_.end(), true) == accepting_.end();
}

std::vector<uint32_t> Dfa::shortest() const {
    std::vector<uint32_t> ways(states(), kUnbounded);
    for (bool changed = true; std::exchange(changed, false);)
        for (uint32_t q = states(); q-- > 0;) {
            uint32_t best = accepting_[q] ? 0 : kUnbounded;
            for (size_t c = 0; c < classes_.size(); ++c)
                if (next(q, c) != kDead && ways[next(q, c)] != kUnbounded)
                    best = std::min(best, ways[next(q, c)] + 1);
            changed |= best < ways[q];
            ways[q] = std::min(ways[q], best);
        }
    return ways;
}

std::vector<uint32_t> Dfa::longest() const {
    // A length that still grows after as many rounds as there are states belongs to a cycle.
    std::vector<uint32_t> ways(states(), 0);
    for (uint32_t round = 0; round <= states(); ++round) {
        bool changed = false;
        for (uint32_t q = states(); q-- > 0;)
            for (size_t c = 0; c < classes_.size(); ++c) {
                if (next(q, c) == kDead) continue;
                const uint32_t behind = ways[next(q, c)];
                const uint32_t best = behind >= states() ? kUnbounded : behind + 1;
                if (best > ways[q]) ways[q] = best, changed = true;
            }
        if (!changed) break;
    }
    return ways;
}

std::vector<bool> Dfa::closed(const CharSet &characters) const {
    std::vector<size_t> read;  // the classes of these characters
    for (size_t c = 0; c < classes_.size(); ++c)
        if (!(classes_[c] & characters).empty()) read.push_back(c);
    std::vector<bool> closed(states(), true);
    std::vector<std::vector<uint32_t>> before(states());
    std::vector<uint32_t> open;
    for (uint32_t q = 0; q < states(); ++q)
        for (const size_t c : read) {
            if (next(q, c) != kDead)
                before[next(q, c)].push_back(q);
            else
                open.push_back(q);
        }
    while (!open.empty()) {
        const uint32_t q = open.back();
        open.pop_back();
        if (!closed[q]) continue;
        closed[q] = false;
        open.insert(open.end(), before[q].begin(), before[q].end());
    }
    return closed;
}

std::vector<std::vector<std::pair<uint32_t, uint32_t>>> Dfa::live(uint32_t min, uint32_t max) const {
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> result(states());
    if (max == kUnbounded) {
        const std::vector<uint32_t> ways = longest();
        for (uint32_t q = 0; q < states(); ++q) {
            const uint32_t from = ways[q] == kUnbounded || ways[q] >= min ? 0 : min - ways[q];
            result[q].push_back({from, kUnbounded});
        }
        return result;
    }
    if (uint64_t{max} * states() * classes_.size() > 200'000'000)
        throw GrammarError("a pattern of " + std::to_string(states()) +
                           " states is too large for maxLength " + std::to_string(max));
    std::vector<bool> now(states()), later(states());
    for (uint32_t k = max + 1; k-- > 0;) {
        for (uint32_t q = 0; q < states(); ++q) {
            bool alive = accepting_[q] && k >= min;
            for (size_t c = 0; !alive && c < classes_.size(); ++c)
                alive = k < max && next(q, c) != kDead && later[next(q, c)];
            now[q] = alive;
            if (!alive) continue;
            auto &ranges = result[q];  // from high to low
            if (!ranges.empty() && ranges.back().first == k + 1)
                ranges.back().first = k;
            else
                ranges.push_back({k, k});
        }
        std::swap(now, later);
    }
    for (auto &ranges : result) std::reverse(ranges.begin(), ranges.end());
    return result;
}

}  // namespace runnel::grammar
