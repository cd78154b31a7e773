#include "tests/gpu/model/schedule.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tests/gpu/model/code.h"

namespace runnel::tests::model {

namespace {

constexpr uint64_t kGlobalLoad = 0x181, kConstantLoad = 0x182, kSharedLoad = 0x184, kBranch = 0x147;
constexpr uint64_t kOperation = 0x1ff;
constexpr uint64_t kImmutable = 1u << 15;  // of a load's second word: ld.global.nc, as weights are read
constexpr int kScoreboards = 6;

// Clocks: of loads from shared memory and of constants; until operands are read; of any other instruction with a scoreboard; of a
// taken branch besides those in the code.
constexpr int kShared = 30, kConstant = 60, kOperands = 18, kOther = 30, kTaken = 6;

struct Instruction {
    uint64_t operation;
    bool streams;  // a load of weights
    int clocks;    // until the warp's next one
    int result, operands;
    uint32_t waits;
    Pipe pipe;
};

Instruction decode(const MachineCode &code, size_t i) {
    const uint64_t control = code.controls[i] >> 41;
    const uint64_t operation = code.opcode(i) & kOperation;
    return {operation,
            operation == kGlobalLoad && (code.controls[i] & kImmutable) != 0,
            std::max(1, static_cast<int>(control & 15)),
            static_cast<int>(control >> 5 & 7),
            static_cast<int>(control >> 8 & 7),
            static_cast<uint32_t>(control >> 11 & 63),
            pipe_of(code.opcode(i))};
}

// Clocks for which an instruction keeps its unit from the next one.
int occupancy(Pipe pipe) {
    switch (pipe) {
        case Pipe::Integer:
        case Pipe::Multiply:
        case Pipe::Global:
        case Pipe::Shared:
            return 2;
        case Pipe::Tensor:
            return 4;
        case Pipe::Slow:
            return 8;
        default:
            return 1;
    }
}

// When a count of a scoreboard goes down.
struct Arrival {
    int64_t at;
    int scoreboard;
};

struct Warp {
    size_t next = 0;
    int64_t ready = 0, last = 0;  // last: the end of its last pass
    int passes = 0;
    std::vector<Arrival> pending;

    bool waits_for(uint32_t mask, int64_t now) {
        std::erase_if(pending, [&](const Arrival &a) { return a.at <= now; });
        return std::ranges::any_of(pending,
                                   [&](const Arrival &a) { return (mask >> a.scoreboard & 1u) != 0; });
    }
};

}  // namespace

double loop_clocks(const MachineCode &code, size_t begin, size_t end, int warps, const LoadClocks &loads) {
    constexpr int kPasses = 16, kFirst = 6;  // the first ones are not counted
    constexpr int64_t kApart = 97;           // between the starts of two warps
    std::vector<Instruction> loop;
    for (size_t i = begin; i < end; ++i) loop.push_back(decode(code, i));
    std::vector<Warp> all(static_cast<size_t>(warps));
    std::vector<int64_t> first(all.size());
    for (size_t w = 0; w < all.size(); ++w) all[w].ready = kApart * static_cast<int64_t>(w);
    std::array<int64_t, kPipes> busy{};  // until when
    int64_t stream = 0;                  // when the last weights that were requested arrive
    size_t last = 0;
    const auto done = [](const Warp &w) { return w.passes >= kPasses; };
    for (int64_t now = 0; !std::ranges::all_of(all, done); ++now) {
        for (size_t k = 0; k < all.size(); ++k) {
            const size_t w = (last + 1 + k) % all.size();
            Warp &warp = all[w];
            const Instruction &i = loop[warp.next];
            int64_t &unit = busy[static_cast<size_t>(i.pipe)];
            if (warp.ready > now || unit > now || warp.waits_for(i.waits, now)) continue;
            last = w;
            unit = now + occupancy(i.pipe);
            int64_t arrives = now + kOther;
            if (i.streams)
                arrives = stream = std::max(stream, now + loads.memory);
            else if (i.operation == kGlobalLoad)
                arrives = std::max(now + loads.l1, loads.in_order ? stream : 0);
            else if (i.operation == kSharedLoad)
                arrives = now + kShared;
            else if (i.operation == kConstantLoad)
                arrives = now + kConstant;
            if (i.result < kScoreboards) warp.pending.push_back({arrives, i.result});
            if (i.operands < kScoreboards) warp.pending.push_back({now + kOperands, i.operands});
            warp.ready = now + i.clocks;
            if (++warp.next == loop.size()) {
                warp.next = 0;
                warp.ready += i.operation == kBranch ? kTaken : 0;
                if (++warp.passes == kFirst) first[w] = now;
                if (warp.passes == kPasses) warp.last = now;
            }
            break;
        }
    }
    double sum = 0;
    for (size_t w = 0; w < all.size(); ++w) sum += static_cast<double>(all[w].last - first[w]);
    return sum / static_cast<double>(kPasses - kFirst) / static_cast<double>(warps);
}

}  // namespace runnel::tests::model
