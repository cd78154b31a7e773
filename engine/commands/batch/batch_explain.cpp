#include "engine/commands/batch/batch_explain.h"

#include <algorithm>

#include "engine/commands/figures.h"
#include "engine/commands/io.h"
#include "engine/commands/plot/plot.h"

namespace runnel::commands {
namespace {

using measure::Allocation, measure::BlockUse, measure::CacheWatch, measure::PagingReplay;

constexpr struct {
    Allocation how;
    const char *key, *name;
} kAllocations[] = {{Allocation::Context, "context", "contexts reserved"},
                    {Allocation::Limit, "limit", "limits reserved"},
                    {Allocation::Pages, "pages", "pages, nothing shared"}};

const cache::PagedCache &cache_of(decode::Engine &engine) {
    const cache::PagedCache &cache = engine.executor().cache();
    if (cache.groups() == 0) throw UsageError("--explain: the model has no KV cache");
    return cache;
}

double per_look(const CacheWatch &watch, int64_t sum) {
    return watch.looks > 0 ? static_cast<double>(sum) / static_cast<double>(watch.looks) : 0;
}

}  // namespace

BatchExplain::BatchExplain(decode::Engine &engine, int32_t parallel)
    : engine_(engine),
      memory_{engine.executor().cells(), engine.executor().context(), parallel, cache::kBlockTokens},
      watch_(cache_of(engine)) {}

void BatchExplain::add(const completion::Usage &usage, int64_t max_tokens) {
    const auto prompt = static_cast<int64_t>(usage.prompt_tokens);
    const int64_t answer = std::min(static_cast<int64_t>(usage.completion_tokens), memory_.context - prompt);
    const int64_t limit = max_tokens < 0 ? memory_.context : std::min(memory_.context, prompt + max_tokens);
    requests_.push_back({prompt, std::max<int64_t>(answer, 0), std::max(limit, prompt + answer)});
}

std::string BatchExplain::text(const completion::CompletionQueue &queue) const {
    std::string text = format(
        "\n%zu requests, %d at a time, in a KV cache of %lld cells; contexts of %lld\n\n", requests_.size(),
        memory_.parallel, static_cast<long long>(memory_.cells), static_cast<long long>(memory_.context));
    text += "                               at a time   cells held   of the memory, mean\n";
    text += "replayed with           steps  mean  most  at most     used  unfilled  unusable\n";
    for (const auto &one : kAllocations) {
        const PagingReplay r = measure::replay(requests_, memory_, one.how);
        text += format("%-22s%7lld%6.1f%6d%9lld%8.1f%%%9.1f%%%9.1f%%\n", one.name,
                       static_cast<long long>(r.steps), r.mean_running(), r.most_running,
                       static_cast<long long>(r.most_held), 100 * r.share(r.used),
                       100 * r.share(r.internal_waste), 100 * r.share(r.external_waste));
        if (r.too_large > 0)
            text +=
                format("  (%lld requests do not fit into the memory)\n", static_cast<long long>(r.too_large));
    }
    text += "unfilled: reserved, or in a page, without a token\n";
    text += "unusable: free, while the next request waits because it does not fit\n\n";

    const cache::CacheStatistics &cache = engine_.executor().cache().statistics();
    text +=
        format("this run: at most %d of %d pages held (%lld cells), %.1f%% of their cells unfilled\n",
               watch_.most_held, watch_.blocks(),
               static_cast<long long>(watch_.most_held) * cache::kBlockTokens, 100 * watch_.unfilled_share());
    text += format("  shared by several sequences: %.1f of %.1f pages held, mean; %.1f pages saved\n",
                   per_look(watch_, watch_.shared_blocks), per_look(watch_, watch_.held_blocks),
                   per_look(watch_, watch_.saved_blocks));
    text += format("  tokens found in the cache: %lld; pages copied on write: %lld, evicted: %lld\n",
                   static_cast<long long>(cache.reused_tokens), static_cast<long long>(cache.copied_blocks),
                   static_cast<long long>(cache.evicted_blocks));
    text += format("  preemptions: %lld\n\n", static_cast<long long>(queue.schedule().preemptions));
    return text + "pages when most were held:\n" + block_map(watch_.fullest, plot_size().ascii);
}

Json BatchExplain::json(const completion::CompletionQueue &queue) const {
    Json replays = Json::array();
    for (const auto &one : kAllocations) {
        const PagingReplay r = measure::replay(requests_, memory_, one.how);
        replays.push_back({{"allocation", one.key},
                           {"steps", r.steps},
                           {"mean_running", r.mean_running()},
                           {"most_running", r.most_running},
                           {"most_held_cells", r.most_held},
                           {"used", r.share(r.used)},
                           {"internal_waste", r.share(r.internal_waste)},
                           {"external_waste", r.share(r.external_waste)},
                           {"preemptions", r.preemptions},
                           {"too_large", r.too_large}});
    }
    const cache::CacheStatistics &cache = engine_.executor().cache().statistics();
    return {{"requests", requests_.size()},
            {"cells", memory_.cells},
            {"context", memory_.context},
            {"parallel", memory_.parallel},
            {"page", memory_.page},
            {"replays", std::move(replays)},
            {"run",
             {{"pages", watch_.blocks()},
              {"most_held_pages", watch_.most_held},
              {"held_pages", per_look(watch_, watch_.held_blocks)},
              {"shared_pages", per_look(watch_, watch_.shared_blocks)},
              {"saved_pages", per_look(watch_, watch_.saved_blocks)},
              {"unfilled", watch_.unfilled_share()},
              {"reused_tokens", cache.reused_tokens},
              {"copied_pages", cache.copied_blocks},
              {"evicted_pages", cache.evicted_blocks},
              {"preemptions", queue.schedule().preemptions}}}};
}

std::string block_map(std::span<const BlockUse> pages, bool ascii) {
    constexpr size_t kColumns = 64, kMost = 16 * kColumns;
    constexpr const char *kAscii[] = {".", "o", "#", "S"},
                         *kBlocks[] = {"\u00b7", "\u2591", "\u2593", "\u2588"};
    const char *const *const marks = ascii ? kAscii : kBlocks;
    size_t used = pages.size();
    while (used > 0 && pages[used - 1] == BlockUse::Free) --used;
    const size_t each = std::max<size_t>(1, (used + kMost - 1) / kMost);
    std::string text;
    for (size_t at = 0, column = 0; at < used; at += each) {
        const auto part = pages.subspan(at, std::min(each, used - at));
        text += column == 0 ? "  " : "";
        text += marks[static_cast<size_t>(std::ranges::max(part))];
        column = (column + 1) % kColumns;
        if (column == 0) text += "\n";
    }
    if (!text.empty() && text.back() != '\n') text += "\n";
    if (each > 1) text += format("  one character for %zu pages: the one most in use\n", each);
    if (used < pages.size()) text += format("  and %zu free pages\n", pages.size() - used);
    return text + "  " + marks[0] + " free  " + marks[1] + " kept for later requests  " + marks[2] +
           " held  " + marks[3] + " shared by several\n";
}

}  // namespace runnel::commands
