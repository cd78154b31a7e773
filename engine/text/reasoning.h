// Separates a model's reasoning from its answer while the text arrives.
//
// Most families write the reasoning first, between two marks (<think> ... </think>); gpt-oss writes
// messages in channels ("harmony": analysis, commentary, final). A model's marks are detected from its
// template and its vocabulary.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace runnel::text {

// The marks of channels.
namespace harmony {
inline constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>",
                                  kEnd = "<|end|>", kFinal = "<|channel|>final<|message|>";
}  // namespace harmony

// The reasoning mode; Default: the template's own.
enum class Thinking { Default, Off, On, Low, Medium, High };

struct ReasoningStyle {
    enum class Kind { None, Marks, Harmony } kind = Kind::None;
    std::string open, close;  // for Kind::Marks
    // The first mark of a tool call; empty if tool calls are not allowed. It also ends the reasoning. Harmony's
    // messages to functions are rewritten to begin with it.
    std::string call{};

    // Whether the answer to `prompt` begins within the reasoning, because the template
    // already wrote the opening mark.
    bool begins_inside(std::string_view prompt) const;
    // Control tokens that the splitter must receive although control tokens have no text of their own.
    bool is_mark(std::string_view piece) const;
};

ReasoningStyle find_reasoning_style(std::string_view template_source, const Tokenizer &tokenizer);

class ReasoningSplitter {
  public:
    ReasoningSplitter(ReasoningStyle style, bool begins_inside);

    struct Piece {
        bool is_reasoning;
        std::string text;
    };
    // The pieces that are certain now, in order, without the marks and the white space around them. Text is
    // held back only while it may be part of a mark.
    std::vector<Piece> push(std::string_view text);
    // At the end of the text: the text that was held back.
    std::vector<Piece> flush();

  private:
    enum class State { Start, Inside, Answer, Header };
    bool advance();
    bool advance_start();
    bool advance_inside();
    bool advance_answer();
    bool advance_header();
    void emit(bool is_reasoning, std::string_view text);
    void enter_message(std::string_view header);
    size_t held_back(std::initializer_list<std::string_view> marks) const;
    void drop(size_t bytes);

    ReasoningStyle style_;
    State state_;
    bool skips_space_ = false;  // at the beginning of the next piece
    std::string pending_;
    size_t searched_ = 0;  // bytes of pending_ in which no mark begins; in Start and Inside, white space
    std::vector<Piece> pieces_;
};

}  // namespace runnel::text
