// The interpreter on hand-written PTX: results as specified by the ISA, and errors that it must detect.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "tests/ptx/numbers.h"
#include "tests/ptx/run_body.h"

using namespace runnel;
using namespace runnel::ptx;

namespace {

std::string error_of(const std::string &body, const Setting &setting = {}) {
    try {
        run_body(body, std::vector<uint32_t>(64), setting);
    } catch (const Error &e) {
        return e.what();
    }
    return "";
}

bool fails_with(const std::string &body, const std::string &words, const Setting &setting = {}) {
    const std::string error = error_of(body, setting);
    const bool found = error.find(words) != std::string::npos;
    if (!found) MESSAGE("not '" << words << "' but '" << error << "'");
    return found;
}

// The result %r0 of instructions whose inputs are %r1 to %r3, also as %f1 to %f3, and %h1.
uint32_t value_of(const std::string &instruction, uint32_t a, uint32_t b = 0, uint32_t c = 0) {
    std::vector<uint32_t> in(64);
    in[0] = a, in[1] = b, in[2] = c;
    return run_body(
        "ld.global.b32 %r1, [%base];\nld.global.b32 %r2, [%base+4];\nld.global.b32 %r3, [%base+8];\n"
        "mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nmov.b32 %f3, %r3;\ncvt.u16.u32 %h1, %r1;\n" +
            instruction + "\nst.global.b32 [%out], %r0;",
        in)[0];
}

uint32_t bits(float x) {
    return std::bit_cast<uint32_t>(x);
}

}  // namespace

TEST_CASE("ptx: an unsupported instruction is an error with line and instruction") {
    CHECK(fails_with("madc.hi.u32 %r1, %r2, %r3, %r4;", "unknown instruction madc.hi.u32"));
    CHECK(fails_with("add.ftz.f32 %f1, %f2, %f3;",
                     "test.ptx:21: add.ftz.f32: unknown instruction add.ftz.f32"));
    CHECK(fails_with("add.s32 %r1, %r2, %unknown;", "the address of %unknown"));
    CHECK(fails_with("add.s32 %r1, %r2, %d1;", "%d1 has 64 bits, the operand 32"));
    CHECK(fails_with("add.s32 %r1, %r2;", "too few operands"));
    CHECK(fails_with("add.s32 %r1, %r2, 1, 2;", "is unexpected"));
    CHECK(fails_with("bra nowhere;", "a branch to an unknown label"));
    CHECK(fails_with(".local .b8 x[4];", "unknown directive '.local'"));
    CHECK_THROWS_AS(Module(".entry test(", "test.ptx"), Error);
    CHECK_THROWS_AS(Module(".version 9.0\n.func f() {}", "test.ptx"), Error);
}

TEST_CASE("ptx: integer instructions compute what the ISA defines") {
    CHECK(value_of("prmt.b32 %r0, %r1, %r2, 0x5410;", 0x44332211, 0x88776655) == 0x66552211);
    CHECK(value_of("prmt.b32 %r0, %r1, %r2, 0xf981;", 0x44332291, 0xf8776655) == 0xff00ff22);
    CHECK(value_of("lop3.b32 %r0, %r1, %r2, %r3, 0xea;", 0b11110000, 0b11001100, 0b10101010) == 0b11101010);
    CHECK(value_of("lop3.b32 %r0, %r1, %r2, %r3, 0xd8;", 0b11110000, 0b11001100, 0b10101010) == 0b11011000);
    CHECK(value_of("bfi.b32 %r0, %r1, %r2, 1, 31;", 0xc0000001, 1) == 0x80000003);
    CHECK(value_of("bfi.b32 %r0, %r1, %r2, 8, 4;", 0xff, 0x12345678) == 0x12345f78);
    CHECK(value_of("shl.b32 %r0, %r1, %r2;", 1, 32) == 0);
    CHECK(value_of("shr.s32 %r0, %r1, %r2;", 0x80000000, 40) == 0xffffffff);
    CHECK(value_of("shr.u32 %r0, %r1, %r2;", 0x80000000, 40) == 0);
    CHECK(value_of("div.s32 %r0, %r1, %r2;", static_cast<uint32_t>(-7), 2) == static_cast<uint32_t>(-3));
    CHECK(value_of("rem.s32 %r0, %r1, %r2;", static_cast<uint32_t>(-7), 2) == static_cast<uint32_t>(-1));
    CHECK(value_of("mul.hi.s32 %r0, %r1, %r2;", static_cast<uint32_t>(-2), 3) == 0xffffffff);
    CHECK(value_of("mad.lo.s32 %r0, %r1, %r2, %r3;", 0x10001, 0x10001, 5) == 0x20006);
    CHECK(value_of("min.s32 %r0, %r1, %r2;", static_cast<uint32_t>(-2), 3) == static_cast<uint32_t>(-2));
    CHECK(value_of("max.u32 %r0, %r1, %r2;", static_cast<uint32_t>(-2), 3) == static_cast<uint32_t>(-2));
    CHECK(value_of("popc.b32 %r0, %r1;", 0xf00f0001) == 9);
    CHECK(value_of("dp4a.s32.s32 %r0, %r1, %r2, %r3;", 0x01ff7f80, 0x02ff7f80, 5) ==
          5 + 1 * 2 + 1 + 127 * 127 + 128 * 128);
    CHECK(value_of("mov.u64 %d1, -1;\npopc.b64 %r0, %d1;", 0) == 64);
    // (2^32 a + 1) (2^32 b): the high word is a b, and a carry does not reach it.
    CHECK(
        value_of(
            "cvt.u64.u32 %d1, %r1;\nshl.b64 %d1, %d1, 32;\nadd.s64 %d1, %d1, 1;\n"
            "cvt.u64.u32 %d2, %r2;\nshl.b64 %d2, %d2, 32;\nmul.hi.u64 %d3, %d1, %d2;\ncvt.u32.u64 %r0, %d3;",
            0xffff, 0x10001) == 0xffffffffu);
    CHECK(value_of("clz.b32 %r0, %r1;", 0x00010000) == 15);
    CHECK(value_of("setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, 5, 6, %p1;", 0xffffffff, 0) == 5);
    CHECK(value_of("setp.lt.u32 %p1, %r1, %r2; selp.b32 %r0, 5, 6, %p1;", 0xffffffff, 0) == 6);
    CHECK(value_of("mul.wide.s32 %d1, %r1, %r2; mov.b64 {%r4, %r0}, %d1;", static_cast<uint32_t>(-2), 3) ==
          0xffffffff);
    CHECK(value_of("cvt.s64.s32 %d1, %r1; shr.u64 %d1, %d1, 32; cvt.u32.u64 %r0, %d1;", 0x80000000) ==
          0xffffffff);
    CHECK(
        value_of("mov.b64 %d1, {%r1, %r2}; cvt.s64.s32 %d1, %d1; shr.u64 %d1, %d1, 32; cvt.u32.u64 %r0, %d1;",
                 0x80000000, 5) == 0xffffffff);  // the low bits of a wider register
    CHECK(value_of("mov.b64 %d1, {%r1, %r2}; mov.b64 {%r0, %r4}, %d1;", 7, 9) == 7);
    CHECK(value_of("cvt.s16.s8 %h2, %h1; cvt.u32.u16 %r0, %h2;", 0x180) == 0xff80);
}

TEST_CASE("ptx: float instructions handle ties, signed zeros, NaN and the order of pairs") {
    const uint32_t nan = 0x7fc12345;
    CHECK(value_of("add.rn.f32 %f4, %f1, %f2; mov.b32 %r0, %f4;", nan, bits(1)) == 0x7fffffff);
    CHECK(value_of("max.f32 %f4, %f1, %f2; mov.b32 %r0, %f4;", nan, bits(-1)) == bits(-1));
    CHECK(value_of("max.f32 %f4, %f1, %f2; mov.b32 %r0, %f4;", bits(-0.0f), bits(0.0f)) == bits(0.0f));
    CHECK(value_of("min.f32 %f4, %f1, %f2; mov.b32 %r0, %f4;", bits(0.0f), bits(-0.0f)) == bits(-0.0f));
    CHECK(value_of("fma.rn.f32 %f4, %f1, %f2, %f3; mov.b32 %r0, %f4;", bits(1 + 0x1p-23f), bits(1 - 0x1p-23f),
                   bits(-1)) == bits(-0x1p-46f));
    CHECK(value_of("cvt.rni.s32.f32 %r0, %f1;", bits(2.5f)) == 2);
    CHECK(value_of("cvt.rni.s32.f32 %r0, %f1;", bits(3.5f)) == 4);
    CHECK(value_of("cvt.rzi.s32.f32 %r0, %f1;", bits(-2.75f)) == static_cast<uint32_t>(-2));
    CHECK(value_of("cvt.rzi.s32.f32 %r0, %f1;", bits(1e10f)) == 0x7fffffff);
    CHECK(value_of("cvt.rzi.s32.f32 %r0, %f1;", nan) == 0);
    CHECK(value_of("cvt.rni.f32.f32 %f4, %f1; mov.b32 %r0, %f4;", bits(-0.5f)) == bits(-0.0f));
    CHECK(value_of("cvt.rn.f32.s32 %f4, %r1; mov.b32 %r0, %f4;", 0x1000001) == bits(0x1000000));
    CHECK(value_of("cvt.rn.f16x2.f32 %r0, %f1, %f2;", bits(1), bits(-2)) == 0x3c00c000);
    CHECK(value_of("cvt.rn.bf16x2.f32 %r0, %f1, %f2;", bits(1), bits(-2)) == 0x3f80c000);
    CHECK(value_of("cvt.rn.f16.f32 %h2, %f1; cvt.u32.u16 %r0, %h2;", bits(65520)) == 0x7c00);
    CHECK(value_of("cvt.rn.f16.f32 %h2, %f1; cvt.u32.u16 %r0, %h2;", bits(65519)) == 0x7bff);
    CHECK(value_of("sub.rn.f16x2 %r0, %r1, %r2;", 0x3c004000, 0x40003c00) == 0xbc003c00);
    CHECK(value_of("fma.rn.f16x2 %r0, %r1, %r2, %r3;", 0x3c013c00, 0x3c013c00, 0xbc003c00) == 0x18004000);
    for (const auto &[compare, with_nan, equal] : {std::tuple{"eq", 0u, 1u},
                                                   {"lt", 0u, 0u},
                                                   {"le", 0u, 1u},
                                                   {"neu", 1u, 0u},
                                                   {"leu", 1u, 1u},
                                                   {"gtu", 1u, 0u},
                                                   {"nan", 1u, 0u},
                                                   {"num", 0u, 1u}}) {
        const std::string text =
            std::string("setp.") + compare + ".f32 %p1, %f1, %f2; selp.b32 %r0, 1, 0, %p1;";
        CHECK_MESSAGE(value_of(text, nan, bits(1)) == with_nan, compare);
        CHECK_MESSAGE(value_of(text, bits(1), bits(1)) == equal, compare);
    }
}

TEST_CASE("ptx: 16-bit floats: every value round-trips, ties go to even") {
    for (uint32_t h = 0; h < 0x7c00; ++h) {
        const double value =
            h < 0x400 ? std::ldexp(h, -24) : std::ldexp(0x400 + (h & 0x3ff), static_cast<int>(h >> 10) - 25);
        REQUIRE(static_cast<double>(from_f16(static_cast<uint16_t>(h))) == value);
        REQUIRE(to_f16(value) == h);
        REQUIRE(to_f16(-value) == (h | 0x8000));
        if (h == 0x7bff) continue;
        const double half_way = (value + static_cast<double>(from_f16(static_cast<uint16_t>(h + 1)))) / 2;
        REQUIRE(to_f16(half_way) == (h & 1 ? h + 1 : h));
        REQUIRE(to_f16(std::nextafter(half_way, 1e9)) == h + 1);
        REQUIRE(to_f16(std::nextafter(half_way, 0)) == h);
    }
    for (uint32_t h = 0; h < 0x7f80; ++h) {
        const float value = from_bf16(static_cast<uint16_t>(h));
        REQUIRE(to_bf16(static_cast<double>(value)) == h);
        const double next =
            h == 0x7f7f ? 0x1p128 : static_cast<double>(from_bf16(static_cast<uint16_t>(h + 1)));
        REQUIRE(to_bf16((static_cast<double>(value) + next) / 2) == (h & 1 ? h + 1 : h));
    }
}

TEST_CASE("ptx: diverged lanes reconverge, and collectives need all lanes") {
    // Odd lanes add 100, even ones 1000; lane t loops t + 1 times; then neighbors exchange values.
    const std::string body =
        "and.b32 %r1, %t, 1;\nsetp.eq.s32 %p1, %r1, 0;\nmov.u32 %r2, %t;\n@%p1 bra EVEN;\nadd.s32 %r2, %r2, "
        "100;\n"
        "bra.uni JOIN;\nEVEN:\nadd.s32 %r2, %r2, 1000;\nJOIN:\nmov.u32 %r3, 0;\nLOOP:\nadd.s32 %r2, %r2, 1;\n"
        "add.s32 %r3, %r3, 1;\nsetp.le.s32 %p2, %r3, %t;\n@%p2 bra LOOP;\n"
        "mov.u32 %r4, 1;\nmov.u32 %r5, 31;\nmov.u32 %r6, -1;\nshfl.sync.bfly.b32 %r7|%p3, %r2, %r4, %r5, "
        "%r6;\n"
        "st.global.u32 [%out], %r7;";
    for (const bool highest : {false, true}) {
        Setting setting;
        setting.schedule.highest_first = highest;
        const std::vector<uint32_t> out = run_body(body, std::vector<uint32_t>(64), setting);
        for (uint32_t t = 0; t < 64; ++t) {
            const uint32_t from = t ^ 1;
            REQUIRE(out[t] == from + (from % 2 ? 100 : 1000) + from + 1);
        }
    }
    const std::string some = "setp.lt.u32 %p1, %t, 5;\n@%p1 bra END;\n";
    CHECK(fails_with(some + "shfl.sync.bfly.b32 %r7|%p3, %r2, 1, 31, -1;\nEND:", "not all lanes"));
    CHECK(fails_with(some + "bar.sync 0;\nEND:\nbar.sync 0;", "not all lanes"));
    CHECK(fails_with("shfl.sync.bfly.b32 %r7|%p3, %r2, 1, 31, 255;", "a member mask"));
}

TEST_CASE("ptx: a barrier orders accesses to shared memory, which are checked for bounds and alignment") {
    // Each thread reads the word of a thread of the other warp.
    const std::string body =
        "ld.global.u32 %r1, [%in];\nshl.b32 %r2, %t, 2;\nadd.s32 %r3, %s, %r2;\n"
        "st.shared.u32 [%r3], %r1;\nbar.sync 0;\nxor.b32 %r2, %r2, 128;\nadd.s32 %r3, %s, %r2;\n"
        "ld.shared.u32 %r4, [%r3];\nst.global.u32 [%out], %r4;";
    std::vector<uint32_t> in(64);
    for (uint32_t i = 0; i < 64; ++i) in[i] = i * i;
    bool found = false;
    std::string without = body;
    without.erase(without.find("bar.sync 0;"), 11);
    for (uint64_t seed = 1; seed < 9; ++seed) {
        Setting setting;
        setting.schedule.seed = seed;
        const std::vector<uint32_t> out = run_body(body, in, setting);
        for (uint32_t i = 0; i < 64; ++i) REQUIRE(out[i] == (i ^ 32) * (i ^ 32));
        found |= run_body(without, in, setting) != out;
    }
    CHECK(found);  // without the barrier, some schedule gives another result
    CHECK(fails_with("ld.shared.u32 %r1, [arena+1024];", "of 1024 bytes of shared memory"));
    CHECK(fails_with("ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [arena+8];", "not aligned"));
}

TEST_CASE("ptx: accesses to global memory are checked for bounds, alignment and constant ranges") {
    CHECK(fails_with("st.global.u32 [%out+4], %r1;",
                     "test.ptx:21: st.global.u32 (block 0, thread 63): 4 bytes"));
    CHECK(fails_with("ld.global.u32 %r1, [%in+1];", "not aligned"));
    CHECK(fails_with("ld.global.v2.u32 {%r1, %r2}, [%base+4];", "not aligned"));
    CHECK(fails_with("ld.param.u64 %d1, [P+16];", "of 16 bytes of parameters"));
    CHECK(fails_with("mov.b64 %d1, P;\nld.global.u32 %r1, [%d1];", "0x7000000000000000"));
    Setting constant;
    constant.input = Range::Kind::Constant;
    CHECK(fails_with("st.global.u32 [%in], %r1;", "in, which is constant memory", constant));
    // .nc requires that the launch never writes this memory, neither before nor after.
    CHECK(fails_with("ld.global.nc.u32 %r1, [%in];\nst.global.u32 [%in], %r1;", ".nc"));
    CHECK(fails_with("st.global.u32 [%in], %r1;\nld.global.nc.L1::no_allocate.u32 %r1, [%in];", ".nc"));
    CHECK(error_of("ld.global.nc.u32 %r1, [%in];\nst.global.u32 [%out], %r1;") == "");
    Setting weights;
    weights.input = Range::Kind::Weights;
    CHECK(error_of("st.global.u32 [%in], %r1;", weights) == "");
    CHECK(fails_with("ld.global.nc.u32 %r1, [%base];\nst.global.u32 [%base+4], %r1;", ".nc", weights));
}

TEST_CASE("ptx: a dependent launch accesses only weights before its wait") {
    Setting setting;
    setting.dependent = true;
    CHECK(error_of("griddepcontrol.wait;\nld.global.u32 %r1, [%in];", setting) == "");
    CHECK(
        fails_with("ld.global.u32 %r1, [%in];\ngriddepcontrol.wait;", "before griddepcontrol.wait", setting));
    CHECK(fails_with("ld.global.u32 %r1, [%in];", "without griddepcontrol.wait", setting));
    CHECK(fails_with("setp.eq.s32 %p1, %t, 3;\n@%p1 bra END;\ngriddepcontrol.wait;\nEND:", "ends without",
                     setting));
    setting.input = Range::Kind::Weights;
    CHECK(
        fails_with("st.global.u32 [%in], %r1;\ngriddepcontrol.wait;", "before griddepcontrol.wait", setting));
    CHECK(error_of("ld.global.u32 %r1, [%in];\ngriddepcontrol.wait;", setting) == "");
}

TEST_CASE("ptx: cp.async arrives at its wait, and reads nothing if it writes zeros") {
    const std::string address =
        "shl.b32 %r1, %t, 4;\nadd.s32 %r2, %s, %r1;\nand.b32 %r3, %t, 15;\nmul.wide.u32 %d1, %r3, 16;\n"
        "add.s64 %d2, %base, %d1;\nst.shared.v4.u32 [%r2], {%t, %t, %t, %t};\n";
    const std::string copy = "cp.async.cg.shared.global [%r2], [%d2], 16, %r4;\ncp.async.commit_group;\n";
    const std::string read = "ld.shared.u32 %r5, [%r2+12];\nst.global.u32 [%out], %r5;";
    std::vector<uint32_t> in(64);
    for (uint32_t i = 0; i < 64; ++i) in[i] = 1000 + i;
    for (const bool late : {false, true}) {
        Setting setting;
        setting.schedule.late_copies = late;
        const auto all =
            run_body(address + "mov.u32 %r4, 16;\n" + copy + "cp.async.wait_group 0;\n" + read, in, setting);
        const auto zeros = run_body(
            address + "mov.u32 %r4, 0;\nmov.u64 %d2, 0;\n" + copy + "cp.async.wait_group 0;\n" + read, in,
            setting);
        const auto early =
            run_body(address + "mov.u32 %r4, 16;\n" + copy + "cp.async.wait_group 1;\n" + read, in, setting);
        for (uint32_t t = 0; t < 64; ++t) {
            REQUIRE(all[t] == in[4 * (t % 16) + 3]);
            REQUIRE(zeros[t] == 0);
            REQUIRE(early[t] == (late ? t : in[4 * (t % 16) + 3]));  // a wait for too few groups
        }
    }
    CHECK(fails_with(address + "mov.u32 %r4, 16;\nadd.s64 %d2, %d2, 8;\n" + copy, "not aligned"));
}

TEST_CASE("ptx: conversions to 8 bits extend to the register") {
    CHECK(value_of("cvt.s8.s32 %h2, %r1;\ncvt.u32.u16 %r0, %h2;", 0x12345680u) == 0xff80u);
    CHECK(value_of("cvt.u8.u32 %h2, %r1;\ncvt.u32.u16 %r0, %h2;", 0x12345680u) == 0x80u);
}

TEST_CASE("ptx: registers of a scope end with it, and hide those of the same name") {
    // The upper halves of two words, by a scope each, as nvcc writes it for sm_100 and later.
    const std::string upper = "{ .reg .b16 tmp; mov.b32 {tmp, %h1}, %r1; }\n";
    CHECK(value_of(upper + "cvt.u32.u16 %r0, %h1;", 0xabcd1234u) == 0xabcdu);
    CHECK(value_of(upper + "mov.b32 %r1, %r2;\n" + upper + "cvt.u32.u16 %r0, %h1;", 1, 0x56780000u) ==
          0x5678u);
    CHECK(value_of("{ .reg .b32 %r1; mov.u32 %r1, 7; { .reg .b32 %r1; mov.u32 %r1, 8; } mov.u32 %r3, %r1; }\n"
                   "add.s32 %r0, %r1, %r3;",
                   100) == 107);
    CHECK(fails_with("{ .reg .b32 x; }\nmov.u32 x, 1;", "mov.u32"));
    CHECK(fails_with("{ .reg .b32 x; .reg .b32 x; }", "declared twice"));
    CHECK(fails_with(".reg .b32 x; .reg .b32 x;", "declared twice"));
    CHECK_THROWS_AS(Module(kHead + "{ ret;\n}\n", "test.ptx"), Error);
}

TEST_CASE("ptx: atomics of all threads take effect, in any order") {
    std::vector<uint32_t> in(64);
    const std::vector<uint32_t> out =
        run_body("atom.global.inc.u32 %r1, [%to], 5;\natom.global.add.u32 %r2, [%to+4], 3;", in);
    CHECK(out[0] != 0xaaaaaaaau);  // 0xaaaaaaaa >= 5: the first wraps to 0, 63 more follow
    CHECK(out[0] == 63 % 6);
    CHECK(out[1] == 0xaaaaaaaau + 64 * 3);
    const std::vector<uint32_t> both =
        run_body("mov.u64 %d1, 0x500000000;\natom.global.or.b64 %d2, [%to], %d1;", in);
    CHECK(both[0] == 0xaaaaaaaau);
    CHECK(both[1] == (0xaaaaaaaau | 5u));
}
