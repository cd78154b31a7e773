// JSON out. Text from files and models need not be UTF-8: what is not becomes U+FFFD.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace runnel::commands {

using Json = nlohmann::ordered_json;

inline std::string dump(const Json &json, int indent = -1) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace runnel::commands
