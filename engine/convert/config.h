// Typed access to config.json: every getter throws gguf::FileError naming the key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/json.h"

namespace runnel::convert {

class Config {
  public:
    // place: for messages, "config.json".
    Config(text::Json json, std::string place) : json_(std::move(json)), place_(std::move(place)) {}

    const text::Json *find(std::string_view key) const { return text::find_member(json_, key); }
    bool has(std::string_view key) const { return find(key) != nullptr; }
    // An object under this key; empty if there is none.
    Config object(std::string_view key) const;

    // Takes the values of keys that are missing here.
    void add_defaults(const text::Json &defaults);

    // Without a default, the key must exist. Whole numbers are >= 0 and below 2^31.
    int64_t whole(std::string_view key) const;
    int64_t whole(std::string_view key, int64_t otherwise) const;
    // A whole number, or a list of `count` equal ones.
    int64_t whole_of_all(std::string_view key, int64_t count) const;
    double real(std::string_view key) const;
    double real(std::string_view key, double otherwise) const;
    bool flag(std::string_view key, bool otherwise) const;
    std::string string(std::string_view key) const;
    std::string string(std::string_view key, std::string_view otherwise) const;
    std::vector<std::string> strings(std::string_view key) const;
    std::vector<double> reals(std::string_view key) const;

    // For settings whose architecture has nothing for another value.
    void require_flag(std::string_view key, bool value, bool otherwise) const;
    void require_absent(std::string_view key) const;

    [[noreturn]] void fail(std::string_view key, const std::string &problem) const;

  private:
    const text::Json &require(std::string_view key) const;
    text::Json json_;
    std::string place_;
};

}  // namespace runnel::convert
