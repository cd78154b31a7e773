#include "engine/completion/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace runnel::completion {

StopMatcher::StopMatcher(const std::vector<std::string> &stops) {
    for (const std::string &stop : stops) {
        if (stop.empty()) continue;
        Automaton a{stop, std::vector<size_t>(stop.size() + 1, 0), 0};
        for (size_t n = 1, border = 0; n < stop.size(); ++n) {
            while (border > 0 && stop[n] != stop[border]) border = a.failure[border];
            if (stop[n] == stop[border]) ++border;
            a.failure[n + 1] = border;
        }
        automata_.push_back(std::move(a));
    }
}

bool StopMatcher::Automaton::advance(char byte) {
    while (matched > 0 && text[matched] != byte) matched = failure[matched];
    if (text[matched] == byte) ++matched;
    return matched == text.size();
}

std::string StopMatcher::push(std::string_view bytes) {
    if (stopped_) return {};
    if (automata_.empty()) return std::string(bytes);
    for (const char byte : bytes) {
        pending_ += byte;
        size_t longest = 0;  // length of the longest stop string that ends here
        for (Automaton &a : automata_)
            if (a.advance(byte)) longest = std::max(longest, a.text.size());
        if (longest > 0) {
            stopped_ = true;
            pending_.resize(pending_.size() - longest);
            return std::exchange(pending_, {});
        }
    }
    size_t keep = 0;
    for (const Automaton &a : automata_) keep = std::max(keep, a.matched);
    std::string certain = pending_.substr(0, pending_.size() - keep);
    pending_.erase(0, certain.size());
    return certain;
}

std::string StopMatcher::flush() {
    return stopped_ ? std::string() : std::exchange(pending_, {});
}

}  // namespace runnel::completion
