// The history of a chat while a new line is edited: Up and Down, and the search of Ctrl-R.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace runnel::commands {

class History {
  public:
    // Keeps the newest `most` lines.
    explicit History(std::vector<std::string> lines = {}, size_t most = 2000);

    // Adds a line, unless it equals the newest, and moves to the new line after it.
    void add(const std::string &line);
    // Moves to the line before or after; nullopt at the end. `edited`: the text of the current line, kept in
    // its place until the next add().
    std::optional<std::string> older(std::string edited);
    std::optional<std::string> newer(std::string edited);
    // The index of the newest line that contains `part`, among the first `before` lines.
    std::optional<size_t> find(std::string_view part, size_t before) const;
    const std::string &line(size_t index) const { return lines_[index]; }
    size_t size() const { return lines_.size(); }

  private:
    std::optional<std::string> move_to(size_t index, std::string edited);

    std::vector<std::string> lines_;
    size_t most_;
    size_t at_;                                           // the current line; lines_.size(): the new one
    std::vector<std::pair<size_t, std::string>> edited_;  // by index
};

}  // namespace runnel::commands
