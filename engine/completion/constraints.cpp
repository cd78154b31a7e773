#include "engine/completion/constraints.h"

#include <string>
#include <utility>

namespace runnel::completion {

using text::ReasoningStyle;

Constraints::Constraints(const text::Tokenizer &tokenizer, int32_t rows,
                         std::function<std::string(text::TokenId)> text)
    : tokenizer_(tokenizer), rows_(rows), text_(std::move(text)) {}

std::shared_ptr<grammar::Masks> Constraints::masks_of(const grammar::Source &source, const std::string &tools,
                                                      bool behind_reasoning,
                                                      const std::function<grammar::Program()> &compile) {
    for (auto known = known_.begin(); known != known_.end(); ++known) {
        if (known->behind_reasoning != behind_reasoning || known->tools != tools ||
            !(known->source == source))
            continue;
        known_.splice(known_.begin(), known_, known);
        return known->masks;
    }
    grammar::Machine machine(compile());
    if (!index_) index_ = std::make_shared<grammar::TokenIndex>(tokenizer_, rows_);
    constexpr size_t kMostKnown = 32;
    if (known_.size() >= kMostKnown) known_.pop_back();
    known_.push_front(
        {source, tools, behind_reasoning, std::make_shared<grammar::Masks>(std::move(machine), index_)});
    return known_.front().masks;
}

decode::Words Constraints::words() const {
    return {[this](text::TokenId id) { return tokenizer_.decode(id); },
            [this](const std::string &text) {
                return tokenizer_.encode(text, {.add_special = false, .continues = true});
            }};
}

std::optional<decode::FreeText> Constraints::free_text(const ReasoningStyle &reasoning,
                                                       bool begins_inside) const {
    if (reasoning.kind == ReasoningStyle::Kind::Harmony)
        return decode::FreeText{.close = std::string(text::harmony::kFinal), .text = text_};
    if (reasoning.kind != ReasoningStyle::Kind::Marks) return std::nullopt;
    const auto open = tokenizer_.find(reasoning.open);
    if (!begins_inside && !open) return std::nullopt;
    return decode::FreeText{
        .close = reasoning.close, .open = begins_inside ? text::kNoToken : *open, .text = text_};
}

decode::Constraint Constraints::make(const grammar::Source &source, const ReasoningStyle &reasoning,
                                     bool begins_inside) {
    std::optional<decode::FreeText> free = free_text(reasoning, begins_inside);
    const bool behind = free.has_value();
    const grammar::Tokenize tokenize = [this](std::string_view text) {
        return tokenizer_.encode(text, {.add_special = false, .parse_special = true, .continues = true});
    };
    return decode::Constraint(
        masks_of(source, "", behind, [&] { return grammar::compile(source, tokenize, nullptr, behind); }),
        std::move(free));
}

// The control tokens of a mark must be generated as these tokens; text that spells them does not match.
grammar::Expr Constraints::mark(std::string_view text) const {
    std::vector<grammar::Expr> parts;
    std::string plain;
    const auto flush = [&] {
        if (!plain.empty()) parts.push_back(grammar::literal(std::exchange(plain, {})));
    };
    for (const text::TokenId id :
         tokenizer_.encode(text, {.add_special = false, .parse_special = true, .continues = true})) {
        if (!tokenizer_.is_control(id)) {
            plain += tokenizer_.decode(id);
            continue;
        }
        flush();
        parts.push_back(grammar::token({id}, false));
    }
    flush();
    return grammar::sequence(std::move(parts));
}

std::optional<decode::Constraint> Constraints::make_calls(const text::ToolFormat &format,
                                                          const text::ToolUse &tools,
                                                          const ReasoningStyle &reasoning, bool begins_inside,
                                                          const grammar::SchemaOptions &style) {
    const bool required = tools.choice == text::ToolUse::Choice::Required;
    // In gpt-oss a call has its own channel, so the constraint starts at that channel's mark.
    const bool harmony = reasoning.kind == ReasoningStyle::Kind::Harmony;
    const bool may_be_text = !required && !format.text_name.empty();
    const bool begun = harmony || (!required && !may_be_text);
    if (begun && format.bare) return std::nullopt;
    const std::string_view begin = !begun    ? std::string_view()
                                   : harmony ? format.before
                                             : format.triggers().front();
    std::optional<decode::FreeText> free;
    if (begun)
        free = {.close = std::string(begin), .text = text_, .may_end = !required};
    else
        free = free_text(reasoning, begins_inside);
    const char *const kind = begun ? ">" : may_be_text ? "t" : " ";
    const std::string key = std::string(format.name) + ' ' + tools.only + ' ' + (tools.parallel ? '+' : '1') +
                            kind + std::to_string(static_cast<int>(style.whitespace)) +
                            (style.any_order ? 'a' : 'd') +
                            tools.definitions.dump(-1, ' ', false, text::Json::error_handler_t::replace);
    const bool behind = free && !begun;
    const auto compile = [&] {
        grammar::Grammar calls =
            grammar::tool_grammar(format, tools, [this](std::string_view text) { return mark(text); },
                                  {.begun = begin, .may_be_text = may_be_text, .schema = style});
        if (behind) {
            const grammar::Expr root = grammar::rule(calls.root);
            calls.root =
                calls.add("text", grammar::sequence({grammar::repeat(grammar::literal("\n"), 0, 4), root}));
        }
        return grammar::compile(std::move(calls));
    };
    return decode::Constraint(masks_of({}, key, behind, compile), std::move(free));
}

}  // namespace runnel::completion
