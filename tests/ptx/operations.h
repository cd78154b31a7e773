// The operations of instructions, their operands as rows, and the warps that run them.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/ptx/memory.h"
#include "tests/ptx/parse.h"

namespace runnel::ptx {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

// The base addresses of shared memory (32 bits) and of the parameters.
inline constexpr uint32_t kSharedBase = 0x400;
inline constexpr uint64_t kParameterBase = uint64_t{0x70} << 56;

struct Warp;
struct Step;
using Run = void (*)(Warp &, const Step &);

// A row has 32 values, one per lane. Its number is >= 0 for a register, ~n for constant n. Narrow rows (uint32_t)
// hold predicates and values of up to 32 bits (16-bit values zero-extended), wide rows (uint64_t) the others.
using Row = int32_t;

struct Step {
    enum class Kind {
        Plain,       // lanes are independent
        Collective,  // runs when all lanes of the warp have arrived
        Branch,      // to `target`
        Return,
        Barrier,  // of the block; all lanes
        Wait,     // griddepcontrol.wait
    };
    Kind kind = Kind::Plain;
    Run run = nullptr;
    std::array<Row, 4> d{};
    std::array<Row, 10> s{};
    uint8_t outputs = 0, inputs = 0;
    uint16_t outputs_wide = 0, inputs_wide = 0;  // bit i: row i is wide
    uint16_t outputs_short = 0;                  // bit i: output i is a register of 16 bits
    int64_t offset = 0, second_offset = 0;       // address offsets; the count of cp.async.wait_group
    uint32_t target = 0;
    Row guard = -1;  // a narrow row; -1: none
    bool negated = false;
    int line = 0;
};

// Operation::bind fills rows, offsets and kind of a Step from the operands, or throws Error.
class Binder;
struct Operation {
    Run run = nullptr;
    std::function<void(Binder &, Step &)> bind;
};

class Operations {
  public:
    static const Operations &all();
    // Null if the instruction is not supported.
    const Operation *find(const std::string &spelling) const;
    void add(const std::string &spelling, Operation operation);

  private:
    std::unordered_map<std::string, Operation> known_;
};

// Converts the operands of one instruction to rows. A register whose width is not the type's is an Error, except
// where the ISA allows loads, stores and cvt a wider one (`or_wider`).
class Binder {
  public:
    virtual ~Binder() = default;
    virtual size_t count() const = 0;                // operands
    virtual size_t parts(size_t operand) const = 0;  // of a list; 0: not a list
    virtual void output(size_t operand, int bits, bool or_wider = false) = 0;
    virtual void input(size_t operand, int bits, bool or_wider = false) = 0;
    // All parts of a list; a single operand is a list of one.
    virtual void outputs(size_t operand, size_t parts, int bits, bool or_wider = false) = 0;
    virtual void inputs(size_t operand, size_t parts, int bits, bool or_wider = false) = 0;
    enum class Space { Global, Shared, Parameter };
    virtual void shuffle_outputs(size_t operand) = 0;       // d|p
    virtual void address(size_t operand, Space space) = 0;  // one input, and offset or second_offset
    virtual int64_t immediate(size_t operand) = 0;
};

// The memory that the instructions of a block access.
struct BlockMemory {
    GlobalMemory &global;
    std::span<const std::byte> parameters;
    std::vector<std::byte> shared;
    bool late_copies;  // cp.async arrives at its wait; false: at once

    std::byte *shared_at(uint32_t address, size_t bytes);
    const std::byte *parameter_at(uint64_t address, size_t bytes) const;
};

struct AsyncCopy {
    uint32_t to;
    const std::byte *from;  // null: zeros
};

struct Lane {
    std::vector<AsyncCopy> open;                    // since the last commit
    std::vector<std::vector<AsyncCopy>> committed;  // groups, oldest first
};

struct Warp {
    explicit Warp(BlockMemory &of_block) : memory(of_block) {}

    template <class T>  // uint32_t or uint64_t
    T *row(Row r) {
        if constexpr (sizeof(T) == 8)
            return r >= 0 ? &wide[static_cast<size_t>(r) * kLanes]
                          : const_cast<T *>(&(*wide_constants)[static_cast<size_t>(~r) * kLanes]);
        else
            return r >= 0 ? &narrow[static_cast<size_t>(r) * kLanes]
                          : const_cast<T *>(&(*narrow_constants)[static_cast<size_t>(~r) * kLanes]);
    }
    // An input from a narrow or a wide row.
    uint64_t input(const Step &s, size_t i, int of_lane) {
        return s.inputs_wide >> i & 1u ? row<uint64_t>(s.s[i])[of_lane] : row<uint32_t>(s.s[i])[of_lane];
    }
    // Calls f(lane) for every active lane; sets `lane` for error messages.
    template <class F>
    void for_lanes(F f) {
        for (lane = 0; lane < kLanes; ++lane)
            if (active >> lane & 1u) f(lane);
        lane = -1;
    }

    BlockMemory &memory;
    std::vector<uint32_t> narrow;
    std::vector<uint64_t> wide;
    const std::vector<uint32_t> *narrow_constants = nullptr;
    const std::vector<uint64_t> *wide_constants = nullptr;
    std::array<Lane, kLanes> lanes;
    uint32_t active = 0;  // lanes of the running step
    int lane = -1;        // the current one, or -1
    bool before_wait = false;
};

// --- operations on the values of single lanes ----------------------------------------------------------------

template <class T>
using Storage = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
T unpacked(Storage<T> bits) {
    if constexpr (std::is_same_v<T, bool>)
        return (bits & 1u) != 0;
    else if constexpr (std::is_floating_point_v<T>)
        return std::bit_cast<T>(bits);
    else
        return static_cast<T>(bits);
}
template <class T>
Storage<T> packed(T value) {
    if constexpr (std::is_floating_point_v<T>)
        return std::bit_cast<Storage<T>>(value);
    else if constexpr (std::is_same_v<T, bool>)
        return value;
    else
        return static_cast<std::make_unsigned_t<T>>(value);
}
template <class T>
constexpr int bits_of = std::is_same_v<T, bool> ? 1 : 8 * static_cast<int>(sizeof(T));

template <class F, class R, class... A, size_t... I>
void run_map(Warp &w, const Step &s, std::index_sequence<I...>) {
    Storage<R> *const d = w.row<Storage<R>>(s.d[0]);
    const std::tuple<const Storage<A> *...> from{w.row<Storage<A>>(s.s[I])...};
    if (w.active == kAllLanes) {
        for (int i = 0; i < kLanes; ++i) d[i] = packed<R>(F{}(unpacked<A>(std::get<I>(from)[i])...));
    } else {
        for (int i = 0; i < kLanes; ++i)
            if (w.active >> i & 1u) d[i] = packed<R>(F{}(unpacked<A>(std::get<I>(from)[i])...));
    }
}

template <class F, class R, class... A>
void add_map(Operations &all, const std::string &spelling, R (*)(A...)) {
    all.add(spelling,
            {[](Warp &w, const Step &s) { run_map<F, R, A...>(w, s, std::index_sequence_for<A...>()); },
             [](Binder &b, Step &) {
                 b.output(0, bits_of<R>);
                 size_t i = 1;
                 (b.input(i++, bits_of<A>), ...);
             }});
}
// d = f(a, b, ...) for a lambda without captures, whose signature gives the operand types.
template <class F>
void add_map(Operations &all, const std::string &spelling, F f) {
    add_map<F>(all, spelling, +f);
}

void add_integers(Operations &all);
void add_floats(Operations &all);
void add_conversions(Operations &all);
void add_memory(Operations &all);
void add_collectives(Operations &all);

}  // namespace runnel::ptx
