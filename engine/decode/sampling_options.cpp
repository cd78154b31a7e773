#include "engine/decode/sampling_options.h"

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>

namespace runnel::decode {
namespace {

struct Named {
    SamplerKind kind;
    char letter;
    std::string_view name;
    std::array<std::string_view, 4> others;  // spellings that llama.cpp understands
};
constexpr std::array<Named, 9> kNames = {{
    {SamplerKind::Penalties, 'e', "penalties", {}},
    {SamplerKind::Dry, 'd', "dry", {}},
    {SamplerKind::TopNSigma, 's', "top_n_sigma", {"top-n-sigma", "top-nsigma"}},
    {SamplerKind::TopK, 'k', "top_k", {"top-k"}},
    {SamplerKind::Typical, 'y', "typ_p", {"typical", "typical-p", "typical_p", "typ-p"}},
    {SamplerKind::TopP, 'p', "top_p", {"top-p", "nucleus"}},
    {SamplerKind::MinP, 'm', "min_p", {"min-p"}},
    {SamplerKind::Xtc, 'x', "xtc", {}},
    {SamplerKind::Temperature, 't', "temperature", {"temp"}},
}};

bool is_adaptive(std::string_view name) {
    return name == "adaptive_p" || name == "adaptive-p";
}

const Named *find(std::string_view name) {
    for (const Named &named : kNames)
        if (named.name == name ||
            (!name.empty() && std::ranges::find(named.others, name) != named.others.end()))
            return &named;
    return nullptr;
}

const Named *find(char letter) {
    const auto found = std::ranges::find(kNames, letter, &Named::letter);
    return found == kNames.end() ? nullptr : &*found;
}

[[noreturn]] void refuse() {
    throw std::invalid_argument("names with ; between them (" + samplers_text(default_samplers()) +
                                ";adaptive_p) or letters (edskypmxta), each at most once");
}

void add(SamplerOrder &order, const Named *named) {
    if (!named || std::ranges::find(order, named->kind) != order.end()) refuse();
    order.push_back(named->kind);
}

}  // namespace

SamplerOrder default_samplers() {
    SamplerOrder order;
    for (const Named &named : kNames) order.push_back(named.kind);
    return order;
}

SamplerOrder parse_samplers(std::string_view text) {
    SamplerOrder order;
    const bool letters = text.find(';') == std::string_view::npos && !find(text) && !is_adaptive(text);
    if (letters) {
        for (const char letter : text)
            if (letter != 'a') add(order, find(letter));
        return order;
    }
    for (size_t from = 0; from <= text.size();) {
        const size_t end = std::min(text.find(';', from), text.size());
        const std::string_view name = text.substr(from, end - from);
        if (!is_adaptive(name)) add(order, find(name));
        from = end + 1;
    }
    return order;
}

std::string samplers_text(const SamplerOrder &order) {
    std::string text;
    for (const SamplerKind kind : order) {
        const auto found = std::ranges::find(kNames, kind, &Named::kind);
        text += (text.empty() ? "" : ";") + std::string(found->name);
    }
    return text;
}

}  // namespace runnel::decode
