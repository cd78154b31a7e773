#include "engine/grammar/schema.h"

#include <algorithm>

#include "engine/grammar/formats.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema_shape.h"

namespace runnel::grammar {
namespace {

// The numbers of characters that an expression of Chars and Bytes can match.
struct Lengths {
    uint64_t min, max;  // kUnbounded and more: no bound
};
Lengths lengths(const Expression &e) {
    switch (e.kind) {
        case Kind::Bytes: {
            uint64_t count = 0;
            for (const char c : e.text) count += (static_cast<uint8_t>(c) & 0xc0) != 0x80;
            return {count, count};
        }
        case Kind::Chars:
            return {1, 1};
        case Kind::Sequence:
        case Kind::Choice: {
            Lengths all = e.kind == Kind::Sequence ? Lengths{0, 0} : Lengths{kUnbounded, 0};
            for (const Expr &part : e.parts) {
                const Lengths one = lengths(*part);
                if (e.kind == Kind::Sequence)
                    all = {all.min + one.min, std::min<uint64_t>(all.max + one.max, kUnbounded)};
                else
                    all = {std::min(all.min, one.min), std::max(all.max, one.max)};
            }
            return all;
        }
        case Kind::Repeat: {
            const Lengths one = lengths(*e.parts[0]);
            const bool endless = one.max > 0 && (e.max == kUnbounded || one.max >= kUnbounded);
            return {one.min * e.min, endless ? kUnbounded : std::min<uint64_t>(one.max * e.max, kUnbounded)};
        }
        default:
            return {0, kUnbounded};
    }
}

class SchemaCompiler {
  public:
    SchemaCompiler(const Json &root, const SchemaOptions &options, std::vector<std::string> *notes)
        : root_(root), options_(options), reader_(root, notes), space_(whitespace(options.whitespace)) {}

    Grammar compile() {
        grammar_.add("root");
        any_value_ = add_any_value(grammar_, space_, &any_object_);
        const Expr value = rule_for({{&root_, "#"}});
        for (size_t i = 0; i < open_.size(); ++i) {
            const auto [index, schemas] = std::pair(open_[i]);  // the list grows
            groups_ = 0;
            grammar_.rules[index].body = expression(reader_.shape(schemas));
        }
        grammar_.rules[0].body = sequence({value, space_});
        return std::move(grammar_);
    }

  private:
    // One rule per combination of schemas, so that recursive references end.
    Expr rule_for(Conjunction schemas) {
        std::vector<const Json *> key;
        Conjunction resolved;
        for (const SchemaRef &schema : schemas) {
            SchemaRef end = reader_.resolve(schema);
            if (*end.json == true || (end.json->is_object() && end.json->empty())) continue;
            if (std::find(key.begin(), key.end(), end.json) != key.end()) continue;
            key.push_back(end.json);
            resolved.push_back(std::move(end));
        }
        if (resolved.empty()) return rule(any_value_);
        std::sort(key.begin(), key.end());
        const auto at = rules_.find(key);
        if (at != rules_.end()) return rule(at->second);
        constexpr size_t kMostRules = 20'000;
        if (open_.size() >= kMostRules) SchemaReader::fail(resolved[0].path, "the schema is too large");
        const uint32_t index = grammar_.add(resolved[0].path);
        rules_.emplace(std::move(key), index);
        open_.emplace_back(index, std::move(resolved));
        return rule(index);
    }

    Expr expression(Shape shape) {
        if (shape.types == 0) return never();
        if (!shape.groups.empty()) return one_of_group(std::move(shape));
        if (shape.values) return enumeration(shape);
        const bool plain_objects = shape.objects.empty() && shape.required.empty() && shape.names.empty() &&
                                   shape.min_properties == 0 && shape.max_properties == kUnbounded &&
                                   !shape.closed;
        std::vector<Expr> kinds;
        if (shape.types & kObject) kinds.push_back(plain_objects ? rule(any_object_) : object(shape));
        if (shape.types & kArray) kinds.push_back(array(shape));
        if (shape.types & kString) kinds.push_back(quoted_string(string(shape)));
        if (shape.types & (kInteger | kFraction))
            kinds.push_back(number_of(shape, !(shape.types & kFraction)));
        if (shape.types & kBoolean) kinds.push_back(choice({literal("true"), literal("false")}));
        if (shape.types & kNull) kinds.push_back(literal("null"));
        return choice(std::move(kinds));
    }

    Expr number_of(const Shape &shape, bool integer) {
        try {
            return number(shape.numbers, integer);
        } catch (const GrammarError &error) {
            SchemaReader::fail(shape.path, error.what());
        }
    }

    Expr one_of_group(Shape shape) {
        constexpr size_t kMostGroups = 2000;
        if (++groups_ > kMostGroups)
            SchemaReader::fail(shape.path, "anyOf and oneOf have too many combinations");
        const Shape::Group group = std::move(shape.groups.back());
        shape.groups.pop_back();
        std::vector<Shape> branches;
        for (const SchemaRef &branch : group.branches) {
            branches.push_back(shape);
            reader_.absorb(branches.back(), branch);
        }
        if (group.exclusive) check_exclusive(branches, group.path);
        std::vector<Expr> alternatives;
        for (Shape &branch : branches) alternatives.push_back(expression(std::move(branch)));
        return choice(std::move(alternatives));
    }

    void check_exclusive(const std::vector<Shape> &branches, const std::string &path) {
        for (size_t i = 0; i < branches.size(); ++i)
            for (size_t j = i + 1; j < branches.size(); ++j)
                if (!reader_.disjoint(branches[i], branches[j]))
                    SchemaReader::fail(path,
                                       "the keyword oneOf is supported only if no two branches can match "
                                       "the same value: " +
                                           std::to_string(i) + " and " + std::to_string(j) +
                                           " may; anyOf has no such condition");
    }

    Expr enumeration(const Shape &shape) {
        std::vector<Expr> alternatives;
        for (const Json &value : *shape.values)
            if (reader_.valid(value, shape)) alternatives.push_back(exact_value(value, space_));
        return choice(std::move(alternatives));
    }

    // The characters of a string, without quotation marks.
    Expr string(const Shape &shape) {
        if (shape.min_length > shape.max_length) return never();
        try {
            if (shape.patterns.empty() && shape.formats.empty())
                return repeat(one_of(CharSet::all(), Spelling::Json), shape.min_length, shape.max_length);
            if (shape.patterns.size() + shape.formats.size() == 1) {
                const Expr only = shape.patterns.empty() ? format_words(shape.formats[0])
                                                         : search_match(parse_regex(shape.patterns[0]));
                const Expr fitted = with_length(only, shape.min_length, shape.max_length);
                if (fitted) return spelled(fitted, Spelling::Json);
            }
            Dfa all = Dfa::all();
            for (const std::string &pattern : shape.patterns) all = all & reader_.pattern_dfa(pattern);
            for (const std::string &format : shape.formats) all = all & reader_.format_dfa(format);
            return bounded_words(std::move(all), shape.min_length, shape.max_length);
        } catch (const GrammarError &error) {
            SchemaReader::fail(shape.path, error.what());
        }
    }

    // `e` with bounds on its length, if the bounds change nothing or become the counts of a repetition. Null if
    // they need an automaton.
    static Expr with_length(const Expr &e, uint32_t min, uint32_t max) {
        const Lengths can = lengths(*e);
        if (can.min >= min && (max == kUnbounded || can.max <= max)) return e;
        if (e->kind == Kind::Repeat && e->parts[0]->kind == Kind::Chars)
            return repeat(e->parts[0], std::max(min, e->min), std::min(max, e->max));
        return nullptr;
    }

    static Expr bounded_words(Dfa dfa, uint32_t min, uint32_t max) {
        if (dfa.none()) return never();
        if (min > 0 || max != kUnbounded) {
            const auto live = dfa.live(min, max);
            if (live[0].empty() || live[0][0].first != 0) return never();
            const uint32_t shortest = dfa.shortest()[0], longest = dfa.longest()[0];
            if (shortest >= min) min = 0;
            if (longest <= max) max = kUnbounded;
        }
        return words(std::make_shared<Dfa>(std::move(dfa)), Spelling::Json, min, max);
    }

    Expr array(const Shape &shape) {
        const auto count = static_cast<uint32_t>(shape.prefix_size());
        const uint32_t min = shape.min_items, max = shape.max_items;
        if (min > max) return never();
        const auto item = [&](uint32_t index) {
            return sequence({rule_for(shape.of_element(index)), space_});
        };
        const auto separated = [&](const Expr &e) { return sequence({comma(space_), e}); };
        const uint32_t prefix = std::min(count, max);
        Expr inside;
        if (max > prefix) {
            const Expr rest = item(count);
            const uint32_t more = max == kUnbounded ? kUnbounded : max - prefix;
            const uint32_t least = min > prefix ? min - prefix : 0;
            if (prefix > 0)
                inside = repeat(separated(rest), least, more);
            else
                inside = sequence({rest, repeat(separated(rest), least > 0 ? least - 1 : 0,
                                                more == kUnbounded ? kUnbounded : more - 1)});
            if (prefix == 0 && min == 0) inside = optional(inside);
        } else {
            inside = min > prefix ? never() : empty();
        }
        for (uint32_t i = prefix; i-- > 0;) {
            const Expr one = i > 0 ? separated(item(i)) : item(i);
            inside = sequence({one, inside});
            if (i >= min) inside = optional(inside);
        }
        return brackets(inside, space_);
    }

    Expr object(const Shape &shape) {
        if (shape.min_properties > shape.max_properties) return never();
        PropertyList list;
        list.min = shape.min_properties;
        list.max = shape.max_properties;
        list.separator = comma(space_);
        list.any_order = options_.any_order;
        if (list.any_order && (list.min > 0 || list.max != kUnbounded))
            SchemaReader::fail(shape.path, "minProperties and maxProperties require the declared order");
        const std::vector<std::string> patterns = shape.name_patterns(), names = shape.property_names();
        for (const std::string &name : names) {
            std::vector<bool> matches;
            for (const std::string &pattern : patterns)
                matches.push_back(reader_.pattern_dfa(pattern).matches(name));
            const bool allowed = shape.names.empty() || reader_.valid(Json(name), shape.names);
            const Expr value = allowed ? rule_for(shape.of_name(&name, matches)) : never();
            list.properties.push_back({member(exact_string(name), value, space_), shape.is_required(name)});
        }
        list.extra = extra_member(shape, names, patterns);
        return braces(members(std::move(list)), space_);
    }

    // A member that is not declared: its value's schemas depend on which patterns the name matches.
    Expr extra_member(const Shape &shape, const std::vector<std::string> &names,
                      const std::vector<std::string> &patterns) {
        constexpr size_t kMostPatterns = 5;
        if (patterns.size() > kMostPatterns)
            SchemaReader::fail(shape.path, "the keyword patternProperties is supported for up to 5 patterns");
        if (patterns.empty() && !shape.is_open()) return nullptr;
        try {
            std::optional<Dfa> allowed;
            if (!names.empty()) {
                std::vector<Expr> declared;
                for (const std::string &name : names) declared.push_back(literal(name));
                allowed = Dfa::of(choice(std::move(declared))).complement();
            }
            if (!shape.names.empty()) {
                const Dfa words = name_words(shape);
                allowed = allowed ? *allowed & words : words;
            }
            std::vector<Expr> alternatives;
            for (size_t subset = 0; subset < size_t{1} << patterns.size(); ++subset) {
                std::vector<bool> matches;
                for (size_t i = 0; i < patterns.size(); ++i) matches.push_back(subset >> i & 1);
                if (subset == 0 && !shape.is_open()) continue;
                Expr key = repeat(one_of(CharSet::all(), Spelling::Json), 0);
                if (allowed || !patterns.empty()) {
                    Dfa words = allowed ? *allowed : Dfa::all();
                    for (size_t i = 0; i < patterns.size(); ++i) {
                        const Dfa &pattern = reader_.pattern_dfa(patterns[i]);
                        words = words & (matches[i] ? pattern : pattern.complement());
                    }
                    if (words.none()) continue;
                    key = grammar::words(std::make_shared<Dfa>(std::move(words)), Spelling::Json);
                }
                alternatives.push_back(
                    member(quoted_string(key), rule_for(shape.of_name(nullptr, matches)), space_));
            }
            return alternatives.empty() ? nullptr : choice(std::move(alternatives));
        } catch (const GrammarError &error) {
            SchemaReader::fail(shape.path, error.what());
        }
    }

    // The names that propertyNames allows.
    Dfa name_words(const Shape &shape) {
        const Shape s = reader_.shape(shape.names);
        if (!s.groups.empty())
            SchemaReader::fail(s.path, "anyOf and oneOf in propertyNames are not supported");
        if (!(s.types & kString)) return Dfa::all().complement();
        Dfa all = Dfa::all();
        if (s.values) {
            std::vector<Expr> texts;
            for (const Json &value : *s.values)
                if (value.is_string()) texts.push_back(literal(value.get<std::string>()));
            all = Dfa::of(choice(std::move(texts)));
        }
        for (const std::string &pattern : s.patterns) all = all & reader_.pattern_dfa(pattern);
        for (const std::string &format : s.formats) all = all & reader_.format_dfa(format);
        if (s.min_length > 0 || s.max_length != kUnbounded)
            all = all & Dfa::of(repeat(one_of(CharSet::all()), s.min_length, s.max_length));
        return all;
    }

    const Json &root_;
    const SchemaOptions &options_;
    SchemaReader reader_;
    const Expr space_;
    Grammar grammar_;
    uint32_t any_value_ = 0, any_object_ = 0;
    std::map<std::vector<const Json *>, uint32_t> rules_;
    std::vector<std::pair<uint32_t, Conjunction>> open_;
    size_t groups_ = 0;
};

}  // namespace

Grammar schema_grammar(const Json &schema, const SchemaOptions &options, std::vector<std::string> *notes) {
    return SchemaCompiler(schema, options, notes).compile();
}

Grammar schema_grammar(std::string_view text, const SchemaOptions &options, std::vector<std::string> *notes) {
    const Json schema = parse_json_text(text, "schema");
    return schema_grammar(schema, options, notes);
}

}  // namespace runnel::grammar
