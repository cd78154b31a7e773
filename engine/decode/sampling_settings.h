// The sampling settings that a user can change, as a table: the command line, the configuration file, the
// environment, JSON requests and /set of a chat read names, ranges and defaults from here.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "engine/decode/sampler.h"

namespace runnel::decode {

// The numbers that a setting accepts.
struct NumberRange {
    static constexpr double kNone = std::numeric_limits<double>::infinity();
    double low = -kNone, high = kNone;
    bool whole = false;
    bool above = false;  // `low` itself is not in the range

    // False for NaN and infinities.
    bool contains(double value) const;
    // Parses a number: "0.5", "-1"; whole numbers also as "4k", "2M", "1g" (powers of 1024).
    // nullopt when `text` is not a number in this range.
    std::optional<double> parse(std::string_view text) const;
    // "a whole number from 0 to 512", to complete "--sinks: ..., not 'x'".
    std::string words() const;
};

constexpr NumberRange whole_numbers(int64_t low, int64_t high = int64_t{1} << 50) {
    return {static_cast<double>(low), static_cast<double>(high), true, false};
}

// The fewest digits that identify the float: 0.8f is "0.8".
std::string shown_number(double value);

struct SamplingSetting {
    std::string_view name;     // of the option (--top-p), of /set, and in configuration files
    std::string_view aliases;  // other spellings of the option, with dashes, separated by commas
    std::string_view key;      // in a JSON request
    std::string_view key_alias;
    std::variant<float SamplingOptions::*, int32_t SamplingOptions::*> member;
    NumberRange range;
    std::string_view help;
    bool rare = false;  // shown by --help-all only

    double get(const SamplingOptions &options) const;
    // Precondition: range.contains(value).
    void set(SamplingOptions &options, double value) const;
};

std::span<const SamplingSetting> sampling_settings();

// The setting with that name, or with that JSON key; null if there is none.
const SamplingSetting *find_setting(std::string_view name);
const SamplingSetting *find_setting_of_key(std::string_view key);

}  // namespace runnel::decode
