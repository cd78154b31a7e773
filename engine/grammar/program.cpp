#include "engine/grammar/program.h"

#include <algorithm>
#include <map>
#include <span>

#include "engine/grammar/analysis.h"
#include "engine/grammar/char_nodes.h"
#include "engine/grammar/dfa.h"

namespace runnel::grammar {
namespace {

using Op = Program::Op;

// Builds every part with the node that follows it, so from the end to the start.
class Compiler {
  public:
    explicit Compiler(Grammar grammar) : grammar_(std::move(grammar)), nodes_(program_) {
        nullable_ = prepare(grammar_);
        uses_.resize(grammar_.rules.size());
        entries_.assign(grammar_.rules.size(), kUnbounded);
        inlining_.resize(grammar_.rules.size());
        for (const Rule &rule : grammar_.rules)
            if (rule.body) count_uses(*rule.body);
    }

    Program compile() && {
        return_ = nodes_.add({Op::Return});
        entry(grammar_.root);
        while (!open_.empty()) {
            const uint32_t index = open_.back();
            open_.pop_back();
            inlining_[index] = true;
            entries_[index] = build(*grammar_.rules[index].body, return_);
            inlining_[index] = false;
        }
        for (const auto &[node, index] : calls_) program_.nodes[node].a = entries_[index];
        for (const auto &[slot, index] : jumps_) program_.targets[slot] = entries_[index];
        program_.start = entries_[grammar_.root];
        set_byte_classes();
        return std::move(program_);
    }

  private:
    void count_uses(const Expression &e) {
        if (e.kind == Kind::Rule) ++uses_[e.rule];
        for (const Expr &part : e.parts) count_uses(*part);
        if (!e.properties) return;
        for (const auto &property : e.properties->properties) count_uses(*property.member);
        if (e.properties->extra) count_uses(*e.properties->extra);
        count_uses(*e.properties->separator);
    }

    void entry(uint32_t index) {
        if (entries_[index] != kUnbounded) return;
        entries_[index] = 0;
        open_.push_back(index);
    }

    uint32_t build(const Expression &e, uint32_t next) {
        switch (e.kind) {
            case Kind::Empty:
                return next;
            case Kind::Bytes:
                return nodes_.add_bytes(e.text, next);
            case Kind::Chars:
                return chars(e.chars, e.spelling, next);
            case Kind::Sequence:
                for (size_t i = e.parts.size(); i-- > 0;) next = build(*e.parts[i], next);
                return next;
            case Kind::Choice:
                return build_choice(e, next);
            case Kind::Repeat:
                return build_repeat(e, next);
            case Kind::Rule:
                return build_rule(e.rule, next);
            case Kind::Token:
                return build_token(e, next);
            case Kind::Words:
                return build_words(e, next);
            case Kind::Properties:
                return e.properties->any_order ? build_any_order(*e.properties, next)
                                               : build_in_order(*e.properties, next);
            case Kind::Never:
            case Kind::Assert:
                break;
        }
        return nodes_.add({Op::Split});  // leads nowhere
    }

    uint32_t chars(const CharSet &set, Spelling spelling, uint32_t next) {
        CharMap map;
        for (const CharRange &range : set.ranges()) map.push_back({range.first, range.last, next});
        return nodes_.add_chars(map, spelling);
    }

    uint32_t build_choice(const Expression &e, uint32_t next) {
        std::vector<std::string_view> texts;
        std::vector<uint32_t> targets;
        for (const Expr &part : e.parts) {
            if (part->kind == Kind::Bytes)
                texts.push_back(part->text);
            else
                targets.push_back(build(*part, next));
        }
        std::sort(texts.begin(), texts.end());
        texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
        if (!texts.empty()) targets.push_back(trie(texts, 0, next));
        return nodes_.add_split(targets);
    }

    // Nodes for sorted texts that share their first `depth` bytes and are longer.
    uint32_t trie(std::span<const std::string_view> texts, size_t depth, uint32_t next) {
        if (texts.size() == 1) return nodes_.add_bytes(texts[0].substr(depth), next);
        std::vector<CharTarget> edges;
        for (size_t i = 0; i < texts.size();) {
            size_t end = i;
            while (end < texts.size() && texts[end][depth] == texts[i][depth]) ++end;
            auto group = texts.subspan(i, end - i);
            const auto byte = static_cast<uint8_t>(texts[i][depth]);
            uint32_t target = next;
            const bool ends = group[0].size() == depth + 1;
            if (ends) group = group.subspan(1);
            if (!group.empty()) {
                target = trie(group, depth + 1, next);
                if (ends) target = nodes_.add_split({target, next});
            }
            edges.push_back({byte, byte, target});
            i = end;
        }
        return nodes_.add_switch(std::move(edges));
    }

    uint32_t add_loop(uint32_t min, uint32_t max) {
        program_.loops.push_back({min, max});
        return static_cast<uint32_t>(program_.loops.size() - 1);
    }
    uint32_t guard(Program::Intervals intervals, uint32_t next) {
        if (intervals.size() == 1 && intervals[0] == std::pair<uint32_t, uint32_t>{0, kUnbounded})
            return next;
        program_.guards.push_back(std::move(intervals));
        return nodes_.add({Op::Guard, static_cast<uint32_t>(program_.guards.size() - 1), next});
    }

    uint32_t build_repeat(const Expression &e, uint32_t next) {
        const Expression &part = *e.parts[0];
        // A part that can match the empty text can reach its minimum by empty repetitions.
        const uint32_t min = nullable(part, nullable_) ? 0 : e.min;
        if (e.max == kUnbounded && min <= 1) {
            const uint32_t loop = nodes_.add({Op::Split});
            const uint32_t body = build(part, loop);
            set_targets(loop, {body, next});
            note_plain(part, body, kUnbounded, kUnbounded);
            return min == 0 ? loop : body;
        }
        constexpr uint32_t kMostCopies = 4;
        if (e.max <= kMostCopies && (e.max == 1 || part.kind == Kind::Chars)) {
            const uint32_t end = next;
            for (uint32_t left = 1; left <= e.max; ++left) {
                const uint32_t body = build(part, next);
                if (e.max > 1) note_plain(part, body, kUnbounded, left);
                next = left <= e.max - min ? nodes_.add_split({body, end}) : body;
            }
            return next;
        }
        const uint32_t loop = add_loop(min, e.max);
        const uint32_t start = nodes_.add({Op::Split});
        const uint32_t body = build(part, nodes_.add({Op::Tick, loop, start}));
        const uint32_t enter = guard({{0, e.max == kUnbounded ? kUnbounded : e.max - 1}}, body);
        set_targets(start, {enter, nodes_.add({Op::Leave, loop, next})});
        note_plain(part, body, loop, e.max);
        return nodes_.add({Op::Enter, loop, start});
    }
    void set_targets(uint32_t node, const std::vector<uint32_t> &targets) {
        program_.nodes[node].a = static_cast<uint32_t>(program_.targets.size());
        program_.targets.insert(program_.targets.end(), targets.begin(), targets.end());
        program_.nodes[node].b = static_cast<uint32_t>(program_.targets.size());
    }
    void note_plain(const Expression &part, uint32_t node, uint32_t loop, uint32_t most) {
        if (part.kind == Kind::Chars && part.chars.contains(plain_characters()))
            program_.plain_loops.push_back({node, loop, most, true});
    }

    static size_t weight(const Expression &e) {
        size_t sum = 1 + e.text.size() + (e.chars.ranges().size() > 3 ? 100 : 0);
        for (const Expr &part : e.parts) sum += weight(*part);
        return e.kind == Kind::Rule || e.properties || e.dfa ? 1000 : sum;
    }

    uint32_t build_rule(uint32_t index, uint32_t next) {
        const Expression &body = *grammar_.rules[index].body;
        constexpr size_t kSmall = 24;
        if (!inlining_[index] && (uses_[index] == 1 || weight(body) <= kSmall) && depth_ < kMaxNesting) {
            inlining_[index] = true;
            ++depth_;
            const uint32_t start = build(body, next);
            --depth_;
            inlining_[index] = false;
            return start;
        }
        entry(index);
        if (next == return_) {  // a tail call: the caller's frame is reused
            const auto slot = static_cast<uint32_t>(program_.targets.size());
            program_.targets.push_back(0);
            jumps_.emplace_back(slot, index);
            return nodes_.add({Op::Split, slot, slot + 1});
        }
        const uint32_t node = nodes_.add({Op::Call, 0, next});
        calls_.emplace_back(node, index);
        return node;
    }

    uint32_t build_token(const Expression &e, uint32_t next) {
        Program::TokenSet set{e.tokens, e.negated};
        const auto at = std::find(program_.token_sets.begin(), program_.token_sets.end(), set);
        const auto index = static_cast<uint32_t>(at - program_.token_sets.begin());
        if (at == program_.token_sets.end()) program_.token_sets.push_back(std::move(set));
        return nodes_.add({Op::Token, index, next});
    }

    static Program::Intervals one_less(const Program::Intervals &counts) {
        Program::Intervals result;
        for (const auto &[first, last] : counts)
            if (last > 0)
                result.emplace_back(first > 0 ? first - 1 : 0, last == kUnbounded ? last : last - 1);
        return result;
    }

    static bool have_one_target(const CharMap &map) {
        return std::ranges::all_of(map,
                                   [&](const CharTarget &entry) { return entry.target == map[0].target; });
    }

    uint32_t build_words(const Expression &e, uint32_t next) {
        const Dfa &dfa = *e.dfa;
        const bool counted = e.min > 0 || e.max != kUnbounded;
        const uint32_t loop = counted ? add_loop(e.min, e.max) : 0;
        const auto live = counted ? dfa.live(e.min, e.max) : std::vector<Program::Intervals>{};
        const uint32_t end = counted ? nodes_.add({Op::Leave, loop, next}) : next;
        std::vector<uint32_t> states, arrivals;
        for (uint32_t q = 0; q < dfa.states(); ++q) states.push_back(nodes_.add({Op::Split}));
        for (uint32_t q = 0; q < dfa.states(); ++q)
            arrivals.push_back(counted ? nodes_.add({Op::Tick, loop, states[q]}) : states[q]);
        const std::vector<bool> free = dfa.closed(plain_characters());
        uint32_t most_plain = kUnbounded;
        for (uint32_t q = 0; counted && q < dfa.states(); ++q)
            if (free[q])
                most_plain =
                    std::min(most_plain, live[q].empty() || live[q][0].first > 0 ? 0 : live[q][0].second);
        for (uint32_t q = 0; q < dfa.states(); ++q) {
            // The count is checked before a character, as a token may end inside the character.
            std::map<Program::Intervals, CharMap> by_count;
            for (size_t c = 0; c < dfa.classes().size(); ++c) {
                const uint32_t target = dfa.next(q, c);
                if (target == Dfa::kDead) continue;
                const Program::Intervals allowed =
                    counted ? one_less(live[target]) : Program::Intervals{{0, kUnbounded}};
                if (allowed.empty()) continue;
                for (const CharRange &range : dfa.classes()[c].ranges())
                    by_count[allowed].push_back({range.first, range.last, arrivals[target]});
            }
            std::vector<uint32_t> targets;
            for (auto &[allowed, map] : by_count) {
                std::sort(map.begin(), map.end());
                const uint32_t node = nodes_.add_chars(map, e.spelling);
                // Else the plain characters might be divided among several nodes.
                if (free[q] && most_plain > 0 && by_count.size() == 1)
                    program_.plain_loops.push_back(
                        {node, counted ? loop : kUnbounded, most_plain, have_one_target(map)});
                targets.push_back(guard(allowed, node));
            }
            if (dfa.accepting(q)) targets.push_back(end);
            set_targets(states[q], targets);
        }
        if (!counted) return states[0];
        if (live[0].empty() || live[0][0].first != 0)
            throw GrammarError("no string matches both the pattern and the bounds on its length");
        return nodes_.add({Op::Enter, loop, states[0]});
    }

    // Three rows of nodes with one node per property: in the first nothing was written yet, in the second a
    // member was, in the third a separator was, so a member must follow. Guards on the count keep both the
    // maximum and the minimum reachable.
    uint32_t build_in_order(const PropertyList &list, uint32_t next) {
        const auto count = static_cast<uint32_t>(list.properties.size());
        std::vector<uint32_t> required(count + 1);
        for (uint32_t i = count; i-- > 0;) required[i] = required[i + 1] + list.properties[i].required;
        const bool counted = list.min > required[0] || list.max < (list.extra ? kUnbounded : count);
        const uint32_t loop = counted ? add_loop(list.min, list.max) : 0;
        const uint32_t end = counted ? nodes_.add({Op::Leave, loop, next}) : next;
        const auto up_to = [&](uint32_t reserve, uint32_t node) {  // one more, if `reserve` may still follow
            if (!counted || list.max == kUnbounded) return node;
            if (list.max <= reserve) return nodes_.add({Op::Split});  // leads nowhere
            return guard({{0, list.max - 1 - reserve}}, node);
        };
        const auto without = [&](uint32_t left, uint32_t node) {  // only `left` more can come
            return counted && !list.extra && list.min > left ? guard({{list.min - left, kUnbounded}}, node)
                                                             : node;
        };
        const auto tick = [&](uint32_t node) { return counted ? nodes_.add({Op::Tick, loop, node}) : node; };
        uint32_t some = end, none = end, must = kUnbounded;
        if (list.extra) {
            some = nodes_.add({Op::Split});
            const uint32_t extra = build(*list.extra, tick(some));
            must = up_to(0, extra);
            set_targets(some, {up_to(0, build(*list.separator, extra)), end});
            none = nodes_.add_split({must, end});
        }
        for (uint32_t i = count; i-- > 0;) {
            const bool is_required = list.properties[i].required;
            const uint32_t member = up_to(required[i + 1], build(*list.properties[i].member, tick(some)));
            const uint32_t left = count - i - 1;
            std::vector<uint32_t> nothing{member}, forced{member};
            if (!is_required) {
                nothing.push_back(without(left, none));
                if (must != kUnbounded) forced.push_back(without(left, must));
            }
            none = nodes_.add_split(nothing);
            must = nodes_.add_split(forced);
            const uint32_t more = up_to(required[i] > 0 ? required[i] - 1 : 0, build(*list.separator, must));
            some = required[i] > 0 ? more : nodes_.add_split({more, end});
        }
        return counted ? nodes_.add({Op::Enter, loop, none}) : none;
    }

    // The frame holds the set of properties that were written.
    uint32_t build_any_order(const PropertyList &list, uint32_t next) {
        const uint32_t loop = add_loop(0, kUnbounded);
        program_.loops[loop].is_set = true;
        const uint32_t end = nodes_.add({Op::Leave, loop, next});
        const uint32_t some = nodes_.add({Op::Split}), must = nodes_.add({Op::Split});
        std::vector<uint32_t> all, left;
        const uint32_t separator = build(*list.separator, must);
        for (uint32_t i = 0; i < list.properties.size(); ++i) {
            if (list.properties[i].required) program_.loops[loop].required.push_back(i);
            const uint32_t insert = nodes_.add({Op::Insert, some, i});
            all.push_back(nodes_.add({Op::Absent, build(*list.properties[i].member, insert), i}));
            left.push_back(nodes_.add({Op::Absent, separator, i}));
        }
        if (list.extra) {
            all.push_back(build(*list.extra, some));
            left = {separator};
        }
        if (all.empty()) return next;
        set_targets(must, all);
        left.push_back(end);
        set_targets(some, left);
        return nodes_.add({Op::Enter, loop, nodes_.add_split({must, end})});
    }

    void set_byte_classes() {
        std::array<bool, 257> border{};
        border[0] = true;
        for (const Program::Edge &edge : program_.edges) border[edge.first] = border[edge.last + 1] = true;
        for (size_t byte = 0; byte < 256; ++byte) {
            if (border[byte]) program_.class_sample.push_back(static_cast<uint8_t>(byte));
            program_.byte_class[byte] = static_cast<uint8_t>(program_.class_sample.size() - 1);
        }
    }

    Grammar grammar_;
    Program program_;
    CharNodes nodes_;
    std::vector<bool> nullable_, inlining_;
    std::vector<uint32_t> uses_, entries_, open_;
    std::vector<std::pair<uint32_t, uint32_t>> calls_, jumps_;
    uint32_t return_ = 0;
    size_t depth_ = 0;
};

}  // namespace

Program compile(Grammar grammar) {
    return Compiler(std::move(grammar)).compile();
}

}  // namespace runnel::grammar
