#include "engine/text/jinja/marked_text.h"

#include <algorithm>

namespace runnel::text::jinja {

void MarkedText::append(std::string_view bytes, Origin origin) {
    if (bytes.empty()) return;
    if (bytes_.empty()) {
        runs_.clear();
        origin_ = origin;
    }
    bytes_.append(bytes);
    if (runs_.empty()) {
        if (origin == origin_) return;
        runs_.push_back({bytes_.size() - bytes.size(), origin_});
        runs_.push_back({bytes_.size(), origin});
    } else if (runs_.back().origin == origin) {
        runs_.back().end = bytes_.size();
    } else {
        runs_.push_back({bytes_.size(), origin});
    }
}

size_t MarkedText::run_at(size_t byte) const {
    const auto run = std::upper_bound(runs_.begin(), runs_.end(), byte,
                                      [](size_t value, const Run &r) { return value < r.end; });
    return static_cast<size_t>(run - runs_.begin());
}

void MarkedText::append(const MarkedText &text, size_t begin, size_t length) {
    begin = std::min(begin, text.size());
    const size_t end = begin + std::min(length, text.size() - begin);
    if (text.runs_.empty()) {
        append(text.view().substr(begin, end - begin), text.origin_);
        return;
    }
    for (size_t run = text.run_at(begin); begin < end; ++run) {
        const size_t stop = std::min(end, text.runs_[run].end);
        append(text.view().substr(begin, stop - begin), text.runs_[run].origin);
        begin = stop;
    }
}

MarkedText MarkedText::substr(size_t begin, size_t length) const {
    MarkedText part;
    part.append(*this, begin, length);
    return part;
}

void MarkedText::truncate(size_t length) {
    if (length >= bytes_.size()) return;
    bytes_.resize(length);
    while (!runs_.empty() && runs_.size() > 1 && runs_[runs_.size() - 2].end >= length) runs_.pop_back();
    if (runs_.empty()) return;
    runs_.back().end = length;
    if (runs_.size() == 1) {
        origin_ = runs_[0].origin;
        runs_.clear();
    }
}

std::vector<Segment> MarkedText::segments() const {
    if (bytes_.empty()) return {};
    if (runs_.empty()) return {{bytes_, origin_ == Origin::Template}};
    std::vector<Segment> segments;
    size_t begin = 0;
    for (const Run &run : runs_) {
        segments.push_back({bytes_.substr(begin, run.end - begin), run.origin == Origin::Template});
        begin = run.end;
    }
    return segments;
}

}  // namespace runnel::text::jinja
