#include "engine/commands/paging_report.h"

#include <algorithm>

#include "engine/commands/figures.h"

namespace runnel::commands {

using measure::Allocation, measure::PagingReplay;

AllocationNames names_of(Allocation how) {
    switch (how) {
        case Allocation::Context:
            return {"context", "contexts reserved"};
        case Allocation::Limit:
            return {"limit", "limits reserved"};
        case Allocation::Pages:
            return {"pages", "pages, nothing shared"};
        case Allocation::Shared:
            return {"shared", "pages, shared"};
    }
    return {};
}

std::string replay_header() {
    return "                               at a time   cells held   of the memory, mean\n"
           "replayed with           steps  mean  most  at most     used  unfilled  unusable\n";
}

std::string replay_row(Allocation how, const PagingReplay &r) {
    std::string text = format("%-22s%7lld%6.1f%6d%9lld%8.1f%%%9.1f%%%9.1f%%\n", names_of(how).shown,
                              static_cast<long long>(r.steps), r.mean_running(), r.most_running,
                              static_cast<long long>(r.most_held), 100 * r.share(r.used),
                              100 * r.share(r.internal_waste), 100 * r.share(r.external_waste));
    if (r.too_large > 0)
        text += format("  (%lld requests do not fit into the memory)\n", static_cast<long long>(r.too_large));
    return text;
}

std::string replay_legend() {
    return "unfilled: reserved, or in a page, without a token\n"
           "unusable: free, while the next request waits because it does not fit\n";
}

Json replay_json(Allocation how, const PagingReplay &r) {
    return {{"allocation", names_of(how).key},
            {"steps", r.steps},
            {"mean_running", r.mean_running()},
            {"most_running", r.most_running},
            {"most_held_cells", r.most_held},
            {"used", r.share(r.used)},
            {"internal_waste", r.share(r.internal_waste)},
            {"external_waste", r.share(r.external_waste)},
            {"preemptions", r.preemptions},
            {"too_large", r.too_large}};
}

std::string page_map(std::span<const uint8_t> pages, size_t all, const PageMarks &marks, bool ascii) {
    constexpr size_t kColumns = 64, kMost = 16 * kColumns;
    const auto &shown = ascii ? marks.ascii : marks.blocks;
    size_t used = pages.size();
    while (used > 0 && pages[used - 1] == 0) --used;
    const size_t each = std::max<size_t>(1, (used + kMost - 1) / kMost);
    std::string text;
    for (size_t at = 0, column = 0; at < used; at += each) {
        const auto part = pages.subspan(at, std::min(each, used - at));
        text += column == 0 ? "  " : "";
        text += shown[std::ranges::max(part)];
        column = (column + 1) % kColumns;
        if (column == 0) text += "\n";
    }
    if (!text.empty() && text.back() != '\n') text += "\n";
    if (each > 1) text += format("  one character for %zu pages: the one most in use\n", each);
    if (used < all) text += format("  and %zu free pages\n", all - used);
    text += " ";
    for (size_t i = 0; i < 4; ++i)
        text += std::string(" ") + shown[i] + " " + marks.meaning[i] + (i < 3 ? " " : "\n");
    return text;
}

}  // namespace runnel::commands
