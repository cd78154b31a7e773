#include "tests/ptx/program.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace runnel::ptx {

namespace {

constexpr Row kSpecials = static_cast<Row>(Special::Count);

std::optional<Row> special(const std::string &name) {
    static const std::map<std::string, Special> known = {{"%tid.x", Special::TidX},
                                                         {"%ctaid.x", Special::CtaidX},
                                                         {"%ntid.x", Special::NtidX},
                                                         {"%nctaid.x", Special::NctaidX}};
    const auto found = known.find(name);
    if (found == known.end()) return std::nullopt;
    return static_cast<Row>(found->second);
}

// Rows of constants, each value once.
template <class T>
class Constants {
  public:
    explicit Constants(std::vector<T> &rows) : rows_(rows) {}
    Row row(T value) {
        const auto [found, is_new] = known_.emplace(value, ~static_cast<Row>(known_.size()));
        if (is_new) rows_.insert(rows_.end(), kLanes, value);
        return found->second;
    }

  private:
    std::vector<T> &rows_;
    std::map<T, Row> known_;
};

// Fills steps. Registers are numbered kSpecials + index until RowAllocator assigns rows.
class StepBinder : public Binder {
  public:
    StepBinder(const Module &module, const Entry &entry, Program &program)
        : entry_(entry),
          narrow_(program.narrow_constants),
          wide_(program.wide_constants),
          symbols_(module.shared()) {
        for (const Range &table : program.tables) addresses_[table.name] = table.begin;
        for (const auto &[name, parameter] : entry.parameters)
            addresses_[name] = kParameterBase + parameter.offset;
    }

    void begin(const Instruction &instruction, Step &step) {
        now_ = &instruction;
        step_ = &step;
        used_.clear();
    }
    void finish() const {
        for (size_t i = 0; i < now_->operands.size(); ++i)
            if (!used_.count(i)) throw Error("operand " + std::to_string(i) + " is unexpected");
    }

    size_t count() const override { return now_->operands.size(); }
    size_t parts(size_t operand) const override {
        return operand < count() && now_->operands[operand].kind == Operand::Kind::List
                   ? now_->operands[operand].parts.size()
                   : 0;
    }
    void output(size_t operand, int bits, bool or_wider) override {
        add_output(take(operand), bits, or_wider);
    }
    void input(size_t operand, int bits, bool or_wider) override { add_input(take(operand), bits, or_wider); }
    void outputs(size_t operand, size_t parts, int bits, bool or_wider) override {
        for (const Operand &part : list(operand, parts)) add_output(part, bits, or_wider);
    }
    void inputs(size_t operand, size_t parts, int bits, bool or_wider) override {
        for (const Operand &part : list(operand, parts)) add_input(part, bits, or_wider);
    }
    void shuffle_outputs(size_t operand) override {
        const auto both = list(operand, 2);
        add_output(both[0], 32, false);
        add_output(both[1], 1, false);
    }
    void address(size_t operand, Space space) override {
        const Operand &o = take(operand);
        if (o.kind != Operand::Kind::Address)
            throw Error("operand " + std::to_string(operand) + " is not an address");
        (step_->inputs == 0 ? step_->offset : step_->second_offset) = o.offset;
        const int bits = space == Space::Shared ? 32 : 64;
        if (o.reg >= 0) {
            Operand base;
            base.kind = Operand::Kind::Register;
            base.reg = o.reg;
            return add_input(base, bits, false);
        }
        const bool is_shared = symbols_.count(o.name) > 0;
        const bool is_parameter = entry_.parameters.count(o.name) > 0;
        if (is_shared != (space == Space::Shared) || is_parameter != (space == Space::Parameter))
            throw Error(o.name + " is in another state space");
        add_row(bits == 64,
                bits == 64 ? wide_.row(symbol(o.name)) : narrow_.row(static_cast<uint32_t>(symbol(o.name))));
    }
    int64_t immediate(size_t operand) override {
        const Operand &o = take(operand);
        if (o.kind != Operand::Kind::Immediate || o.is_float)
            throw Error("operand " + std::to_string(operand) + " is not a number");
        return static_cast<int64_t>(o.bits);
    }

    Row number(int reg) const { return kSpecials + static_cast<Row>(reg); }

  private:
    const Operand &take(size_t operand) {
        if (operand >= count()) throw Error("too few operands");
        used_.insert(operand);
        return now_->operands[operand];
    }
    std::vector<Operand> list(size_t operand, size_t parts) {
        const Operand &o = take(operand);
        std::vector<Operand> all = o.kind == Operand::Kind::List ? o.parts : std::vector{o};
        if (all.size() != parts)
            throw Error("operand " + std::to_string(operand) + " has " + std::to_string(all.size()) +
                        " parts, not " + std::to_string(parts));
        return all;
    }

    uint64_t symbol(const std::string &name) const {
        if (const auto shared = symbols_.find(name); shared != symbols_.end())
            return kSharedBase + shared->second.offset;
        const auto found = addresses_.find(name);
        if (found == addresses_.end()) throw Error("unknown name " + name);
        return found->second;
    }

    int check(const Operand &o, int bits, bool or_wider) const {
        const Register &r = entry_.registers[static_cast<size_t>(o.reg)];
        // 8-bit registers do not exist: such values are in wider ones.
        const bool fits = r.bits == bits || (r.bits > bits && bits > 1 && (or_wider || bits == 8));
        if (!fits)
            throw Error(r.name + " has " + std::to_string(r.bits) + " bits, the operand " +
                        std::to_string(bits));
        return r.bits;
    }
    void add_output(const Operand &o, int bits, bool or_wider) {
        if (o.kind != Operand::Kind::Register) throw Error("a result that is not a register");
        const int has = check(o, bits, or_wider);
        if (step_->outputs >= step_->d.size()) throw Error("too many results");
        if (has == 64) step_->outputs_wide |= static_cast<uint16_t>(1u << step_->outputs);
        if (has == 16) step_->outputs_short |= static_cast<uint16_t>(1u << step_->outputs);
        step_->d[step_->outputs++] = number(o.reg);
    }
    void add_row(bool wide, Row row) {
        if (step_->inputs >= step_->s.size()) throw Error("too many operands");
        if (wide) step_->inputs_wide |= static_cast<uint16_t>(1u << step_->inputs);
        step_->s[step_->inputs++] = row;
    }
    void add_input(const Operand &o, int bits, bool or_wider) {
        switch (o.kind) {
            case Operand::Kind::Register:
                return add_row(check(o, bits, or_wider) == 64, number(o.reg));
            case Operand::Kind::Immediate:
                if (o.is_float && bits != 32)
                    throw Error("a float of 32 bits as an operand of " + std::to_string(bits));
                if (bits == 64) return add_row(true, wide_.row(o.bits));
                return add_row(false, narrow_.row(static_cast<uint32_t>(
                                          bits == 32 ? o.bits : o.bits & ((uint64_t{1} << bits) - 1))));
            case Operand::Kind::Name:
                if (const auto row = special(o.name)) {
                    if (bits != 32) throw Error(o.name + " has 32 bits");
                    return add_row(false, *row);
                }
                if (bits == 64) return add_row(true, wide_.row(symbol(o.name)));
                if (bits != 32 || !symbols_.count(o.name))
                    throw Error("the address of " + o.name + " has 64 bits");
                return add_row(false, narrow_.row(static_cast<uint32_t>(symbol(o.name))));
            default:
                throw Error("an address or a list where a value is expected");
        }
    }

    const Entry &entry_;
    Constants<uint32_t> narrow_;
    Constants<uint64_t> wide_;
    const std::map<std::string, Shared> &symbols_;
    std::map<std::string, uint64_t> addresses_;
    const Instruction *now_ = nullptr;
    Step *step_ = nullptr;
    std::set<size_t> used_;
};

void bind_control(StepBinder &binder, const Entry &entry, const Instruction &i, Step &step) {
    if (i.spelling == "bra" || i.spelling == "bra.uni") {
        step.kind = Step::Kind::Branch;
        step.target = static_cast<uint32_t>(entry.labels.at(i.operands.at(0).name));
    } else if (i.spelling == "ret" || i.spelling == "exit") {
        step.kind = Step::Kind::Return;
    } else if (i.spelling == "bar.sync") {
        step.kind = Step::Kind::Barrier;
        if (binder.immediate(0) != 0 || binder.count() != 1) throw Error("a barrier that is not bar.sync 0");
    } else if (i.spelling == "griddepcontrol.wait") {
        step.kind = Step::Kind::Wait;
    } else if (i.spelling == "griddepcontrol.launch_dependents") {
        step.run = [](Warp &, const Step &) {};  // no effect: launches do not overlap here
    } else {
        throw Error("unknown instruction " + i.spelling);
    }
}

// --- rows --------------------------------------------------------------------------------------------------

// Computes each register's live interval of steps, and assigns rows so that none has overlapping intervals.
class RowAllocator {
  public:
    RowAllocator(const Entry &entry, Program &program) : entry_(entry), program_(program) {
        find_blocks();
        find_intervals();
        give_rows();
    }

  private:
    // A set of registers, 64 per word.
    struct Set {
        explicit Set(size_t registers) : words((registers + 63) / 64) {}
        void add(size_t r) { words[r / 64] |= uint64_t{1} << (r % 64); }
        bool has(size_t r) const { return (words[r / 64] >> (r % 64) & 1u) != 0; }
        std::vector<uint64_t> words;
    };
    struct Block {
        size_t begin, end;
        std::vector<size_t> next;
        Set live_in, live_out, used, defined;
    };
    struct Interval {
        size_t first = SIZE_MAX, last = 0;
        void include(size_t at) { first = std::min(first, at), last = std::max(last, at); }
    };

    // Calls f(register) for every register that a step reads.
    template <class F>
    static void for_reads(const Step &s, F f) {
        for (size_t i = 0; i < s.inputs; ++i)
            if (s.s[i] >= kSpecials) f(static_cast<size_t>(s.s[i] - kSpecials));
        if (s.guard < kSpecials) return;
        f(static_cast<size_t>(s.guard - kSpecials));
        for_writes(s, f);  // a false guard keeps the old value
    }
    template <class F>
    static void for_writes(const Step &s, F f) {
        for (size_t i = 0; i < s.outputs; ++i) f(static_cast<size_t>(s.d[i] - kSpecials));
    }

    void find_blocks() {
        const auto &steps = program_.steps;
        std::set<size_t> begins = {0};
        for (size_t i = 0; i < steps.size(); ++i) {
            if (steps[i].kind == Step::Kind::Branch) begins.insert(steps[i].target);
            if (steps[i].kind == Step::Kind::Branch || steps[i].kind == Step::Kind::Return)
                begins.insert(i + 1);
        }
        begins.insert(steps.size());
        std::map<size_t, size_t> block_at;
        for (auto at = begins.begin(); *at < steps.size(); ++at) {
            block_at[*at] = blocks_.size();
            const Set none(entry_.registers.size());
            blocks_.push_back({*at, *std::next(at), {}, none, none, none, none});
        }
        for (Block &b : blocks_) {
            const Step &last = steps[b.end - 1];
            if (last.kind == Step::Kind::Branch && last.target < steps.size())
                b.next.push_back(block_at.at(last.target));
            const bool goes_on =
                last.guard >= 0 || (last.kind != Step::Kind::Branch && last.kind != Step::Kind::Return);
            if (goes_on && b.end < steps.size()) b.next.push_back(block_at.at(b.end));
            for (size_t i = b.begin; i < b.end; ++i) {
                for_reads(steps[i], [&](size_t r) {
                    if (!b.defined.has(r)) b.used.add(r);
                });
                for_writes(steps[i], [&](size_t r) { b.defined.add(r); });
            }
            b.live_in = b.used;
        }
    }

    void find_intervals() {
        for (bool changed = true; changed;) {
            changed = false;
            for (size_t k = blocks_.size(); k-- > 0;) {
                Block &b = blocks_[k];
                for (const size_t n : b.next)
                    for (size_t i = 0; i < b.live_out.words.size(); ++i) {
                        const uint64_t added = blocks_[n].live_in.words[i] & ~b.live_out.words[i];
                        if (added == 0) continue;
                        b.live_out.words[i] |= added;
                        b.live_in.words[i] |= added & ~b.defined.words[i];
                        changed = true;
                    }
            }
        }
        intervals_.resize(entry_.registers.size());
        for (const Block &b : blocks_) {
            for (size_t r = 0; r < intervals_.size(); ++r) {
                if (b.live_in.has(r)) intervals_[r].include(b.begin);
                if (b.live_out.has(r)) intervals_[r].include(b.end);
            }
            for (size_t i = b.begin; i < b.end; ++i) {
                const auto here = [&](size_t r) { intervals_[r].include(i); };
                for_reads(program_.steps[i], here);
                for_writes(program_.steps[i], here);
            }
        }
    }

    // A row is free from the step after its last use: a step may write a result before it reads all inputs.
    void give_rows() {
        std::vector<size_t> order;
        for (size_t r = 0; r < intervals_.size(); ++r)
            if (intervals_[r].first != SIZE_MAX) order.push_back(r);
        std::sort(order.begin(), order.end(),
                  [&](size_t a, size_t b) { return intervals_[a].first < intervals_[b].first; });
        std::vector<Row> rows(intervals_.size());
        using Busy = std::multimap<size_t, Row>;  // by the last step
        Busy busy[2];
        std::vector<Row> free[2];
        size_t count[2] = {static_cast<size_t>(kSpecials), 0};
        for (const size_t r : order) {
            const size_t kind = entry_.registers[r].bits == 64;
            while (!busy[kind].empty() && busy[kind].begin()->first < intervals_[r].first) {
                free[kind].push_back(busy[kind].begin()->second);
                busy[kind].erase(busy[kind].begin());
            }
            if (free[kind].empty()) free[kind].push_back(static_cast<Row>(count[kind]++));
            rows[r] = free[kind].back();
            free[kind].pop_back();
            busy[kind].emplace(intervals_[r].last, rows[r]);
        }
        program_.narrow_rows = count[0], program_.wide_rows = count[1];
        const auto give = [&](Row &row) {
            if (row >= kSpecials) row = rows[static_cast<size_t>(row - kSpecials)];
        };
        for (Step &s : program_.steps) {
            for (size_t i = 0; i < s.outputs; ++i) give(s.d[i]);
            for (size_t i = 0; i < s.inputs; ++i) give(s.s[i]);
            give(s.guard);
        }
    }

    const Entry &entry_;
    Program &program_;
    std::vector<Block> blocks_;
    std::vector<Interval> intervals_;
};

}  // namespace

Program compile(const Module &module, const Entry &entry) {
    Program program;
    program.file = module.file();
    program.name = entry.name;
    program.threads = entry.threads;
    program.parameter_bytes = entry.parameter_bytes;
    for (const auto &[name, shared] : module.shared())
        program.static_shared = std::max(program.static_shared, shared.offset + shared.bytes);
    for (const auto &[name, table] : module.tables()) {
        auto *data = const_cast<std::byte *>(table.bytes.data());  // never written: the range is constant
        program.tables.push_back(
            {name, reinterpret_cast<uint64_t>(data), table.bytes.size(), data, Range::Kind::Constant});
    }
    StepBinder binder(module, entry, program);
    program.steps.reserve(entry.instructions.size() + 1);
    program.spellings.reserve(entry.instructions.size() + 1);
    for (const Instruction &i : entry.instructions) {
        Step step;
        try {
            binder.begin(i, step);
            step.line = i.line;
            if (const Operation *operation = Operations::all().find(i.spelling)) {
                step.run = operation->run;
                operation->bind(binder, step);
                binder.finish();
            } else {
                bind_control(binder, entry, i, step);
            }
            if (i.guard >= 0) step.guard = binder.number(i.guard), step.negated = i.negated;
            if (step.guard >= 0 && step.kind != Step::Kind::Branch && step.kind != Step::Kind::Plain)
                throw Error("a guard before " + i.spelling);
        } catch (const Error &e) {
            throw Error(module.file() + ":" + std::to_string(i.line) + ": " + i.spelling + ": " + e.what());
        }
        program.has_wait |= step.kind == Step::Kind::Wait;
        program.steps.push_back(step);
        program.spellings.push_back(i.spelling);
    }
    // A label may follow the last instruction.
    Step end;
    end.kind = Step::Kind::Return;
    program.steps.push_back(end);
    program.spellings.emplace_back("ret");
    RowAllocator(entry, program);
    return program;
}

}  // namespace runnel::ptx
