#include "engine/commands/cli/nearest.h"

#include <algorithm>
#include <vector>

namespace runnel::commands {

size_t edit_distance(std::string_view a, std::string_view b) {
    // Three rows of the table: for the current prefix of `a`, and for the prefixes one and two letters shorter.
    std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        before.swap(last);
        last.swap(row);
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t changed = a[i - 1] == b[j - 1] ? 0 : 1;
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + changed});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before[j - 2] + 1);
        }
    }
    return row[b.size()];
}

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
    constexpr size_t kLongest = 256;  // longer words are not typing errors
    if (word.empty() || word.size() > kLongest) return std::nullopt;
    size_t least = (word.size() <= 3 ? 1 : word.size() <= 7 ? 2 : 3) + 1;
    std::optional<std::string> found;
    for (const std::string &candidate : candidates) {
        if (candidate.size() > kLongest) continue;
        const size_t distance = edit_distance(word, candidate);
        if (distance >= least || distance >= candidate.size()) continue;
        least = distance;
        found = candidate;
    }
    return found;
}

std::string suggestion(std::string_view word, std::span<const std::string> candidates) {
    const auto near = nearest(word, candidates);
    return near ? "; did you mean " + *near + "?" : "";
}

}  // namespace runnel::commands
