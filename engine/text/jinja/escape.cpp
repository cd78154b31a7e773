#include "engine/text/jinja/escape.h"

#include "engine/text/jinja/format.h"

namespace runnel::text::jinja {

MarkedText escape_html(Runtime &runtime, const MarkedText &text) {
    constexpr std::string_view special = "&<>'\"";
    constexpr std::string_view escapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    MarkedText result;
    for (size_t at = 0; at < text.size();) {
        const size_t plain = std::min(text.view().find_first_of(special, at), text.size());
        result.append(text, at, plain - at);
        runtime.charge(plain - at + 5);
        if (plain == text.size()) break;
        result.append(escapes[special.find(text.view()[plain])], text.origin());
        at = plain + 1;
    }
    return result;
}

Value escaped(Runtime &runtime, const Value &value) {
    if (value.is_string() && value.string()->markup) return value;
    return runtime.string(escape_html(runtime, to_text(runtime, value)), true);
}

}  // namespace runnel::text::jinja
