#include "engine/text/chat_template.h"

#include <algorithm>

namespace runnel::text {
namespace {

constexpr std::string_view kSpace = " \t\n\v\f\r";

std::string_view trim_left(std::string_view text, std::string_view what = kSpace) {
    const size_t begin = text.find_first_not_of(what);
    return begin == text.npos ? std::string_view() : text.substr(begin);
}

std::string_view trim_right(std::string_view text) {
    return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

std::string_view trim(std::string_view text) {
    return trim_left(trim_right(text));
}

// Collects segments, joining neighbors of the same kind.
class Output {
  public:
    explicit Output(const TemplateTokens &tokens) : tokens_(tokens) {}

    void add_content(std::string_view text) { add(text, false); }
    // Adds template text with the placeholders filled in. The role comes from the message, so it is content.
    void add_template(std::string_view text, std::string_view role = {}) {
        while (!text.empty()) {
            const size_t open = text.find('{');
            add(text.substr(0, open), true);
            if (open == text.npos) return;
            text.remove_prefix(open);
            if (!take(text, "{bos}", tokens_.bos, true) && !take(text, "{eos}", tokens_.eos, true) &&
                !take(text, "{role}", role, false)) {
                add("{", true);
                text.remove_prefix(1);
            }
        }
    }
    std::vector<Segment> segments;

  private:
    void add(std::string_view text, bool special) {
        if (text.empty()) return;
        if (segments.empty() || segments.back().special != special) segments.push_back({{}, special});
        segments.back().text += text;
    }
    bool take(std::string_view &text, std::string_view name, std::string_view value, bool special) {
        if (!text.starts_with(name)) return false;
        add(value, special);
        text.remove_prefix(name.size());
        return true;
    }
    const TemplateTokens &tokens_;
};

class Renderer {
  public:
    Renderer(const ChatShape &shape, std::span<const Message> messages, const TemplateTokens &tokens)
        : shape_(shape), messages_(messages), output_(tokens) {
        for (size_t i = 0; i < messages.size(); ++i)
            if (messages[i].role == "user") last_user_ = i;
    }

    std::vector<Segment> run(bool add_generation_prompt) {
        output_.add_template(shape_.start);
        size_t next = 0;
        if (!messages_.empty() && messages_[0].role == "system") {
            system_ = messages_[0].content;
            next = 1;
        } else {
            system_ = shape_.default_system;
        }
        if (shape_.system_place == ChatShape::SystemPlace::OwnTurn) add_system_turn();
        for (; next < messages_.size(); ++next) add_turn(next);
        // A conversation of only a system message still renders it.
        if (system_ && shape_.system_place != ChatShape::SystemPlace::OwnTurn && last_user_ == kNone)
            add_user_turn({}, true);
        output_.add_template(add_generation_prompt ? shape_.generation_prompt : shape_.no_generation_prompt);
        return std::move(output_.segments);
    }

  private:
    static constexpr size_t kNone = SIZE_MAX;

    void add_system_turn() {
        if (!system_ || (shape_.skips_empty_system && system_->empty())) return;
        output_.add_template(shape_.system.before, "system");
        output_.add_template(shape_.system_prefix);
        output_.add_content(trimmed(*system_));
        output_.add_template(shape_.system.after, "system");
        system_.reset();
    }

    void add_turn(size_t i) {
        const Message &message = messages_[i];
        if (message.role == "user") {
            const bool last = shape_.system_place == ChatShape::SystemPlace::LastUser;
            // If the system message belongs to the last user message, but an answer follows, real
            // templates drop it; so does this.
            add_user_turn(message.content, system_ && (!last || i + 1 == messages_.size()));
            return;
        }
        std::string_view content = message.content;
        const bool is_answer = message.role == "assistant";
        if (is_answer && shape_.drops_reasoning && last_user_ != kNone && i < last_user_)
            content = without_reasoning(content);
        const ChatShape::Turn &turn = is_answer                  ? shape_.assistant
                                      : message.role == "system" ? shape_.system
                                                                 : shape_.other;
        output_.add_template(turn.before, message.role);
        output_.add_content(is_answer && shape_.trim == ChatShape::Trim::Answers ? trim(content)
                                                                                 : trimmed(content));
        output_.add_template(turn.after, message.role);
    }

    void add_user_turn(std::string_view content, bool with_system) {
        output_.add_template(shape_.user.before, "user");
        if (with_system) {
            output_.add_template(shape_.merged_system.before);
            output_.add_content(*system_);
            output_.add_template(shape_.merged_system.after);
            system_.reset();
        }
        const bool inside = with_system && shape_.trim == ChatShape::Trim::Turn;
        output_.add_content(inside ? trim_right(content) : trimmed(content));
        output_.add_template(shape_.user.after, "user");
    }

    std::string_view trimmed(std::string_view content) const {
        const bool all = shape_.trim == ChatShape::Trim::Content || shape_.trim == ChatShape::Trim::Turn;
        return all ? trim(content) : content;
    }

    static std::string_view without_reasoning(std::string_view content) {
        constexpr std::string_view end = "</think>";
        const size_t at = content.rfind(end);
        return at == content.npos ? content : trim_left(content.substr(at + end.size()), "\n");
    }

    const ChatShape &shape_;
    std::span<const Message> messages_;
    Output output_;
    std::optional<std::string> system_;  // not yet rendered
    size_t last_user_ = kNone;
};

}  // namespace

TemplateTokens TemplateTokens::of(const Tokenizer &tokenizer) {
    const auto text = [&](std::optional<TokenId> id) { return std::string(id ? tokenizer.piece(*id) : ""); };
    return {text(tokenizer.bos()), text(tokenizer.eos())};
}

std::vector<Segment> render_segments(const ChatShape &shape, std::span<const Message> messages,
                                     const TemplateTokens &tokens, bool add_generation_prompt) {
    return Renderer(shape, messages, tokens).run(add_generation_prompt);
}

std::string render(const ChatShape &shape, std::span<const Message> messages, const TemplateTokens &tokens,
                   bool add_generation_prompt) {
    std::string text;
    for (const Segment &segment : render_segments(shape, messages, tokens, add_generation_prompt))
        text += segment.text;
    return text;
}

}  // namespace runnel::text
