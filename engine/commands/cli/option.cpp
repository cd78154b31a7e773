#include "engine/commands/cli/option.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace runnel::commands {

std::string_view title(Group group) {
    switch (group) {
        case Group::Prompt:
            return "Prompt";
        case Group::Sampling:
            return "Sampling";
        case Group::Context:
            return "Context and cache";
        case Group::Device:
            return "Device";
        case Group::Drafts:
            return "Drafts";
        case Group::Output:
            return "Output";
        case Group::General:
            return "General";
    }
    return "";
}

std::string_view Option::name() const {
    for (const std::string &name : names)
        if (name.starts_with("--")) return std::string_view(name).substr(2);
    return std::string_view(names.front()).substr(1);
}

bool Option::is_called(std::string_view typed) const {
    return std::ranges::find(names, typed) != names.end();
}

std::string Option::variable() const {
    std::string result = "RUNNEL_";
    for (const char c : name())
        result += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return result;
}

double number_in(const NumberRange &range, const std::string &text) {
    const auto value = range.parse(text);
    if (!value) throw ValueError(range.words());
    return *value;
}

bool truth(const std::string &text) {
    for (const char *word : {"true", "on", "yes", "1"})
        if (text == word) return true;
    for (const char *word : {"false", "off", "no", "0"})
        if (text == word) return false;
    throw ValueError("true or false");
}

int64_t byte_size(const std::string &text, int64_t most) {
    const ValueError bad("a size as 800M or 4G, up to " + shown_number(static_cast<double>(most >> 30)) +
                         "G");
    double value = 0;
    const char *const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || !std::isfinite(value) || value < 0) throw bad;
    std::string unit;
    for (const char c : std::string_view(rest, static_cast<size_t>(end - rest)))
        if (c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    constexpr std::string_view kUnits = "kmgt";
    double factor = 1;
    if (!unit.empty() && unit != "b") {
        const size_t power = kUnits.find(unit[0]);
        if (power == std::string_view::npos ||
            (unit.size() > 1 && unit.substr(1) != "b" && unit.substr(1) != "ib"))
            throw bad;
        factor = std::pow(1024.0, static_cast<double>(power + 1));
    }
    const double bytes = std::floor(value * factor);
    if (bytes > static_cast<double>(most)) throw bad;
    return static_cast<int64_t>(bytes);
}

std::string listed(const std::vector<std::string> &words) {
    std::string result;
    for (size_t i = 0; i < words.size(); ++i)
        result += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
    return result;
}

Option &OptionTable::add(std::string_view names, std::string_view value, std::string_view help,
                         std::function<void(const std::string &)> set) {
    Option &option = options_.emplace_back();
    option.names = split(names);
    option.value = value;
    option.help = help;
    option.group = group_;
    option.set = std::move(set);
    return option;
}

Option &OptionTable::flag(std::string_view names, bool &value, std::string_view help) {
    return add(names, "", help, [&value](const std::string &text) { value = truth(text); });
}

Option &OptionTable::text(std::string_view names, std::string &value, std::string_view help) {
    return add(names, "TEXT", help, [&value](const std::string &text) { value = text; }).by_default(value);
}

Option &OptionTable::text(std::string_view names, std::optional<std::string> &value, std::string_view help) {
    return add(names, "TEXT", help, [&value](const std::string &text) { value = text; });
}

Option &OptionTable::list(std::string_view names, std::vector<std::string> &values, std::string_view help) {
    Option &option = add(names, "TEXT", help, [&values](const std::string &text) { values.push_back(text); });
    option.is_repeatable = true;
    option.clear = [&values] { values.clear(); };
    return option;
}

std::function<void(const std::string &)> OptionTable::take_list(std::string_view typed,
                                                                std::vector<std::string> &values) {
    Option &option = *std::ranges::find_if(options_, [&](const Option &o) { return o.is_called(typed); });
    const auto set = option.set;
    option.set = [set, &values](const std::string &text) {
        std::vector<std::string> words = split(text);
        for (const std::string &word : words) set(word);
        values = std::move(words);
    };
    option.value += ",...";
    return set;
}

const Option *OptionTable::find(std::string_view typed) const {
    for (const Option &option : options_)
        if (option.is_called(typed)) return &option;
    return nullptr;
}

std::vector<std::string> OptionTable::split(std::string_view text) {
    std::vector<std::string> parts;
    for (size_t from = 0; from <= text.size();) {
        const size_t comma = std::min(text.find(',', from), text.size());
        parts.emplace_back(text.substr(from, comma - from));
        from = comma + 1;
    }
    return parts;
}

}  // namespace runnel::commands
