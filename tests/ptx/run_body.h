// Runs hand-written PTX bodies on two buffers.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/ptx/machine.h"

namespace runnel::ptx {

// For the body: %in and %out are the addresses of the thread's words in two buffers, %base and %to those of the
// buffers, and %t is the thread's index.
inline const std::string kHead =
    ".version 9.0\n.target sm_90\n.address_size 64\n"
    ".extern .shared .align 128 .b8 arena[];\n"
    ".entry test(.param .align 8 .b8 P[16])\n.maxntid 64, 1, 1\n{\n"
    ".reg .pred %p<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<40>;\n.reg .f32 %f<20>;\n.reg .b64 %d<9>;\n"
    ".reg .b32 %t, %s; .reg .b64 %in, %out, %base, %to, %i;\n"
    "mov.u32 %t, %tid.x;\nmul.wide.u32 %i, %t, 4;\n"
    "ld.param.u64 %base, [P];\nld.param.u64 %to, [P+8];\n"
    "add.s64 %in, %base, %i;\nadd.s64 %out, %to, %i;\nmov.u32 %s, arena;\n";

struct Setting {
    int threads = 64;
    uint32_t blocks = 1;
    size_t shared = 1024;
    bool dependent = false;
    Range::Kind input = Range::Kind::Data;
    Schedule schedule = {};
};

// The output buffer after the run; it has as many words as `in`.
inline std::vector<uint32_t> run_body(const std::string &body, std::vector<uint32_t> in,
                                      const Setting &setting = {}) {
    std::vector<uint32_t> out(in.size(), 0xaaaaaaaau);
    const Module module(kHead + body + "\nret;\n}\n", "test.ptx");
    const Program program = compile(module, module.entry("test"));
    GlobalMemory memory;
    constexpr uint64_t kIn = 0x10000, kOut = 0x20000;
    memory.add({"in", kIn, 4 * in.size(), reinterpret_cast<std::byte *>(in.data()), setting.input});
    memory.add({"out", kOut, 4 * out.size(), reinterpret_cast<std::byte *>(out.data())});
    const uint64_t parameters[] = {kIn, kOut};
    run(program,
        {setting.blocks, setting.threads, setting.shared, std::as_bytes(std::span(parameters)),
         setting.dependent},
        memory, setting.schedule);
    return out;
}

}  // namespace runnel::ptx
