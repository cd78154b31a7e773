#include "engine/commands/models/file_names.h"

#include <algorithm>

namespace runnel::commands {
namespace {

char capital(char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

std::optional<int> five_digits(std::string_view text) {
    if (text.size() != 5 || !std::ranges::all_of(text, is_digit)) return std::nullopt;
    int number = 0;
    for (const char c : text) number = 10 * number + (c - '0');
    return number;
}

// Removes "-00001-of-00003" from the end of the stem.
void take_part_number(FileName &name) {
    constexpr size_t kEnding = sizeof "-00001-of-00003" - 1;
    if (name.stem.size() <= kEnding) return;
    const std::string_view ending = std::string_view(name.stem).substr(name.stem.size() - kEnding);
    const auto part = five_digits(ending.substr(1, 5)), parts = five_digits(ending.substr(10, 5));
    if (ending[0] != '-' || ending.substr(6, 4) != "-of-" || !part || !parts) return;
    if (*part < 1 || *part > *parts) return;
    name.part = *part;
    name.parts = *parts;
    name.stem.resize(name.stem.size() - kEnding);
}

// True for names such as Q4_K_M, IQ2_XXS, TQ1_0, F16, BF16, MXFP4, NVFP4, Q4_K_XL.
bool is_type(std::string_view word) {
    for (const std::string_view start : {"IQ", "TQ", "Q", "BF", "F", "MXFP", "NVFP"})
        if (word.size() > start.size() && word.starts_with(start) && is_digit(word[start.size()]))
            return true;
    return false;
}

bool has_tag(const std::string &path, const std::string &tag) {
    const std::string all = capitals(path), wanted = capitals(tag);
    for (size_t at = all.find(wanted); at != std::string::npos; at = all.find(wanted, at + 1)) {
        const size_t end = at + wanted.size();
        if (end < all.size() && (all[end] == '.' || all[end] == '-')) return true;
    }
    return false;
}

}  // namespace

std::string capitals(std::string_view text) {
    std::string result(text);
    std::ranges::transform(result, result.begin(), capital);
    return result;
}

std::optional<FileName> parse_file_name(std::string_view path) {
    constexpr std::string_view kEnding = ".gguf";
    if (path.size() <= kEnding.size() || !path.ends_with(kEnding)) return std::nullopt;
    FileName name;
    name.stem = path.substr(0, path.size() - kEnding.size());
    take_part_number(name);
    const size_t last = name.stem.find_last_of("-./");
    const std::string word = capitals(last == std::string::npos ? "" : name.stem.substr(last + 1));
    if (is_type(word)) name.tag = word;
    return name;
}

bool is_model_name(std::string_view path) {
    if (!path.ends_with(".gguf")) return false;
    const std::string_view name = path.substr(path.rfind('/') + 1);
    for (const std::string_view word : {"mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"})
        if (name.find(word) != std::string_view::npos) return false;
    return true;
}

std::optional<std::string> choose_model(const std::vector<std::string> &paths, const std::string &tag) {
    std::vector<std::string> models;
    for (const std::string &path : paths)
        if (const auto name = parse_file_name(path); name && name->part == 1 && is_model_name(path))
            models.push_back(path);
    const std::vector<std::string> wanted =
        tag.empty() ? std::vector<std::string>{"Q4_K_M", "Q8_0"} : std::vector<std::string>{tag};
    for (const std::string &word : wanted)
        for (const std::string &path : models)
            if (has_tag(path, word)) return path;
    if (tag.empty() && !models.empty()) return models.front();
    return std::nullopt;
}

std::vector<std::string> all_parts(const std::vector<std::string> &paths, const std::string &path) {
    const auto first = parse_file_name(path);
    if (!first || first->parts == 1) return {path};
    std::vector<std::pair<int, std::string>> parts;
    for (const std::string &other : paths)
        if (const auto name = parse_file_name(other);
            name && name->stem == first->stem && name->parts == first->parts)
            parts.emplace_back(name->part, other);
    std::ranges::sort(parts);
    std::vector<std::string> result;
    for (auto &[number, name] : parts) result.push_back(std::move(name));
    return result;
}

}  // namespace runnel::commands
