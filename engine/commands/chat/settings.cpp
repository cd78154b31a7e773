#include "engine/commands/chat/settings.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "engine/commands/cli/nearest.h"
#include "engine/commands/io.h"
#include "engine/decode/sampling_settings.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using decode::NumberRange;

constexpr NumberRange kPredict = decode::whole_numbers(-1);

[[noreturn]] void refuse(std::string_view name, std::string_view value, const std::string &wanted) {
    throw InputError(std::string(name) + ": " + wanted + ", not " + gguf::quoted(value));
}

double number(std::string_view name, const NumberRange &range, std::string_view text) {
    const auto value = range.parse(text);
    if (!value) refuse(name, text, range.words());
    return *value;
}

uint64_t seed_in(std::string_view text) {
    uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (error != std::errc() || end != text.data() + text.size())
        refuse("seed", text, "a whole number below 2^64");
    return seed;
}

std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const decode::SamplingSetting &setting : decode::sampling_settings()) all.emplace_back(setting.name);
    all.insert(all.end(), {"samplers", "predict", "seed"});
    return all;
}

// Our name of the setting that ollama calls `name`; other names unchanged.
std::string_view own_name(std::string_view name) {
    static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
        {"temperature", "temp"}, {"num_predict", "predict"}, {"num-predict", "predict"}};
    for (const auto &[theirs, ours] : kNames)
        if (name == theirs) return ours;
    return name;
}

}  // namespace

void set(GenerationFlags &flags, std::string_view given, std::string_view value) {
    std::string dashed(own_name(given));
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    const std::string_view name = dashed;
    if (name == "num-ctx") throw InputError("num_ctx: the context is set at the start, with -c");
    if (name == "stop") {
        flags.stops.emplace_back(value);
        return;
    }
    if (const decode::SamplingSetting *setting = decode::find_setting(name)) {
        setting->set(flags.sampling, number(name, setting->range, value));
        flags.chosen.emplace(name);
        return;
    }
    if (name == "samplers") try {
            flags.sampling.samplers = decode::parse_samplers(value);
            flags.chosen.emplace(name);
            return;
        } catch (const std::invalid_argument &error) {
            refuse(name, value, error.what());
        }
    if (name == "predict") {
        flags.predict = static_cast<int64_t>(number(name, kPredict, value));
    } else if (name == "seed") {
        flags.seed = seed_in(value);
    } else {
        const std::vector<std::string> all = names();
        std::string list;
        for (const std::string &known : all) list += " " + known;
        throw InputError("there is no setting " + gguf::quoted(name) + suggestion(name, all) +
                         (nearest(name, all) ? "" : "; there are" + list));
    }
}

std::string list_settings(const GenerationFlags &flags) {
    std::string lines;
    for (const decode::SamplingSetting &setting : decode::sampling_settings())
        lines += std::string(setting.name) + " " + decode::shown_number(setting.get(flags.sampling)) + "\n";
    return lines + "samplers " + decode::samplers_text(flags.sampling.samplers) + "\npredict " +
           std::to_string(flags.predict) + "\nseed " + (flags.seed ? std::to_string(*flags.seed) : "random") +
           "\n";
}

}  // namespace runnel::commands
