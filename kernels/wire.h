// Messages between the ranks of one program: values as their bytes, without types or names. A reader takes them in the order
// in which the writer put them; both belong to the same build, so nothing is checked.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace runnel::kernels {

class WireWriter {
  public:
    template <typename T>
    void put(const T &value) {
        static_assert(std::is_trivially_copyable_v<T>);
        append(std::as_bytes(std::span(&value, 1)));
    }
    template <typename T>
    void list(std::span<const T> values) {
        static_assert(std::is_trivially_copyable_v<T>);
        put(values.size());
        append(std::as_bytes(values));
    }
    const std::vector<std::byte> &bytes() const { return bytes_; }
    void clear() { bytes_.clear(); }  // keeps the memory

  private:
    void append(std::span<const std::byte> more) { bytes_.insert(bytes_.end(), more.begin(), more.end()); }

    std::vector<std::byte> bytes_;
};

class WireReader {
  public:
    explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

    template <typename T>
    T get() {
        T value;
        std::memcpy(&value, rest_.data(), sizeof value);
        rest_ = rest_.subspan(sizeof value);
        return value;
    }
    template <typename T>
    std::vector<T> list() {
        std::vector<T> values;
        list(values);
        return values;
    }
    // Into `values`, whose memory is kept.
    template <typename T>
    void list(std::vector<T> &values) {
        const size_t count = get<size_t>(), size = count * sizeof(T);
        if constexpr (std::is_same_v<T, std::byte>) {  // (resize() would write zeros first)
            values.assign(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(size));
        } else {
            values.resize(count);
            if (size > 0) std::memcpy(values.data(), rest_.data(), size);
        }
        rest_ = rest_.subspan(size);
    }

  private:
    std::span<const std::byte> rest_;
};

}  // namespace runnel::kernels
