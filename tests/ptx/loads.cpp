// Loads, stores, atomics, cp.async and fences (PTX ISA 9.7.9, 9.7.13).
#include <algorithm>
#include <cstring>

#include "tests/ptx/operations.h"

namespace runnel::ptx {

std::byte *BlockMemory::shared_at(uint32_t address, size_t bytes) {
    if (address % bytes != 0)
        throw Error("a shared access of " + std::to_string(bytes) + " bytes at " + std::to_string(address) +
                    " is not aligned");
    const int64_t offset = int64_t{address} - kSharedBase;
    if (offset < 0 || offset + static_cast<int64_t>(bytes) > static_cast<int64_t>(shared.size()))
        throw Error(std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of " +
                    std::to_string(shared.size()) + " bytes of shared memory");
    return shared.data() + offset;
}

const std::byte *BlockMemory::parameter_at(uint64_t address, size_t bytes) const {
    const uint64_t offset = address - kParameterBase;
    if (offset > parameters.size() || parameters.size() - offset < bytes)
        throw Error("a read of " + std::to_string(bytes) + " bytes at " +
                    std::to_string(static_cast<int64_t>(offset)) + " of " +
                    std::to_string(parameters.size()) + " bytes of parameters");
    if (offset % bytes != 0) throw Error("an unaligned read of parameters");
    return parameters.data() + offset;
}

namespace {

enum class Space { Global, Shared, Parameter };

uint64_t address_of(Warp &w, const Step &s, int lane) {
    return w.input(s, 0, lane) + static_cast<uint64_t>(s.offset);
}

template <Space kSpace>
const std::byte *readable(Warp &w, const Step &s, int lane, size_t bytes, Access access) {
    const uint64_t address = address_of(w, s, lane);
    if constexpr (kSpace == Space::Global) return w.memory.global.at(address, bytes, access, w.before_wait);
    if constexpr (kSpace == Space::Shared) return w.memory.shared_at(static_cast<uint32_t>(address), bytes);
    return w.memory.parameter_at(address, bytes);
}

// Loads into registers of the type's size, or sign- or zero-extended into wider ones.
template <Space kSpace, class T, int kParts, Access kAccess>
void run_load(Warp &w, const Step &s) {
    w.for_lanes([&](int lane) {
        T values[kParts];
        std::memcpy(values, readable<kSpace>(w, s, lane, sizeof values, kAccess), sizeof values);
        for (size_t i = 0; i < kParts; ++i) {
            const auto extended = static_cast<uint64_t>(values[i]);
            if (s.outputs_wide >> i & 1u)
                w.row<uint64_t>(s.d[i])[lane] = extended;
            else  // a 16-bit register has no more bits
                w.row<uint32_t>(s.d[i])[lane] =
                    static_cast<uint32_t>(extended) & (s.outputs_short >> i & 1u ? 0xffffu : 0xffffffffu);
        }
    });
}

template <Space kSpace, class T, int kParts>
void run_store(Warp &w, const Step &s) {
    w.for_lanes([&](int lane) {
        T values[kParts];
        for (size_t i = 0; i < kParts; ++i) values[i] = static_cast<T>(w.input(s, i + 1, lane));
        const uint64_t address = address_of(w, s, lane);
        std::byte *to = kSpace == Space::Global
                            ? w.memory.global.at(address, sizeof values, Access::Write, w.before_wait)
                            : w.memory.shared_at(static_cast<uint32_t>(address), sizeof values);
        std::memcpy(to, values, sizeof values);
    });
}

constexpr Binder::Space bound(Space space) {
    return space == Space::Global   ? Binder::Space::Global
           : space == Space::Shared ? Binder::Space::Shared
                                    : Binder::Space::Parameter;
}

template <Space kSpace, class T, int kParts, Access kAccess = Access::Read>
void add_load(Operations &all, const std::string &spelling) {
    all.add(spelling, {run_load<kSpace, T, kParts, kAccess>, [](Binder &b, Step &) {
                           b.outputs(0, kParts, bits_of<T>, true);
                           b.address(1, bound(kSpace));
                       }});
}

template <class T, int kParts>
void add_accesses(Operations &all, const std::string &type) {
    const std::string vector = kParts == 1 ? "" : ".v" + std::to_string(kParts);
    const std::string end = vector + "." + type;
    // These kernels use generic addresses for global memory only; others are out of bounds.
    add_load<Space::Global, T, kParts>(all, "ld" + end);
    add_load<Space::Global, T, kParts>(all, "ld.global" + end);
    add_load<Space::Global, T, kParts, Access::ReadNc>(all, "ld.global.nc" + end);
    add_load<Space::Global, T, kParts, Access::ReadNc>(all, "ld.global.nc.L1::no_allocate" + end);
    add_load<Space::Shared, T, kParts>(all, "ld.shared" + end);
    add_load<Space::Parameter, T, kParts>(all, "ld.param" + end);
    const auto bind = [](Space space) {
        return [space](Binder &b, Step &) {
            b.address(0, bound(space));
            b.inputs(1, kParts, bits_of<T>, true);
        };
    };
    all.add("st.global" + end, {run_store<Space::Global, T, kParts>, bind(Space::Global)});
    all.add("st" + end, {run_store<Space::Global, T, kParts>, bind(Space::Global)});
    all.add("st.shared" + end, {run_store<Space::Shared, T, kParts>, bind(Space::Shared)});
}

template <class T>
void add_vectors(Operations &all, const std::string &type) {
    add_accesses<T, 1>(all, type);
    if constexpr (sizeof(T) <= 8) add_accesses<T, 2>(all, type);
    if constexpr (sizeof(T) <= 4) add_accesses<T, 4>(all, type);
}

// --- atomics -----------------------------------------------------------------------------------------------

template <Space kSpace, class T, auto F>
void add_atomic(Operations &all, const std::string &spelling) {
    all.add(spelling, {[](Warp &w, const Step &s) {
                           w.for_lanes([&](int lane) {
                               const uint64_t address = address_of(w, s, lane);
                               std::byte *at =
                                   kSpace == Space::Global
                                       ? w.memory.global.at(address, sizeof(T), Access::Write, w.before_wait)
                                       : w.memory.shared_at(static_cast<uint32_t>(address), sizeof(T));
                               T old;
                               std::memcpy(&old, at, sizeof old);
                               const T now = F(old, static_cast<T>(w.input(s, 1, lane)));
                               std::memcpy(at, &now, sizeof now);
                               w.row<Storage<T>>(s.d[0])[lane] = packed<T>(old);
                           });
                       },
                       [](Binder &b, Step &) {
                           b.output(0, bits_of<T>);
                           b.address(1, bound(kSpace));
                           b.input(2, bits_of<T>);
                       }});
}

template <Space kSpace>
void add_atomics(Operations &all, const std::string &space) {
    constexpr auto inc = [](uint32_t old, uint32_t last) -> uint32_t { return old >= last ? 0 : old + 1; };
    constexpr auto add = [](uint32_t old, uint32_t v) -> uint32_t { return old + v; };
    constexpr auto max32 = [](uint32_t old, uint32_t v) -> uint32_t { return std::max(old, v); };
    constexpr auto max64 = [](uint64_t old, uint64_t v) -> uint64_t { return std::max(old, v); };
    constexpr auto or64 = [](uint64_t old, uint64_t v) -> uint64_t { return old | v; };
    add_atomic<kSpace, uint32_t, inc>(all, "atom." + space + ".inc.u32");
    add_atomic<kSpace, uint32_t, add>(all, "atom." + space + ".add.u32");
    add_atomic<kSpace, uint32_t, max32>(all, "atom." + space + ".max.u32");
    add_atomic<kSpace, uint64_t, max64>(all, "atom." + space + ".max.u64");
    // For sm_100 and later, nvcc reads by it where the source has a maximum with 0.
    add_atomic<kSpace, uint64_t, or64>(all, "atom." + space + ".or.b64");
}

// --- cp.async ----------------------------------------------------------------------------------------------

void arrive(Warp &w, const AsyncCopy &copy, size_t bytes) {
    std::byte *to = w.memory.shared_at(copy.to, bytes);
    if (copy.from)
        std::memcpy(to, copy.from, bytes);
    else
        std::memset(to, 0, bytes);
}

constexpr size_t kCopied = 16;

// [shared], [global], 16, bytes to read: 16, or 0, which reads nothing and writes zeros.
void run_copy(Warp &w, const Step &s) {
    w.for_lanes([&](int lane) {
        const auto to = static_cast<uint32_t>(w.input(s, 0, lane) + static_cast<uint64_t>(s.offset));
        const uint64_t from = w.input(s, 1, lane) + static_cast<uint64_t>(s.second_offset);
        const uint64_t bytes = w.input(s, 2, lane);
        if (bytes != 0 && bytes != kCopied)
            throw Error("cp.async: a source size of " + std::to_string(bytes));
        const AsyncCopy copy{
            to, bytes == 0 ? nullptr : w.memory.global.at(from, kCopied, Access::Read, w.before_wait)};
        w.memory.shared_at(to, kCopied);
        if (!w.memory.late_copies) arrive(w, copy, kCopied);
        w.lanes[static_cast<size_t>(lane)].open.push_back(copy);
    });
}

void run_commit(Warp &w, const Step &) {
    w.for_lanes([&](int lane) {
        Lane &me = w.lanes[static_cast<size_t>(lane)];
        me.committed.push_back(std::exchange(me.open, {}));
    });
}

// Waits for all but the newest groups.
void run_wait_group(Warp &w, const Step &s) {
    w.for_lanes([&](int lane) {
        auto &groups = w.lanes[static_cast<size_t>(lane)].committed;
        while (groups.size() > static_cast<size_t>(s.offset)) {
            if (w.memory.late_copies)
                for (const AsyncCopy &copy : groups.front()) arrive(w, copy, kCopied);
            groups.erase(groups.begin());
        }
    });
}

void run_nothing(Warp &, const Step &) {}

void run_bulk_prefetch(Warp &w, const Step &s) {
    w.for_lanes([&](int lane) {
        if (address_of(w, s, lane) % 16 != 0 || w.input(s, 1, lane) % 16 != 0)
            throw Error("cp.async.bulk.prefetch: the address and the size must be multiples of 16");
    });
}

}  // namespace

void add_memory(Operations &all) {
    add_vectors<uint8_t>(all, "u8"), add_vectors<int8_t>(all, "s8"), add_vectors<uint8_t>(all, "b8");
    add_vectors<uint16_t>(all, "u16"), add_vectors<int16_t>(all, "s16"), add_vectors<uint16_t>(all, "b16");
    add_vectors<uint32_t>(all, "u32"), add_vectors<int32_t>(all, "s32"), add_vectors<uint32_t>(all, "b32");
    add_vectors<uint32_t>(all, "f32");
    add_vectors<uint64_t>(all, "u64"), add_vectors<int64_t>(all, "s64"), add_vectors<uint64_t>(all, "b64");
    add_atomics<Space::Global>(all, "global");
    add_atomics<Space::Shared>(all, "shared");

    all.add("cp.async.cg.shared.global", {run_copy, [](Binder &b, Step &) {
                                              b.address(0, Binder::Space::Shared);
                                              b.address(1, Binder::Space::Global);
                                              if (b.immediate(2) != static_cast<int64_t>(kCopied))
                                                  throw Error("cp.async: only a size of 16 is supported");
                                              b.input(3, 32);
                                          }});
    all.add("cp.async.commit_group", {run_commit, [](Binder &, Step &) {}});
    all.add("cp.async.wait_group", {run_wait_group, [](Binder &b, Step &s) { s.offset = b.immediate(0); }});
    all.add("cp.async.bulk.prefetch.L2.global", {run_bulk_prefetch, [](Binder &b, Step &) {
                                                     b.address(0, Binder::Space::Global);
                                                     b.input(1, 32);
                                                 }});
    all.add("prefetch.global.L2",
            {run_nothing, [](Binder &b, Step &) { b.address(0, Binder::Space::Global); }});
    // Instructions run one at a time, so fences have no effect.
    all.add("membar.gl", {run_nothing, [](Binder &, Step &) {}});
    all.add("fence.acq_rel.gpu", {run_nothing, [](Binder &, Step &) {}});
    add_map(all, "cvta.to.global.u64", [](uint64_t a) -> uint64_t { return a; });
    add_map(all, "cvta.global.u64", [](uint64_t a) -> uint64_t { return a; });
}

}  // namespace runnel::ptx
