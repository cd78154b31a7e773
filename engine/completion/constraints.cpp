#include "engine/completion/constraints.h"

#include <utility>

namespace runnel::completion {

using text::ReasoningStyle;

Constraints::Constraints(const text::Tokenizer &tokenizer, int32_t rows,
                         std::function<std::string(text::TokenId)> text)
    : tokenizer_(tokenizer), rows_(rows), text_(std::move(text)) {}

std::shared_ptr<grammar::Masks> Constraints::masks_of(const grammar::Source &source, bool behind_reasoning) {
    for (auto known = known_.begin(); known != known_.end(); ++known) {
        if (known->behind_reasoning != behind_reasoning || !(known->source == source)) continue;
        known_.splice(known_.begin(), known_, known);
        return known->masks;
    }
    const grammar::Tokenize tokenize = [this](std::string_view text) {
        return tokenizer_.encode(text, {.add_special = false, .parse_special = true, .continues = true});
    };
    grammar::Machine machine(grammar::compile(source, tokenize, nullptr, behind_reasoning));
    if (!index_) index_ = std::make_shared<grammar::TokenIndex>(tokenizer_, rows_);
    constexpr size_t kMostKnown = 32;
    if (known_.size() >= kMostKnown) known_.pop_back();
    known_.push_front(
        {source, behind_reasoning, std::make_shared<grammar::Masks>(std::move(machine), index_)});
    return known_.front().masks;
}

decode::Words Constraints::words() const {
    return {[this](text::TokenId id) { return tokenizer_.decode(id); },
            [this](const std::string &text) {
                return tokenizer_.encode(text, {.add_special = false, .continues = true});
            }};
}

decode::Constraint Constraints::make(const grammar::Source &source, const ReasoningStyle &reasoning,
                                     bool begins_inside) {
    std::optional<decode::FreeText> free;
    if (reasoning.kind == ReasoningStyle::Kind::Harmony) {
        free = {.close = "<|channel|>final<|message|>", .text = text_};
    } else if (reasoning.kind == ReasoningStyle::Kind::Marks) {
        const auto open = tokenizer_.find(reasoning.open);
        if (begins_inside || open)
            free = {.close = reasoning.close, .open = begins_inside ? text::kNoToken : *open, .text = text_};
    }
    const bool behind = free.has_value();
    return decode::Constraint(masks_of(source, behind), std::move(free));
}

}  // namespace runnel::completion
