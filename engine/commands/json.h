// JSON out, and what is read from it. Text from files and models need not be UTF-8: what is not becomes
// U+FFFD.
#pragma once

#include <string>

#include "engine/text/json.h"

namespace runnel::commands {

using text::Json;
using text::JsonError;
using text::parse_json;

inline std::string dump(const Json &json, int indent = -1) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace runnel::commands
