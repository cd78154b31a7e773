#include "engine/convert/pre_tokenizer_match.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja/characters.h"
#include "engine/text/pre_tokenizer.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::convert {
namespace {

using gguf::FileError;
using text::Json;
using Patterns = std::vector<std::string>;

std::string type_of(const Json &component) {
    const Json *const type = text::find_member(component, "type");
    return type && type->is_string() ? type->get<std::string>() : std::string();
}

bool flag(const Json &component, std::string_view key, bool otherwise) {
    const Json *const value = text::find_member(component, key);
    return value && value->is_boolean() ? value->get<bool>() : otherwise;
}

// The expression that ByteLevel(use_regex) stands for: GPT-2's.
std::string byte_level_pattern() {
    return std::string(text::find_pre_tokenizer("gpt-2")->patterns.front());
}

// The pattern of a Split that keeps the matches and the text between them as words of their own.
std::string split_pattern(const Json &split) {
    const Json *const pattern = text::find_member(split, "pattern"), *const behavior =
                                                                         text::find_member(split, "behavior");
    const Json *const regex = pattern ? text::find_member(*pattern, "Regex") : nullptr;
    const std::string kept = behavior && behavior->is_string() ? behavior->get<std::string>() : "";
    if (!regex || !regex->is_string())
        refuse_tokenizer("its pre-tokenizer splits at a fixed text, which is not supported");
    if (kept != "Isolated")
        refuse_tokenizer("its pre-tokenizer has a Split with the behavior " + gguf::quoted(kept));
    return regex->get<std::string>();
}

void add_patterns(const Json &component, Patterns &patterns) {
    const std::string type = type_of(component);
    if (type == "Sequence") {
        const Json *const parts = text::find_member(component, "pretokenizers");
        if (!parts || !parts->is_array()) refuse_tokenizer("its pre-tokenizer is a Sequence of nothing");
        for (const Json &part : *parts) add_patterns(part, patterns);
    } else if (type == "Split") {
        patterns.push_back(split_pattern(component));
    } else if (type == "ByteLevel") {
        if (flag(component, "add_prefix_space", true))
            refuse_tokenizer(
                "its pre-tokenizer puts a blank before the text (add_prefix_space), which is not supported");
        if (flag(component, "use_regex", true)) patterns.push_back(byte_level_pattern());
    } else if (type == "Digits") {
        patterns.emplace_back(flag(component, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    } else {
        refuse_tokenizer("its pre-tokenizer has a part of type " + gguf::quoted(type) +
                         ", which is not supported");
    }
}

bool normalizes_to_nfc(const Json &tokenizer) {
    const Json *const normalizer = text::find_member(tokenizer, "normalizer");
    if (!normalizer) return false;
    const std::string type = type_of(*normalizer);
    if (type == "NFC") return true;
    const Json *const parts = text::find_member(*normalizer, "normalizers");
    if (type != "Sequence" || !parts || !parts->is_array())
        refuse_tokenizer("its normalizer is of type " + gguf::quoted(type) + ", which is not supported");
    for (const Json &part : *parts)
        if (type_of(part) != "NFC")
            refuse_tokenizer("its normalizer has a part of type " + gguf::quoted(type_of(part)) +
                             ", which is not supported");
    return !parts->empty();
}

// The same expression in one spelling: \x{41} as the character, line ends as \r and \n, no needless
// backslashes in "\/". Contractions are spelled in two ways.
std::string canonical(std::string_view pattern) {
    std::string result;
    for (size_t at = 0; at < pattern.size(); ++at) {
        const std::string_view rest = pattern.substr(at);
        if (rest.starts_with("\\x{")) {
            const size_t end = rest.find('}');
            uint32_t code = 0;
            const char *const digits = rest.data() + 3;
            if (end != rest.npos &&
                std::from_chars(digits, rest.data() + end, code, 16).ptr == rest.data() + end) {
                text::jinja::append_utf8(result, code);
                at += end;
                continue;
            }
        }
        if (rest.starts_with("\\\\")) {
            result += "\\\\";
            ++at;
        } else if (rest.starts_with("\\/")) {
            result += '/';
            ++at;
        } else if (rest.front() == '\n') {
            result += "\\n";
        } else if (rest.front() == '\r') {
            result += "\\r";
        } else {
            result += rest.front();
        }
    }
    const auto replace = [&result](std::string_view from, std::string_view to) {
        for (size_t at = 0; (at = result.find(from, at)) != result.npos; at += to.size())
            result.replace(at, from.size(), to);
    };
    replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:'(?:[sdmt]|ll|ve|re))");
    replace("'(?i:[sdmt]|ll|ve|re)", "(?i:'(?:[sdmt]|ll|ve|re))");
    return result;
}

bool same_patterns(const Patterns &own, const text::PreTokenizerKind &kind) {
    return own.size() == kind.patterns.size() &&
           std::equal(own.begin(), own.end(), kind.patterns.begin(),
                      [](const std::string &a, std::string_view b) { return canonical(a) == canonical(b); });
}

// Texts that tell splitters apart: contractions, numbers, blanks, line ends, marks, scripts, case, signs.
constexpr std::string_view kHardTexts[] = {
    "Hello, world! I'll say it's FINE, they'VE gone; DON'T you'd we'Re x'S 'tis",
    "camelCaseWords HTTPServer iPhone XMLHttpRequest _private __init__ $var @user #tag %d &amp;",
    "1 12 123 1234 12345 1234567 x12y 3.14159 1,000,000 \xC2\xBD\xC2\xBE \xE2\x85\xA7 12\xC2\xBD"
    "345 1e10",
    "a   b\t\tc \n d\r\n\r\n  e\n\n\n   f   ",
    "x = foo(bar)[1:-1] ** 2 != {'k': \"v\"}; // done\nif (a<=b&&c||~d) { return `x`; } "
    "!!!???...---___***/\n",
    "cafe\xCC\x81 caf\xC3\xA9 e\xCC\x81\xCC\x82 \xC3\x85 \xEF\xAC\x81 \xCA\xB0 \xC7\x85 \xC7\x86 \xC2\xAA "
    "\xC2\xBA",
    "\xE4\xB8\xAD\xE6\x96\x87\xE5\x88\x86\xE8\xAF\x8D 12345 \xE3\x81\xAE\xE3\x82\xA2 "
    "\xED\x95\x9C\xEA\xB5\xAD\xEC\x96\xB4 mixed\xE4\xB8\xAD",
    "\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87 "
    "\xE0\xB8\xAA\xE0\xB8\xA7\xE0\xB8\xB1 \xD9\x83\xD9\x90\xD8\xAA \xD7\xA9\xD7\x81 \xD0\x81\xD0\xB6",
    "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9 \xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD \xE2\x98\xBA\xEF\xB8\x8F "
    "\xC2\xA0x\xE2\x80\x83y\xE3\x80\x80z \xE2\x80\x9Cq\xE2\x80\x9D \xE2\x80\xA6",
};

void check_splits(const Patterns &own, const text::PreTokenizerKind &kind) {
    text::PreTokenizerKind direct = kind;
    direct.patterns.assign(own.begin(), own.end());
    try {
        const text::PreTokenizer ours(kind), file(direct);
        for (const std::string_view hard : kHardTexts)
            if (ours.split(hard) != file.split(hard))
                refuse_tokenizer("its pre-tokenizer splits " + gguf::quoted(hard.substr(0, 40)) + " unlike " +
                                 std::string(kind.names.front()) + ", which it resembles");
    } catch (const text::TokenizerError &error) {
        refuse_tokenizer(std::string("its pre-tokenizer: ") + error.what());
    }
}

}  // namespace

void refuse_tokenizer(const std::string &what) {
    throw FileError("tokenizer.json: " + what);
}

std::string pre_tokenizer_name(const Json &tokenizer) {
    const Json *const component = text::find_member(tokenizer, "pre_tokenizer");
    const Json *const model = text::find_member(tokenizer, "model");
    if (!component || !model) refuse_tokenizer("has no pre_tokenizer or no model");
    Patterns own;
    add_patterns(*component, own);
    const bool nfc = normalizes_to_nfc(tokenizer), whole = flag(*model, "ignore_merges", false);
    const text::PreTokenizerKind *found = nullptr;
    for (const text::PreTokenizerKind &kind : text::pre_tokenizer_kinds()) {
        if (kind.normalizes != nfc || kind.ignores_merges != whole || !kind.has_bos ||
            !same_patterns(own, kind))
            continue;
        if (!found || kind.evidence < found->evidence) found = &kind;
    }
    if (!found) {
        std::string shown;
        for (const std::string &pattern : own) shown += (shown.empty() ? "" : "  ") + pattern;
        refuse_tokenizer(std::string("its pre-tokenizer is not known") + (nfc ? ", with NFC" : "") +
                         (whole ? ", with ignore_merges" : "") + ": " + gguf::printable(shown, 400));
    }
    check_splits(own, *found);
    return std::string(found->names.front());
}

}  // namespace runnel::convert
