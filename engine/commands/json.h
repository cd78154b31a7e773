// JSON out. Text from files and models need not be UTF-8: what is not becomes U+FFFD.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace runnel::commands {

using Json = nlohmann::ordered_json;

inline std::string dump(const Json &json, int indent = -1) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Text from outside. Throws Json::exception, also for nesting deeper than 200: destroying, comparing and
// writing a Json are recursive.
inline Json parse_json(std::string_view text) {
    constexpr int kDeepest = 200;
    return Json::parse(text, [](int depth, Json::parse_event_t, Json &) {
        if (depth > kDeepest) throw Json::other_error::create(501, "nested too deeply", nullptr);
        return true;
    });
}

}  // namespace runnel::commands
