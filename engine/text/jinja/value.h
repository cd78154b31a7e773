// The values of the template language: the types of Python that templates use.
//
// Values are shared and immutable (a template must not modify its input), except namespaces, iterators, loops
// and cyclers. Containers may nest up to kMaxNesting deep, so every walk over a value, including its
// destruction, is bounded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/text/jinja/error.h"
#include "engine/text/jinja/marked_text.h"

namespace runnel::text::jinja {

class Runtime;
class Value;
struct Sequence;
class Dict;
struct Namespace;
struct Function;
struct Loop;
struct Cycler;

inline constexpr uint32_t kMaxNesting = 200;

enum class Type : uint8_t {
    Undefined,
    None,
    Boolean,
    Integer,
    Float,
    String,
    Sequence,
    Dict,
    Namespace,
    Function,
    Loop,
    Cycler,
};

struct String {
    MarkedText text;
    bool markup = false;  // made by `safe` or `escape`: "+" then escapes the other operand
};
using StringRef = std::shared_ptr<const String>;

// A missing value. Remembers its name for the error message if it is used.
struct Undefined {
    StringRef name;                // may be null
    Type owner = Type::Undefined;  // the type that lacks the attribute; Undefined: a missing variable
    bool unsafe = false;           // the sandbox hides it: using it is a security error
};

class Value {
  public:
    Value() = default;
    Value(Undefined undefined) : data_(std::move(undefined)) {}
    static Value none() { return Value(Data(std::in_place_index<1>)); }
    static Value boolean(bool value) { return Value(Data(value)); }
    static Value integer(int64_t value) { return Value(Data(value)); }
    static Value number(double value) { return Value(Data(value)); }
    static Value string(MarkedText text, bool markup = false) {
        return Value(std::make_shared<const String>(String{std::move(text), markup}));
    }
    static Value string(std::string text) { return string(MarkedText(std::move(text))); }
    // list(), tuple() and iterator() throw TemplateError{Limit} if nested too deeply.
    static Value list(std::vector<Value> items);
    static Value tuple(std::vector<Value> items);
    // The result of `map`, `select` and similar filters: consumed by one pass.
    static Value iterator(std::vector<Value> items);
    Value(StringRef value) : data_(std::move(value)) {}
    Value(std::shared_ptr<Sequence> value) : data_(std::move(value)) {}
    Value(std::shared_ptr<const Dict> value) : data_(std::move(value)) {}
    Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}
    Value(std::shared_ptr<const Function> value) : data_(std::move(value)) {}
    Value(std::shared_ptr<Loop> value) : data_(std::move(value)) {}
    Value(std::shared_ptr<Cycler> value) : data_(std::move(value)) {}

    Type type() const { return static_cast<Type>(data_.index()); }
    bool is(Type type_asked) const { return type() == type_asked; }
    bool is_undefined() const { return is(Type::Undefined); }
    bool is_none() const { return is(Type::None); }
    bool is_string() const { return is(Type::String); }

    // Precondition: the value has that type.
    const Undefined &undefined() const { return *std::get_if<Undefined>(&data_); }
    bool boolean() const { return *std::get_if<bool>(&data_); }
    int64_t integer() const { return *std::get_if<int64_t>(&data_); }
    double number() const { return *std::get_if<double>(&data_); }
    const StringRef &string() const { return *std::get_if<StringRef>(&data_); }
    const MarkedText &text() const { return string()->text; }
    const std::shared_ptr<Sequence> &sequence() const {
        return *std::get_if<std::shared_ptr<Sequence>>(&data_);
    }
    const std::shared_ptr<const Dict> &dict() const {
        return *std::get_if<std::shared_ptr<const Dict>>(&data_);
    }
    const std::shared_ptr<Namespace> &name_space() const {
        return *std::get_if<std::shared_ptr<Namespace>>(&data_);
    }
    const std::shared_ptr<const Function> &function() const {
        return *std::get_if<std::shared_ptr<const Function>>(&data_);
    }
    const std::shared_ptr<Loop> &loop() const { return *std::get_if<std::shared_ptr<Loop>>(&data_); }
    const std::shared_ptr<Cycler> &cycler() const { return *std::get_if<std::shared_ptr<Cycler>>(&data_); }

    // Nesting depth of its containers: 0 if it is not a container.
    uint32_t nesting() const;

  private:
    struct None {};
    using Data =
        std::variant<Undefined, None, bool, int64_t, double, StringRef, std::shared_ptr<Sequence>,
                     std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<const Function>,
                     std::shared_ptr<Loop>, std::shared_ptr<Cycler>>;
    explicit Value(Data data) : data_(std::move(data)) {}
    Data data_;
};

struct Sequence {
    enum class Kind : uint8_t { List, Tuple, Range, Keys, Values, Items, Iterator };
    Kind kind = Kind::List;
    std::vector<Value> items;
    uint32_t nesting = 1;
    size_t next = 0;                          // of an Iterator
    int64_t start = 0, stop = 0, stride = 1;  // of a Range

    bool is_iterator() const { return kind == Kind::Iterator; }
};
std::shared_ptr<Sequence> make_sequence(Sequence::Kind kind, std::vector<Value> items);

// Keeps insertion order. Keys are equal as in Python: 1, 1.0 and True are one key.
class Dict {
  public:
    struct Entry {
        Value key, value;
    };
    const std::vector<Entry> &entries() const { return entries_; }
    size_t size() const { return entries_.size(); }
    // Null if absent. Throws TemplateError for a key that cannot be hashed.
    const Value *find(const Value &key) const;
    const Value *find(std::string_view key) const;
    // Throws TemplateError for a key that cannot be hashed and for a value nested too deeply.
    void set(const Value &key, Value value);
    void set(std::string_view key, Value value) { set(Value::string(std::string(key)), std::move(value)); }
    uint32_t nesting() const { return nesting_; }

  private:
    size_t index_of(const Value &key, uint64_t hash) const;  // entries_.size() if absent
    void index();

    std::vector<Entry> entries_;
    std::vector<uint64_t> hashes_;  // of the keys
    std::vector<uint32_t> slots_;   // open addressing, used for many entries: entry number + 1
    uint32_t nesting_ = 1;
};

struct Namespace {
    Dict attributes;
};

// Arguments of a call.
struct Arguments {
    std::vector<Value> positional;
    std::vector<std::pair<StringRef, Value>> keyword;
    bool empty() const { return positional.empty() && keyword.empty(); }
};

struct Function {
    std::string name;
    std::string_view type_name;  // "function", "Macro", "method": Python's name
    std::function<Value(Runtime &, Arguments &)> call;
    uint32_t nesting = 0;  // of its captured values
};

// The `loop` of a for loop.
struct Loop {
    std::shared_ptr<const Sequence> items;
    size_t index = 0;            // of the current item
    size_t depth = 0;            // 0 for the outermost of a recursive loop
    std::vector<Value> changed;  // the last arguments of loop.changed(): no containers
    bool was_asked = false;      // loop.changed() was called
    std::shared_ptr<const Function> recurse;
    uint32_t nesting = 0;
};

struct Cycler {
    std::vector<Value> items;
    size_t position = 0;
    uint32_t nesting = 0;
};
// One more than the nesting of `held`. Throws TemplateError{Limit} beyond kMaxNesting.
uint32_t nesting_around(const Value &held);
uint32_t nesting_around(const std::vector<Value> &held);

// "str", "int", "NoneType", ...: as in Python's messages.
std::string_view type_name(const Value &value);

bool is_true(const Value &value);
// Integers, floats and booleans.
bool is_number(const Value &value);
// Precondition: is_number.
double as_double(const Value &value);
// Integers and booleans.
bool is_integral(const Value &value);
int64_t as_integer(const Value &value);

// Python's ==. Throws TemplateError{Limit} if it takes too many steps.
bool equal(Runtime &runtime, const Value &a, const Value &b);
// <0, 0, >0. Throws TemplateError for values without an order, naming `symbol`.
int compare(Runtime &runtime, const Value &a, const Value &b, const char *symbol = "<");

// Throws TemplateError{Undefined or Security} naming the missing value.
[[noreturn]] void fail_undefined(const Undefined &value);
// Returns the value; calls fail_undefined() if it is undefined.
inline const Value &require_defined(const Value &value) {
    if (value.is_undefined()) fail_undefined(value.undefined());
    return value;
}

}  // namespace runnel::text::jinja
