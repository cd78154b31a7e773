#include "engine/grammar/analysis.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "engine/grammar/dfa.h"

namespace runnel::grammar {
namespace {

[[noreturn]] void fail(const Rule &rule, const std::string &message) {
    if (rule.line) throw GrammarError(message, rule.line, rule.column);
    throw GrammarError(message);
}

void for_each_part(const Expression &e, const std::function<void(const Expression &)> &visit) {
    for (const Expr &part : e.parts) visit(*part);
    if (!e.properties) return;
    for (const auto &property : e.properties->properties) visit(*property.member);
    if (e.properties->extra) visit(*e.properties->extra);
    visit(*e.properties->separator);
}

void mark_used(const Grammar &grammar, std::vector<bool> &used) {
    std::vector<uint32_t> open{grammar.root};
    const std::function<void(const Expression &)> visit = [&](const Expression &e) {
        if (e.kind == Kind::Rule && !used[e.rule]) {
            used[e.rule] = true;
            open.push_back(e.rule);
        }
        for_each_part(e, visit);
    };
    used[grammar.root] = true;
    while (!open.empty()) {
        const Rule &rule = grammar.rules[open.back()];
        open.pop_back();
        if (!rule.body) fail(rule, "rule '" + rule.name + "' is not defined");
        visit(*rule.body);
    }
}

// For every rule, the rules that refer to it: a fixpoint rechecks only those whose answer may have changed.
std::vector<std::vector<uint32_t>> users_of(const Grammar &grammar, const std::vector<bool> &used) {
    std::vector<std::vector<uint32_t>> users(grammar.rules.size());
    for (uint32_t i = 0; i < grammar.rules.size(); ++i) {
        if (!used[i]) continue;
        const std::function<void(const Expression &)> visit = [&](const Expression &e) {
            if (e.kind == Kind::Rule && (users[e.rule].empty() || users[e.rule].back() != i))
                users[e.rule].push_back(i);
            for_each_part(e, visit);
        };
        visit(*grammar.rules[i].body);
    }
    return users;
}

// The least solution of holds[i] = test(body of i).
std::vector<bool> fixpoint(const Grammar &grammar, const std::vector<bool> &used,
                           const std::vector<std::vector<uint32_t>> &users,
                           const std::function<bool(const Expression &, const std::vector<bool> &)> &test) {
    std::vector<bool> holds(grammar.rules.size());
    std::vector<uint32_t> open;
    for (uint32_t i = 0; i < grammar.rules.size(); ++i)
        if (used[i]) open.push_back(i);
    while (!open.empty()) {
        const uint32_t i = open.back();
        open.pop_back();
        if (holds[i] || !test(*grammar.rules[i].body, holds)) continue;
        holds[i] = true;
        open.insert(open.end(), users[i].begin(), users[i].end());
    }
    return holds;
}

// The result of a test on `e` from those on its parts; nullopt for kinds where it does not follow from them.
template <class Test>
std::optional<bool> by_parts(const Expression &e, const std::vector<bool> &rules, const Test &test) {
    switch (e.kind) {
        case Kind::Rule:
            return rules[e.rule];
        case Kind::Sequence:
            return std::all_of(e.parts.begin(), e.parts.end(), test);
        case Kind::Choice:
            return std::any_of(e.parts.begin(), e.parts.end(), test);
        case Kind::Repeat:
            return e.min == 0 || test(e.parts[0]);
        default:
            return std::nullopt;
    }
}

bool productive(const Expression &e, const std::vector<bool> &rules) {
    const auto test = [&](const Expr &part) { return productive(*part, rules); };
    if (const auto holds = by_parts(e, rules, test)) return *holds;
    switch (e.kind) {
        case Kind::Never:
            return false;
        case Kind::Words:
            return !e.dfa->none();
        case Kind::Properties: {
            const PropertyList &list = *e.properties;
            uint64_t possible = 0, required = 0;
            for (const auto &property : list.properties) {
                const bool can = test(property.member);
                if (!can && property.required) return false;
                possible += can, required += property.required;
            }
            const bool more = list.extra && test(list.extra);
            return list.min <= list.max && required <= list.max && (more || possible >= list.min);
        }
        default:
            return true;
    }
}

// Removes the parts that no text can match.
Expr pruned(const Expr &e, const std::vector<bool> &rules) {
    if (!productive(*e, rules)) return never();
    switch (e->kind) {
        case Kind::Sequence:
        case Kind::Choice: {
            std::vector<Expr> parts;
            bool same = true;
            for (const Expr &part : e->parts) {
                parts.push_back(pruned(part, rules));
                same &= parts.back() == part;
            }
            if (same) return e;
            return e->kind == Kind::Sequence ? sequence(std::move(parts)) : choice(std::move(parts));
        }
        case Kind::Repeat: {
            const Expr part = pruned(e->parts[0], rules);
            return part == e->parts[0] ? e : repeat(part, e->min, e->max);
        }
        case Kind::Properties: {
            PropertyList list = *e->properties;
            std::erase_if(list.properties,
                          [&](const auto &property) { return !productive(*property.member, rules); });
            for (auto &property : list.properties) property.member = pruned(property.member, rules);
            if (list.extra) list.extra = productive(*list.extra, rules) ? pruned(list.extra, rules) : nullptr;
            return members(std::move(list));
        }
        default:
            return e;
    }
}

// Visits the rules that `e` may call before it matches any byte.
void first_rules(const Expression &e, const std::vector<bool> &nullable_rules,
                 const std::function<void(uint32_t)> &visit) {
    switch (e.kind) {
        case Kind::Rule:
            visit(e.rule);
            break;
        case Kind::Sequence:
            for (const Expr &part : e.parts) {
                first_rules(*part, nullable_rules, visit);
                if (!nullable(*part, nullable_rules)) break;
            }
            break;
        case Kind::Choice:
        case Kind::Repeat:
            for (const Expr &part : e.parts) first_rules(*part, nullable_rules, visit);
            break;
        default:
            break;  // members begin with a byte
    }
}

// Whether `e` begins with `self`; `rest` becomes what follows it.
bool strip_self(const Expr &e, uint32_t self, Expr &rest) {
    if (e->kind == Kind::Rule && e->rule == self) {
        rest = empty();
        return true;
    }
    if (e->kind != Kind::Sequence) return false;
    const Expr &first = e->parts[0];
    if (first->kind != Kind::Rule || first->rule != self) return false;
    rest = sequence({e->parts.begin() + 1, e->parts.end()});
    return true;
}

void rewrite_left_recursion(Rule &rule, uint32_t self) {
    std::vector<Expr> alternatives{rule.body}, heads, tails;
    if (rule.body->kind == Kind::Choice) alternatives = rule.body->parts;
    for (const Expr &alternative : alternatives) {
        Expr rest;
        if (strip_self(alternative, self, rest))
            tails.push_back(rest);
        else
            heads.push_back(alternative);
    }
    if (tails.empty()) return;
    rule.body = sequence({choice(std::move(heads)), repeat(choice(std::move(tails)), 0)});
}

void refuse_left_recursion(const Grammar &grammar, const std::vector<bool> &used,
                           const std::vector<bool> &nullable_rules) {
    std::vector<std::vector<uint32_t>> first(grammar.rules.size());
    for (uint32_t i = 0; i < grammar.rules.size(); ++i)
        if (used[i])
            first_rules(*grammar.rules[i].body, nullable_rules, [&](uint32_t to) { first[i].push_back(to); });
    std::vector<uint8_t> color(grammar.rules.size());  // 1: being visited, 2: visited
    for (uint32_t root = 0; root < grammar.rules.size(); ++root) {
        if (!used[root] || color[root]) continue;
        std::vector<std::pair<uint32_t, size_t>> way{{root, 0}};
        color[root] = 1;
        while (!way.empty()) {
            auto &[at, next] = way.back();
            if (next == first[at].size()) {
                color[at] = 2;
                way.pop_back();
                continue;
            }
            const uint32_t to = first[at][next++];
            if (color[to] == 1)
                fail(grammar.rules[to], "rule '" + grammar.rules[to].name +
                                            "' refers to itself before it matches anything (left recursion)");
            if (color[to] == 0) {
                color[to] = 1;
                way.emplace_back(to, 0);
            }
        }
    }
}

}  // namespace

bool nullable(const Expression &e, const std::vector<bool> &rules) {
    const auto test = [&](const Expr &part) { return nullable(*part, rules); };
    if (const auto holds = by_parts(e, rules, test)) return *holds;
    switch (e.kind) {
        case Kind::Empty:
            return true;
        case Kind::Words:
            return e.min == 0 && e.dfa->accepting(e.dfa->start());
        case Kind::Properties:
            return e.properties->min == 0 &&
                   std::none_of(e.properties->properties.begin(), e.properties->properties.end(),
                                [](const auto &property) { return property.required; });
        default:
            return false;
    }
}

std::vector<bool> prepare(Grammar &grammar) {
    std::vector<bool> used(grammar.rules.size());
    mark_used(grammar, used);
    for (uint32_t i = 0; i < grammar.rules.size(); ++i)
        if (used[i]) rewrite_left_recursion(grammar.rules[i], i);
    const auto users = users_of(grammar, used);
    const std::vector<bool> can_end = fixpoint(grammar, used, users, productive);
    if (!can_end[grammar.root]) fail(grammar.rules[grammar.root], "no text matches the grammar");
    for (uint32_t i = 0; i < grammar.rules.size(); ++i)
        if (used[i]) grammar.rules[i].body = pruned(grammar.rules[i].body, can_end);
    const std::vector<bool> nullable_rules = fixpoint(grammar, used, users, nullable);
    refuse_left_recursion(grammar, used, nullable_rules);
    for (uint32_t i = 0; i < grammar.rules.size(); ++i)
        if (!used[i]) grammar.rules[i].body = nullptr;
    return nullable_rules;
}

}  // namespace runnel::grammar
