#include "engine/text/charsmap.h"

#include <algorithm>

#include "engine/text/metadata.h"
#include "engine/text/utf8.h"

namespace runnel::text {
namespace {

const std::string kKey = "tokenizer.ggml.precompiled_charsmap";
constexpr size_t kMaxBytes = size_t{1} << 26;  // a hundred times the largest known table
constexpr size_t kLongestKey = 512;            // bytes; the longest known has about 30

// --- units of the double array

bool has_value(uint32_t unit) {
    return unit >> 8 & 1;
}
uint32_t value_of(uint32_t unit) {
    return unit & 0x7fffffff;
}
// The highest bit marks units that hold a value; they match no byte.
uint32_t label_of(uint32_t unit) {
    return unit & 0x800000ff;
}
uint32_t offset_of(uint32_t unit) {
    return unit >> 10 << ((unit & 0x200) >> 6);
}

std::string bytes_of(const gguf::File &file) {
    const gguf::Value &value = *file.find(kKey);
    if (value.type() != gguf::ValueType::Array) fail(kKey, "is not an array");
    if (value.size() > kMaxBytes) fail(kKey, "has more than " + std::to_string(kMaxBytes) + " entries");
    const std::vector<int64_t> numbers = value.as_ints();
    if (numbers.size() != value.size()) fail(kKey, "is not an array of bytes");
    std::string bytes;
    bytes.reserve(numbers.size());
    for (const int64_t number : numbers) {
        if (number < -128 || number > 255) fail(kKey, "is not an array of bytes");
        bytes += static_cast<char>(number);
    }
    return bytes;
}

uint32_t read_u32(const std::string &bytes, size_t at) {
    uint32_t number = 0;
    for (size_t i = 4; i > 0; --i) number = number << 8 | static_cast<uint8_t>(bytes[at + i - 1]);
    return number;
}

}  // namespace

std::optional<Charsmap> Charsmap::load(const gguf::File &file) {
    if (!file.find(kKey)) return std::nullopt;
    const std::string bytes = bytes_of(file);
    if (bytes.empty()) return std::nullopt;
    const size_t trie = bytes.size() < 4 ? 0 : read_u32(bytes, 0);
    if (trie == 0 || trie % 4 != 0 || trie > bytes.size() - 4)
        fail(kKey, "does not start with the size of a trie that fits in its " + std::to_string(bytes.size()) +
                       " bytes");
    if (bytes.size() == 4 + trie || bytes.back() != 0)
        fail(kKey, "its replacements do not end with a zero byte");
    Charsmap map;
    for (size_t at = 4; at < 4 + trie; at += 4) map.units_.push_back(read_u32(bytes, at));
    map.replacements_ = bytes.substr(4 + trie);
    return map;
}

// The trie of a damaged file can lead anywhere: an index out of range ends the search, and so does a path
// longer than any useful key.
Charsmap::Match Charsmap::longest_match(std::string_view text) const {
    Match longest;
    uint32_t node = offset_of(units_[0]);
    for (size_t i = 0; i < std::min(text.size(), kLongestKey); ++i) {
        const uint32_t byte = static_cast<uint8_t>(text[i]);
        node ^= byte;
        if (node >= units_.size() || label_of(units_[node]) != byte) break;
        const uint32_t unit = units_[node];
        node ^= offset_of(unit);
        if (!has_value(unit) || node >= units_.size()) continue;
        const uint32_t value = value_of(units_[node]);
        if (value < replacements_.size()) longest = {i + 1, replacements_.c_str() + value};
    }
    return longest;
}

std::string Charsmap::normalize(std::string_view text, size_t limit) const {
    std::string result;
    while (!text.empty()) {
        const Match match = longest_match(text);
        const size_t bytes = match.bytes > 0 ? match.bytes : first_char(text).bytes;
        result += match.bytes > 0 ? match.replacement : text.substr(0, bytes);
        if (result.size() > limit)
            throw TokenizerError("the normalized text has more than " + std::to_string(limit) +
                                 " bytes: split it");
        text.remove_prefix(bytes);
    }
    return result;
}

}  // namespace runnel::text
