#include "engine/completion/prompt.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "engine/decode/error.h"
#include "gguf/base/trace.h"

namespace runnel::completion {

using decode::DecodeError;

std::optional<size_t> kept_tokens(OverflowPolicy policy, size_t fixed, size_t context) {
    switch (policy) {
        case OverflowPolicy::Error:
            return std::nullopt;
        case OverflowPolicy::Shift:
            return std::min(fixed, context / 2);
        case OverflowPolicy::DropMiddle:
            break;
    }
    return std::max(std::min(fixed, context / 2), context * 3 / 8);
}

namespace {

// Returns the number of tokens that were removed.
size_t fit(std::vector<TokenId> &prompt, std::optional<size_t> kept, size_t context) {
    if (!kept || prompt.size() <= context) return 0;
    const size_t wanted = std::max<size_t>(context - context / 4, 1), dropped = prompt.size() - wanted;
    const auto from = prompt.begin() + static_cast<std::ptrdiff_t>(std::min(*kept, wanted - 1));
    prompt.erase(from, from + static_cast<std::ptrdiff_t>(dropped));
    return dropped;
}

}  // namespace

Prompt fitted(Prompt prompt, OverflowPolicy policy, size_t fixed, size_t context) {
    if (prompt.tokens.empty())
        throw DecodeError(DecodeError::Kind::BadInput, "the prompt is empty: it has no tokens");
    prompt.shift_keeping = kept_tokens(policy, fixed, context);
    prompt.left_out = static_cast<int64_t>(fit(prompt.tokens, prompt.shift_keeping, context));
    return prompt;
}

Prompt PromptFormat::make(const Request &request, size_t context) const {
    Prompt prompt;
    size_t fixed = 0;
    OverflowPolicy overflow = request.overflow;
    if (const auto *turns = std::get_if<Messages>(&request.input)) {
        prompt = render(turns->turns, turns->tools.get(), turns->written);
        if (request.overflow != OverflowPolicy::Error) fixed = fixed_tokens(*turns, prompt.tokens);
    } else if (const auto *raw = std::get_if<RawText>(&request.input)) {
        if (raw->suffix && !infill_)
            throw DecodeError(DecodeError::Kind::BadInput,
                              "the model has no tokens for infill (fill-in-the-middle), so a suffix "
                              "cannot be used");
        const base::TraceSpan tokenizing("tokenize");
        prompt.tokens = raw->suffix ? infill_->prompt(*tokenizer_, raw->text, *raw->suffix)
                                    : tokenizer_->encode(raw->text);
        fixed = tokenizer_->adds_bos() ? 1 : 0;
        if (raw->suffix)
            overflow = OverflowPolicy::Error;  // without one of its marks, an infill has no meaning
    } else {
        const auto &tokens = std::get<Tokens>(request.input);
        prompt.tokens = tokens.ids;
        fixed = tokens.fixed;
    }
    return fitted(std::move(prompt), overflow, fixed, context);
}

Prompt PromptFormat::render(std::span<const text::Message> turns, const text::ToolUse *tools,
                            std::span<const WrittenAnswer> written) const {
    try {
        static const text::Json kNone = text::Json::array();
        const bool shown = tools && tools->choice != text::ToolUse::Choice::None;
        const text::Json *definitions = !tools ? nullptr : shown ? &tools->definitions : &kNone;
        base::TraceSpan rendering("render template");
        const std::vector<text::Segment> segments = chat_.render(turns, true, definitions);
        rendering.end();
        std::string end;  // of the prompt, long enough for an opening mark, which spans few segments
        for (size_t i = segments.size() - std::min<size_t>(segments.size(), 4); i < segments.size(); ++i)
            end += segments[i].text;
        const base::TraceSpan tokenizing("tokenize");
        return {.tokens = completion::encode(*tokenizer_, segments, written),
                .is_turn = true,
                .begins_inside = chat_.reasoning().begins_inside(end),
                .mark = mark_of(segments)};
    } catch (const text::jinja::TemplateError &error) {
        const bool refused = error.kind == text::jinja::TemplateError::Kind::Raised;
        throw DecodeError(DecodeError::Kind::BadInput,
                          std::string(refused ? "the chat template refuses this conversation: "
                                              : "the chat template fails: ") +
                              error.what());
    }
}

// The common prefix of the prompt and one whose user message is empty.
size_t PromptFormat::fixed_tokens(const Messages &messages, std::span<const TokenId> tokens) const {
    std::vector<text::Message> silent;
    for (const text::Message &message : messages.turns) {
        if (message.role != "system") break;
        silent.push_back(message);
    }
    silent.push_back({"user", "", ""});
    const std::vector<TokenId> other = render(silent, messages.tools.get(), {}).tokens;
    const auto end = std::mismatch(tokens.begin(), tokens.end(), other.begin(), other.end()).first;
    return static_cast<size_t>(end - tokens.begin());
}

namespace {

// The end of the turn that begins at `from`: the next message of the user.
size_t end_of_turn(const std::vector<text::Message> &turns, size_t from) {
    size_t end = from + 1;
    while (end < turns.size() && turns[end].role != "user") ++end;
    return end;
}

}  // namespace

size_t PromptFormat::drop_old_turns(std::vector<text::Message> &turns, OverflowPolicy policy,
                                    size_t context) const {
    size_t length = encode(turns).size();
    if (policy == OverflowPolicy::Error || length <= context - context / 4) return 0;
    const size_t before = turns.size();
    const size_t begin = !turns.empty() && turns.front().role == "system" ? 1 : 0;
    const auto take_first = [&] {
        const size_t end = end_of_turn(turns, begin);
        if (end >= turns.size()) return std::vector<text::Message>();  // the only turn
        const auto from = turns.begin() + static_cast<std::ptrdiff_t>(begin);
        const auto to = turns.begin() + static_cast<std::ptrdiff_t>(end);
        std::vector<text::Message> turn(from, to);
        turns.erase(from, to);
        return turn;
    };
    std::vector<text::Message> first;
    if (policy == OverflowPolicy::DropMiddle) first = take_first();
    while (length > context / 2 && !take_first().empty()) length = encode(turns).size();
    turns.insert(turns.begin() + static_cast<std::ptrdiff_t>(begin), first.begin(), first.end());
    return before - turns.size();
}

text::ReasoningSplitter PromptFormat::splitter(const Prompt &prompt, bool with_calls) const {
    text::ReasoningStyle style = chat_.reasoning();
    const text::ToolFormat *format = with_calls ? tool_format() : nullptr;
    if (format && !format->bare) {
        const bool harmony = style.kind == text::ReasoningStyle::Kind::Harmony;
        style.call = harmony ? format->before : format->triggers().front();
    }
    return {std::move(style), prompt.begins_inside};
}

Vocabulary PromptFormat::vocabulary(bool with_calls) const {
    Vocabulary vocabulary = vocabulary_of(*tokenizer_);
    const text::ToolFormat *format = with_calls ? tool_format() : nullptr;
    if (chat_.reasoning().kind == text::ReasoningStyle::Kind::None && !format) return vocabulary;
    vocabulary.text = [this, format, text = vocabulary.text](TokenId id) {
        const std::string_view piece = tokenizer_->piece(id);
        const bool is_mark = tokenizer_->is_control(id) &&
                             (chat_.reasoning().is_mark(piece) || (format && format->is_mark(piece)));
        return is_mark ? std::string(tokenizer_->piece(id)) : text(id);
    };
    return vocabulary;
}

std::string PromptFormat::opening_mark() const {
    const std::string &mark = chat_.reasoning().open;
    return (mark.empty() ? "<think>" : mark) + "\n";
}

std::string PromptFormat::closing_mark() const {
    const std::string &mark = chat_.reasoning().close;
    return "\n" + (mark.empty() ? "</think>" : mark) + "\n\n";
}

}  // namespace runnel::completion
