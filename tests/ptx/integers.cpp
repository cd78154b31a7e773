// Integer arithmetic, comparison, logic and selection (PTX ISA 9.7.1, 9.7.6, 9.7.8).
#include <algorithm>
#include <limits>

#include "tests/ptx/operations.h"

namespace runnel::ptx {

namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;
// An unsigned type that is not promoted to int, so that products wrap.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
T wrapped(Wrapping<T> value) {
    return static_cast<T>(static_cast<Unsigned<T>>(value));
}
template <class T>
Wrapping<T> extended(T value) {
    return static_cast<Wrapping<T>>(static_cast<Unsigned<T>>(value));
}

// Division by zero is unspecified in the ISA; here it gives all ones.
template <class T>
T quotient(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>)
        if (b == -1) return wrapped<T>(0 - extended(a));
    return static_cast<T>(a / b);
}
template <class T>
T remainder(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>)
        if (b == -1) return 0;
    return static_cast<T>(a % b);
}

// Shift counts of the width or more shift out all bits.
template <class T>
T shifted_left(T a, uint32_t count) {
    return count >= 8 * sizeof(T) ? T{0} : wrapped<T>(extended(a) << count);
}
template <class T>
T shifted_right(T a, uint32_t count) {
    constexpr uint32_t kMost = 8 * sizeof(T) - 1;
    if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> std::min(count, kMost));
    return count > kMost ? T{0} : static_cast<T>(a >> count);
}

template <class T>
void add_arithmetic(Operations &all, const std::string &type) {
    add_map(all, "add." + type, [](T a, T b) -> T { return wrapped<T>(extended(a) + extended(b)); });
    add_map(all, "sub." + type, [](T a, T b) -> T { return wrapped<T>(extended(a) - extended(b)); });
    add_map(all, "mul.lo." + type, [](T a, T b) -> T { return wrapped<T>(extended(a) * extended(b)); });
    add_map(all, "mad.lo." + type,
            [](T a, T b, T c) -> T { return wrapped<T>(extended(a) * extended(b) + extended(c)); });
    add_map(all, "div." + type, [](T a, T b) -> T { return quotient(a, b); });
    add_map(all, "rem." + type, [](T a, T b) -> T { return remainder(a, b); });
    add_map(all, "min." + type, [](T a, T b) -> T { return std::min(a, b); });
    add_map(all, "max." + type, [](T a, T b) -> T { return std::max(a, b); });
    add_map(all, "shr." + type, [](T a, uint32_t n) -> T { return shifted_right(a, n); });
    if constexpr (std::is_signed_v<T>) {
        add_map(all, "neg." + type, [](T a) -> T { return wrapped<T>(0 - extended(a)); });
        add_map(all, "abs." + type, [](T a) -> T { return a < 0 ? wrapped<T>(0 - extended(a)) : a; });
    }
}

// Products of 16 and 32 bits, with twice the width.
template <class T, class Wide>
void add_wide(Operations &all, const std::string &type) {
    add_map(all, "mul.wide." + type,
            [](T a, T b) -> Wide { return static_cast<Wide>(static_cast<Wide>(a) * static_cast<Wide>(b)); });
    add_map(all, "mad.wide." + type, [](T a, T b, Wide c) -> Wide {
        return wrapped<Wide>(extended(static_cast<Wide>(static_cast<Wide>(a) * static_cast<Wide>(b))) +
                             extended(c));
    });
    add_map(all, "mul.hi." + type, [](T a, T b) -> T {
        return static_cast<T>(static_cast<Wide>(static_cast<Wide>(a) * static_cast<Wide>(b)) >>
                              (8 * sizeof(T)));
    });
}

template <class T>
void add_comparison(Operations &all, const std::string &type) {
    add_map(all, "setp.eq." + type, [](T a, T b) -> bool { return a == b; });
    add_map(all, "setp.ne." + type, [](T a, T b) -> bool { return a != b; });
    if (type[0] == 'b') return;
    add_map(all, "setp.lt." + type, [](T a, T b) -> bool { return a < b; });
    add_map(all, "setp.le." + type, [](T a, T b) -> bool { return a <= b; });
    add_map(all, "setp.gt." + type, [](T a, T b) -> bool { return a > b; });
    add_map(all, "setp.ge." + type, [](T a, T b) -> bool { return a >= b; });
}

template <class T>
void add_logic(Operations &all, const std::string &type) {
    add_map(all, "and." + type, [](T a, T b) -> T { return static_cast<T>(a & b); });
    add_map(all, "or." + type, [](T a, T b) -> T { return static_cast<T>(a | b); });
    add_map(all, "xor." + type, [](T a, T b) -> T { return static_cast<T>(a ^ b); });
    if constexpr (std::is_same_v<T, bool>) {
        add_map(all, "not." + type, [](T a) -> T { return !a; });
    } else {
        add_map(all, "not." + type, [](T a) -> T { return static_cast<T>(~a); });
        add_map(all, "shl." + type, [](T a, uint32_t n) -> T { return shifted_left(a, n); });
        add_map(all, "shr." + type, [](T a, uint32_t n) -> T { return shifted_right(a, n); });
    }
}

template <class T>
void add_selection(Operations &all, const std::string &type) {
    add_map(all, "selp." + type, [](T a, T b, bool p) -> T { return p ? a : b; });
}

// Byte n of the result is the byte of b:a selected by nibble n. If the nibble's top bit is set, it is that byte's
// sign, replicated.
uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = uint64_t{b} << 32 | a;
    uint32_t result = 0;
    for (int n = 0; n < 4; ++n) {
        const uint32_t nibble = selector >> (4 * n) & 0xfu;
        uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7u))) & 0xffu;
        if (nibble & 8u) byte = byte & 0x80u ? 0xffu : 0;
        result |= byte << (8 * n);
    }
    return result;
}

// Bit i = 4a + 2b + c of the table is the result for bits a, b, c.
uint32_t looked_up(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t result = 0;
    for (uint32_t i = 0; i < 8; ++i)
        if (table >> i & 1u) result |= (i & 4u ? a : ~a) & (i & 2u ? b : ~b) & (i & 1u ? c : ~c);
    return result;
}

uint32_t inserted(uint32_t a, uint32_t b, uint32_t position, uint32_t length) {
    position &= 0xffu, length &= 0xffu;
    if (position > 31 || length == 0) return b;
    const uint64_t ones = length >= 32 ? 0xffffffffu : (uint64_t{1} << length) - 1;
    const auto mask = static_cast<uint32_t>(ones << position);
    return (b & ~mask) | (static_cast<uint32_t>(uint64_t{a} << position) & mask);
}

uint32_t extracted(uint32_t a, uint32_t position, uint32_t length) {
    position &= 0xffu, length &= 0xffu;
    if (position > 31 || length == 0) return 0;
    const uint64_t ones = length >= 32 ? 0xffffffffu : (uint64_t{1} << length) - 1;
    return static_cast<uint32_t>(a >> position & ones);
}

// --- mov ---------------------------------------------------------------------------------------------------

// Lists are packed and unpacked, lowest part first.
void run_pack(Warp &w, const Step &s) {
    w.for_lanes([&](int lane) {
        uint64_t value = 0;
        const int bits = s.outputs_wide ? 32 : 16;
        for (size_t i = 0; i < s.inputs; ++i)
            value |= uint64_t{w.row<uint32_t>(s.s[i])[lane]} << (bits * static_cast<int>(i));
        if (s.outputs_wide)
            w.row<uint64_t>(s.d[0])[lane] = value;
        else
            w.row<uint32_t>(s.d[0])[lane] = static_cast<uint32_t>(value);
    });
}
void run_unpack(Warp &w, const Step &s) {
    w.for_lanes([&](int lane) {
        const uint64_t value = w.input(s, 0, lane);
        for (size_t i = 0; i < s.outputs; ++i)
            w.row<uint32_t>(s.d[i])[lane] = static_cast<uint32_t>(
                s.inputs_wide ? value >> (32 * i) & 0xffffffffu : value >> (16 * i) & 0xffffu);
    });
}

template <class T>
void add_move(Operations &all, const std::string &type) {
    constexpr int kBits = bits_of<T>;
    all.add("mov." + type, {[](Warp &w, const Step &s) {
                                struct Copy {
                                    T operator()(T a) const { return a; }
                                };
                                run_map<Copy, T, T>(w, s, std::index_sequence<0>());
                            },
                            [](Binder &b, Step &s) {
                                if constexpr (kBits >= 32) {
                                    if (b.parts(0) == 2) {
                                        s.run = run_unpack;
                                        b.outputs(0, 2, kBits / 2), b.input(1, kBits);
                                        return;
                                    }
                                    if (b.parts(1) == 2) {
                                        s.run = run_pack;
                                        b.output(0, kBits), b.inputs(1, 2, kBits / 2);
                                        return;
                                    }
                                }
                                b.output(0, kBits), b.input(1, kBits);
                            }});
}

}  // namespace

void add_integers(Operations &all) {
    add_arithmetic<int16_t>(all, "s16"), add_arithmetic<uint16_t>(all, "u16");
    add_arithmetic<int32_t>(all, "s32"), add_arithmetic<uint32_t>(all, "u32");
    add_arithmetic<int64_t>(all, "s64"), add_arithmetic<uint64_t>(all, "u64");
    add_wide<int16_t, int32_t>(all, "s16"), add_wide<uint16_t, uint32_t>(all, "u16");
    add_wide<int32_t, int64_t>(all, "s32"), add_wide<uint32_t, uint64_t>(all, "u32");
    add_comparison<int16_t>(all, "s16"), add_comparison<uint16_t>(all, "u16"),
        add_comparison<uint16_t>(all, "b16");
    add_comparison<int32_t>(all, "s32"), add_comparison<uint32_t>(all, "u32"),
        add_comparison<uint32_t>(all, "b32");
    add_comparison<int64_t>(all, "s64"), add_comparison<uint64_t>(all, "u64"),
        add_comparison<uint64_t>(all, "b64");
    add_logic<bool>(all, "pred"), add_logic<uint16_t>(all, "b16");
    add_logic<uint32_t>(all, "b32"), add_logic<uint64_t>(all, "b64");
    for (const char *type : {"b16", "u16", "s16"})
        add_selection<uint16_t>(all, type), add_move<uint16_t>(all, type);
    for (const char *type : {"b32", "u32", "s32", "f32"})
        add_selection<uint32_t>(all, type), add_move<uint32_t>(all, type);
    for (const char *type : {"b64", "u64", "s64"})
        add_selection<uint64_t>(all, type), add_move<uint64_t>(all, type);
    add_move<bool>(all, "pred");

    add_map(all, "prmt.b32",
            [](uint32_t a, uint32_t b, uint32_t c) -> uint32_t { return permuted(a, b, c); });
    add_map(all, "lop3.b32",
            [](uint32_t a, uint32_t b, uint32_t c, uint32_t t) -> uint32_t { return looked_up(a, b, c, t); });
    add_map(all, "bfi.b32",
            [](uint32_t a, uint32_t b, uint32_t p, uint32_t n) -> uint32_t { return inserted(a, b, p, n); });
    add_map(all, "bfe.u32",
            [](uint32_t a, uint32_t p, uint32_t n) -> uint32_t { return extracted(a, p, n); });
    add_map(all, "dp4a.s32.s32", [](uint32_t a, uint32_t b, uint32_t c) -> uint32_t {
        for (int i = 0; i < 32; i += 8)
            c += static_cast<uint32_t>(static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i));
        return c;
    });
    add_map(all, "popc.b32", [](uint32_t a) -> uint32_t { return static_cast<uint32_t>(std::popcount(a)); });
    add_map(all, "popc.b64", [](uint64_t a) -> uint32_t { return static_cast<uint32_t>(std::popcount(a)); });
    add_map(all, "mul.hi.u64", [](uint64_t a, uint64_t b) -> uint64_t {
        __extension__ using Product = unsigned __int128;
        return static_cast<uint64_t>(Product{a} * b >> 64);
    });
    add_map(all, "clz.b32",
            [](uint32_t a) -> uint32_t { return static_cast<uint32_t>(std::countl_zero(a)); });
}

}  // namespace runnel::ptx
