// Float arithmetic and conversions (PTX ISA 9.7.3, 9.7.4, 9.7.6, 9.7.9): every operation of the kernels is
// .rn without .ftz, so the host's own arithmetic gives the bits. NaN results are canonical.
#include <cmath>
#include <limits>

#include "tests/ptx/numbers.h"
#include "tests/ptx/operations.h"

namespace runnel::ptx {

namespace {

// If one operand is NaN, the result is the other one; -0 < +0.
float greater(float a, float b) {
    if (a != a) return canonical(b);
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? b : a;
    return a > b ? a : b;
}
float lesser(float a, float b) {
    if (a != a) return canonical(b);
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
}

template <auto F>
uint32_t on_halves(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const auto at = [&](uint32_t x) { return double{from_f16(static_cast<uint16_t>(x >> shift))}; };
        result |= uint32_t{to_f16(F(at(a), at(b), at(c)))} << shift;
    }
    return result;
}

// Converts to an integer: NaN gives 0, values out of range are clamped.
template <class T>
T clamped(float x) {
    if (x != x) return 0;
    const double value = x;
    if (value <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    if (value >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    return static_cast<T>(value);
}

void add_comparisons(Operations &all) {
    add_map(all, "setp.eq.f32", [](float a, float b) -> bool { return a == b; });
    add_map(all, "setp.ne.f32", [](float a, float b) -> bool { return a < b || a > b; });
    add_map(all, "setp.lt.f32", [](float a, float b) -> bool { return a < b; });
    add_map(all, "setp.le.f32", [](float a, float b) -> bool { return a <= b; });
    add_map(all, "setp.gt.f32", [](float a, float b) -> bool { return a > b; });
    add_map(all, "setp.ge.f32", [](float a, float b) -> bool { return a >= b; });
    // True if either is NaN.
    add_map(all, "setp.equ.f32", [](float a, float b) -> bool { return !(a < b || a > b); });
    add_map(all, "setp.neu.f32", [](float a, float b) -> bool { return !(a == b); });
    add_map(all, "setp.ltu.f32", [](float a, float b) -> bool { return !(a >= b); });
    add_map(all, "setp.leu.f32", [](float a, float b) -> bool { return !(a > b); });
    add_map(all, "setp.gtu.f32", [](float a, float b) -> bool { return !(a <= b); });
    add_map(all, "setp.geu.f32", [](float a, float b) -> bool { return !(a < b); });
    add_map(all, "setp.num.f32", [](float a, float b) -> bool { return a == a && b == b; });
    add_map(all, "setp.nan.f32", [](float a, float b) -> bool { return a != a || b != b; });
}

}  // namespace

void add_floats(Operations &all) {
    add_map(all, "add.rn.f32", [](float a, float b) -> float { return canonical(a + b); });
    add_map(all, "sub.rn.f32", [](float a, float b) -> float { return canonical(a - b); });
    add_map(all, "mul.rn.f32", [](float a, float b) -> float { return canonical(a * b); });
    add_map(all, "div.rn.f32", [](float a, float b) -> float { return canonical(a / b); });
    add_map(all, "fma.rn.f32",
            [](float a, float b, float c) -> float { return canonical(std::fma(a, b, c)); });
    add_map(all, "rcp.rn.f32", [](float a) -> float { return canonical(1.0f / a); });
    add_map(all, "sqrt.rn.f32", [](float a) -> float { return canonical(std::sqrt(a)); });
    add_map(all, "max.f32", [](float a, float b) -> float { return greater(a, b); });
    add_map(all, "min.f32", [](float a, float b) -> float { return lesser(a, b); });
    add_map(all, "neg.f32", [](uint32_t a) -> uint32_t { return a ^ 0x80000000u; });
    add_map(all, "abs.f32", [](uint32_t a) -> uint32_t { return a & 0x7fffffffu; });
    // f64 is exact for sums and products of two f16, and wide enough to round a fused third operand correctly.
    add_map(all, "add.rn.f16x2", [](uint32_t a, uint32_t b) -> uint32_t {
        return on_halves<[](double x, double y, double) { return x + y; }>(a, b, 0);
    });
    add_map(all, "sub.rn.f16x2", [](uint32_t a, uint32_t b) -> uint32_t {
        return on_halves<[](double x, double y, double) { return x - y; }>(a, b, 0);
    });
    add_map(all, "mul.rn.f16x2", [](uint32_t a, uint32_t b) -> uint32_t {
        return on_halves<[](double x, double y, double) { return x * y; }>(a, b, 0);
    });
    add_map(all, "fma.rn.f16x2", [](uint32_t a, uint32_t b, uint32_t c) -> uint32_t {
        return on_halves<[](double x, double y, double z) { return x * y + z; }>(a, b, c);
    });
    add_comparisons(all);
}

template <class To, class From>
static void add_integer_conversion(Operations &all, const std::string &spelling) {
    all.add(spelling, {[](Warp &w, const Step &s) {
                           struct Convert {
                               To operator()(From a) const { return static_cast<To>(a); }
                           };
                           run_map<Convert, To, From>(w, s, std::index_sequence<0>());
                       },
                       [](Binder &b, Step &s) {
                           b.output(0, bits_of<To>);
                           b.input(1, bits_of<From>, true);
                           if (sizeof(From) == 8 || !s.inputs_wide) return;
                           // The low bits of a 64-bit register.
                           s.run = [](Warp &w, const Step &step) {
                               struct Convert {
                                   To operator()(uint64_t a) const {
                                       return static_cast<To>(static_cast<From>(a));
                                   }
                               };
                               run_map<Convert, To, uint64_t>(w, step, std::index_sequence<0>());
                           };
                       }});
}

template <class From>
static void add_integer_conversions(Operations &all, const std::string &from) {
    // There are no registers of 8 bits: the result is extended to 16.
    add_map(all, "cvt.u8." + from, [](From a) -> uint16_t { return static_cast<uint8_t>(a); });
    add_map(all, "cvt.s8." + from, [](From a) -> int16_t { return static_cast<int8_t>(a); });
    add_integer_conversion<uint16_t, From>(all, "cvt.u16." + from);
    add_integer_conversion<int16_t, From>(all, "cvt.s16." + from);
    add_integer_conversion<uint32_t, From>(all, "cvt.u32." + from);
    add_integer_conversion<int32_t, From>(all, "cvt.s32." + from);
    add_integer_conversion<uint64_t, From>(all, "cvt.u64." + from);
    add_integer_conversion<int64_t, From>(all, "cvt.s64." + from);
    add_map(all, "cvt.rn.f32." + from, [](From a) -> float { return static_cast<float>(a); });
}

void add_conversions(Operations &all) {
    add_integer_conversions<uint8_t>(all, "u8"), add_integer_conversions<int8_t>(all, "s8");
    add_integer_conversions<uint16_t>(all, "u16"), add_integer_conversions<int16_t>(all, "s16");
    add_integer_conversions<uint32_t>(all, "u32"), add_integer_conversions<int32_t>(all, "s32");
    add_integer_conversions<uint64_t>(all, "u64"), add_integer_conversions<int64_t>(all, "s64");

    add_map(all, "cvt.f32.f16", [](uint16_t a) -> float { return from_f16(a); });
    add_map(all, "cvt.f32.bf16", [](uint16_t a) -> float { return canonical(from_bf16(a)); });
    add_map(all, "cvt.rn.f16.f32", [](float a) -> uint16_t { return to_f16(a); });
    add_map(all, "cvt.rn.bf16.f32", [](float a) -> uint16_t { return to_bf16(a); });
    // cvt d, a, b: a becomes the upper half.
    add_map(all, "cvt.rn.f16x2.f32",
            [](float a, float b) -> uint32_t { return uint32_t{to_f16(a)} << 16 | to_f16(b); });
    add_map(all, "cvt.rn.bf16x2.f32",
            [](float a, float b) -> uint32_t { return uint32_t{to_bf16(a)} << 16 | to_bf16(b); });
    // (std::nearbyint rounds ties to even, and keeps -0.)
    add_map(all, "cvt.rni.f32.f32", [](float a) -> float { return canonical(std::nearbyint(a)); });
    add_map(all, "cvt.rzi.f32.f32", [](float a) -> float { return canonical(std::trunc(a)); });
    add_map(all, "cvt.rmi.f32.f32", [](float a) -> float { return canonical(std::floor(a)); });
    add_map(all, "cvt.rni.s32.f32", [](float a) -> int32_t { return clamped<int32_t>(std::nearbyint(a)); });
    add_map(all, "cvt.rzi.s32.f32", [](float a) -> int32_t { return clamped<int32_t>(std::trunc(a)); });
    add_map(all, "cvt.rzi.u32.f32", [](float a) -> uint32_t { return clamped<uint32_t>(std::trunc(a)); });
}

}  // namespace runnel::ptx
