// The architectures that other programs run and this one does not.
#pragma once

#include <span>
#include <string_view>

namespace runnel::model {

struct OtherArchitecture {
    std::string_view name;  // general.architecture
    std::string_view what;  // what kind of model it is, and what it would need
};

// Those of llama.cpp that are not in families().
std::span<const OtherArchitecture> other_architectures();

// OtherArchitecture::what; empty for a name that is not in the table.
std::string_view other_architecture(std::string_view name);

}  // namespace runnel::model
