#include "engine/text/jinja/value.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/text/hash.h"
#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {
namespace {

using Kind = Sequence::Kind;

constexpr size_t kIndexed = 8;  // dicts with more entries use a hash index

uint32_t checked_nesting(uint32_t nesting) {
    if (nesting > kMaxNesting) fail(TemplateError::Kind::Limit, "values are nested too deeply");
    return nesting;
}

uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

[[noreturn]] void fail_unhashable(const Value &value) {
    fail("unhashable type: '" + std::string(type_name(value)) + "'");
}

uint64_t hash_sequence(const Value &value, size_t &budget);

// Equal numbers have equal hashes, whatever their type. `budget`: the number of values still to be visited,
// because a tuple of shared tuples can be far larger than its memory.
uint64_t hash_of(const Value &value, size_t &budget) {
    if (budget-- == 0) fail(TemplateError::Kind::Limit, "a key is too large");
    switch (value.type()) {
        case Type::Undefined:
            return 1;
        case Type::None:
            return 2;
        case Type::Boolean:
            return mix(value.boolean() ? 1 : 0);
        case Type::Integer:
            return mix(static_cast<uint64_t>(value.integer()));
        case Type::Float: {
            const double number = value.number();
            const bool whole = std::nearbyint(number) == number && std::fabs(number) < 0x1p62;
            return mix(whole ? static_cast<uint64_t>(static_cast<int64_t>(number))
                             : std::bit_cast<uint64_t>(number));
        }
        case Type::String:
            return hash_bytes(value.text().view());
        case Type::Sequence:
            return hash_sequence(value, budget);
        case Type::Dict:
            fail_unhashable(value);
        default:
            return 3;
    }
}

uint64_t hash_sequence(const Value &value, size_t &budget) {
    const Sequence &sequence = *value.sequence();
    if (sequence.kind != Kind::Tuple && sequence.kind != Kind::Range) fail_unhashable(value);
    uint64_t hash = 7;
    for (const Value &item : sequence.items) hash = mix(hash ^ hash_of(item, budget)) * 31;
    return hash;
}

uint64_t hash_of(const Value &value) {
    size_t budget = 10000;
    return hash_of(value, budget);
}

// Compares integers exactly, so 2^53 + 1 does not equal 2^53 as a float.
int compare_numbers(const Value &a, const Value &b) {
    if (is_integral(a) && is_integral(b)) {
        const int64_t x = as_integer(a), y = as_integer(b);
        return x < y ? -1 : x > y;
    }
    const double x = as_double(a), y = as_double(b);
    return x < y ? -1 : x > y;
}

bool equal_numbers(const Value &a, const Value &b) {
    if (is_integral(a) && is_integral(b)) return as_integer(a) == as_integer(b);
    return as_double(a) == as_double(b);
}

// Compares keys with equal hashes, whose size hash_of() has bounded.
bool equal_keys(const Value &a, const Value &b) {
    if (a.is_string() && b.is_string()) return a.text().view() == b.text().view();
    if (is_number(a) && is_number(b)) return equal_numbers(a, b);
    if (a.type() != b.type()) return false;
    if (!a.is(Type::Sequence)) return a.is_none() || a.is_undefined();
    const Sequence &x = *a.sequence(), &y = *b.sequence();
    return x.kind == y.kind &&
           std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), equal_keys);
}

bool equal_items(Runtime &runtime, const Sequence &a, const Sequence &b) {
    if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
    if (a.kind == Kind::Iterator || a.kind == Kind::Values) return &a == &b;
    for (size_t i = 0; i < a.items.size(); ++i)
        if (!equal(runtime, a.items[i], b.items[i])) return false;
    return true;
}

bool equal_dicts(Runtime &runtime, const Dict &a, const Dict &b) {
    if (a.size() != b.size()) return false;
    for (const Dict::Entry &entry : a.entries()) {
        const Value *other = b.find(entry.key);
        if (!other || !equal(runtime, entry.value, *other)) return false;
    }
    return true;
}

[[noreturn]] void fail_order(const Value &a, const Value &b, const char *symbol) {
    require_defined(a);
    require_defined(b);
    fail("'" + std::string(symbol) + "' not supported between instances of '" + std::string(type_name(a)) +
         "' and '" + std::string(type_name(b)) + "'");
}

}  // namespace

Value Value::list(std::vector<Value> items) {
    return make_sequence(Kind::List, std::move(items));
}

Value Value::tuple(std::vector<Value> items) {
    return make_sequence(Kind::Tuple, std::move(items));
}

Value Value::iterator(std::vector<Value> items) {
    return make_sequence(Kind::Iterator, std::move(items));
}

std::shared_ptr<Sequence> make_sequence(Kind kind, std::vector<Value> items) {
    auto sequence = std::make_shared<Sequence>();
    sequence->kind = kind;
    sequence->nesting = nesting_around(items);
    sequence->items = std::move(items);
    return sequence;
}

uint32_t Value::nesting() const {
    switch (type()) {
        case Type::Sequence:
            return sequence()->nesting;
        case Type::Dict:
            return dict()->nesting();
        case Type::Function:
            return function()->nesting;
        case Type::Loop:
            return loop()->nesting;
        case Type::Cycler:
            return cycler()->nesting;
        default:
            return 0;
    }
}

uint32_t nesting_around(const Value &held) {
    return checked_nesting(held.nesting() + 1);
}

uint32_t nesting_around(const std::vector<Value> &held) {
    uint32_t nesting = 0;
    for (const Value &value : held) nesting = std::max(nesting, value.nesting());
    return checked_nesting(nesting + 1);
}

size_t Dict::index_of(const Value &key, uint64_t hash) const {
    if (slots_.empty()) {
        size_t i = 0;
        while (i < entries_.size() && !(hashes_[i] == hash && equal_keys(entries_[i].key, key))) ++i;
        return i;
    }
    const size_t mask = slots_.size() - 1;
    for (size_t at = hash & mask; slots_[at] != 0; at = (at + 1) & mask) {
        const size_t i = slots_[at] - 1;
        if (hashes_[i] == hash && equal_keys(entries_[i].key, key)) return i;
    }
    return entries_.size();
}

void Dict::index() {
    if (entries_.size() <= kIndexed) return;
    const auto place = [&](size_t i) {
        const size_t mask = slots_.size() - 1;
        size_t at = hashes_[i] & mask;
        while (slots_[at] != 0) at = (at + 1) & mask;
        slots_[at] = static_cast<uint32_t>(i + 1);
    };
    if (slots_.size() >= 2 * entries_.size()) {
        place(entries_.size() - 1);
        return;
    }
    slots_.assign(std::bit_ceil(4 * entries_.size()), 0);
    for (size_t i = 0; i < entries_.size(); ++i) place(i);
}

const Value *Dict::find(const Value &key) const {
    const size_t i = index_of(key, hash_of(key));
    return i < entries_.size() ? &entries_[i].value : nullptr;
}

const Value *Dict::find(std::string_view key) const {
    for (const Entry &entry : entries_)
        if (entry.key.is_string() && entry.key.text().view() == key) return &entry.value;
    return nullptr;
}

void Dict::set(const Value &key, Value value) {
    const uint64_t hash = hash_of(key);
    nesting_ = checked_nesting(std::max({nesting_, key.nesting() + 1, value.nesting() + 1}));
    const size_t i = index_of(key, hash);
    if (i < entries_.size()) {
        entries_[i].value = std::move(value);
        return;
    }
    entries_.push_back({key, std::move(value)});
    hashes_.push_back(hash);
    index();
}

std::string_view type_name(const Value &value) {
    constexpr std::string_view names[] = {"Undefined", "NoneType", "bool",        "int",
                                          "float",     "str",      "list",        "dict",
                                          "Namespace", "function", "LoopContext", "Cycler"};
    constexpr std::string_view sequences[] = {"list",        "tuple",      "range",    "dict_keys",
                                              "dict_values", "dict_items", "generator"};
    if (value.is(Type::Sequence)) return sequences[static_cast<size_t>(value.sequence()->kind)];
    if (value.is(Type::Function)) return value.function()->type_name;
    if (value.is_string() && value.string()->markup) return "Markup";
    return names[static_cast<size_t>(value.type())];
}

bool is_true(const Value &value) {
    switch (value.type()) {
        case Type::Undefined:
            if (value.undefined().unsafe) fail_undefined(value.undefined());
            return false;
        case Type::None:
            return false;
        case Type::Boolean:
            return value.boolean();
        case Type::Integer:
            return value.integer() != 0;
        case Type::Float:
            return value.number() != 0;
        case Type::String:
            return !value.text().empty();
        case Type::Sequence:
            return value.sequence()->is_iterator() || !value.sequence()->items.empty();
        case Type::Dict:
            return value.dict()->size() != 0;
        default:
            return true;
    }
}

bool is_number(const Value &value) {
    return value.type() >= Type::Boolean && value.type() <= Type::Float;
}

double as_double(const Value &value) {
    return value.is(Type::Float) ? value.number() : static_cast<double>(as_integer(value));
}

bool is_integral(const Value &value) {
    return value.is(Type::Boolean) || value.is(Type::Integer);
}

int64_t as_integer(const Value &value) {
    return value.is(Type::Boolean) ? value.boolean() : value.integer();
}

bool equal(Runtime &runtime, const Value &a, const Value &b) {
    runtime.step();
    if (is_number(a) && is_number(b)) return equal_numbers(a, b);
    if (a.type() != b.type()) return false;
    switch (a.type()) {
        case Type::Undefined:
        case Type::None:
            return true;
        case Type::String:
            if (a.text().size() != b.text().size()) return false;
            runtime.work(a.text().size());
            return a.text().view() == b.text().view();
        case Type::Sequence:
            return equal_items(runtime, *a.sequence(), *b.sequence());
        case Type::Dict:
            return equal_dicts(runtime, *a.dict(), *b.dict());
        case Type::Namespace:
            return a.name_space() == b.name_space();
        case Type::Function:
            return a.function() == b.function();
        case Type::Loop:
            return a.loop() == b.loop();
        default:
            return a.cycler() == b.cycler();
    }
}

int compare(Runtime &runtime, const Value &a, const Value &b, const char *symbol) {
    runtime.step();
    if (is_number(a) && is_number(b)) return compare_numbers(a, b);
    if (a.is_string() && b.is_string()) {
        runtime.work(std::min(a.text().size(), b.text().size()));
        const int order = a.text().view().compare(b.text().view());  // UTF-8 sorts like code points
        return order < 0 ? -1 : order > 0;
    }
    if (!a.is(Type::Sequence) || !b.is(Type::Sequence)) fail_order(a, b, symbol);
    const Sequence &x = *a.sequence(), &y = *b.sequence();
    if (x.kind != y.kind || x.kind > Kind::Tuple) fail_order(a, b, symbol);
    for (size_t i = 0; i < std::min(x.items.size(), y.items.size()); ++i)
        if (!equal(runtime, x.items[i], y.items[i])) return compare(runtime, x.items[i], y.items[i], symbol);
    return x.items.size() < y.items.size() ? -1 : x.items.size() > y.items.size();
}

void fail_undefined(const Undefined &value) {
    const std::string name = value.name ? value.name->text.bytes() : std::string("value");
    if (value.unsafe)
        fail(TemplateError::Kind::Security,
             "'" + name + "' may not be used: templates must not change what they are given");
    if (value.owner == Type::Undefined) fail(TemplateError::Kind::Undefined, "'" + name + "' is undefined");
    constexpr std::string_view owners[] = {"undefined value", "None",     "bool", "int",
                                           "float",           "string",   "list", "dict",
                                           "namespace",       "function", "loop", "cycler"};
    fail(TemplateError::Kind::Undefined, "this " + std::string(owners[static_cast<size_t>(value.owner)]) +
                                             " has no " + (value.name ? "'" + name + "'" : "such item"));
}

}  // namespace runnel::text::jinja
