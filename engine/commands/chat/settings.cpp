#include "engine/commands/chat/settings.h"

#include <array>
#include <charconv>
#include <cmath>
#include <variant>

#include "engine/commands/io.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using decode::SamplingOptions;

struct Setting {
    std::string_view name;
    std::variant<float SamplingOptions::*, int32_t SamplingOptions::*, int64_t GenerationFlags::*,
                 std::optional<uint64_t> GenerationFlags::*>
        member;
    double least;
};

const std::array<Setting, 11> kSettings = {{
    {"temp", &SamplingOptions::temperature, 0},
    {"top-k", &SamplingOptions::top_k, 0},
    {"top-p", &SamplingOptions::top_p, 0},
    {"min-p", &SamplingOptions::min_p, 0},
    {"typical", &SamplingOptions::typical, 0},
    {"repeat-penalty", &SamplingOptions::repeat_penalty, 1e-6},
    {"repeat-last-n", &SamplingOptions::repeat_last_n, -1},
    {"presence-penalty", &SamplingOptions::presence_penalty, -100},
    {"frequency-penalty", &SamplingOptions::frequency_penalty, -100},
    {"predict", &GenerationFlags::predict, -1},
    {"seed", &GenerationFlags::seed, 0},
}};

template <class Flags, class T>
auto &member_of(Flags &flags, T SamplingOptions::*member) {
    return flags.sampling.*member;
}
template <class Flags, class T>
auto &member_of(Flags &flags, T GenerationFlags::*member) {
    return flags.*member;
}

template <class T>
void assign(T &to, std::string_view text, const Setting &setting) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    bool good = error == std::errc() && end == text.data() + text.size();
    if constexpr (std::is_floating_point_v<T>) good = good && std::isfinite(value);
    if (!good || static_cast<double>(value) < setting.least)
        throw InputError(std::string(setting.name) + " is not set to " + gguf::quoted(text) +
                         ": it wants a " + (std::is_integral_v<T> ? "whole " : "") + "number");
    to = value;
}

void assign(std::optional<uint64_t> &to, std::string_view text, const Setting &setting) {
    uint64_t value = 0;
    assign(value, text, setting);
    to = value;
}

template <class T>
std::string shown(T value) {
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
}
std::string shown(std::optional<uint64_t> value) {
    return value ? shown(*value) : "random";
}

}  // namespace

void set(GenerationFlags &flags, std::string_view name, std::string_view value) {
    std::string names;
    for (const Setting &setting : kSettings) {
        if (setting.name == name)
            return std::visit([&](auto member) { assign(member_of(flags, member), value, setting); },
                              setting.member);
        names += " " + std::string(setting.name);
    }
    throw InputError("there is no setting " + gguf::quoted(name) + "; there are" + names);
}

std::string list_settings(const GenerationFlags &flags) {
    std::string lines;
    for (const Setting &setting : kSettings)
        lines += std::string(setting.name) + " " +
                 std::visit([&](auto member) { return shown(member_of(flags, member)); }, setting.member) +
                 "\n";
    return lines;
}

}  // namespace runnel::commands
