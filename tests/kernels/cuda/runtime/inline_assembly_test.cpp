// The inline assembly of device_nvcc.h, which the emulator does not run: every statement with its operands
// substituted, compared with the operand order of the PTX ISA. Change both or neither.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace {

const char *const kHeader = "kernels/cuda/runtime/device_nvcc.h";

std::string without_spaces(const std::string &text) {
    std::string result;
    for (const char c : text)
        if (!std::isspace(static_cast<unsigned char>(c))) result += c;
    return result;
}

// The text between the bracket that opens at text[at] and the one that closes it.
std::string in_brackets(const std::string &text, size_t at) {
    int depth = 0;
    bool quoted = false;
    for (size_t i = at; i < text.size(); ++i) {
        if (text[i] == '"') quoted = !quoted;
        if (quoted) continue;
        depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
        if (depth == 0) return text.substr(at + 1, i - at - 1);
    }
    return "";
}

// An asm statement: its string literals before the first colon, concatenated, and the
// expressions of its constraints.
struct Statement {
    std::string code;
    std::vector<std::string> operands;

    explicit Statement(const std::string &text) {
        bool in_operands = false;
        for (size_t i = 0; i < text.size(); ++i) {
            if (text[i] == ':') in_operands = true;
            if (text[i] != '"') continue;
            const size_t end = text.find('"', i + 1);
            if (!in_operands) code += text.substr(i + 1, end - i - 1);
            i = end;
            if (!in_operands || i + 1 >= text.size() || text[i + 1] != '(') continue;
            operands.push_back(in_brackets(text, i + 1));
            i += operands.back().size() + 2;
        }
    }
    // The statement with operands in the places of %0, %1, ...
    std::string filled() const {
        std::string result;
        for (size_t i = 0; i < code.size(); ++i) {
            if (code[i] != '%') {
                result += code[i];
                continue;
            }
            size_t number = 0;
            while (i + 1 < code.size() && std::isdigit(static_cast<unsigned char>(code[i + 1])))
                number = 10 * number + static_cast<size_t>(code[++i] - '0');
            result += number < operands.size() ? operands[number] : "?";
        }
        return without_spaces(result);
    }
};

std::vector<std::string> statements(const std::string &source) {
    std::vector<std::string> all;
    for (size_t at = source.find("asm"); at != std::string::npos; at = source.find("asm", at + 1)) {
        const size_t open =
            source.find_first_not_of(' ', source.compare(at, 12, "asm volatile") == 0 ? at + 12 : at + 3);
        if (open == std::string::npos || source[open] != '(') continue;  // part of a comment
        // (Adjacent string literals are concatenated: "a" "b".)
        const Statement statement(in_brackets(source, open));
        if (!statement.code.empty()) all.push_back(statement.filled());
    }
    return all;
}

std::string header() {
    std::ifstream in(kHeader);
    return {std::istreambuf_iterator<char>(in), {}};
}

// In the order of the file.
const std::vector<std::string> kExpected = {
    "fence.acq_rel.gpu;",
    "griddepcontrol.wait;",
    "griddepcontrol.launch_dependents;",
    // ld{.v} d, [a]: the lowest address in the first register
    "ld.global.nc.L1::no_allocate.v4.u32{v.x,v.y,v.z,v.w},[p];",
    "ld.global.nc.L1::no_allocate.v2.u32{v.x,v.y},[p];",
    "ld.global.nc.L1::no_allocate.u32v,[p];",
    "ld.shared.v4.u32{v.x,v.y,v.z,v.w},[address];",
    "ld.shared.v2.u32{v.x,v.y},[address];",
    "ld.shared.u32v,[address];",
    "ld.global.nc.v4.u32{v.x,v.y,v.z,v.w},[global];",
    "st.shared.v4.u32[shared_address(shared)],{v.x,v.y,v.z,v.w};",
    // cp.async [to], [from], bytes, bytes to read: the rest is zeros
    "cp.async.cg.shared.global[shared_address(shared)],[global],16,valid?16:0;",
    "cp.async.commit_group;",
    "cp.async.wait_groupPending;",
    "cp.async.bulk.prefetch.L2.global[p],bytes&~15u;",
    "prefetch.global.L2[static_cast<constchar*>(p)+at];",
    "prefetch.global.L2[static_cast<constchar*>(p)+at];",
    // ldmatrix: register i is of the matrix whose rows lanes 8i to 8i + 7 point to
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16{r[0],r[1],r[2],r[3]},[shared_address(row)];",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16{r[0],r[1]},[shared_address(row)];",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16{r[0],r[1],r[2],r[3]},[shared_address(row)];",
    // mma d, a, b, c
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32{c[0],c[1],c[2],c[3]},{a[0],a[1]},{b},{c[0],c[1],c[2],c["
    "3]};",
    "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32{c0,c1},{a},{b},{c0,c1};",
    "mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32{c0,c1},{a},{b},{c0,c1};",
    "prmt.b32r,a,b,selector;",
    "lop3.b32r,a,mask,bits,0xea;",  // (a & b) | c from 0xf0, 0xcc, 0xaa
    "lop3.b32r,a,mask,bits,0x6a;",  // (a & b) ^ c
    "cvt.rn.f16.f32h,x;",
    "cvt.f32.f16x,h;",
    "fma.rn.f16x2r,a,b,c;",  // a * b + c
    "sub.rn.f16x2r,a,b;",    // a - b
    "mul.rn.f16x2r,a,b;",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32{c[0],c[1],c[2],c[3]},{a[0],a[1],a[2],a[3]},{b[0],b[1]}"
    ","
    "{c[0],c[1],c[2],c[3]};",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32{c[0],c[1],c[2],c[3]},{a[0],a[1],a[2],a[3]},{b[0],b["
    "1]},"
    "{c[0],c[1],c[2],c[3]};",
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32{c[0],c[1],c[2],c[3]},{a[0],a[1],a[2],a[3]},{b[0],b[1]},"
    "{c[0],c[1],c[2],c[3]};",
    "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32{c[0],c[1],c[2],c[3]},{a[0],a[1],a[2],a[3]},{b[0],b[1]},"
    "{c[0],c[1],c[2],c[3]};",
    "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32{c[0],c[1],c[2],c[3]},{a[0],a[1]},{b},{c[0],c[1],c[2],c["
    "3]};",
    "cvt.rn.bf16.f32h,x;",
    "cvt.rn.f16x2.f32r,hi,lo;",  // cvt d, a, b: a is the upper half
    "cvt.rn.bf16x2.f32r,hi,lo;",
};

std::string replaced(std::string text, const std::string &from, const std::string &to) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("cuda assembly: every statement has its operands in the order of the PTX ISA") {
    REQUIRE_MESSAGE(std::filesystem::exists(kHeader), "tests run from the root of the sources");
    const std::vector<std::string> found = statements(header());
    CHECK(found.size() == kExpected.size());
    for (size_t i = 0; i < std::min(found.size(), kExpected.size()); ++i)
        CHECK(found[i] == without_spaces(kExpected[i]));
}

TEST_CASE("cuda assembly: swapped operands are found") {
    const std::string right = header();
    std::vector<std::string> expected;
    for (const std::string &line : kExpected) expected.push_back(without_spaces(line));
    CHECK(statements(right) == expected);
    for (const auto &[from, to] :
         {std::pair<std::string, std::string>{"\"f\"(hi), \"f\"(lo)", "\"f\"(lo), \"f\"(hi)"},
          {"%0, %1, %2, %3, 0xea", "%0, %2, %1, %3, 0xea"},
          {"{%8, %9}", "{%9, %8}"},
          {"\"=r\"(v.x), \"=r\"(v.y)", "\"=r\"(v.y), \"=r\"(v.x)"},
          {"\"r\"(a), \"r\"(mask)", "\"r\"(mask), \"r\"(a)"},
          {"sub.rn.f16x2 %0, %1, %2", "sub.rn.f16x2 %0, %2, %1"}}) {
        CAPTURE(from);
        CHECK(statements(replaced(right, from, to)) != expected);
    }
}
