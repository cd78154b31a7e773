#include "tests/simt/access.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/simt/block.h"

extern "C" char __executable_start, _end;  // set by the linker: the range of this program's own code and data

namespace runnel::simt {

namespace {

using kernels::cuda::Region;

constexpr size_t kAsyncBytes = 16;

std::string place_of(const void *p, size_t bytes) {
    char text[64];
    std::snprintf(text, sizeof text, "%zu bytes at %p", bytes, p);
    return text;
}

[[noreturn]] void race(Launch &launch, const char *what, const char *name, size_t offset,
                       const Access &before) {
    launch.fail([&] {
        return std::string("race: ") + what + " of byte " + std::to_string(offset) + " of " + name + " by " +
               launch.describe(before) + " and this thread, without a barrier or fence between them";
    });
}

// Checks a read: the last write must have happened before. Then the lane becomes one of the last readers.
// Accesses before `since` do not count: they are of another launch, or of another block's shared memory.
void note_read(Launch &launch, uint64_t since, uint64_t writer, uint64_t &reader, const char *name,
               size_t offset) {
    if (writer >> 30 >= since) {
        const Access before = Access::unpack(writer);
        if (before.flag_a)
            launch.fail([&] {
                return "reads byte " + std::to_string(offset) + " of " + name +
                       ", which a cp_async16 has not yet brought: cp_async_wait is missing";
            });
        if (!launch.ordered(before)) race(launch, "write and read", name, offset, before);
    }
    Access mine = launch.stamp();
    const Access last = Access::unpack(reader);
    if (last.block >= since) {
        if (last.block != mine.block) {
            mine.flag_b = true;  // read by several blocks: nothing can order a write after all of them
            mine.clock = 0x3ffffu;
        } else if (last.flag_b) {
            mine = last;
            if (mine.clock != 0x3ffffu) mine.clock = launch.block_barriers();
        } else if (last.warp != mine.warp) {
            mine.flag_b = true;
            mine.clock = launch.block_barriers();
        } else if (last.lane != mine.lane || last.flag_a) {
            mine.flag_a = true;
        }
    }
    reader = mine.pack();
}

// Checks a write: the last write and all reads since then must have happened before.
void note_write(Launch &launch, uint64_t since, uint64_t writer, uint64_t reader, const Access &mine,
                const char *name, size_t offset) {
    if (writer >> 30 >= since) {
        const Access before = Access::unpack(writer);
        if (!(mine.flag_b && before.flag_b) && !launch.ordered(before))
            race(launch, "write and write", name, offset, before);
    }
    if (reader >> 30 >= since) {
        Access before = Access::unpack(reader);
        bool right;
        if (before.flag_b) {
            right = before.clock != 0x3ffffu && before.block == mine.block &&
                    before.clock < launch.block_barriers();
        } else {
            if (before.flag_a && before.warp == mine.warp && before.block == mine.block)
                before.lane = mine.lane ^ 1u;  // another lane of this warp read it, too
            right = launch.ordered(before);
        }
        if (!right && !mine.flag_b) race(launch, "read and write", name, offset, before);
    }
}

// Does as note_read() for every byte. Neighbors mostly have equal shadows, and thus the same result.
void note_reads(Launch &launch, uint64_t since, const Shadow &shadow, size_t begin, size_t end,
                const char *name, size_t name_begin) {
    for (size_t i = begin; i < end;) {
        const uint64_t writer = shadow.writers[i], before = shadow.readers[i];
        uint64_t reader = before;
        note_read(launch, since, writer, reader, name, i - name_begin);
        for (; i < end && shadow.writers[i] == writer && shadow.readers[i] == before; ++i)
            shadow.readers[i] = reader;
    }
}

// Does as note_write() for every byte.
void note_writes(Launch &launch, uint64_t since, const Shadow &shadow, size_t begin, size_t end,
                 const Access &mine, const char *name, size_t name_begin) {
    const uint64_t packed = mine.pack();
    for (size_t i = begin; i < end;) {
        const uint64_t writer = shadow.writers[i], reader = shadow.readers[i];
        note_write(launch, since, writer, reader, mine, name, i - name_begin);
        for (; i < end && shadow.writers[i] == writer && shadow.readers[i] == reader; ++i) {
            shadow.writers[i] = packed;
            shadow.readers[i] = 0;
        }
    }
}

struct SharedBytes {
    size_t offset;
    Shadow shadow;
};

SharedBytes shared_range(Launch &launch, const void *p, size_t bytes) {
    const auto offset = static_cast<size_t>(static_cast<const std::byte *>(p) - launch.shared());
    if (offset + bytes > launch.shared_bytes())
        launch.fail([&] {
            return "access of " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                   " of shared memory, of which the launch has " + std::to_string(launch.shared_bytes());
        });
    return {offset, launch.shared_shadow()};
}

struct GlobalBytes {
    Allocation &allocation;
    NamedRegion &region;
    size_t offset;
};

GlobalBytes global_range(Launch &launch, const void *p, size_t bytes) {
    Allocation *allocation = memory().find(p);
    if (!allocation)
        launch.fail([&] { return "access of " + place_of(p, bytes) + ", which is not device memory"; });
    if (memory().is_foreign(*allocation))
        launch.fail([&] { return allocation->name + " is another device's memory"; });
    const auto offset = static_cast<size_t>(static_cast<const std::byte *>(p) - allocation->begin());
    NamedRegion *region = allocation->find(offset, bytes);
    if (!region)
        launch.fail([&] {
            std::string text = "out of bounds: access of " + std::to_string(bytes) + " bytes at offset " +
                               std::to_string(offset) + " of " + allocation->name + " (" +
                               std::to_string(allocation->size()) + " bytes)";
            for (const NamedRegion &r : allocation->regions())
                if (offset + bytes > r.begin && offset < r.end + 4096)
                    text += ", beyond " + r.name + " [" + std::to_string(r.begin) + ", " +
                            std::to_string(r.end) + ")";
            return text;
        });
    return {*allocation, *region, offset};
}

bool is_constant(const void *p) {
    const auto *at = static_cast<const char *>(p);
    return at >= &__executable_start && at < &_end;
}

// Whether this is not device memory, but the lane's stack, the parameters or a constant of the program.
bool is_private(Launch &launch, const void *p, size_t bytes) {
    return launch.lane().fiber.owns(p) || launch.is_parameter(p, bytes) || is_constant(p);
}

void read_shared(Launch &launch, const void *p, size_t bytes) {
    const SharedBytes at = shared_range(launch, p, bytes);
    for (size_t i = at.offset; i < at.offset + bytes; ++i)
        if (at.shadow.writers[i] >> 30 != launch.this_run())
            launch.fail([&] {
                return "reads byte " + std::to_string(i) + " of shared memory, which was never written";
            });
    note_reads(launch, launch.this_run(), at.shadow, at.offset, at.offset + bytes, "shared memory", 0);
}

// Whether all marks are 1; eight at a time, as loads of kernels have mostly 4 to 16 bytes.
bool all_written(const uint8_t *written, size_t bytes) {
    constexpr uint64_t kOnes = 0x0101010101010101u;
    uint64_t marks = kOnes;
    for (; bytes >= sizeof marks; bytes -= sizeof marks, written += sizeof marks) {
        std::memcpy(&marks, written, sizeof marks);
        if (marks != kOnes) return false;
    }
    uint8_t rest = 1;
    for (size_t i = 0; i < bytes; ++i) rest &= written[i];
    return rest == 1;
}

void expect_initialized(Launch &launch, const GlobalBytes &at, size_t bytes) {
    const uint8_t *written = at.allocation.written + at.offset;
    if (all_written(written, bytes)) return;
    for (size_t i = 0; i < bytes; ++i)
        if (!written[i])
            launch.fail([&] {
                return "reads byte " + std::to_string(at.offset + i - at.region.begin) + " of " +
                       at.region.name + ", which was never written";
            });
}

void expect_waited(Launch &launch, const NamedRegion &region, const char *what) {
    if (!launch.lane().waited)
        launch.fail([&] {
            return std::string("a dependent launch ") + what + " " + region.name + " before grid_dep_wait()";
        });
}

void read_global(Launch &launch, const void *p, size_t bytes, Load kind) {
    const GlobalBytes at = global_range(launch, p, bytes);
    expect_initialized(launch, at, bytes);
    const bool weight = at.region.kind == Region::Weights;
    if (!weight) {
        expect_waited(launch, at.region, "reads");
        if (kind == Load::Stream)
            launch.fail([&] {
                return "ldg*_stream of " + at.region.name + ", which is not a weight: it may change";
            });
    }
    (kind == Load::Stream ? at.region.traffic.streamed : at.region.traffic.read) += bytes;
    if (kind == Load::Stream) at.region.streamed = launch.this_run();
    if (!launch.lane().waited) at.region.early = launch.this_run();
    // Memory of weights is not tracked unless this launch writes it: it is most of the bytes.
    if (weight && at.allocation.last_written < launch.since()) return;
    if (weight && kind == Load::Stream)
        for (size_t i = at.offset; i < at.offset + bytes; ++i)
            if (at.allocation.shadow.writers[i] >> 30 >= launch.first_run())
                launch.fail(
                    [&] { return "ldg*_stream of " + at.region.name + ", which this launch has written"; });
    note_reads(launch, launch.since(), at.allocation.shadow, at.offset, at.offset + bytes,
               at.region.name.c_str(), at.region.begin);
}

void write_shared(Launch &launch, void *p, size_t bytes, const Access &mine) {
    const SharedBytes at = shared_range(launch, p, bytes);
    note_writes(launch, launch.this_run(), at.shadow, at.offset, at.offset + bytes, mine, "shared memory", 0);
}

void write_global(Launch &launch, void *p, size_t bytes, const Access &mine) {
    const GlobalBytes at = global_range(launch, p, bytes);
    expect_waited(launch, at.region, "writes");
    if (at.region.streamed >= launch.first_run() && at.region.streamed <= launch.last_run())
        launch.fail([&] { return "writes " + at.region.name + ", which this launch reads by ldg*_stream"; });
    if (at.region.early > launch.last_run())
        launch.fail([&] {
            return "writes " + at.region.name + ", which the next launch reads before grid_dep_wait()";
        });
    at.region.traffic.written += bytes;
    at.allocation.last_written = launch.this_run();
    note_writes(launch, launch.first_run(), at.allocation.shadow, at.offset, at.offset + bytes, mine,
                at.region.name.c_str(), at.region.begin);
    std::memset(at.allocation.written + at.offset, 1, bytes);
}

}  // namespace

bool is_shared(const void *p) {
    const Launch &launch = *Launch::current();
    const auto *at = static_cast<const std::byte *>(p);
    return at >= launch.shared() && at < launch.shared() + launch.shared_bytes() + kRedZone;
}

void check_read(Launch &launch, const void *p, size_t bytes, Load kind) {
    if (launch.is_parameter(p, bytes) || is_constant(p)) return;
    if (is_shared(p)) {
        if (kind == Load::Stream) launch.fail("ldg*_stream of shared memory");
        read_shared(launch, p, bytes);
    } else {
        read_global(launch, p, bytes, kind);
    }
}

void check_write(Launch &launch, void *p, size_t bytes) {
    if (is_shared(p))
        write_shared(launch, p, bytes, launch.stamp());
    else
        write_global(launch, p, bytes, launch.stamp());
}

void on_atomic(void *p, size_t bytes) {
    Launch &launch = *Launch::current();
    expect_aligned(p, bytes);
    Access mine = launch.stamp();
    mine.flag_b = true;
    if (is_shared(p)) {
        const SharedBytes at = shared_range(launch, p, bytes);
        if (at.shadow.writers[at.offset] >> 30 != launch.this_run())
            launch.fail("an atomic on shared memory that was never written");
        write_shared(launch, p, bytes, mine);
        return;
    }
    const GlobalBytes at = global_range(launch, p, bytes);
    expect_initialized(launch, at, bytes);
    write_global(launch, p, bytes, mine);
}

void fail_unaligned(Launch &launch, size_t alignment) {
    launch.fail([&] { return "an access of " + std::to_string(alignment) + " bytes is not aligned"; });
}

void on_async_start(void *shared, const void *global) {
    Launch &launch = *Launch::current();
    expect_aligned(shared, kAsyncBytes);
    if (!is_shared(shared)) launch.fail("cp_async16: the target is not shared memory");
    if (global) {
        expect_aligned(global, kAsyncBytes);
        if (is_shared(global) || is_private(launch, global, kAsyncBytes))
            launch.fail("cp_async16: the source is not global memory");
        on_read(global, kAsyncBytes);
    }
    Access mine = launch.stamp();
    mine.flag_a = true;
    write_shared(launch, shared, kAsyncBytes, mine);
}

void on_async_arrival(void *shared) {
    Launch &launch = *Launch::current();
    const SharedBytes at = shared_range(launch, shared, kAsyncBytes);
    for (size_t i = at.offset; i < at.offset + kAsyncBytes; ++i) at.shadow.writers[i] = launch.stamp().pack();
}

void on_prefetch(const void *p, size_t bytes) {
    Launch &launch = *Launch::current();
    const GlobalBytes at = global_range(launch, p, bytes);
    if (at.region.kind != Region::Weights) expect_waited(launch, at.region, "prefetches");
    at.region.traffic.fetched += bytes;
}

}  // namespace runnel::simt
