#include "engine/text/reasoning.h"

#include <algorithm>
#include <utility>

namespace runnel::text {
namespace {

using harmony::kChannel, harmony::kEnd, harmony::kMessage, harmony::kStart;

constexpr std::string_view kSpace = " \t\r\n";

// Known pairs of marks, in search order.
constexpr std::pair<std::string_view, std::string_view> kMarks[] = {
    {"<seed:think>", "</seed:think>"},            // Seed-OSS
    {"[THINK]", "[/THINK]"},                      // Magistral
    {"<|START_THINKING|>", "<|END_THINKING|>"},   // Command A
    {"<|channel>thought", "<channel|>"},          // Gemma 4
    {"<|inner_prefix|>", "<|inner_suffix|>"},     // Apertus
    {"\u25c1think\u25b7", "\u25c1/think\u25b7"},  // Kimi
    {"<thought>", "</thought>"},                  // EXAONE Deep
    {"<think>", "</think>"},                      // Qwen, DeepSeek, GLM, SmolLM3, ...
};

std::string_view without_space_at_end(std::string_view text) {
    return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

}  // namespace

bool ReasoningStyle::begins_inside(std::string_view prompt) const {
    return kind == Kind::Marks && without_space_at_end(prompt).ends_with(open);
}

bool ReasoningStyle::is_mark(std::string_view piece) const {
    if (kind == Kind::Harmony)
        return piece == kChannel || piece == kMessage || piece == kStart || piece == kEnd;
    return kind == Kind::Marks && !piece.empty() && (open.starts_with(piece) || piece == close);
}

ReasoningStyle find_reasoning_style(std::string_view source, const Tokenizer &tokenizer) {
    if (tokenizer.find(kChannel) && tokenizer.find(kMessage))
        return {ReasoningStyle::Kind::Harmony, {}, {}, {}};
    for (const auto &[open, close] : kMarks)
        if (source.find(close) != source.npos || (tokenizer.find(open) && tokenizer.find(close)))
            return {ReasoningStyle::Kind::Marks, std::string(open), std::string(close), {}};
    return {};
}

ReasoningSplitter::ReasoningSplitter(ReasoningStyle style, bool begins_inside)
    : style_(std::move(style)), state_(State::Start), skips_space_(begins_inside) {
    if (style_.kind == ReasoningStyle::Kind::None) state_ = State::Answer;
    if (begins_inside) state_ = State::Inside;
}

std::vector<ReasoningSplitter::Piece> ReasoningSplitter::push(std::string_view text) {
    pending_ += text;
    while (!pending_.empty() && advance()) {
    }
    return std::exchange(pieces_, {});
}

std::vector<ReasoningSplitter::Piece> ReasoningSplitter::flush() {
    if (state_ == State::Inside)
        emit(true, without_space_at_end(pending_));
    else if (state_ != State::Header)
        emit(false, pending_);
    drop(pending_.size());
    return std::exchange(pieces_, {});
}

void ReasoningSplitter::emit(bool is_reasoning, std::string_view text) {
    if (text.empty()) return;
    if (pieces_.empty() || pieces_.back().is_reasoning != is_reasoning) pieces_.push_back({is_reasoning, {}});
    pieces_.back().text += text;
}

// Bytes at the end of the pending text that may be the beginning of a mark.
size_t ReasoningSplitter::held_back(std::initializer_list<std::string_view> marks) const {
    size_t most = 0;
    for (const std::string_view mark : marks)
        for (size_t n = std::min(mark.size() - 1, pending_.size()); n > most; --n)
            if (mark.starts_with(std::string_view(pending_).substr(pending_.size() - n))) most = n;
    return most;
}

// Removes the beginning of the pending text.
void ReasoningSplitter::drop(size_t bytes) {
    pending_.erase(0, bytes);
    searched_ = 0;
}

// False when more text is needed.
bool ReasoningSplitter::advance() {
    if (skips_space_) {
        drop(std::min(pending_.find_first_not_of(kSpace), pending_.size()));
        if (pending_.empty()) return false;
        skips_space_ = false;
    }
    switch (state_) {
        case State::Start:
            return advance_start();
        case State::Inside:
            return advance_inside();
        case State::Header:
            return advance_header();
        default:
            return advance_answer();
    }
}

bool ReasoningSplitter::advance_start() {
    const bool harmony = style_.kind == ReasoningStyle::Kind::Harmony;
    const std::string_view mark = harmony ? kChannel : std::string_view(style_.open);
    const size_t space =
        harmony ? 0 : std::min(pending_.find_first_not_of(kSpace, searched_), pending_.size());
    const std::string_view text = std::string_view(pending_).substr(space);
    if (text.size() < mark.size() && mark.starts_with(text)) {
        searched_ = space;
        return false;
    }
    if (!text.starts_with(mark)) {
        // gpt-oss may name the recipient of a call in front of the channel.
        constexpr std::string_view kRecipient = " to=";
        const bool may_call = harmony && !style_.call.empty();
        if (may_call && text.size() < kRecipient.size() && kRecipient.starts_with(text)) return false;
        state_ = may_call && text.starts_with(kRecipient) ? State::Header : State::Answer;
        searched_ = 0;
        return true;
    }
    drop(space + mark.size());
    state_ = harmony ? State::Header : State::Inside;
    skips_space_ = true;
    return true;
}

bool ReasoningSplitter::advance_inside() {
    const bool harmony = style_.kind == ReasoningStyle::Kind::Harmony;
    const std::string_view mark = harmony ? kEnd : std::string_view(style_.close);
    const size_t end = pending_.find(mark, searched_);
    const std::string_view call = harmony ? std::string_view() : std::string_view(style_.call);
    if (const size_t begin = call.empty() ? end : pending_.find(call, searched_); begin < end) {
        emit(true, without_space_at_end(std::string_view(pending_).substr(0, begin)));
        drop(begin);
        state_ = State::Answer;
        return true;
    }
    if (end != std::string::npos) {
        emit(true, without_space_at_end(std::string_view(pending_).substr(0, end)));
        drop(end + mark.size());
        state_ = harmony ? State::Header : State::Answer;
        skips_space_ = true;
        return true;
    }
    const size_t certain = pending_.size() - held_back({mark, call.empty() ? mark : call});
    const std::string_view fresh = std::string_view(pending_).substr(searched_, certain - searched_);
    const size_t text = without_space_at_end(fresh).size(), shown = text == 0 ? 0 : searched_ + text;
    emit(true, std::string_view(pending_).substr(0, shown));
    drop(shown);
    searched_ = certain - shown;
    return false;
}

bool ReasoningSplitter::advance_answer() {
    if (style_.kind != ReasoningStyle::Kind::Harmony) {
        emit(false, std::exchange(pending_, {}));
        return false;
    }
    const size_t end = pending_.find(kEnd);
    const size_t shown = end == std::string::npos ? pending_.size() - held_back({kEnd}) : end;
    emit(false, std::string_view(pending_).substr(0, shown));
    drop(end == std::string::npos ? shown : end + kEnd.size());
    if (end == std::string::npos) return false;
    state_ = State::Header;
    return true;
}

// "<|start|>assistant<|channel|>final<|message|>": everything up to <|message|>.
bool ReasoningSplitter::advance_header() {
    const size_t end = pending_.find(kMessage, searched_);
    if (end == std::string::npos) {
        searched_ = pending_.size() - std::min(pending_.size(), kMessage.size() - 1);
        return false;
    }
    const std::string header = pending_.substr(0, end);
    drop(end + kMessage.size());
    enter_message(header);
    return true;
}

void ReasoningSplitter::enter_message(std::string_view header) {
    const std::string_view all = header;
    const size_t at = header.rfind(kChannel);
    if (at != header.npos) header.remove_prefix(at + kChannel.size());
    header.remove_prefix(std::min(header.find_first_not_of(kSpace), header.size()));
    state_ = header.starts_with("analysis") ? State::Inside : State::Answer;
    // The recipient of a tool call is part of the answer.
    const size_t recipient = all.find("to=");
    if (recipient == all.npos) return;
    const std::string_view name = all.substr(recipient, all.find_first_of(" \t\r\n<", recipient) - recipient);
    constexpr std::string_view kFunction = "to=functions.";
    if (style_.call.empty() || !name.starts_with(kFunction))
        return emit(state_ == State::Inside, std::string(name) + " ");
    state_ = State::Answer;
    emit(false, style_.call + std::string(name.substr(kFunction.size())) + " <|constrain|>json<|message|>");
}

}  // namespace runnel::text
