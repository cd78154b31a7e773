#include "engine/model/metadata.h"

#include <cmath>
#include <cstdio>

#include "gguf/printable.h"

namespace runnel::model {
namespace {

std::string shortest(double number) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", number);
    return text;
}

}  // namespace

std::string name_of(const gguf::File &file) {
    return gguf::printable(file.path().native(), 4096);
}

Metadata::Metadata(const gguf::File &file)
    : file_(&file), read_(std::make_shared<std::set<std::string, std::less<>>>()) {
    const gguf::Value *value = file.find("general.architecture");
    const auto name = value ? value->as_string() : std::nullopt;
    if (!name || name->empty())
        throw ModelError(name_of(file) +
                         ": no general.architecture: the file does not say what model it holds");
    architecture_ = *name;
}

const gguf::Value *Metadata::find(std::string_view key) const {
    read_->emplace(key);
    return file_->find(architecture_ + "." + std::string(key));
}

std::vector<Metadata::Entry> Metadata::unread() const {
    std::vector<Entry> entries;
    for (const auto &[key, value] : file_->metadata()) {
        if (!key.starts_with(architecture_ + ".")) continue;
        const std::string_view name = std::string_view(key).substr(architecture_.size() + 1);
        if (!read_->contains(name)) entries.emplace_back(name, &value);
    }
    return entries;
}

void Metadata::fail(std::string_view key, const std::string &problem) const {
    throw ModelError(name_of(*file_) + ": " + gguf::printable(architecture_) + "." + std::string(key) + ": " +
                     problem);
}

std::optional<int64_t> Metadata::integer(std::string_view key, int64_t low, int64_t high) const {
    const gguf::Value *value = find(key);
    if (!value) return std::nullopt;
    std::optional<int64_t> number = value->as_int();
    if (value->type() == gguf::ValueType::Array) {
        const std::vector<int64_t> entries = value->as_ints();
        if (!entries.empty()) number = entries.front();
        for (int64_t entry : entries)
            if (entry != *number)
                fail(key, "differs between layers, which this architecture does not support");
    }
    if (!number) fail(key, "not an integer");
    check_range(key, *number, low, high);
    return number;
}

std::optional<std::vector<int64_t>> Metadata::integers(std::string_view key, int64_t layers, int64_t low,
                                                       int64_t high) const {
    const gguf::Value *value = find(key);
    if (!value) return std::nullopt;
    if (value->type() != gguf::ValueType::Array)
        return std::vector<int64_t>(static_cast<size_t>(layers), *integer(key, low, high));
    if (value->size() != static_cast<uint64_t>(layers))
        fail(key, "has " + std::to_string(value->size()) + " entries, but " + gguf::printable(architecture_) +
                      ".block_count is " + std::to_string(layers));
    std::vector<int64_t> entries = value->as_ints();
    if (entries.size() != value->size()) fail(key, "not an array of integers");
    for (const int64_t entry : entries) check_range(key, entry, low, high);
    return entries;
}

void Metadata::check_range(std::string_view key, int64_t number, int64_t low, int64_t high) const {
    if (number < low || number > high)
        fail(key, std::to_string(number) + " is not between " + std::to_string(low) + " and " +
                      std::to_string(high));
}

std::optional<double> Metadata::real(std::string_view key, double low, double high) const {
    const gguf::Value *value = find(key);
    if (!value) return std::nullopt;
    const std::optional<double> number = value->as_float();
    if (!number || !std::isfinite(*number)) fail(key, "not a finite number");
    if (*number < low || *number > high)
        fail(key, shortest(*number) + " is not between " + shortest(low) + " and " + shortest(high));
    return number;
}

std::optional<bool> Metadata::boolean(std::string_view key) const {
    const gguf::Value *value = find(key);
    if (!value) return std::nullopt;
    const std::optional<bool> flag = value->as_bool();
    if (!flag) fail(key, "not a boolean");
    return flag;
}

std::optional<std::vector<bool>> Metadata::booleans(std::string_view key) const {
    const gguf::Value *value = find(key);
    if (!value || value->type() != gguf::ValueType::Array) return std::nullopt;
    std::vector<bool> flags;
    for (const int64_t entry : value->as_ints()) flags.push_back(entry != 0);
    if (flags.size() != value->size()) fail(key, "not an array of booleans");
    return flags;
}

std::optional<std::vector<float>> Metadata::reals(std::string_view key) const {
    const gguf::Value *value = find(key);
    if (!value || value->type() != gguf::ValueType::Array) return std::nullopt;
    std::vector<float> numbers = value->as_floats();
    if (numbers.size() != value->size()) fail(key, "not an array of numbers");
    for (const float number : numbers)
        if (!std::isfinite(number)) fail(key, "has an entry that is not a finite number");
    return numbers;
}

std::vector<float> Metadata::reals_of_file(const char *key, size_t count) const {
    const auto refuse = [&](const char *problem) {
        throw ModelError(name_of(*file_) + ": " + key + ": " + problem);
    };
    const gguf::Value *value = file_->find(key);
    if (!value) refuse("missing");
    std::vector<float> numbers = value->as_floats();
    if (const auto one = value->as_float()) numbers.assign(count, static_cast<float>(*one));
    if (numbers.size() != count) refuse("does not have one number per layer");
    for (const float number : numbers)
        if (!std::isfinite(number)) refuse("has an entry that is not a finite number");
    return numbers;
}

std::optional<std::string_view> Metadata::text(std::string_view key) const {
    const gguf::Value *value = find(key);
    if (!value) return std::nullopt;
    const std::optional<std::string_view> string = value->as_string();
    if (!string) fail(key, "not a string");
    return string;
}

int64_t Metadata::required_integer(std::string_view key, int64_t low, int64_t high) const {
    const std::optional<int64_t> number = integer(key, low, high);
    if (!number) fail(key, "missing");
    return *number;
}

double Metadata::required_real(std::string_view key, double low, double high) const {
    const std::optional<double> number = real(key, low, high);
    if (!number) fail(key, "missing");
    return *number;
}

}  // namespace runnel::model
