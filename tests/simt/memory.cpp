#include "tests/simt/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

namespace runnel::simt {

namespace {

std::string hex(const void *p) {
    char text[32];
    std::snprintf(text, sizeof text, "%p", p);
    return text;
}

}  // namespace

Settings &settings() {
    static Settings current;
    return current;
}

std::recursive_mutex &device_lock() {
    static std::recursive_mutex lock;
    return lock;
}

Memory &memory() {
    static Memory current;
    return current;
}

Pages::Pages(size_t bytes) : bytes_(std::max<size_t>(bytes, 1)) {
    memory_ =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
}

Pages::~Pages() {
    munmap(memory_, bytes_);
}

Allocation::Allocation(size_t bytes, std::string called, bool on_host, int of_device)
    : name(std::move(called)),
      host(on_host),
      device(of_device),
      last_written(0),
      size_(bytes),
      data_pages_(bytes + 2 * kRedZone),
      written_pages_(bytes),
      writer_pages_(bytes * sizeof(uint64_t)),
      reader_pages_(bytes * sizeof(uint64_t)),
      data_(data_pages_.as<std::byte>() + kRedZone) {
    written = written_pages_.as<uint8_t>();
    shadow = {writer_pages_.as<uint64_t>(), reader_pages_.as<uint64_t>()};
    if (host)
        std::memset(written, 1, bytes);  // the emulator does not see the host's writes
    else
        std::memset(data_, 0xff, bytes);  // NaN, in case a read is not caught
    regions_.push_back({name, 0, bytes, kernels::cuda::Region::Data});
}

NamedRegion *Allocation::find(size_t offset, size_t bytes) {
    const auto holds = [&](const NamedRegion &r) { return offset >= r.begin && offset + bytes <= r.end; };
    if (last_found_ < regions_.size() && holds(regions_[last_found_])) return &regions_[last_found_];
    const auto after = std::upper_bound(regions_.begin(), regions_.end(), offset,
                                        [](size_t at, const NamedRegion &r) { return at < r.begin; });
    if (after == regions_.begin() || !holds(*(after - 1))) return nullptr;
    last_found_ = static_cast<size_t>(after - 1 - regions_.begin());
    return &*(after - 1);
}

void Allocation::name_region(size_t offset, size_t bytes, const char *called, kernels::cuda::Region kind) {
    if (!named_) regions_.clear();
    named_ = true;
    const NamedRegion region{called, offset, offset + bytes, kind};
    std::erase_if(regions_,
                  [&](const NamedRegion &r) { return r.begin < region.end && region.begin < r.end; });
    regions_.insert(std::upper_bound(regions_.begin(), regions_.end(), offset,
                                     [](size_t at, const NamedRegion &r) { return at < r.begin; }),
                    region);
}

void *Memory::allocate(size_t bytes, const std::string &name, bool host, int device) {
    const size_t most = host ? 0 : settings().memory_at(device);
    if (!host &&
        (device == settings().device_without_memory || bytes > most || allocated(device) > most - bytes))
        throw kernels::BackendError(kernels::BackendError::Kind::OutOfMemory,
                                    "emulated device: no memory for " + name);
    auto allocation = std::make_unique<Allocation>(bytes, name, host, device);
    std::byte *begin = allocation->begin();
    if (!host) allocated_ += bytes, of_device_[device] += bytes;
    peak_ = std::max(peak_, allocated_);
    allocations_.emplace(reinterpret_cast<uintptr_t>(begin), std::move(allocation));
    return begin;
}

size_t Memory::allocated(int device) const {
    const auto found = of_device_.find(device);
    return found == of_device_.end() ? 0 : found->second;
}

void Memory::free(void *p) {
    const auto it = allocations_.find(reinterpret_cast<uintptr_t>(p));
    if (it == allocations_.end()) return;
    if (it->second.get() == last_) last_ = nullptr;
    if (const Allocation &a = *it->second; !a.host) allocated_ -= a.size(), of_device_[a.device] -= a.size();
    allocations_.erase(it);
}

std::vector<Allocation *> Memory::all() const {
    std::vector<Allocation *> found;
    for (const auto &[address, allocation] : allocations_) found.push_back(allocation.get());
    return found;
}

Allocation *Memory::find(const void *p) {
    if (last_ && last_->claims(p)) return last_;
    const auto after = allocations_.upper_bound(reinterpret_cast<uintptr_t>(p));
    if (after == allocations_.begin()) return nullptr;
    Allocation *candidate = std::prev(after)->second.get();
    if (!candidate->claims(p)) return nullptr;
    return last_ = candidate;
}

Allocation &Memory::range(const void *p, size_t bytes, const char *what) {
    Allocation *allocation = find(p);
    if (!allocation) throw Violation(std::string(what) + ": " + hex(p) + " is not device memory");
    if (is_foreign(*allocation))
        throw Violation(std::string(what) + ": " + allocation->name + " is another device's memory");
    const auto offset = static_cast<size_t>(static_cast<const std::byte *>(p) - allocation->begin());
    if (offset > allocation->size() || bytes > allocation->size() - offset)
        throw Violation(std::string(what) + ": " + std::to_string(bytes) + " bytes at offset " +
                        std::to_string(offset) + " of " + allocation->name + ", which has " +
                        std::to_string(allocation->size()));
    return *allocation;
}

void Memory::mark_written(const void *p, size_t bytes) {
    Allocation &allocation = range(p, bytes, "a copy to the device");
    std::memset(allocation.written + (static_cast<const std::byte *>(p) - allocation.begin()), 1, bytes);
}

void Memory::expect_written(const void *p, size_t bytes, const char *what) {
    Allocation &allocation = range(p, bytes, what);
    const auto offset = static_cast<size_t>(static_cast<const std::byte *>(p) - allocation.begin());
    const auto *hole = static_cast<const uint8_t *>(std::memchr(allocation.written + offset, 0, bytes));
    if (hole)
        throw Violation(std::string(what) + ": byte " + std::to_string(hole - allocation.written) + " of " +
                        allocation.name + " was never written");
}

void Memory::copy_marks(void *to, const void *from, size_t bytes, int from_device) {
    const int own = from_device == kNone ? kNone : work_on(from_device);
    Allocation &source = range(from, bytes, "a copy on the device");
    if (from_device != kNone) work_on(own);
    Allocation &target = range(to, bytes, "a copy on the device");
    std::memmove(target.written + (static_cast<std::byte *>(to) - target.begin()),
                 source.written + (static_cast<const std::byte *>(from) - source.begin()), bytes);
}

std::map<std::string, Traffic> Memory::take_traffic() {
    std::map<std::string, Traffic> all;
    for (auto &[address, allocation] : allocations_)
        for (NamedRegion &region : allocation->regions()) {
            if (region.traffic == Traffic{}) continue;
            Traffic &sum = all[region.name];
            sum += std::exchange(region.traffic, {});
        }
    return all;
}

}  // namespace runnel::simt
