// mma and ldmatrix on hand-written PTX, compared with a product of whole matrices. Typical faults of inline
// assembly must change the result: operands in the wrong order, a wrong row of a fragment.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "tests/ptx/numbers.h"
#include "tests/ptx/run_body.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::ptx;

namespace {

struct Product {
    static constexpr int kRows = 16, kColumns = 8;
    int depth;
    std::vector<float> a, b, c;  // row by row: [16][depth], [depth][8], [16][8]

    Product(int of_depth, testing::Random &random) : depth(of_depth) {
        const auto fill = [&](std::vector<float> &m, int count) {
            for (int i = 0; i < count; ++i) m.push_back(static_cast<float>(random.below(201)) - 100);
        };
        fill(a, kRows * depth), fill(b, depth * kColumns), fill(c, kRows * kColumns);
    }
    // Integers below 2^24: exact in any order.
    std::vector<float> result() const {
        std::vector<float> d = c;
        for (int i = 0; i < kRows; ++i)
            for (int j = 0; j < kColumns; ++j)
                for (int k = 0; k < depth; ++k) d[i * kColumns + j] += a[i * depth + k] * b[k * kColumns + j];
        return d;
    }
};

using Half = uint16_t (*)(double);

// A, then B, then C in the layouts of the ISA's figures: register r of lane l is word 32 r + l.
std::vector<uint32_t> fragments(const Product &p, Half half) {
    std::vector<uint32_t> words;
    const auto pair = [&](float low, float high) {
        return uint32_t{half(static_cast<double>(high))} << 16 | half(static_cast<double>(low));
    };
    for (int r = 0; r < p.depth / 4; ++r)
        for (int lane = 0; lane < 32; ++lane) {
            const int row = lane / 4 + (r % 2 == 1 ? 8 : 0), column = lane % 4 * 2 + (r >= 2 ? 8 : 0);
            words.push_back(pair(p.a[row * p.depth + column], p.a[row * p.depth + column + 1]));
        }
    for (int r = 0; r < p.depth / 8; ++r)
        for (int lane = 0; lane < 32; ++lane) {
            const int row = lane % 4 * 2 + 8 * r, column = lane / 4;
            words.push_back(pair(p.b[row * 8 + column], p.b[(row + 1) * 8 + column]));
        }
    for (int r = 0; r < 4; ++r)
        for (int lane = 0; lane < 32; ++lane)
            words.push_back(
                std::bit_cast<uint32_t>(p.c[(lane / 4 + (r >= 2 ? 8 : 0)) * 8 + lane % 4 * 2 + r % 2]));
    words.resize(10 * 32);
    return words;
}

// D after the instruction; %r0 to %r5 hold A, then B; %f0 to %f3 hold C.
std::vector<float> multiply(const Product &p, Half half, const std::string &instruction) {
    std::string body =
        "and.b32 %r20, %t, 31;\nmul.wide.u32 %d1, %r20, 4;\nadd.s64 %in, %base, %d1;\nadd.s64 %out, %to, "
        "%d1;\n";
    const int halves = p.depth / 4 + p.depth / 8;
    for (int r = 0; r < halves + 4; ++r) {
        const std::string type =
            r < halves ? "b32 %r" + std::to_string(r) : "f32 %f" + std::to_string(r - halves);
        body += "ld.global." + type + ", [%in+" + std::to_string(128 * r) + "];\n";
    }
    body += instruction;
    for (int r = 0; r < 4; ++r)
        body += "st.global.f32 [%out+" + std::to_string(128 * r) + "], %f" + std::to_string(r) + ";\n";
    const std::vector<uint32_t> words = run_body(body, fragments(p, half));
    std::vector<float> d(16 * 8);
    for (int r = 0; r < 4; ++r)
        for (int lane = 0; lane < 32; ++lane)
            d[(lane / 4 + (r >= 2 ? 8 : 0)) * 8 + lane % 4 * 2 + r % 2] =
                std::bit_cast<float>(words[32 * r + lane]);
    return d;
}

std::string mma(const std::string &shape, const std::string &type, const std::string &operands) {
    return "mma.sync.aligned." + shape + ".row.col.f32." + type + "." + type + ".f32 " + operands + ";\n";
}

}  // namespace

TEST_CASE("ptx: mma multiplies the matrices in its fragments") {
    testing::Random random(5);
    const std::string c = "{%f0, %f1, %f2, %f3}";
    for (int i = 0; i < 4; ++i) {
        const Product deep(16, random), shallow(8, random);
        const std::string operands = c + ", {%r0, %r1, %r2, %r3}, {%r4, %r5}, " + c;
        CHECK(multiply(deep, to_f16, mma("m16n8k16", "f16", operands)) == deep.result());
        CHECK(multiply(deep, to_bf16, mma("m16n8k16", "bf16", operands)) == deep.result());
        CHECK(multiply(shallow, to_f16, mma("m16n8k8", "f16", c + ", {%r0, %r1}, {%r2}, " + c)) ==
              shallow.result());
    }
}

TEST_CASE("ptx: an mma with swapped operands or a wrong row of a fragment gives another product") {
    testing::Random random(6);
    const Product p(16, random);
    const std::string c = "{%f0, %f1, %f2, %f3}", a = "{%r0, %r1, %r2, %r3}", b = "{%r4, %r5}";
    for (const std::string &wrong :
         {c + ", {%r0, %r2, %r1, %r3}, " + b + ", " + c,  // A1 and A2: row + 8, column + 8
          c + ", {%r1, %r0, %r3, %r2}, " + b + ", " + c,  // rows g and g + 8
          c + ", " + a + ", {%r5, %r4}, " + c,            // the halves of B
          c + ", " + a + ", " + b + ", {%f2, %f3, %f0, %f1}",
          "{%f1, %f0, %f2, %f3}, " + a + ", " + b + ", " + c})
        CHECK_MESSAGE(multiply(p, to_f16, mma("m16n8k16", "f16", wrong)) != p.result(), wrong);
    // The wrong type: bf16 read as f16.
    CHECK(multiply(p, to_bf16, mma("m16n8k16", "f16", c + ", " + a + ", " + b + ", " + c)) != p.result());
    // Swapped A and B have the wrong numbers of registers.
    CHECK_THROWS_AS(multiply(p, to_f16, mma("m16n8k16", "f16", c + ", " + b + ", " + a + ", " + c)), Error);
}

TEST_CASE("ptx: mma of bytes multiplies the matrices in its fragments, and no others") {
    testing::Random random(7);
    for (const auto &[depth, left_type, lowest] :
         {std::tuple{16, "s8", -128}, {32, "s8", -128}, {32, "u8", 0}}) {
        const int as = depth / 8, bs = depth / 16;
        std::vector<int> a(16 * depth), b(depth * 8), c(16 * 8);
        for (std::vector<int> *m : {&a, &b, &c})
            for (int &value : *m) value = static_cast<int>(random.below(256)) + (m == &a ? lowest : -128);
        // As in fragments(): four bytes to a register.
        std::vector<uint32_t> words;
        const auto add = [&](auto element) {
            uint32_t word = 0;
            for (int i = 0; i < 4; ++i)
                word |= static_cast<uint32_t>(static_cast<uint8_t>(element(i))) << 8 * i;
            words.push_back(word);
        };
        for (int r = 0; r < as; ++r)
            for (int lane = 0; lane < 32; ++lane)
                add([&](int i) { return a[(lane / 4 + r % 2 * 8) * depth + lane % 4 * 4 + i + r / 2 * 16]; });
        for (int r = 0; r < bs; ++r)
            for (int lane = 0; lane < 32; ++lane)
                add([&](int i) { return b[(lane % 4 * 4 + i + 16 * r) * 8 + lane / 4]; });
        const auto place = [](int r, int lane) { return (lane / 4 + r / 2 * 8) * 8 + lane % 4 * 2 + r % 2; };
        for (int r = 0; r < 4; ++r)
            for (int lane = 0; lane < 32; ++lane) words.push_back(static_cast<uint32_t>(c[place(r, lane)]));
        words.resize(10 * 32);

        std::vector<int> expected = c;
        for (int row = 0; row < 16; ++row)
            for (int column = 0; column < 8; ++column)
                for (int k = 0; k < depth; ++k)
                    expected[row * 8 + column] += a[row * depth + k] * b[k * 8 + column];
        const auto multiplied = [&](const std::string &left, const std::string &right) {
            std::string body =
                "and.b32 %r20, %t, 31;\nmul.wide.u32 %d1, %r20, 4;\nadd.s64 %in, %base, %d1;\nadd.s64 %out, "
                "%to, %d1;\n";
            for (int r = 0; r < as + bs + 4; ++r)
                body += "ld.global.b32 %r" + std::to_string(r < as + bs ? r : r - as - bs + 10) + ", [%in+" +
                        std::to_string(128 * r) + "];\n";
            body += "mma.sync.aligned.m16n8k" + std::to_string(depth) + ".row.col.s32." + left_type +
                    ".s8.s32 {%r10, %r11, %r12, %r13}, " + left + ", " + right +
                    ", {%r10, %r11, %r12, %r13};\n";
            for (int r = 0; r < 4; ++r)
                body += "st.global.u32 [%out+" + std::to_string(128 * r) + "], %r" + std::to_string(10 + r) +
                        ";\n";
            const std::vector<uint32_t> out = run_body(body, words);
            std::vector<int> d(16 * 8);
            for (int r = 0; r < 4; ++r)
                for (int lane = 0; lane < 32; ++lane)
                    d[place(r, lane)] = static_cast<int32_t>(out[32 * r + lane]);
            return d;
        };
        if (depth == 16) {
            CHECK(multiplied("{%r0, %r1}", "{%r2}") == expected);
            CHECK(multiplied("{%r1, %r0}", "{%r2}") != expected);  // rows g and g + 8
        } else {
            CHECK(multiplied("{%r0, %r1, %r2, %r3}", "{%r4, %r5}") == expected);
            CHECK(multiplied("{%r0, %r2, %r1, %r3}", "{%r4, %r5}") != expected);
            CHECK(multiplied("{%r0, %r1, %r2, %r3}", "{%r5, %r4}") != expected);  // the halves of B
        }
    }
}

TEST_CASE("ptx: ldmatrix gives the fragments of mma, by rows or transposed") {
    // Row i of matrix m, at 16 (8 m + i), holds 256 m + 16 i + column.
    std::string body =
        "shl.b32 %r1, %t, 4;\nadd.s32 %r2, %s, %r1;\nand.b32 %r3, %t, 31;\n"
        "shr.u32 %r4, %r3, 3;\nshl.b32 %r4, %r4, 8;\nand.b32 %r5, %r3, 7;\nshl.b32 %r5, %r5, 4;\n"
        "add.s32 %r4, %r4, %r5;\n";
    for (int pair = 0; pair < 4; ++pair) {
        const std::string low = std::to_string(2 * pair), high = std::to_string(2 * pair + 1),
                          at = std::to_string(4 * pair);
        body += "add.s32 %r6, %r4, " + low + ";\nadd.s32 %r7, %r4, " + high +
                ";\nshl.b32 %r7, %r7, 16;\nor.b32 %r6, %r6, %r7;\nst.shared.u32 [%r2+" + at + "], %r6;\n";
    }
    body += "bar.sync 0;\n";
    const std::vector<uint32_t> in(256);
    const auto load = [&](const std::string &form, uint32_t m) {
        return run_body(body + "ldmatrix.sync.aligned.m8n8.x4" + form +
                            ".shared.b16 {%r10, %r11, %r12, %r13}, [%r2];\n" + "st.global.u32 [%out], %r1" +
                            std::to_string(m) + ";",
                        in);
    };
    for (uint32_t m = 0; m < 4; ++m) {
        const std::vector<uint32_t> rows = load("", m), columns = load(".trans", m);
        for (uint32_t lane = 0; lane < 32; ++lane) {
            const uint32_t g = lane / 4, t = lane % 4;
            REQUIRE(rows[lane] == ((256 * m + 16 * g + 2 * t + 1) << 16 | (256 * m + 16 * g + 2 * t)));
            REQUIRE(columns[lane] == ((256 * m + 16 * (2 * t + 1) + g) << 16 | (256 * m + 16 * (2 * t) + g)));
        }
    }
}
