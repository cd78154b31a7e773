#include "engine/completion/preparer.h"

#include <utility>
#include <variant>

#include "engine/completion/thinking_budget.h"
#include "engine/decode/error.h"

namespace runnel::completion {

using decode::DecodeError;
using Choice = text::ToolUse::Choice;

Preparer::Preparer(decode::Engine &engine, const PromptFormat &format)
    : executor_(&engine.executor()),
      vocabulary_(vocabulary_of(engine.tokenizer())),
      engine_(&engine),
      format_(&format),
      turn_vocabulary_(format.vocabulary()),
      call_vocabulary_(format.vocabulary(true)) {}

Preparer::Preparer(decode::Executor &executor, Vocabulary vocabulary)
    : executor_(&executor), vocabulary_(std::move(vocabulary)) {}

Prompt Preparer::prompt_of(const Request &request) const {
    const auto context = static_cast<size_t>(executor_->context());
    if (format_) return format_->make(request, context);
    const auto *tokens = std::get_if<Tokens>(&request.input);
    if (!tokens)
        throw DecodeError(DecodeError::Kind::BadInput,
                          "this queue has no tokenizer: the input must be token ids");
    return fitted({.tokens = tokens->ids}, request.overflow, tokens->fixed, context);
}

std::shared_ptr<const text::ToolUse> Preparer::tools_of(const Request &request) const {
    const auto *messages = std::get_if<Messages>(&request.input);
    if (!messages || !messages->tools || !format_) return nullptr;
    const text::ToolUse &tools = *messages->tools;
    const bool can_call = !tools.tools.empty() && tools.choice != Choice::None;
    if (request.constraint && tools.choice == Choice::Auto) return nullptr;  // constrained text has no calls
    if (can_call && format_->tool_format()) return messages->tools;
    if (tools.choice == Choice::Required)
        throw DecodeError(
            DecodeError::Kind::BadInput,
            "a tool call is required, but the chat template has no tool-call format that runnel knows");
    return nullptr;
}

Prepared Preparer::prepare(const Request &request) const {
    const auto tools = tools_of(request);
    Prepared made{.prompt = prompt_of(request),
                  .sampler = engine_ ? engine_->sampler(request.sampling)
                                     : decode::Sampler(request.sampling, executor_->vocab()),
                  .limits = request.limits,
                  .vocabulary = &vocabulary_,
                  .tools = tools,
                  .channels = TextChannels()};
    made.limits.bans.clear();  // constraint() enforces them
    made.sampler.set_stream(request.stream);
    made.limits.ignore_end = request.limits.ignore_end && !request.constraint && !tools;
    if (made.prompt.is_turn) {
        made.limits.stops.insert(made.limits.stops.end(), format_->stops().begin(), format_->stops().end());
        made.vocabulary = &turn_vocabulary_;
        made.channels = TextChannels(format_->splitter(made.prompt, tools != nullptr));
    }
    if (tools) {
        made.vocabulary = &call_vocabulary_;
        made.channels.find_calls(*format_->tool_format(), tools, made.prompt.tokens.size());
    } else if (made.prompt.is_turn && !request.constraint && format_->tool_format() &&
               !format_->tool_format()->text_name.empty()) {
        // The mark before text is no part of the answer.
        made.channels.find_calls(*format_->tool_format(), std::make_shared<const text::ToolUse>(),
                                 made.prompt.tokens.size());
    }
    return made;
}

std::optional<decode::Constraint> Preparer::constraint(const Request &request, const Prepared &prepared) {
    std::optional<decode::Constraint> made = grammar_constraint(request, prepared);
    if (request.limits.bans.empty()) return made;
    if (!bans_ || bans_->texts() != request.limits.bans) {
        if (!token_texts_)
            token_texts_ = std::make_shared<decode::TokenTexts>(vocabulary_.text, executor_->vocab());
        bans_ = std::make_shared<decode::Bans>(request.limits.bans, token_texts_);
    }
    if (!made) return decode::Constraint(bans_);
    made->ban(bans_);
    return made;
}

std::optional<decode::Constraint> Preparer::grammar_constraint(const Request &request,
                                                               const Prepared &prepared) {
    const bool required = prepared.tools && prepared.tools->choice == Choice::Required;
    if (required && request.constraint)
        throw DecodeError(DecodeError::Kind::BadInput,
                          "a constraint and a required tool call exclude each other");
    if (!request.constraint && !prepared.tools) return std::nullopt;
    if (!engine_) throw DecodeError(DecodeError::Kind::BadInput, "a constraint needs the tokenizer");
    if (!constraints_)
        constraints_ =
            std::make_unique<Constraints>(engine_->tokenizer(), executor_->vocab(), call_vocabulary_.text);
    const Prompt &prompt = prepared.prompt;
    const text::ReasoningStyle reasoning = prompt.is_turn ? format_->reasoning() : text::ReasoningStyle();
    if (request.constraint) return constraints_->make(*request.constraint, reasoning, prompt.begins_inside);
    return constraints_->make_calls(*format_->tool_format(), *prepared.tools, reasoning, prompt.begins_inside,
                                    request.json_style);
}

void Preparer::limit_thinking(const Request &request, const Prepared &prepared, int64_t dropped,
                              decode::Sampler &sampler) const {
    const Prompt &prompt = prepared.prompt;
    if (request.thinking_budget < 0 || !prompt.is_turn || !engine_) return;
    text::ReasoningStyle style = format_->reasoning();
    // With a required call, only the closing mark may end the reasoning: the constraint begins after it.
    if (prepared.channels.may_be_text() && !format_->tool_format()->bare)
        style.call = format_->tool_format()->triggers().front();
    sampler.force(ThinkingBudget(style, prompt.begins_inside, request.thinking_budget,
                                 ThinkingBudget::closing_tokens(style, engine_->tokenizer()),
                                 prepared.vocabulary->text,
                                 static_cast<int64_t>(prompt.tokens.size()) + dropped));
}

}  // namespace runnel::completion
