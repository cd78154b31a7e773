#include "engine/decode/sampling_settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace runnel::decode {
namespace {

using S = SamplingOptions;

constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();
constexpr NumberRange kShare{0, 1, false, false};
constexpr NumberRange kPenalty{-100, 100, false, false};

const std::array<SamplingSetting, 23> kSettings = {{
    {"temp",
     "--temperature",
     "temperature",
     "temp",
     &S::temperature,
     {0, 100, false, false},
     "temperature; 0: greedy"},
    {"top-k", "", "top_k", "", &S::top_k, whole_numbers(-1, kMostTokens),
     "only the N most probable tokens; 0: off"},
    {"top-p", "", "top_p", "", &S::top_p, kShare,
     "only the most probable tokens that reach this probability together; 1: off"},
    {"min-p", "", "min_p", "", &S::min_p, kShare,
     "only tokens with at least this share of the highest probability; 0: off"},
    {"typical", "--typical-p", "typical_p", "typical", &S::typical, kShare,
     "locally typical sampling; 1: off"},
    {"repeat-penalty",
     "--repetition-penalty",
     "repeat_penalty",
     "repetition_penalty",
     &S::repeat_penalty,
     {0, 100, false, true},
     "penalty on repeated tokens; 1: off"},
    {"repeat-last-n", "", "repeat_last_n", "", &S::repeat_last_n, whole_numbers(-1, kMostTokens),
     "number of last tokens that the penalties look at; -1: all"},
    {"presence-penalty", "", "presence_penalty", "", &S::presence_penalty, kPenalty,
     "penalty on tokens that occurred; 0: off"},
    {"frequency-penalty", "", "frequency_penalty", "", &S::frequency_penalty, kPenalty,
     "penalty on tokens by how often they occurred; 0: off"},
    {"top-n-sigma",
     "--top-nsigma",
     "top_n_sigma",
     "",
     &S::top_n_sigma,
     {-1, 100, false, false},
     "only logits within N standard deviations of the largest; 0 or less: off",
     true},
    {"xtc-probability", "", "xtc_probability", "", &S::xtc_probability, kShare,
     "how often the most probable tokens are left out (XTC); 0: off", true},
    {"xtc-threshold", "", "xtc_threshold", "", &S::xtc_threshold, kShare,
     "XTC: of the tokens with at least this probability, the least probable one stays; above 0.5: off", true},
    {"dynatemp-range",
     "",
     "dynatemp_range",
     "",
     &S::dynatemp_range,
     {0, 100, false, false},
     "the temperature varies by this much with the entropy of the candidates; 0: off",
     true},
    {"dynatemp-exp",
     "--dynatemp-exponent",
     "dynatemp_exponent",
     "",
     &S::dynatemp_exponent,
     {0, 100, false, false},
     "--dynatemp-range: exponent of the entropy",
     true},
    {"dry-multiplier",
     "",
     "dry_multiplier",
     "",
     &S::dry_multiplier,
     {0, 100, false, false},
     "penalty on tokens that continue a repetition (DRY); 0: off",
     true},
    {"dry-base",
     "",
     "dry_base",
     "",
     &S::dry_base,
     {0, 100, false, false},
     "DRY: the penalty grows by this factor with each token; below 1: off",
     true},
    {"dry-allowed-length", "", "dry_allowed_length", "", &S::dry_allowed_length,
     whole_numbers(0, kMostTokens), "DRY: shorter repetitions have no penalty", true},
    {"dry-penalty-last-n", "", "dry_penalty_last_n", "", &S::dry_last_n, whole_numbers(-1, kMostTokens),
     "DRY: number of last tokens to look at; -1: all", true},
    {"mirostat", "", "mirostat", "", &S::mirostat, whole_numbers(0, 2),
     "Mirostat sampling, version 1 or 2, in place of the filters; 0: off", true},
    {"mirostat-lr",
     "",
     "mirostat_eta",
     "mirostat_lr",
     &S::mirostat_eta,
     {0, 100, false, false},
     "Mirostat: learning rate",
     true},
    {"mirostat-ent",
     "",
     "mirostat_tau",
     "mirostat_ent",
     &S::mirostat_tau,
     {0, 100, false, false},
     "Mirostat: target surprise of a token, in bits",
     true},
    {"adaptive-target",
     "",
     "adaptive_target",
     "",
     &S::adaptive_target,
     {-1, 1, false, false},
     "prefer tokens so that their mean probability becomes this (adaptive-p); below 0: off",
     true},
    {"adaptive-decay",
     "",
     "adaptive_decay",
     "",
     &S::adaptive_decay,
     {0, double{0.99f}, false, false},
     "adaptive-p: weight of earlier tokens",
     true},
}};

// 1024, 1024^2, 1024^3 for k, m and g in either case; 0 for others.
double unit(char letter) {
    switch (letter) {
        case 'k':
        case 'K':
            return 1024.0;
        case 'm':
        case 'M':
            return 1024.0 * 1024;
        case 'g':
        case 'G':
            return 1024.0 * 1024 * 1024;
        default:
            return 0;
    }
}

}  // namespace

std::string shown_number(double value) {
    char text[64];
    const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
    const auto end = whole ? std::to_chars(text, text + sizeof text, static_cast<int64_t>(value))
                           : std::to_chars(text, text + sizeof text, static_cast<float>(value));
    return {text, end.ptr};
}

bool NumberRange::contains(double value) const {
    return std::isfinite(value) && (above ? value > low : value >= low) && value <= high &&
           (!whole || value == std::floor(value));
}

std::optional<double> NumberRange::parse(std::string_view text) const {
    double factor = 1, value = 0;
    if (whole && text.size() > 1 && unit(text.back()) > 0) {
        factor = unit(text.back());
        text.remove_suffix(1);
    }
    const char *const end = text.data() + text.size();
    std::from_chars_result result;
    if (whole) {
        int64_t number = 0;
        result = std::from_chars(text.data(), end, number);
        value = static_cast<double>(number) * factor;
    } else {
        result = std::from_chars(text.data(), end, value);
    }
    const bool good = result.ec == std::errc() && result.ptr == end && contains(value);
    return good ? std::optional(value) : std::nullopt;
}

std::string NumberRange::words() const {
    // Bounds that only keep a number within its type are not worth naming to a user.
    const bool open = high >= static_cast<double>(kMostTokens);
    const std::string kind = whole ? "a whole number" : "a number";
    if (low == -kNone) return kind + (open ? "" : " up to " + shown_number(high));
    if (above) return kind + " above " + shown_number(low) + (open ? "" : ", at most " + shown_number(high));
    return kind + " from " + shown_number(low) + (open ? " on" : " to " + shown_number(high));
}

double SamplingSetting::get(const SamplingOptions &options) const {
    return std::visit([&](auto m) { return static_cast<double>(options.*m); }, member);
}

void SamplingSetting::set(SamplingOptions &options, double value) const {
    std::visit(
        [&](auto m) {
            auto &target = options.*m;
            target = static_cast<std::remove_reference_t<decltype(target)>>(value);
        },
        member);
}

std::span<const SamplingSetting> sampling_settings() {
    return kSettings;
}

const SamplingSetting *find_setting(std::string_view name) {
    const auto found = std::ranges::find(kSettings, name, &SamplingSetting::name);
    return found == kSettings.end() ? nullptr : &*found;
}

const SamplingSetting *find_setting_of_key(std::string_view key) {
    for (const SamplingSetting &setting : kSettings)
        if (!key.empty() && (setting.key == key || setting.key_alias == key)) return &setting;
    return nullptr;
}

}  // namespace runnel::decode
