#include "engine/completion/file_sampling.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "gguf/printable.h"

namespace runnel::completion {
namespace {

constexpr std::string_view kPrefix = "general.sampling.", kOrder = "sequence";
constexpr size_t kMostNotes = 16;

// The keys after the prefix, and the names of the settings.
struct Key {
    std::string_view key, setting;
};
constexpr Key kKeys[] = {
    {"temp", "temp"},
    {"top_k", "top-k"},
    {"top_p", "top-p"},
    {"min_p", "min-p"},
    {"xtc_probability", "xtc-probability"},
    {"xtc_threshold", "xtc-threshold"},
    {"penalty_last_n", "repeat-last-n"},
    {"penalty_repeat", "repeat-penalty"},
    {"mirostat", "mirostat"},
    {"mirostat_tau", "mirostat-ent"},
    {"mirostat_eta", "mirostat-lr"},
};

// Both throw std::invalid_argument, whose what() says what is wrong.
void read_order(const gguf::Value &value, FileSampling &found) {
    const auto text = value.as_string();
    if (!text) throw std::invalid_argument("expected a text");
    if (text->empty()) return;
    try {
        found.samplers = decode::parse_samplers(*text);
    } catch (const std::invalid_argument &allowed) {
        throw std::invalid_argument(std::string("expected ") + allowed.what());
    }
}

void read_number(std::string_view key, const gguf::Value &value, FileSampling &found) {
    const auto known = std::ranges::find(kKeys, key, &Key::key);
    if (known == std::end(kKeys)) throw std::invalid_argument("there is no such setting");
    const decode::SamplingSetting *setting = decode::find_setting(known->setting);
    const auto number = value.as_float();
    if (!number || !setting->range.contains(*number))
        throw std::invalid_argument("expected " + setting->range.words());
    found.values.push_back({setting, *number});
}

}  // namespace

void FileSampling::apply(decode::SamplingOptions &options) const {
    for (const Value &value : values) value.setting->set(options, value.value);
    if (samplers) options.samplers = *samplers;
}

std::string FileSampling::text() const {
    std::string text;
    for (const Value &value : values)
        text += (text.empty() ? "" : ", ") + std::string(value.setting->name) + " " +
                decode::shown_number(value.value);
    if (samplers) text += (text.empty() ? "samplers " : ", samplers ") + decode::samplers_text(*samplers);
    return text;
}

FileSampling file_sampling(const gguf::File &file) {
    FileSampling found;
    size_t more = 0;  // notes left out
    for (const auto &[key, value] : file.metadata()) {
        if (!key.starts_with(kPrefix)) continue;
        const std::string_view name = std::string_view(key).substr(kPrefix.size());
        try {
            if (name == kOrder)
                read_order(value, found);
            else
                read_number(name, value, found);
        } catch (const std::invalid_argument &problem) {
            if (found.notes.size() < kMostNotes)
                found.notes.push_back(gguf::printable(key) + " of the file is ignored: " + problem.what());
            else
                ++more;
        }
    }
    if (more > 0) found.notes.push_back(std::to_string(more) + " more such keys of the file are ignored");
    return found;
}

}  // namespace runnel::completion
