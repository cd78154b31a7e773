// Finds a name among many, and names that occur twice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace runnel::gguf {

// Names sorted by (hash, name): built in n log n for any names, so a malicious file cannot make opening it
// slow. The names must outlive the index.
class NameIndex {
  public:
    void reserve(size_t count) { entries_.reserve(count); }
    // Names are numbered in the order they are added.
    void add(std::string_view name) {
        entries_.push_back({std::hash<std::string_view>()(name), name, entries_.size()});
    }
    // Must be called once after the last add(). Returns a name that was added twice, if there is one.
    std::optional<std::string_view> build() {
        std::sort(entries_.begin(), entries_.end());
        const auto twice = std::adjacent_find(entries_.begin(), entries_.end());
        if (twice == entries_.end()) return std::nullopt;
        return twice->name;
    }
    std::optional<size_t> find(std::string_view name) const {
        const Entry wanted{std::hash<std::string_view>()(name), name, 0};
        const auto found = std::lower_bound(entries_.begin(), entries_.end(), wanted);
        if (found == entries_.end() || !(*found == wanted)) return std::nullopt;
        return found->number;
    }

  private:
    struct Entry {
        size_t hash;
        std::string_view name;
        size_t number;
        bool operator<(const Entry &other) const {
            return hash != other.hash ? hash < other.hash : name < other.name;
        }
        bool operator==(const Entry &other) const { return hash == other.hash && name == other.name; }
    };
    std::vector<Entry> entries_;
};

}  // namespace runnel::gguf
