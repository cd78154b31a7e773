// Architectures that llama.cpp runs and this version does not.
#pragma once

#include <span>
#include <string_view>

namespace runnel::model {

struct OtherArchitecture {
    std::string_view name;  // general.architecture
    std::string_view what;  // the kind of model, and the missing feature
};

// The architectures of llama.cpp that are not in families().
std::span<const OtherArchitecture> other_architectures();

// OtherArchitecture::what; empty for a name that is not in the table.
std::string_view other_architecture(std::string_view name);

}  // namespace runnel::model
