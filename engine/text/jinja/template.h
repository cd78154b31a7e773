// Chat templates in the language that tokenizer.chat_template uses: Jinja, as Hugging Face's
// apply_chat_template sets it up (sandbox, trim_blocks, lstrip_blocks, loop controls, tojson,
// raise_exception, strftime_now, {% generation %}).
//
//   const Template chat = Template::parse(source);          // once
//   Rendered text = chat.render(variables);                 // below a millisecond
//
// Not supported: include, import, extends, autoescape, the filters urlize, wordwrap, pprint and
// random. Integers have 64 bits.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/error.h"
#include "engine/text/jinja/marked_text.h"
#include "engine/text/jinja/runtime.h"

namespace runnel::text::jinja {

struct Program;

// Converts JSON to values, in the same order; its strings become Origin::Content. Throws TemplateError{Limit}
// if it is nested too deeply.
Value from_json(const nlohmann::ordered_json &json);

// The variables of a rendering.
class Variables {
  public:
    Variables() = default;
    // From a JSON object.
    static Variables of(const nlohmann::ordered_json &object);

    void set(std::string_view name, Value value);
    // A trusted value, such as the text of the BOS token: treated as text of the template.
    void set_special(std::string_view name, std::string text) {
        set(name, Value::string(MarkedText(std::move(text), Origin::Template)));
    }
    const Dict &values() const { return values_; }

  private:
    Dict values_;
};

struct RenderOptions {
    Limits limits;
    Clock clock = local_time;  // used by strftime_now
};

class Template {
  public:
    // Throws TemplateError{Syntax}.
    static Template parse(std::string_view source);

    // Throws TemplateError. Thread-safe.
    MarkedText render(const Variables &variables, const RenderOptions &options = {}) const;

    const std::string &source() const { return source_; }

  private:
    Template() = default;
    std::string source_;  // normalized: error positions refer to it
    std::shared_ptr<const Program> program_;
};

}  // namespace runnel::text::jinja
