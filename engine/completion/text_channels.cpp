#include "engine/completion/text_channels.h"

namespace runnel::completion {

void TextChannels::push(Done &of, TokenId token, const std::string &text, bool over,
                        std::vector<Event> &events) {
    const auto report = [&](Channel channel, std::string part) {
        if (calls_ && channel == Channel::Answer) part = calls_->push(part);
        if (token == text::kNoToken && part.empty()) return;
        events.push_back(Piece{of.id, of.sample, channel, part, std::exchange(token, text::kNoToken)});
    };
    if (!splitter_) return report(Channel::Answer, text);
    const auto report_all = [&](const std::vector<text::ReasoningSplitter::Piece> &pieces) {
        for (const auto &[is_reasoning, part] : pieces)
            report(is_reasoning ? Channel::Reasoning : Channel::Answer, part);
    };
    report_all(splitter_->push(text));
    if (over) report_all(splitter_->flush());
    report(Channel::Answer, "");
    if (!over || !calls_) return;
    text::ParsedAnswer rest = calls_->flush();
    of.calls = std::move(rest.calls);
    of.note = std::move(rest.note);
    if (!rest.content.empty())
        events.push_back(Piece{of.id, of.sample, Channel::Answer, rest.content, text::kNoToken});
}

}  // namespace runnel::completion
