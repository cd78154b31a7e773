#include "engine/convert/config.h"

#include <algorithm>
#include <cmath>

#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::convert {

using text::Json;

namespace {

// (All are written as F32.)
bool is_real(const Json &value) {
    return value.is_number() && std::fabs(value.get<double>()) < 1e38;
}

}  // namespace

void Config::fail(std::string_view key, const std::string &problem) const {
    throw gguf::FileError(place_ + ": " + gguf::quoted(key) + " " + problem);
}

const Json &Config::require(std::string_view key) const {
    const Json *const found = find(key);
    if (!found) fail(key, "is missing");
    return *found;
}

Config Config::object(std::string_view key) const {
    const Json *const found = find(key);
    if (!found) return {Json::object(), place_};
    if (!found->is_object()) fail(key, "is not an object");
    return {*found, place_};
}

void Config::add_defaults(const Json &defaults) {
    for (const auto &[key, value] : defaults.items())
        if (!has(key)) json_[key] = value;
}

int64_t Config::whole(std::string_view key) const {
    const Json &value = require(key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= uint64_t{1} << 31)
        fail(key, "is not a whole number below 2^31");
    return value.get<int64_t>();
}

int64_t Config::whole(std::string_view key, int64_t otherwise) const {
    return has(key) ? whole(key) : otherwise;
}

int64_t Config::whole_of_all(std::string_view key, int64_t count) const {
    const Json &value = require(key);
    if (!value.is_array()) return whole(key);
    if (std::ssize(value) != count || value.empty() || std::ranges::count(value, value[0]) != count)
        fail(key, "is not the same number for every layer, which cannot be converted");
    return Config(Json{{std::string(key), value[0]}}, place_).whole(key);
}

double Config::real(std::string_view key) const {
    const Json &value = require(key);
    if (!is_real(value)) fail(key, "is not a number below 1e38");
    return value.get<double>();
}

double Config::real(std::string_view key, double otherwise) const {
    return has(key) ? real(key) : otherwise;
}

bool Config::flag(std::string_view key, bool otherwise) const {
    const Json *const value = find(key);
    if (!value) return otherwise;
    if (!value->is_boolean()) fail(key, "is neither true nor false");
    return value->get<bool>();
}

std::string Config::string(std::string_view key) const {
    const Json &value = require(key);
    if (!value.is_string()) fail(key, "is not a string");
    return value.get<std::string>();
}

std::string Config::string(std::string_view key, std::string_view otherwise) const {
    return has(key) ? string(key) : std::string(otherwise);
}

std::vector<std::string> Config::strings(std::string_view key) const {
    const Json &value = require(key);
    if (!value.is_array()) fail(key, "is not a list");
    std::vector<std::string> all;
    for (const Json &item : value) {
        if (!item.is_string()) fail(key, "is not a list of strings");
        all.push_back(item.get<std::string>());
    }
    return all;
}

std::vector<double> Config::reals(std::string_view key) const {
    const Json &value = require(key);
    if (!value.is_array()) fail(key, "is not a list");
    std::vector<double> all;
    for (const Json &item : value) {
        if (!is_real(item)) fail(key, "is not a list of numbers below 1e38");
        all.push_back(item.get<double>());
    }
    return all;
}

void Config::require_flag(std::string_view key, bool value, bool otherwise) const {
    if (flag(key, otherwise) != value)
        fail(key, std::string("is ") + (value ? "false" : "true") + ", which cannot be converted");
}

void Config::require_absent(std::string_view key) const {
    if (has(key)) fail(key, "is set, which cannot be converted");
}

}  // namespace runnel::convert
