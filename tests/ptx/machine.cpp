#include "tests/ptx/machine.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/random.h"

namespace runnel::ptx {

namespace {

constexpr uint32_t kUnset = 0xdeadbeefu;  // registers before they are written

// Lanes at the same step.
struct Group {
    uint32_t at, lanes;
    bool waits = false;  // for the other lanes, at a collective
};

struct RunningWarp {
    explicit RunningWarp(BlockMemory &memory) : warp(memory) {}
    Warp warp;
    std::vector<Group> groups;
    uint32_t waited = kAllLanes;  // lanes that are past griddepcontrol.wait
    int index = 0;                // in the block
    bool at_barrier = false;
    bool finished() const { return groups.empty(); }
};

struct RunningBlock {
    RunningBlock(uint32_t number, BlockMemory &&with) : index(number), memory(std::move(with)) {}
    uint32_t index;
    BlockMemory memory;
    std::vector<std::unique_ptr<RunningWarp>> warps;
};

class Machine {
  public:
    Machine(const Program &program, const Grid &grid, GlobalMemory &memory, const Schedule &schedule)
        : program_(program), grid_(grid), memory_(memory), schedule_(schedule), random_(schedule.seed) {
        if (grid.threads <= 0 || grid.threads % kLanes != 0 || grid.blocks == 0)
            fail("a grid without blocks, or with blocks that are not whole warps");
        if (program.threads != 0 && grid.threads != program.threads)
            fail("launched with " + std::to_string(grid.threads) + " threads, compiled for " +
                 std::to_string(program.threads));
        if (grid.parameters.size() != program.parameter_bytes)
            fail("launched with " + std::to_string(grid.parameters.size()) +
                 " bytes of parameters, declares " + std::to_string(program.parameter_bytes));
        if (grid.dependent && !program.has_wait)
            fail("a dependent launch of an entry without griddepcontrol.wait");
    }

    uint64_t run() {
        std::vector<uint32_t> order(grid_.blocks);
        std::iota(order.begin(), order.end(), 0);
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
        size_t next = 0;
        while (next < order.size() || !blocks_.empty()) {
            while (next < order.size() &&
                   blocks_.size() < static_cast<size_t>(std::max(1, schedule_.resident_blocks)))
                begin_block(order[next++]);
            run_turn();
        }
        return steps_;
    }

  private:
    [[noreturn]] void fail(const std::string &what) const { throw Error(program_.name + ": " + what); }
    [[noreturn]] void fail(const RunningBlock &b, const RunningWarp &w, uint32_t at,
                           const std::string &what) const {
        const int thread = w.index * kLanes + std::max(0, w.warp.lane);
        throw Error(
            program_.file + ":" + std::to_string(program_.steps[at].line) + ": " + program_.spellings[at] +
            " (block " + std::to_string(b.index) +
            (w.warp.lane < 0 ? ", warp " + std::to_string(w.index) : ", thread " + std::to_string(thread)) +
            "): " + what + "\n  in " + program_.name);
    }

    void begin_block(uint32_t index) {
        const size_t shared = program_.static_shared + grid_.shared;
        auto block = std::make_unique<RunningBlock>(
            index, BlockMemory{memory_, grid_.parameters, std::vector<std::byte>(shared, std::byte{0xff}),
                               schedule_.late_copies});
        for (int i = 0; i < grid_.threads / kLanes; ++i) {
            auto warp = std::make_unique<RunningWarp>(block->memory);
            warp->index = i;
            warp->groups = {{0, kAllLanes}};
            if (grid_.dependent) warp->waited = 0;
            Warp &w = warp->warp;
            w.narrow.assign(program_.narrow_rows * kLanes, kUnset);
            w.wide.assign(program_.wide_rows * kLanes, uint64_t{kUnset} << 32 | kUnset);
            w.narrow_constants = &program_.narrow_constants;
            w.wide_constants = &program_.wide_constants;
            for (int lane = 0; lane < kLanes; ++lane) {
                const auto set = [&](Special row, uint32_t value) {
                    w.row<uint32_t>(static_cast<Row>(row))[lane] = value;
                };
                set(Special::TidX, static_cast<uint32_t>(i * kLanes + lane));
                set(Special::CtaidX, index);
                set(Special::NtidX, static_cast<uint32_t>(grid_.threads));
                set(Special::NctaidX, grid_.blocks);
            }
            block->warps.push_back(std::move(warp));
        }
        blocks_.push_back(std::move(block));
    }

    // Runs one random warp for a random number of steps.
    void run_turn() {
        std::vector<std::pair<size_t, RunningWarp *>> ready;
        for (size_t b = 0; b < blocks_.size(); ++b)
            for (const auto &w : blocks_[b]->warps)
                if (!w->finished() && !w->at_barrier) ready.emplace_back(b, w.get());
        const auto [b, warp] = ready[random_.below(ready.size())];
        RunningBlock &block = *blocks_[b];
        run_warp(block, *warp, 1 + random_.below(500));
        release_barrier(block);
        if (std::ranges::all_of(block.warps, [](const auto &w) { return w->finished(); }))
            blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(b));
    }

    // bar.sync waits for all warps that have not ended.
    void release_barrier(RunningBlock &block) {
        bool waited = false;
        for (const auto &w : block.warps) {
            if (!w->finished() && !w->at_barrier) return;
            waited |= w->at_barrier && w->waited != 0;
        }
        for (const auto &w : block.warps) {
            w->at_barrier = false;
            if (waited) w->waited = kAllLanes;
        }
    }

    void run_warp(RunningBlock &block, RunningWarp &w, uint64_t steps) {
        size_t g = pick(block, w);
        for (; steps > 0; --steps) {
            const bool changed = step(block, w, w.groups[g]);
            ++steps_;
            if (w.at_barrier) return;
            if (w.groups.size() > 1 || changed) {
                merge(w);
                if (w.finished()) return;
                g = pick(block, w);
            }
        }
    }

    // Joins groups at the same step.
    static void merge(RunningWarp &w) {
        auto &groups = w.groups;
        std::erase_if(groups, [](const Group &x) { return x.lanes == 0; });
        for (size_t i = 0; i < groups.size(); ++i)
            for (size_t j = groups.size(); --j > i;)
                if (groups[i].at == groups[j].at) {
                    groups[i].lanes |= groups[j].lanes;
                    groups[i].waits = false;
                    groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(j));
                }
    }

    size_t pick(const RunningBlock &block, RunningWarp &w) {
        size_t best = w.groups.size();
        for (size_t i = 0; i < w.groups.size(); ++i) {
            if (w.groups[i].waits) continue;
            if (best == w.groups.size() || (w.groups[i].at < w.groups[best].at) != schedule_.highest_first)
                best = i;
        }
        if (best == w.groups.size()) {
            w.warp.lane = -1;
            fail(block, w, w.groups[0].at, "not all lanes of the warp reach this instruction");
        }
        return best;
    }

    // The lanes of the group whose guard is true.
    static uint32_t guarded(RunningWarp &w, const Step &s, uint32_t lanes) {
        if (s.guard < 0) return lanes;
        const uint32_t *p = w.warp.row<uint32_t>(s.guard);
        uint32_t holds = 0;
        for (int lane = 0; lane < kLanes; ++lane) holds |= (p[lane] & 1u) << lane;
        return lanes & (s.negated ? ~holds : holds);
    }

    // Runs one step of a group. Returns whether the groups have changed.
    bool step(const RunningBlock &block, RunningWarp &w, Group &now) {
        const Step &s = program_.steps[now.at];
        switch (s.kind) {
            case Step::Kind::Plain:
                run_step(block, w, s, now.at, guarded(w, s, now.lanes));
                break;
            case Step::Kind::Collective:
                if (now.lanes != kAllLanes) return now.waits = true;
                run_step(block, w, s, now.at, kAllLanes);
                if (w.waited != 0) w.waited = kAllLanes;
                break;
            case Step::Kind::Barrier:
                for (const Group &other : w.groups)
                    if (&other != &now) return now.waits = true;
                w.at_barrier = true;
                break;
            case Step::Kind::Wait:
                w.waited |= now.lanes;
                break;
            case Step::Kind::Branch: {
                const uint32_t taken = guarded(w, s, now.lanes);
                if (taken == 0) break;
                if (taken == now.lanes) {
                    now.at = s.target;
                    return false;
                }
                now.lanes &= ~taken, ++now.at;
                w.groups.push_back({s.target, taken});
                return true;
            }
            case Step::Kind::Return: {
                const uint32_t ended = guarded(w, s, now.lanes);
                if (ended & ~w.waited)
                    fail(block, w, now.at, "a dependent launch: a thread ends without griddepcontrol.wait");
                now.lanes &= ~ended;
                ++now.at;
                return true;
            }
        }
        ++now.at;
        return false;
    }

    void run_step(const RunningBlock &block, RunningWarp &w, const Step &s, uint32_t at, uint32_t lanes) {
        w.warp.active = lanes;
        w.warp.before_wait = (lanes & ~w.waited) != 0;
        try {
            s.run(w.warp, s);
        } catch (const Error &e) {
            fail(block, w, at, e.what());
        }
    }

    const Program &program_;
    const Grid &grid_;
    GlobalMemory &memory_;
    const Schedule &schedule_;
    testing::Random random_;
    std::vector<std::unique_ptr<RunningBlock>> blocks_;
    uint64_t steps_ = 0;
};

}  // namespace

uint64_t run(const Program &program, const Grid &grid, GlobalMemory &memory, const Schedule &schedule) {
    return Machine(program, grid, memory, schedule).run();
}

}  // namespace runnel::ptx
