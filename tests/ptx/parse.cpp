#include "tests/ptx/parse.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <unordered_map>
#include <utility>

namespace runnel::ptx {

namespace {

bool in_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.' ||
           c == ':';
}

// Reads words, numbers and single characters; skips comments and white space.
class Reader {
  public:
    Reader(std::string_view text, const std::string &file, size_t at = 0, int line = 1)
        : text_(text), file_(file), at_(at), line_(line) {
        skip();
    }

    int line() const { return line_; }
    size_t at() const { return at_; }
    bool done() const { return at_ >= text_.size(); }
    char peek() const { return done() ? '\0' : text_[at_]; }

    // Letters, digits and in_word() characters; may be "". Excludes a label's colon; "L1::x" is one word.
    std::string_view word() {
        const size_t begin = at_;
        while (at_ < text_.size() && in_word(text_[at_])) {
            if (text_[at_] == ':') {
                if (at_ + 1 >= text_.size() || text_[at_ + 1] != ':') break;
                ++at_;
            }
            ++at_;
        }
        const std::string_view found = text_.substr(begin, at_ - begin);
        skip();
        return found;
    }
    bool take(char c) {
        if (peek() != c) return false;
        ++at_;
        skip();
        return true;
    }
    void expect(char c) {
        if (!take(c)) fail(std::string("expected '") + c + "'");
    }
    // Skips up to and including `c`.
    void skip_to(char c) {
        while (!done() && text_[at_] != c) {
            if (text_[at_] == '\n') ++line_;
            ++at_;
        }
        expect(c);
    }
    int64_t integer() {
        const bool negative = take('-');
        const std::string_view digits = word();
        const auto value = static_cast<int64_t>(number(digits));
        return negative ? -value : value;
    }
    uint64_t number(std::string_view digits) const {
        const bool hex = digits.substr(0, 2) == "0x" || digits.substr(0, 2) == "0X";
        std::string_view rest = hex ? digits.substr(2) : digits;
        if (!rest.empty() && rest.back() == 'U') rest.remove_suffix(1);
        uint64_t value = 0;
        const auto [end, error] =
            std::from_chars(rest.data(), rest.data() + rest.size(), value, hex ? 16 : 10);
        if (rest.empty() || error != std::errc() || end != rest.data() + rest.size())
            fail("not a number: '" + std::string(digits) + "'");
        return value;
    }
    [[noreturn]] void fail(const std::string &what) const {
        throw Error(file_ + ":" + std::to_string(line_) + ": " + what);
    }

  private:
    void skip() {
        while (at_ < text_.size()) {
            if (text_[at_] == '\n') ++line_;
            if (std::isspace(static_cast<unsigned char>(text_[at_]))) {
                ++at_;
            } else if (text_.substr(at_, 2) == "//") {
                at_ = std::min(text_.find('\n', at_), text_.size());
            } else if (text_.substr(at_, 2) == "/*") {
                const size_t end = std::min(text_.find("*/", at_), text_.size() - 2) + 2;
                line_ += static_cast<int>(std::count(&text_[at_], &text_[at_] + (end - at_), '\n'));
                at_ = end;
            } else {
                return;
            }
        }
    }

    std::string_view text_;
    const std::string &file_;
    size_t at_;
    int line_;
};

// The width of ".b8", ".u64" and similar types; 1 for ".pred".
int bits_of(const Reader &in, std::string_view type) {
    static const std::unordered_map<std::string_view, int> known = {
        {".pred", 1}, {".b8", 8},   {".u8", 8},   {".s8", 8},   {".b16", 16}, {".u16", 16},
        {".s16", 16}, {".f16", 16}, {".b32", 32}, {".u32", 32}, {".s32", 32}, {".f32", 32},
        {".b64", 64}, {".u64", 64}, {".s64", 64}, {".f64", 64}};
    const auto found = known.find(type);
    if (found == known.end()) in.fail("unknown type '" + std::string(type) + "'");
    return found->second;
}

// Parses ".align 8 .b8 name[88]"; the result is placed at or after `offset`, aligned.
struct Declared {
    std::string name;
    size_t offset, bytes, element;
};
Declared declared(Reader &in, size_t offset) {
    size_t align = 0;
    std::string_view word = in.word();
    if (word == ".align") {
        align = static_cast<size_t>(in.integer());
        word = in.word();
    }
    const auto element = static_cast<size_t>(bits_of(in, word)) / 8;
    Declared d{std::string(in.word()), 0, element, element};
    if (in.take('[')) {
        d.bytes = in.peek() == ']' ? 0 : static_cast<size_t>(in.integer()) * element;
        in.expect(']');
    }
    align = std::max(align, element);
    d.offset = (offset + align - 1) / align * align;
    return d;
}

// The body of an entry.
class BodyReader {
  public:
    BodyReader(Reader &in, Entry &entry) : in_(in), entry_(entry) {}

    void read() {
        in_.expect('{');
        while (!in_.take('}')) statement();
        for (const Instruction &i : entry_.instructions) {
            if (i.spelling.substr(0, 3) != "bra") continue;
            if (i.operands.size() != 1 || !entry_.labels.count(i.operands[0].name))
                throw Error(entry_.name + ", line " + std::to_string(i.line) +
                            ": a branch to an unknown label");
        }
    }

  private:
    void statement() {
        if (in_.done()) in_.fail("the entry does not end");
        if (in_.take('{')) return scope();
        Instruction now;
        now.line = in_.line();
        if (in_.take('@')) {
            now.negated = in_.take('!');
            const Operand guard = operand();
            if (guard.kind != Operand::Kind::Register || bits(guard) != 1)
                in_.fail("a guard that is not a predicate");
            now.guard = guard.reg;
        }
        const std::string_view word = in_.word();
        if (word.empty()) in_.fail(std::string("unexpected '") + in_.peek() + "'");
        if (word[0] == '.') return directive(word);
        if (in_.take(':')) {
            entry_.labels[std::string(word)] = entry_.instructions.size();
            return;
        }
        now.spelling = word;
        while (!in_.take(';')) {
            now.operands.push_back(operand());
            if (in_.take('|')) {  // d|p
                Operand pair;
                pair.kind = Operand::Kind::List;
                pair.parts = {std::move(now.operands.back()), operand()};
                now.operands.back() = std::move(pair);
            }
            if (in_.peek() != ';') in_.expect(',');
        }
        entry_.instructions.push_back(std::move(now));
    }

    // A block of statements, whose registers end with it and may hide outer ones.
    void scope() {
        const size_t begin = std::exchange(scope_begin_, entry_.registers.size()), declared = outer_.size();
        while (!in_.take('}')) statement();
        for (; outer_.size() > declared; outer_.pop_back()) {
            const auto &[name, number] = outer_.back();
            if (number < 0)
                numbers_.erase(name);
            else
                numbers_[name] = number;
        }
        scope_begin_ = begin;
    }

    void directive(std::string_view word) {
        if (word == ".pragma") return in_.skip_to(';');  // "nounroll", "used_bytes_mask": hints
        if (word != ".reg") in_.fail("unknown directive '" + std::string(word) + "'");
        const int bits = bits_of(in_, in_.word());
        do {
            const std::string name(in_.word());
            if (in_.take('<')) {
                const int64_t count = in_.integer();
                in_.expect('>');
                for (int64_t i = 0; i < count; ++i) add_register(name + std::to_string(i), bits);
            } else {
                add_register(name, bits);
            }
        } while (in_.take(','));
        in_.expect(';');
    }

    void add_register(const std::string &name, int bits) {
        int &number = numbers_.emplace(name, -1).first->second;
        if (number >= static_cast<int>(scope_begin_)) in_.fail("register " + name + " is declared twice");
        outer_.emplace_back(name, number);
        number = static_cast<int>(entry_.registers.size());
        entry_.registers.push_back({name, bits});
    }

    int bits(const Operand &o) const { return entry_.registers[static_cast<size_t>(o.reg)].bits; }

    Operand operand() {
        Operand o;
        if (in_.take('{')) {
            o.kind = Operand::Kind::List;
            do {
                o.parts.push_back(operand());
            } while (in_.take(','));
            in_.expect('}');
            return o;
        }
        if (in_.take('[')) {
            const Operand base = operand();
            o.reg = base.reg, o.name = base.name;
            if (base.kind != Operand::Kind::Register && base.kind != Operand::Kind::Name)
                in_.fail("an address that is neither a register nor a name");
            o.kind = Operand::Kind::Address;
            if (in_.take('+'))
                o.offset = in_.integer();
            else if (in_.peek() == '-')
                o.offset = in_.integer();
            in_.expect(']');
            return o;
        }
        const bool negative = in_.take('-');
        const std::string_view word = in_.word();
        if (word.empty()) in_.fail(std::string("unexpected '") + in_.peek() + "' in an operand");
        if (std::isdigit(static_cast<unsigned char>(word[0]))) {
            o.is_float = word.size() == 10 && (word[1] == 'f' || word[1] == 'F');
            const uint64_t value =
                in_.number(o.is_float ? "0x" + std::string(word.substr(2)) : std::string(word));
            o.bits = negative ? 0 - value : value;
            return o;
        }
        if (negative) in_.fail("a minus sign without a number");
        const auto found = numbers_.find(std::string(word));
        o.kind = found != numbers_.end() ? Operand::Kind::Register : Operand::Kind::Name;
        if (found != numbers_.end())
            o.reg = found->second;
        else
            o.name = word;
        return o;
    }

    Reader &in_;
    Entry &entry_;
    std::unordered_map<std::string, int> numbers_;  // of the registers in scope
    size_t scope_begin_ = 0;                        // number of the scope's first register
    std::vector<std::pair<std::string, int>>
        outer_;  // declared names, and what they named before (-1: nothing)
};

}  // namespace

Module::Module(std::string text, std::string file) : text_(std::move(text)), file_(std::move(file)) {
    Reader in(text_, file_);
    size_t shared_end = 0;
    while (!in.done()) {
        const size_t begin = in.at();
        const int line = in.line();
        std::string_view word = in.word();
        if (word == ".version" || word == ".address_size") {
            in.word();
        } else if (word == ".target") {
            const std::string_view arch = in.word();
            if (arch.substr(0, 3) != "sm_") in.fail("unknown target");
            for (const char c : arch.substr(3))
                if (std::isdigit(static_cast<unsigned char>(c))) target_ = 10 * target_ + (c - '0');
            while (in.take(',')) in.word();
        } else if (word == ".visible" || word == ".weak" || word == ".extern" || word == ".const") {
            if (word == ".const") in.fail("constant memory is not supported");
        } else if (word == ".shared") {
            const Declared d = declared(in, shared_end);
            shared_[d.name] = {d.offset, d.bytes};
            shared_end = d.offset + d.bytes;
            in.expect(';');
        } else if (word == ".global") {
            const Declared d = declared(in, 0);
            Table &table = tables_[d.name];
            if (in.take('=')) {
                in.expect('{');
                do {
                    const auto value = static_cast<uint64_t>(in.integer());
                    for (size_t i = 0; i < d.element; ++i)
                        table.bytes.push_back(static_cast<std::byte>(value >> (8 * i) & 0xffu));
                } while (in.take(','));
                in.expect('}');
            }
            if (table.bytes.size() > d.bytes) in.fail("too many values for " + d.name);
            table.bytes.resize(d.bytes);
            in.expect(';');
        } else if (word == ".entry") {
            places_[std::string(in.word())] = {begin, line};
            in.skip_to('{');
            for (int depth = 1; depth > 0;) {
                if (in.done()) in.fail("an entry does not end");
                if (in.take('{'))
                    ++depth;
                else if (in.take('}'))
                    --depth;
                else if (in.word().empty())
                    in.take(in.peek());
            }
        } else {
            in.fail("unknown directive '" + std::string(word) + "'");
        }
    }
}

std::vector<std::string> Module::entries() const {
    std::vector<std::string> names;
    for (const auto &[name, place] : places_) names.push_back(name);
    return names;
}

Entry Module::entry(const std::string &name) const {
    const auto place = places_.find(name);
    if (place == places_.end()) throw Error(file_ + ": no entry " + name);
    Reader in(text_, file_, place->second.begin, place->second.line);
    in.word();
    Entry entry;
    entry.name = in.word();
    if (in.take('(')) {
        while (in.word() == ".param") {
            const Declared d = declared(in, entry.parameter_bytes);
            entry.parameters[d.name] = {d.offset, d.bytes};
            entry.parameter_bytes = d.offset + d.bytes;
            if (!in.take(',')) break;
        }
        in.expect(')');
    }
    while (in.peek() != '{') {
        const std::string_view word = in.word();
        if (word != ".maxntid" && word != ".minnctapersm" && word != ".maxnreg" && word != ".reqntid")
            in.fail("unknown directive '" + std::string(word) + "'");
        int64_t product = 1;
        do {
            product *= in.integer();
        } while (in.take(','));
        if (word == ".maxntid" || word == ".reqntid") entry.threads = static_cast<int>(product);
    }
    BodyReader(in, entry).read();
    return entry;
}

}  // namespace runnel::ptx
