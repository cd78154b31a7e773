// Writes JSON. Text from files and models may be invalid UTF-8; invalid bytes become
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
