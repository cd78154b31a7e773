// Typed, range-checked access to a model's keys. Every error names the key and what was expected.
#pragma once

#include <cfloat>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model/model.h"
#include "gguf/file.h"

namespace runnel::model {

// The path of a file, made printable for messages.
std::string name_of(const gguf::File &file);

class Metadata {
  public:
    explicit Metadata(const gguf::File &file);

    const std::string &architecture() const { return architecture_; }

    // Keys are given without the architecture prefix ("attention.head_count"). nullopt if the key is absent;
    // ModelError if it has another type or is out of [low, high]. An array of equal entries counts as one
    // number. A real number must be finite, also as a float.
    std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
    // One number for each of `layers` layers, from an array of that length or one number for all.
    std::optional<std::vector<int64_t>> integers(std::string_view key, int64_t layers, int64_t low,
                                                 int64_t high) const;
    std::optional<double> real(std::string_view key, double low = -FLT_MAX, double high = FLT_MAX) const;
    std::optional<bool> boolean(std::string_view key) const;
    std::optional<std::vector<bool>> booleans(std::string_view key) const;  // nullopt also for a scalar
    std::optional<std::string_view> text(std::string_view key) const;
    std::optional<std::vector<float>> reals(std::string_view key) const;  // nullopt also for a scalar

    // A key without the architecture's prefix: an array of `count` numbers, or one number for all. ModelError if it
    // is absent.
    std::vector<float> reals_of_file(const char *key, size_t count) const;

    int64_t required_integer(std::string_view key, int64_t low, int64_t high) const;
    double required_real(std::string_view key, double low = -FLT_MAX, double high = FLT_MAX) const;

    // The key's value, or null. All getters use this function, which records the key as read.
    const gguf::Value *find(std::string_view key) const;

    // The file's keys of this architecture that neither this object nor a copy of it has read.
    using Entry = std::pair<std::string_view, const gguf::Value *>;
    std::vector<Entry> unread() const;

    [[noreturn]] void fail(std::string_view key, const std::string &problem) const;

  private:
    void check_range(std::string_view key, int64_t number, int64_t low, int64_t high) const;

    const gguf::File *file_;
    std::string architecture_;
    std::shared_ptr<std::set<std::string, std::less<>>> read_;  // keys, shared by copies
};

}  // namespace runnel::model
