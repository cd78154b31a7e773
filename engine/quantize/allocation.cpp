#include "engine/quantize/allocation.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace runnel::quantize {
namespace {

using Options = std::vector<AllocationOption>;

// The options that no other one beats in both bytes and cost, by rising bytes and falling cost.
std::vector<size_t> pareto(const Options &options) {
    std::vector<size_t> order(options.size()), kept;
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return options[a].bytes != options[b].bytes ? options[a].bytes < options[b].bytes
                                                    : options[a].cost < options[b].cost;
    });
    for (const size_t i : order)
        if (kept.empty() || options[i].cost < options[kept.back()].cost) kept.push_back(i);
    return kept;
}

// Cost saved per byte from option a to the larger option b.
double steepness(const Options &options, size_t a, size_t b) {
    return (options[a].cost - options[b].cost) / static_cast<double>(options[b].bytes - options[a].bytes);
}

std::vector<size_t> hull(const Options &options, const std::vector<size_t> &front) {
    std::vector<size_t> kept;
    for (const size_t i : front) {
        while (kept.size() > 1 &&
               steepness(options, kept[kept.size() - 2], kept.back()) <= steepness(options, kept.back(), i))
            kept.pop_back();
        kept.push_back(i);
    }
    return kept;
}

class Allocation {
  public:
    Allocation(std::span<const Options> items, uint64_t budget) : items_(items), left_(budget) {
        for (const Options &options : items) fronts_.push_back(pareto(options));
    }

    bool choose_smallest() {
        for (size_t i = 0; i < items_.size(); ++i) {
            chosen_.push_back(fronts_[i].front());
            const uint64_t bytes = current(i).bytes;
            if (bytes > left_) return false;
            left_ -= bytes;
        }
        return true;
    }

    void climb_hulls() {
        struct Edge {
            size_t item, to;
            double steepness;
        };
        std::vector<Edge> edges;
        for (size_t i = 0; i < items_.size(); ++i) {
            const std::vector<size_t> corners = hull(items_[i], fronts_[i]);
            for (size_t k = 1; k < corners.size(); ++k)
                edges.push_back({i, corners[k], steepness(items_[i], corners[k - 1], corners[k])});
        }
        // Stable: the edges of an item stay in their order.
        std::stable_sort(edges.begin(), edges.end(),
                         [](const Edge &a, const Edge &b) { return a.steepness > b.steepness; });
        std::vector<bool> ended(items_.size());
        for (const Edge &edge : edges) {
            if (ended[edge.item]) continue;
            if (fits(edge.item, edge.to))
                change(edge.item, edge.to);
            else
                ended[edge.item] = true;
        }
    }

    // Makes the change, or pair of changes, that saves most; false if none saves anything.
    bool improve() {
        const std::vector<Release> releases = best_releases();
        double most = 0;
        size_t item = 0, to = 0;
        const Release *release = nullptr;
        for (size_t i = 0; i < items_.size(); ++i)
            for (const size_t option : fronts_[i]) {
                const double gain = current(i).cost - items_[i][option].cost;
                if (gain <= most) continue;
                if (fits(i, option)) {
                    most = gain, item = i, to = option, release = nullptr;
                    continue;
                }
                // The cheapest release of another item that sets enough bytes free.
                const uint64_t missing = items_[i][option].bytes - current(i).bytes - left_;
                auto first = std::partition_point(releases.begin(), releases.end(),
                                                  [&](const Release &r) { return r.bytes < missing; });
                if (first == releases.end()) continue;
                const Release *with = first->cheapest != i ? &releases[first->cheapest_at] : nullptr;
                if (!with && first->second_at != kNone) with = &releases[first->second_at];
                if (!with || gain - with->cost <= most) continue;
                most = gain - with->cost, item = i, to = option, release = with;
            }
        if (most <= 0) return false;
        if (release) change(release->item, release->to);
        change(item, to);
        return true;
    }

    std::vector<size_t> chosen() && { return std::move(chosen_); }

  private:
    static constexpr size_t kNone = std::numeric_limits<size_t>::max();
    // Changing an item to a smaller option.
    struct Release {
        uint64_t bytes;  // set free
        double cost;     // added
        size_t item, to;
        // Among the releases of at least `bytes`: the item and index of the cheapest, and the index of the cheapest
        // of any other item.
        size_t cheapest = kNone, cheapest_at = kNone, second_at = kNone;
    };

    const AllocationOption &current(size_t item) const { return items_[item][chosen_[item]]; }
    bool fits(size_t item, size_t to) const { return items_[item][to].bytes <= current(item).bytes + left_; }
    void change(size_t item, size_t to) {
        left_ = left_ + current(item).bytes - items_[item][to].bytes;
        chosen_[item] = to;
    }

    std::vector<Release> best_releases() const {
        std::vector<Release> releases;
        for (size_t i = 0; i < items_.size(); ++i)
            for (const size_t option : fronts_[i])
                if (items_[i][option].bytes < current(i).bytes)
                    releases.push_back({current(i).bytes - items_[i][option].bytes,
                                        items_[i][option].cost - current(i).cost, i, option});
        std::stable_sort(releases.begin(), releases.end(),
                         [](const Release &a, const Release &b) { return a.bytes < b.bytes; });
        size_t best = kNone, second = kNone;
        for (size_t k = releases.size(); k-- > 0;) {
            if (best == kNone || releases[k].cost < releases[best].cost) {
                if (best != kNone && releases[best].item != releases[k].item) second = best;
                best = k;
            } else if (releases[k].item != releases[best].item &&
                       (second == kNone || releases[k].cost < releases[second].cost)) {
                second = k;
            }
            releases[k].cheapest = releases[best].item;
            releases[k].cheapest_at = best;
            releases[k].second_at = second;
        }
        return releases;
    }

    std::span<const Options> items_;
    uint64_t left_;
    std::vector<std::vector<size_t>> fronts_;
    std::vector<size_t> chosen_;
};

}  // namespace

std::optional<std::vector<size_t>> allocate(std::span<const std::vector<AllocationOption>> items,
                                            uint64_t budget) {
    constexpr int kMostImprovements = 1000;
    Allocation allocation(items, budget);
    if (!allocation.choose_smallest()) return std::nullopt;
    allocation.climb_hulls();
    for (int i = 0; i < kMostImprovements && allocation.improve(); ++i) {
    }
    return std::move(allocation).chosen();
}

}  // namespace runnel::quantize
