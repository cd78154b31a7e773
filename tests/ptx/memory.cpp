#include "tests/ptx/memory.h"

#include <algorithm>
#include <cstdio>

namespace runnel::ptx {

namespace {

std::string hex(uint64_t address) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
    return text;
}

bool begins_after(uint64_t address, const Range &range) {
    return address < range.begin;
}

}  // namespace

void GlobalMemory::add(Range range) {
    const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), range.begin, begins_after);
    if ((after != ranges_.end() && after->begin < range.begin + range.bytes) ||
        (after != ranges_.begin() && (after - 1)->begin + (after - 1)->bytes > range.begin))
        throw Error("memory " + range.name + " overlaps another range");
    ranges_.insert(after, std::move(range));
    last_ = 0;
}

Range &GlobalMemory::find(uint64_t address, size_t bytes) {
    const auto holds = [&](const Range &r) {
        return address >= r.begin && address - r.begin <= r.bytes && r.bytes - (address - r.begin) >= bytes;
    };
    if (last_ < ranges_.size() && holds(ranges_[last_])) return ranges_[last_];
    const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address, begins_after);
    if (after == ranges_.begin()) throw Error(hex(address) + " is below all memory ranges");
    Range &range = *(after - 1);
    if (!holds(range))
        throw Error(std::to_string(bytes) + " bytes at " + hex(address) + " are out of bounds: byte " +
                    std::to_string(address - range.begin) + " of the " + std::to_string(range.bytes) +
                    " of " + range.name);
    last_ = static_cast<size_t>(after - 1 - ranges_.begin());
    return range;
}

std::byte *GlobalMemory::at(uint64_t address, size_t bytes, Access access, bool before_wait) {
    if (address % bytes != 0)
        throw Error("an access of " + std::to_string(bytes) + " bytes at " + hex(address) +
                    " is not aligned");
    Range &range = find(address, bytes);
    const size_t offset = address - range.begin;
    const bool write = access == Access::Write;
    if (range.kind == Range::Kind::Constant && write)
        throw Error("a write to " + range.name + ", which is constant memory");
    if (range.kind == Range::Kind::Constant) return range.data + offset;
    if (before_wait && (write || range.kind == Range::Kind::Data))
        throw Error("an access of " + range.name +
                    " before griddepcontrol.wait: the previous launch may not be complete");
    if (access == Access::Read) return range.data + offset;
    const uint8_t now = write ? kWritten : kReadNc, against = write ? kReadNc : kWritten;
    const auto mark = [&](uint8_t &marks) {
        if (marks & against)
            throw Error(".nc: " + range.name + ", byte " + std::to_string(offset) +
                        ", is read with .nc and written in one launch");
        marks |= now;
    };
    if (range.kind == Range::Kind::Weights) {
        mark(range.all_marks);
        if (write && range.own.empty()) {
            range.own.assign(range.data, range.data + range.bytes);
            range.data = range.own.data();
        }
    } else {
        if (range.marks.empty()) range.marks.resize(range.bytes);
        for (size_t i = offset; i < offset + bytes; ++i) mark(range.marks[i]);
    }
    return range.data + offset;
}

}  // namespace runnel::ptx
