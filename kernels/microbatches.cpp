#include "kernels/microbatches.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace runnel::kernels {

namespace {

bool has_state(const SequenceSpan &span) {
    return span.state != kNoState || !span.state_writes.empty();
}

// Where the batch can be cut, ascending, from its beginning to its end; empty: anywhere.
std::vector<int32_t> places_to_cut(const Batch &batch) {
    if (std::ranges::none_of(batch.sequences, has_state)) return {};
    std::vector<int32_t> places;
    for (const SequenceSpan &span : batch.sequences) {
        places.push_back(span.first);
        for (const StateWrite &write : span.state_writes) places.push_back(span.first + write.tokens);
    }
    return places;
}

int32_t nearest(std::span<const int32_t> places, int32_t to) {
    if (places.empty()) return to;
    return *std::ranges::min_element(places, {}, [&](int32_t place) { return std::abs(place - to); });
}

}  // namespace

Microbatches::Microbatches(const Batch &batch, int32_t least) {
    const std::vector<int32_t> all = ends(batch, least);
    parts_.reserve(all.size());
    int32_t begin = 0;
    for (const int32_t end : all) parts_.push_back(part(batch, std::exchange(begin, end), end));
    for (Part &one : parts_) one.batch.sequences = one.sequences, one.batch.logit_rows = one.logit_rows;
}

std::vector<int32_t> Microbatches::ends(const Batch &batch, int32_t least) {
    const auto tokens = static_cast<int32_t>(batch.tokens.size());
    const auto whole = [](const SequenceSpan &span) { return span.shared > 0 || span.both_ways; };
    std::vector<int32_t> ends;
    if (std::ranges::none_of(batch.sequences, whole)) {
        const std::vector<int32_t> places = places_to_cut(batch);
        const int32_t count = tokens / least;
        for (int32_t i = 1; i < count; ++i) {
            const int32_t end = nearest(places, static_cast<int32_t>(int64_t{tokens} * i / count));
            if (end - (ends.empty() ? 0 : ends.back()) >= least && tokens - end >= least) ends.push_back(end);
        }
    }
    ends.push_back(tokens);
    return ends;
}

Microbatches::Part Microbatches::part(const Batch &batch, int32_t begin, int32_t end) const {
    const auto within = [&](auto all) {
        return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    };
    Part made{batch, 0, {}, {}};
    made.batch.tokens = within(batch.tokens);
    made.batch.positions = within(batch.positions);
    for (const SequenceSpan &span : batch.sequences) {
        const int32_t first = std::max(span.first, begin), last = std::min(span.first + span.count, end);
        if (first >= last) continue;
        SequenceSpan own = span;
        const int32_t before = first - span.first;
        own.first = first - begin, own.count = last - first, own.past = span.past + before;
        own.state_writes.clear();
        for (const auto &[written, slot] : span.state_writes) {
            if (written == before) own.state = slot;
            if (written > before && written <= before + own.count)
                own.state_writes.push_back({written - before, slot});
        }
        made.sequences.push_back(std::move(own));
    }
    for (const int32_t row : batch.logit_rows) {
        if (row < begin) ++made.rows_before;
        if (row >= begin && row < end) made.logit_rows.push_back(row - begin);
    }
    if (!batch.masks.empty())
        made.batch.masks = batch.masks.subspan(made.rows_before, made.logit_rows.size());
    return made;
}

}  // namespace runnel::kernels
