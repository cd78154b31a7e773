#include "engine/text/jinja/template.h"

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/parser.h"

namespace runnel::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

Value convert(const Json &json, uint32_t depth) {
    if (depth > kMaxNesting) fail(TemplateError::Kind::Limit, "JSON is nested too deeply");
    switch (json.type()) {
        case Json::value_t::boolean:
            return Value::boolean(json.get<bool>());
        case Json::value_t::number_integer:
            return Value::integer(json.get<int64_t>());
        case Json::value_t::number_unsigned: {
            const auto value = json.get<uint64_t>();
            return value <= INT64_MAX ? Value::integer(static_cast<int64_t>(value))
                                      : Value::number(static_cast<double>(value));
        }
        case Json::value_t::number_float:
            return Value::number(json.get<double>());
        case Json::value_t::string:
            return Value::string(MarkedText(json.get_ref<const std::string &>(), Origin::Content));
        case Json::value_t::array: {
            std::vector<Value> items;
            items.reserve(json.size());
            for (const Json &item : json) items.push_back(convert(item, depth + 1));
            return Value::list(std::move(items));
        }
        case Json::value_t::object: {
            auto dict = std::make_shared<Dict>();
            for (const auto &[key, value] : json.items())
                dict->set(Value::string(MarkedText(key, Origin::Content)), convert(value, depth + 1));
            return Value(std::shared_ptr<const Dict>(std::move(dict)));
        }
        default:
            return Value::none();
    }
}

}  // namespace

Value from_json(const Json &json) {
    return convert(json, 1);
}

Variables Variables::of(const Json &object) {
    Variables variables;
    for (const auto &[name, value] : object.items()) variables.set(name, from_json(value));
    return variables;
}

void Variables::set(std::string_view name, Value value) {
    values_.set(name, std::move(value));
}

Template Template::parse(std::string_view source) {
    Template result;
    if (source.size() <= kMaxSource) result.source_ = normalize_source(source);
    try {
        result.program_ = jinja::parse(source.size() <= kMaxSource ? result.source_ : source);
    } catch (const TemplateError &error) {
        throw TemplateError(error, error.place, result.source_);
    }
    return result;
}

MarkedText Template::render(const Variables &variables, const RenderOptions &options) const {
    Runtime runtime(options.limits, options.clock);
    Interpreter interpreter(*program_, runtime, variables.values());
    try {
        return interpreter.run();
    } catch (const TemplateError &error) {
        throw TemplateError(error, error.place.line ? error.place : interpreter.place(), source_);
    }
}

}  // namespace runnel::text::jinja
