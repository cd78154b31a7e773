#include "engine/text/tool_calls/parse.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/text/tool_calls/cursor.h"
#include "engine/text/tool_calls/literal.h"

namespace runnel::text {
namespace {

using Body = ToolFormat::Body;
constexpr size_t kMostFailures = 32;      // each may read the text to its end
constexpr size_t kMostParameters = 1000;  // of one call

std::string dumped(const Json &json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Nine letters and digits: Mistral's templates want that.
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

// Whether strings are valid for this part of a schema; nullopt where it does not say.
std::optional<bool> takes_strings(const Tool *tool, const std::string &name) {
    const auto member = [](const Json &object, const std::string &key) -> const Json * {
        const auto found = object.is_object() ? object.find(key) : object.end();
        return !object.is_object() || found == object.end() ? nullptr : &*found;
    };
    const Json *properties = tool ? member(tool->parameters, "properties") : nullptr;
    const Json *schema = properties ? member(*properties, name) : nullptr;
    if (!schema) return std::nullopt;
    const auto has_string = [](const Json &list, auto is_string) {
        return list.is_array() && std::ranges::any_of(list, is_string);
    };
    if (const Json *type = member(*schema, "type"))
        return *type == "string" || has_string(*type, [](const Json &t) { return t == "string"; });
    if (const Json *values = member(*schema, "enum"))
        return has_string(*values, [](const Json &v) { return v.is_string(); });
    return std::nullopt;
}

// The text of a parameter: a string as it stands, anything else as JSON.
Json parameter_value(std::string_view text, std::optional<bool> is_string) {
    if (is_string.value_or(false)) return std::string(text);
    try {
        return parse_json(trimmed(text));
    } catch (const JsonError &) {
    }
    Cursor cursor(trimmed(text));
    if (auto value = take_literal(cursor, LiteralStyle::Python); value && cursor.done()) return *value;
    return std::string(text);
}

class CallReader {
  public:
    CallReader(const ToolFormat &format, const ToolUse &tools) : format_(format), tools_(tools) {}

    // The calls that begin here. Moves the cursor only when there are any.
    std::vector<ToolCall> read(Cursor &cursor, bool bare) {
        calls_.clear();
        Cursor ahead = cursor;
        bool read = ahead.take_mark(format_.open) && one(ahead, bare);
        while (read && !format_.open.empty()) {
            ahead.skip_space();
            if (ahead.done() || ahead.take_mark(format_.close)) break;
            read = one(ahead, false);
        }
        if (!read) return {};
        cursor = ahead;
        return std::move(calls_);
    }
    const std::string &problem() const { return problem_; }

  private:
    bool fail(std::string problem) {
        problem_ = std::move(problem);
        return false;
    }

    bool one(Cursor &cursor, bool bare) {
        problem_ = "it cannot be read as a call";
        const bool marked = cursor.take_mark(format_.before) ||
                            (!format_.short_before.empty() && cursor.take_mark(format_.short_before));
        if (!marked && !bare) return false;
        cursor.skip_space();
        if (!body(cursor)) return false;
        // The end of arguments without brackets is the mark's to say.
        if (format_.body != Body::Parameters && cursor.take_end_mark(format_.after)) return true;
        if (cursor.take_mark(format_.after)) return true;
        // A second mark of the end may be missing.
        return cursor.take_mark(first_word(format_.after)) || (bare && !marked);
    }

    bool body(Cursor &cursor) {
        switch (format_.body) {
            case Body::Object: {
                const auto json = cursor.take_json();
                return json && json->front() == '{' && object(*json);
            }
            case Body::List: {
                const auto json = cursor.take_json();
                return json && json->front() == '[' && list(*json);
            }
            case Body::Named:
                return named(cursor);
            case Body::Parameters:
                return parameters(cursor);
            case Body::Python:
                return python(cursor);
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
        if (calls_.size() >= kMaxToolCalls) return fail("there are too many calls");
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
    bool list(std::string_view json) {
        const auto list = parsed(json);
        return list && !list->empty() &&
               std::ranges::all_of(*list, [&](const Json &call) { return from_object(call); });
    }

    bool from_object(const Json &call) {
        if (!call.is_object() || call.empty()) return false;
        if (format_.name_key.empty())
            return call.size() == 1 && with_arguments("", call.begin().key(), call.begin().value());
        const Json *name = member(call, format_.name_key), *arguments = nullptr;
        for (const std::string_view key :
             {format_.arguments_key, std::string_view("arguments"), std::string_view("parameters")})
            if (!arguments) arguments = member(call, key);
        if (!name || !name->is_string() || !arguments) return false;
        const Json *id = format_.id_key.empty() ? nullptr : member(call, format_.id_key);
        const bool has_id = id && id->is_string();
        return with_arguments(has_id ? id->get<std::string>() : "", name->get<std::string>(), *arguments);
    }
    // Some models write the object as the text of one.
    bool with_arguments(std::string id, std::string name, const Json &arguments) {
        if (arguments.is_object()) return add(std::move(id), std::move(name), dumped(arguments));
        if (!arguments.is_string()) return fail("its arguments are not an object");
        const auto inner = parsed(arguments.get_ref<const std::string &>());
        if (!inner || !inner->is_object()) return fail("its arguments are not an object");
        return add(std::move(id), std::move(name), dumped(*inner));
    }
    static const Json *member(const Json &object, std::string_view key) {
        const auto found = object.find(std::string(key));
        return found == object.end() ? nullptr : &*found;
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
        Json arguments = Json::object();
        while (cursor.take_mark(format_.parameter)) {
            if (arguments.size() >= kMostParameters) return fail("it has too many arguments");
            const auto key = cursor.until(first_word(format_.value));
            if (!key || !cursor.take_mark(format_.value)) return false;
            std::optional<bool> is_string = takes_strings(tool, std::string(trimmed(*key)));
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
            arguments[std::string(trimmed(*key))] = parameter_value(*text, is_string);
        }
        return add("", name, dumped(arguments));
    }

    bool python(Cursor &cursor) {
        if (!cursor.take("[")) return false;
        do {
            cursor.skip_space();
            const std::string name(cursor.take_name());
            if (!cursor.take("(")) return false;
            const auto arguments = take_python_arguments(cursor);
            if (!arguments || !add("", name, dumped(*arguments))) return false;
            cursor.skip_space();
        } while (cursor.take(","));
        return cursor.take("]");
    }

    const ToolFormat &format_;
    const ToolUse &tools_;
    std::vector<ToolCall> calls_;
    std::string problem_;
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

}  // namespace

ParsedAnswer parse_tool_calls(const ToolFormat &format, const ToolUse &tools, std::string_view text,
                              uint64_t salt) {
    ParsedAnswer answer;
    CallReader reader(format, tools);
    const std::vector<std::string_view> triggers = format.triggers();
    size_t failures = 0;
    const auto take = [&](std::vector<ToolCall> calls) {
        for (ToolCall &call : calls) {
            if (call.id.empty()) call.id = make_id(salt, answer.calls.size(), call.name, call.arguments);
            answer.calls.push_back(std::move(call));
        }
    };
    const std::string_view begin = trimmed(text);
    if (!begin.empty() && may_be_bare(format, begin.front())) {
        Cursor cursor(text, static_cast<size_t>(begin.data() - text.data()));
        std::vector<ToolCall> calls = reader.read(cursor, true);
        cursor.skip_space();
        if (!calls.empty() && cursor.done()) {
            take(std::move(calls));
            return answer;
        }
    }
    size_t at = 0;
    while (at < text.size()) {
        size_t trigger = next_trigger(triggers, text, at);
        std::vector<ToolCall> calls;
        Cursor cursor(text, trigger);
        while (trigger != text.npos && calls.empty() && failures < kMostFailures &&
               answer.calls.size() < kMaxToolCalls) {
            cursor = Cursor(text, trigger);
            calls = reader.read(cursor, false);
            if (!calls.empty()) break;
            answer.note = reader.problem();
            ++failures;
            trigger = next_trigger(triggers, text, trigger + 1);
        }
        if (calls.empty()) {
            answer.content += answer.calls.empty() ? text.substr(at) : without_space_behind(text.substr(at));
            break;
        }
        answer.content += without_space_behind(text.substr(at, trigger - at));
        take(std::move(calls));
        at = cursor.at();
    }
    if (!answer.note.empty())
        answer.note = "what looks like a tool call (" + std::string(format.name) +
                      ") is part of the text: " + answer.note;
    return answer;
}

std::string ToolCallSplitter::push(std::string_view text) {
    pending_ += text;
    if (holds_) return {};
    size_t keep = pending_.size();
    if (!began_ && format_->bare) {
        const size_t first = pending_.find_first_not_of(" \t\r\n");
        if (first == pending_.npos) return {};
        if (may_be_bare(*format_, pending_[first])) {
            holds_ = true;
            return {};
        }
    }
    // A whole mark, or the beginning of one at the end; the whitespace in front of it goes with it.
    for (const std::string_view mark : format_->triggers()) {
        const size_t whole = pending_.find(mark);
        holds_ |= whole != pending_.npos;
        keep = std::min(keep, whole);
        for (size_t n = std::min(mark.size() - 1, pending_.size()); n > 0; --n)
            if (pending_.ends_with(mark.substr(0, n))) {
                keep = std::min(keep, pending_.size() - n);
                break;
            }
    }
    const size_t shown = pending_.find_last_not_of(" \t\r\n", keep - 1);
    keep = keep == 0 || shown == pending_.npos ? 0 : shown + 1;
    began_ |= keep > 0;
    std::string content = pending_.substr(0, keep);
    pending_.erase(0, keep);
    return content;
}

ParsedAnswer ToolCallSplitter::flush() {
    const std::string text = std::exchange(pending_, {});
    return parse_tool_calls(*format_, *tools_, text, salt_);
}

}  // namespace runnel::text
