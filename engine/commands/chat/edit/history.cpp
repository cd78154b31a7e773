#include "engine/commands/chat/edit/history.h"

#include <algorithm>

namespace runnel::commands {

History::History(std::vector<std::string> lines, size_t most) : lines_(std::move(lines)), most_(most) {
    if (lines_.size() > most_)
        lines_.erase(lines_.begin(), lines_.end() - static_cast<std::ptrdiff_t>(most_));
    at_ = lines_.size();
}

void History::add(const std::string &line) {
    if (lines_.empty() || lines_.back() != line) lines_.push_back(line);
    if (lines_.size() > most_) lines_.erase(lines_.begin());
    at_ = lines_.size();
    edited_.clear();
}

std::optional<std::string> History::move_to(size_t index, std::string edited) {
    std::erase_if(edited_, [&](const auto &e) { return e.first == at_; });
    edited_.emplace_back(at_, std::move(edited));
    at_ = index;
    for (const auto &[i, text] : edited_)
        if (i == index) return text;
    return index < lines_.size() ? lines_[index] : std::string();
}

std::optional<std::string> History::older(std::string edited) {
    if (at_ == 0) return std::nullopt;
    return move_to(at_ - 1, std::move(edited));
}

std::optional<std::string> History::newer(std::string edited) {
    if (at_ >= lines_.size()) return std::nullopt;
    return move_to(at_ + 1, std::move(edited));
}

std::optional<size_t> History::find(std::string_view part, size_t before) const {
    for (size_t i = std::min(before, lines_.size()); i-- > 0;)
        if (lines_[i].find(part) != std::string::npos) return i;
    return std::nullopt;
}

}  // namespace runnel::commands
