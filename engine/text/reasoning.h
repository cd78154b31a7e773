// Telling a model's reasoning from its answer while the text comes in.
//
// Most families put the reasoning first, between two marks (<think> ... </think>); gpt-oss writes messages in
// channels ("harmony": analysis, commentary, final). Which marks a model uses is seen from its template and
// its vocabulary.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace runnel::text {

struct ReasoningStyle {
    enum class Kind { None, Marks, Harmony } kind = Kind::None;
    std::string open, close;  // of Marks

    // `prompt` asks for an answer: whether that begins within the reasoning, as where a template already
    // wrote the opening mark.
    bool begins_inside(std::string_view prompt) const;
    // Control tokens have no text of their own. Those that the splitter must see all the same.
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
    // What is certain now, in order. The marks are no part of it, nor is the white space around them. Text is
    // kept back only while it may be part of a mark.
    std::vector<Piece> push(std::string_view text);
    // The text is over: what was kept back.
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

    ReasoningStyle style_;
    State state_;
    bool skips_space_ = false;  // at the beginning of what comes next
    std::string pending_;
    std::vector<Piece> pieces_;
};

}  // namespace runnel::text
