#include "engine/text/tool_calls/parse.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/text/tool_calls/cursor.h"
#include "engine/text/tool_calls/literal.h"

namespace runnel::text {
namespace {

using Body = ToolFormat::Body;
constexpr std::string_view kSpace = " \t\r\n";
constexpr size_t kMostFailures = 32;      // each may read the text to its end
constexpr size_t kMostParameters = 1000;  // of one call
constexpr const char *kTooMany = "there are too many calls";

std::string dumped(const Json &json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Nine letters and digits: Mistral's templates require that.
std::string make_id(uint64_t salt, size_t number, std::string_view name, std::string_view arguments) {
    uint64_t hash = 14695981039346656037ull;  // FNV-1a
    const auto add = [&](std::string_view text) {
        for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
    };
    add(std::to_string(salt) + ' ' + std::to_string(number) + ' ');
    add(name);
    add(arguments);
    std::string id;
    for (int i = 0; i < 9; ++i, hash /= 36) id += "0123456789abcdefghijklmnopqrstuvwxyz"[hash % 36];
    return id;
}

bool is_of_type(const Json &value, const Json &type) {
    if (!type.is_string()) return false;
    const auto &name = type.get_ref<const std::string &>();
    return value.is_number() ? name == "number" || name == "integer" : name == value.type_name();
}

// Whether strings are valid, by "type" or "enum".
bool takes_strings(const Json &schema) {
    const auto has = [](const Json &list, auto test) {
        return list.is_array() && std::ranges::any_of(list, test);
    };
    if (const Json *type = find_member(schema, "type"))
        return *type == "string" || has(*type, [](const Json &t) { return t == "string"; });
    const Json *values = find_member(schema, "enum");
    return values && has(*values, [](const Json &v) { return v.is_string(); });
}

// Whether a value is valid, by "type" or "enum".
bool takes(const Json &schema, const Json &value) {
    if (const Json *type = find_member(schema, "type"))
        return is_of_type(value, *type) ||
               (type->is_array() &&
                std::ranges::any_of(*type, [&](const Json &t) { return is_of_type(value, t); }));
    const Json *values = find_member(schema, "enum");
    return !values || !values->is_array() || std::ranges::find(*values, value) != values->end();
}

// Reads a value in JSON's or Python's notation.
std::optional<Json> literal_of(std::string_view text) {
    try {
        return parse_json(text);
    } catch (const JsonError &) {
    }
    Cursor cursor(text);
    auto value = take_literal(cursor, LiteralStyle::Python);
    return cursor.done() ? value : std::nullopt;
}

// The text of a parameter: JSON if it can be and the schema (may be null) allows the value, otherwise a string.
Json parameter_value(std::string_view text, const Json *schema) {
    if (schema && is_raw_text(*schema)) return std::string(text);
    const std::optional<Json> value = literal_of(trimmed(text));
    if (!value || (schema && takes_strings(*schema) && !takes(*schema, *value))) return std::string(text);
    return *value;
}

class CallReader {
  public:
    CallReader(const ToolFormat &format, const ToolUse &tools) : format_(format), tools_(tools) {}

    enum class Where { Text, Section, Bare };  // Section: after `open`

    // Reads the calls that begin here, at most `room`, and moves the cursor past the last one, if any.
    std::vector<ToolCall> read(Cursor &cursor, Where where, size_t room) {
        calls_.clear();
        rejected_.clear();
        rejected_problem_.clear();
        good_ = good_rejected_ = 0;
        room_ = room;
        Cursor ahead = cursor;
        bool good =
            (where == Where::Section || ahead.take_mark(format_.open)) && one(ahead, where == Where::Bare);
        in_section_ = !format_.open.empty();
        while (good && in_section_) {
            ahead.skip_space();
            if (ahead.done() || ahead.take_mark(format_.close)) {
                keep(ahead);
                in_section_ = false;
            } else {
                good = one(ahead, false);
            }
        }
        calls_.resize(good_);
        rejected_.resize(good_rejected_);
        if (good_ > 0) cursor = end_;
        return std::move(calls_);
    }
    // After read(): why a call was rejected (empty if none was), the text of rejected elements of a list, and
    // whether the section continues after the last call.
    const std::string &problem() const { return problem_; }
    const std::string &rejected() const { return rejected_; }
    bool in_section() const { return in_section_; }

  private:
    bool fail(std::string problem) {
        problem_ = std::move(problem);
        return false;
    }

    // Accepts the calls that were read up to `cursor`.
    bool keep(const Cursor &cursor) {
        end_ = cursor;
        good_ = calls_.size();
        good_rejected_ = rejected_.size();
        return true;
    }

    bool one(Cursor &cursor, bool bare) {
        problem_ = "it cannot be read as a call";
        const bool marked = cursor.take_mark(format_.before) ||
                            (!format_.short_before.empty() && cursor.take_mark(format_.short_before));
        if (!marked && !bare) return false;
        cursor.skip_space();
        if (!body(cursor) || !end_mark(cursor, bare && !marked)) return false;
        problem_ = rejected_problem_;
        return keep(cursor);
    }
    bool end_mark(Cursor &cursor, bool may_be_absent) {
        // Parameters have no closing bracket: only a complete end mark shows that they are complete.
        if (format_.body != Body::Parameters && cursor.take_end_mark(format_.after)) return true;
        if (cursor.take_mark(format_.after)) return true;
        // Some models write only the first word of the end mark.
        return cursor.take_mark(first_word(format_.after)) || may_be_absent;
    }

    bool body(Cursor &cursor) {
        switch (format_.body) {
            case Body::Object: {
                const auto json = cursor.take_json();
                return json && json->front() == '{' && object(*json);
            }
            case Body::List:
                return elements(cursor, &CallReader::listed_object);
            case Body::Named:
                return named(cursor);
            case Body::Parameters:
                return parameters(cursor);
            case Body::Python:
                return elements(cursor, &CallReader::python_call);
            case Body::Fields: {
                const std::string name(cursor.take_name());
                const auto fields = take_fields(cursor);
                return fields && add("", name, dumped(*fields));
            }
        }
        return false;
    }

    bool add(std::string id, std::string name, std::string arguments) {
        if (!tools_.find(name)) return fail("there is no tool of this name");
        if (calls_.size() >= room_) return fail(kTooMany);
        constexpr size_t kMostId = 64;
        if (id.size() > kMostId) id.clear();
        calls_.push_back({std::move(id), std::move(name), std::move(arguments)});
        return true;
    }

    static std::optional<Json> parsed(std::string_view json) {
        try {
            return parse_json(json);
        } catch (const JsonError &) {
            return std::nullopt;
        }
    }

    bool object(std::string_view json) {
        const auto call = parsed(json);
        return call && from_object(*call);
    }

    // Reads "[call, ..]". An element that `take` can parse but that is not a valid call is rejected; the
    // others count, even if the list is incomplete. True if the list is complete and has a call.
    bool elements(Cursor &cursor, bool (CallReader::*take)(Cursor &)) {
        if (!cursor.take("[")) return false;
        do {
            cursor.skip_space();
            if (calls_.size() >= room_) return fail(kTooMany);
            const std::string_view text = cursor.rest();
            const size_t begin = cursor.at(), calls = calls_.size();
            if (!(this->*take)(cursor)) return false;
            if (calls_.size() > calls) {
                keep(cursor);
            } else {
                rejected_problem_ = problem_;
                rejected_ +=
                    (rejected_.empty() ? "" : ",") + std::string(text.substr(0, cursor.at() - begin));
            }
            cursor.skip_space();
        } while (cursor.take(","));
        return cursor.take("]") && good_ > 0 && keep(cursor);
    }
    bool listed_object(Cursor &cursor) {
        problem_ = "it cannot be read as a call";
        const auto json = cursor.take_json();
        if (json && json->front() == '{') (void)object(*json);
        return json.has_value();
    }
    bool python_call(Cursor &cursor) {
        const std::string name(cursor.take_name());
        const auto arguments = cursor.take("(") ? take_python_arguments(cursor) : std::nullopt;
        if (arguments) (void)add("", name, dumped(*arguments));
        return arguments.has_value();
    }

    bool from_object(const Json &call) {
        if (!call.is_object() || call.empty()) return false;
        if (format_.name_key.empty())
            return call.size() == 1 && with_arguments("", call.begin().key(), call.begin().value());
        const Json *name = find_member(call, format_.name_key), *arguments = nullptr;
        for (const std::string_view key :
             {format_.arguments_key, std::string_view("arguments"), std::string_view("parameters")})
            if (!arguments) arguments = find_member(call, key);
        if (!name || !name->is_string() || !arguments) return false;
        const Json *id = format_.id_key.empty() ? nullptr : find_member(call, format_.id_key);
        const bool has_id = id && id->is_string();
        return with_arguments(has_id ? id->get<std::string>() : "", name->get<std::string>(), *arguments);
    }
    // Some models write the arguments as a string that contains the object.
    bool with_arguments(std::string id, std::string name, const Json &arguments) {
        if (arguments.is_object()) return add(std::move(id), std::move(name), dumped(arguments));
        if (!arguments.is_string()) return fail("its arguments are not an object");
        const auto inner = parsed(arguments.get_ref<const std::string &>());
        if (!inner || !inner->is_object()) return fail("its arguments are not an object");
        return add(std::move(id), std::move(name), dumped(*inner));
    }

    bool named(Cursor &cursor) {
        std::string name(cursor.take_name()), id;
        if (format_.counted && cursor.peek() == ':') {
            cursor.take(":");
            id = "functions." + name + ":" + std::string(cursor.take_name());
        }
        if (!format_.id_mark.empty() && cursor.take_mark(format_.id_mark)) {
            cursor.skip_space();
            id = cursor.take_name();
        }
        if (!cursor.take_mark(format_.between)) return false;
        cursor.skip_space();
        const auto json = cursor.take_json();
        const auto arguments = json ? parsed(*json) : std::nullopt;
        if (!arguments || !arguments->is_object()) return fail("its arguments are not a JSON object");
        return add(std::move(id), std::move(name), dumped(*arguments));
    }

    bool parameters(Cursor &cursor) {
        const std::string name(cursor.take_name());
        const Tool *tool = tools_.find(name);
        if (name.empty() || !cursor.take_mark(format_.between)) return false;
        const Json *declared = tool ? declared_properties(*tool) : nullptr;
        Json arguments = Json::object();
        while (cursor.take_mark(format_.parameter)) {
            if (arguments.size() >= kMostParameters) return fail("it has too many arguments");
            const auto key = cursor.until(first_word(format_.value));
            if (!key || !cursor.take_mark(format_.value)) return false;
            std::optional<bool> is_string;
            if (format_.typed) {
                const auto type = cursor.until("\">");
                if (!type || !cursor.take("\">")) return false;
                if (*type != "true" && *type != "false") return false;
                is_string = *type == "true";
            }
            auto text = cursor.until(first_word(format_.end_value));
            if (!text || !cursor.take_mark(format_.end_value)) return false;
            if (format_.value.ends_with('\n') && text->starts_with('\n')) text->remove_prefix(1);
            if (format_.end_value.starts_with('\n') && text->ends_with('\n')) text->remove_suffix(1);
            arguments[std::string(trimmed(*key))] =
                is_string.value_or(false) ? Json(std::string(*text))
                : is_string || !declared  ? parameter_value(*text, nullptr)
                                          : parameter_value(*text, find_member(*declared, trimmed(*key)));
        }
        return add("", name, dumped(arguments));
    }

    const ToolFormat &format_;
    const ToolUse &tools_;
    size_t room_ = 0;
    std::vector<ToolCall> calls_;
    std::string rejected_, problem_, rejected_problem_;
    // The end of the last good call, and the number of calls and the bytes of rejected_ up to there.
    Cursor end_{{}};
    size_t good_ = 0, good_rejected_ = 0;
    bool in_section_ = false;
};

size_t next_trigger(const std::vector<std::string_view> &triggers, std::string_view text, size_t from) {
    size_t first = text.npos;
    for (const std::string_view mark : triggers) first = std::min(first, text.find(mark, from));
    return first;
}

std::string_view without_space_behind(std::string_view text) {
    return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

bool may_be_bare(const ToolFormat &format, char first) {
    return format.bare && first == (format.body == Body::Python ? '[' : '{');
}

// How an answer begins behind a prompt that ends with `before` (ToolFormat::text_name).
struct Opening {
    enum class Kind { Unsure, Text, Call, None } kind;
    size_t behind;  // Text: the end of the mark
};
Opening opening_of(const ToolFormat &format, const ToolUse &tools, std::string_view text, size_t from) {
    Cursor cursor(text, from);
    cursor.skip_space();
    const std::string_view name = cursor.take_name();
    if (cursor.done() && name.size() <= kMaxToolName) return {Opening::Kind::Unsure, 0};
    if (name == format.text_name && cursor.take("\n")) return {Opening::Kind::Text, cursor.at()};
    const bool calls = (cursor.peek() == '\n' || cursor.peek() == '{') && tools.find(name);
    return {calls ? Opening::Kind::Call : Opening::Kind::None, 0};
}
// The end of the mark before text that begins at `at`; npos if no such mark begins there.
size_t behind_text_mark(const ToolFormat &format, std::string_view text, size_t at) {
    if (format.text_name.empty() || at == text.npos) return text.npos;
    Cursor cursor(text, at);
    const bool is_mark = cursor.take(format.before) && cursor.take(format.text_name) && cursor.take("\n");
    return is_mark ? cursor.at() : text.npos;
}

// What stands before the text that is parsed.
struct Before {
    bool opening = false;  // the beginning of the answer
    bool content = false;
};

ParsedAnswer parse(const ToolFormat &format, const ToolUse &tools, std::string_view text, uint64_t salt,
                   Before before) {
    ParsedAnswer answer;
    CallReader reader(format, tools);
    const std::vector<std::string_view> triggers = format.triggers();
    size_t failures = 0;
    const auto take = [&](std::vector<ToolCall> calls) {
        if (!reader.rejected().empty()) answer.content += "\n" + reader.rejected();
        for (ToolCall &call : calls) {
            if (call.id.empty()) call.id = make_id(salt, answer.calls.size(), call.name, call.arguments);
            answer.calls.push_back(std::move(call));
        }
    };
    const auto note = [&] {
        if (!answer.note.empty())
            answer.note = "what looks like a tool call (" + std::string(format.name) +
                          ") is part of the text: " + answer.note;
    };
    const std::string_view begin = trimmed(text);
    if (!begin.empty() && may_be_bare(format, begin.front())) {
        Cursor cursor(text, static_cast<size_t>(begin.data() - text.data()));
        std::vector<ToolCall> calls = reader.read(cursor, CallReader::Where::Bare, kMaxToolCalls);
        cursor.skip_space();
        if (!calls.empty() && cursor.done()) {
            take(std::move(calls));
            answer.note = reader.problem();
            note();
            return answer;
        }
    }
    // After a bad call the section continues, up to its end mark.
    bool in_section = false;
    const auto next = [&](size_t from) {
        const size_t section = next_trigger(triggers, text, from);
        if (!in_section) return section;
        const size_t call = text.find(first_word(format.before), from);
        in_section = call < std::min(section, text.find(first_word(format.close), from));
        return in_section ? call : section;
    };
    size_t at = 0;
    if (!format.text_name.empty() && !before.opening) {
        const Opening opening = opening_of(format, tools, text, 0);
        if (opening.kind == Opening::Kind::Text) at = opening.behind;
        if (opening.kind == Opening::Kind::Call) {
            Cursor cursor(text);
            cursor.skip_space();
            take(reader.read(cursor, CallReader::Where::Bare, kMaxToolCalls));
            answer.note = reader.problem();
            if (!answer.calls.empty()) at = cursor.at();
        }
    }
    while (at < text.size()) {
        size_t trigger = next(at);
        std::vector<ToolCall> calls;
        Cursor cursor(text, trigger);
        size_t behind_mark = text.npos;
        while (trigger != text.npos && (behind_mark = behind_text_mark(format, text, trigger)) == text.npos &&
               failures < kMostFailures && answer.calls.size() < kMaxToolCalls) {
            cursor = Cursor(text, trigger);
            calls = reader.read(cursor, in_section ? CallReader::Where::Section : CallReader::Where::Text,
                                kMaxToolCalls - answer.calls.size());
            in_section = reader.in_section();
            if (!reader.problem().empty()) {
                answer.note = reader.problem();
                ++failures;
            }
            if (!calls.empty()) break;
            trigger = next(trigger + 1);
        }
        if (behind_mark != text.npos) {
            answer.content += without_space_behind(text.substr(at, trigger - at));
            if (before.content || !answer.content.empty()) answer.content += '\n';
            at = behind_mark;
            continue;
        }
        if (calls.empty()) {
            if (trigger != text.npos && answer.calls.size() >= kMaxToolCalls) answer.note = kTooMany;
            answer.content += answer.calls.empty() ? text.substr(at) : without_space_behind(text.substr(at));
            break;
        }
        answer.content += without_space_behind(text.substr(at, trigger - at));
        take(std::move(calls));
        at = cursor.at();
    }
    note();
    return answer;
}

}  // namespace

ParsedAnswer parse_tool_calls(const ToolFormat &format, const ToolUse &tools, std::string_view text,
                              uint64_t salt) {
    return parse(format, tools, text, salt, {});
}

std::string ToolCallSplitter::push(std::string_view text) {
    pending_ += text;
    if (holds_) return {};
    if (!began_ && !format_->text_name.empty()) {
        const Opening opening = opening_of(*format_, *tools_, pending_, blank_);
        if (opening.kind == Opening::Kind::Unsure)
            blank_ = std::min(pending_.find_first_not_of(kSpace, blank_), pending_.size());
        holds_ = opening.kind == Opening::Kind::Call;
        if (holds_ || opening.kind == Opening::Kind::Unsure) return {};
        if (opening.kind == Opening::Kind::Text) {
            pending_.erase(0, opening.behind);
            blank_ = 0;
            began_ = true;
        }
    }
    const std::string_view fresh = std::string_view(pending_).substr(blank_);
    if (!began_ && format_->bare) {
        const size_t first = fresh.find_first_not_of(" \t\r\n");
        if (first == fresh.npos) {
            blank_ = pending_.size();
            return {};
        }
        if (may_be_bare(*format_, fresh[first])) {
            holds_ = true;
            return {};
        }
    }
    // Hold back a mark, or the beginning of one at the end of the text, and the white space before it.
    size_t keep = fresh.size();
    for (const std::string_view mark : format_->triggers()) {
        const size_t whole = fresh.find(mark);
        holds_ |= whole != fresh.npos;
        keep = std::min(keep, whole);
        for (size_t n = std::min(mark.size() - 1, fresh.size()); n > 0; --n)
            if (fresh.ends_with(mark.substr(0, n))) {
                keep = std::min(keep, fresh.size() - n);
                break;
            }
    }
    const size_t shown = without_space_behind(fresh.substr(0, keep)).size();
    if (shown == 0) {
        blank_ += keep;
        return {};
    }
    began_ = shown_ = true;
    std::string content = pending_.substr(0, blank_ + shown);
    pending_.erase(0, blank_ + shown);
    blank_ = keep - shown;
    return content;
}

ParsedAnswer ToolCallSplitter::flush() {
    const std::string text = std::exchange(pending_, {});
    blank_ = 0;
    return parse(*format_, *tools_, text, salt_, {.opening = began_, .content = shown_});
}

}  // namespace runnel::text
