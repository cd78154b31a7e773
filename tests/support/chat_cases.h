// Rendering cases in the format of ../shared/data/chat: {"context", "expected"} or
// {"context", "error", "error_kind"}.
#pragma once

#include <doctest/doctest.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/jinja/template.h"

namespace runnel::testing {

using Json = nlohmann::ordered_json;

// 2025-06-01 00:00:00, a Sunday.
inline std::tm first_of_june() {
    std::tm time{};
    time.tm_year = 125, time.tm_mon = 5, time.tm_mday = 1, time.tm_wday = 0, time.tm_yday = 151;
    return time;
}

struct Rendered {
    std::string text, error_kind, message;  // error_kind is empty on success
};

inline Rendered render_case(const std::string &source, const Json &context) {
    using text::jinja::TemplateError;
    constexpr const char *kinds[] = {"syntax", "raise", "undefined", "runtime", "security", "limit"};
    try {
        const auto chat = text::jinja::Template::parse(source);
        text::jinja::RenderOptions options;
        options.clock = first_of_june;
        return {chat.render(text::jinja::Variables::of(context), options).bytes(), "", ""};
    } catch (const TemplateError &error) {
        return {"", kinds[static_cast<int>(error.kind)], error.message};
    }
}

// The texts must be equal byte for byte; for errors, the kind and the template's message.
inline void check_case(const Json &test, const std::string &source) {
    const Rendered rendered = render_case(source, test.at("context"));
    CAPTURE(rendered.message);
    CHECK(rendered.error_kind == test.value("error_kind", ""));
    if (test.contains("expected"))
        CHECK(rendered.text == test.at("expected").get<std::string>());
    else if (test.at("error_kind") == "raise")
        CHECK(rendered.message == test.at("error").get<std::string>());
}

}  // namespace runnel::testing
