// The part of an answer that calls tools, as a grammar: in the format of the model, with the arguments that the
// tools' own schemas allow.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/schema.h"
#include "engine/text/tool_calls/formats.h"
#include "engine/text/tool_calls/tools.h"

namespace runnel::grammar {

// A mark of a format: its control tokens as tokens, the rest as text.
using MarkExpr = std::function<Expr(std::string_view)>;

struct ToolGrammarOptions {
    std::string_view begun = {};  // the part of the first mark that is already written
    bool may_be_text = false;     // ToolFormat::text_name: text alone, or before the first call
    SchemaOptions schema = {};
};

// One call or more, of tools.only or of any tool; nothing may follow the last. A tool whose schema
// cannot be used takes any object. In formats that write arguments one by one, an argument whose
// schema cannot be used takes any value, and one whose name cannot be written is left out.
// `notes`, if not null: receives such problems. Precondition: tools.tools is not empty. Throws
// GrammarError.
Grammar tool_grammar(const text::ToolFormat &format, const text::ToolUse &tools, const MarkExpr &mark,
                     const ToolGrammarOptions &options = {}, std::vector<std::string> *notes = nullptr);

// The notes of tool_grammar() for all tools, whichever may be called.
std::vector<std::string> tool_problems(const text::ToolFormat &format, const text::ToolUse &tools,
                                       const SchemaOptions &options = {});

}  // namespace runnel::grammar
