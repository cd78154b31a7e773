#include "engine/grammar/formats.h"

#include <string>

#include "engine/grammar/regex.h"

namespace runnel::grammar {
namespace {

// RFC 3339, with as many days as the month has, and without the year 0, which most readers refuse.
const std::string kYear = "(\\d{3}[1-9]|\\d{2}[1-9]\\d|\\d[1-9]\\d{2}|[1-9]\\d{3})";
const std::string kDate =
    "(" + kYear +
    "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8])"
    ")"
    "|(\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)";
const std::string kTime =
    "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,12})?([Zz]|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
const std::string kDuration =
    "P(\\d+W|(\\d+D|\\d+M(\\d+D)?|\\d+Y(\\d+M(\\d+D)?)?)(T(\\d+S|\\d+M(\\d+S)?|\\d+H(\\d+M(\\d+S)?)?))?"
    "|T(\\d+S|\\d+M(\\d+S)?|\\d+H(\\d+M(\\d+S)?)?))";
const std::string kLabel = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
const std::string kHost = kLabel + "(\\." + kLabel + ")*";
const std::string kAtom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
const std::string kEmail = kAtom + "(\\." + kAtom + ")*@" + kHost;
const std::string kOctet = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const std::string kIpv4 = kOctet + "(\\." + kOctet + "){3}";
const std::string kGroup = "[0-9A-Fa-f]{1,4}";

std::string ipv6() {
    const std::string g = kGroup, last = "(" + g + ":" + g + "|" + kIpv4 + ")";
    std::string all = "(" + g + ":){6}" + last;
    // "::" stands for one group or more.
    for (int before = 0; before <= 7; ++before)
        for (int after = 0; before + after <= 7; ++after) {
            std::string one = before == 0 ? "" : g + "(:" + g + "){" + std::to_string(before - 1) + "}";
            one += "::";
            if (after == 1) one += g;
            if (after >= 2) one += "(" + g + ":){" + std::to_string(after - 2) + "}" + last;
            all += "|" + one;
        }
    return "(" + all + ")";
}

// RFC 3986.
std::string uri(bool relative) {
    const std::string pct = "%[0-9A-Fa-f]{2}";
    const std::string pchar = "([A-Za-z0-9._~!$&'()*+,;=:@-]|" + pct + ")";
    const std::string no_colon = "([A-Za-z0-9._~!$&'()*+,;=@-]|" + pct + ")";
    const std::string user = "([A-Za-z0-9._~!$&'()*+,;=:-]|" + pct + ")*@";
    const std::string name = "([A-Za-z0-9._~!$&'()*+,;=-]|" + pct + ")*";
    const std::string authority =
        "//(" + user + ")?(" + name + "|\\[" + ipv6() + "\\])(:\\d*)?(/" + pchar + "*)*";
    const std::string absolute = "/(" + pchar + "+(/" + pchar + "*)*)?";
    const std::string rest = "(\\?(" + pchar + "|[/?])*)?(#(" + pchar + "|[/?])*)?";
    const std::string full =
        "[A-Za-z][A-Za-z0-9+.-]*:(" + authority + "|" + absolute + "|(" + pchar + "+(/" + pchar + "*)*)?)";
    if (!relative) return full + rest;
    return "(" + full + "|" + authority + "|" + absolute + "|(" + no_colon + "+(/" + pchar + "*)*)?)" + rest;
}

const std::string kPointer = "(/([^/~]|~[01])*)*";

std::string pattern_of(std::string_view name) {
    if (name == "date") return kDate;
    if (name == "time") return kTime;
    if (name == "date-time") return kDate + "[Tt]" + kTime;
    if (name == "duration") return kDuration;
    if (name == "email") return kEmail;
    if (name == "hostname") return kHost;
    if (name == "ipv4") return kIpv4;
    if (name == "ipv6") return ipv6();
    if (name == "uuid") return "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}";
    if (name == "uri") return uri(false);
    if (name == "uri-reference") return uri(true);
    if (name == "json-pointer") return kPointer;
    if (name == "relative-json-pointer") return "(0|[1-9]\\d*)(#|" + kPointer + ")";
    return {};
}

}  // namespace

Expr format_words(std::string_view name) {
    const std::string pattern = pattern_of(name);
    return pattern.empty() ? nullptr : parse_regex(pattern);
}

}  // namespace runnel::grammar
