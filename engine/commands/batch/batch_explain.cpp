#include "engine/commands/batch/batch_explain.h"

#include <algorithm>

#include "engine/commands/figures.h"
#include "engine/commands/io.h"
#include "engine/commands/paging_report.h"
#include "engine/commands/plot/plot.h"

namespace runnel::commands {
namespace {

using measure::Allocation, measure::BlockUse, measure::CacheWatch;

constexpr Allocation kAllocations[] = {Allocation::Context, Allocation::Limit, Allocation::Pages};

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
    text += replay_header();
    for (const Allocation how : kAllocations)
        text += replay_row(how, measure::replay(requests_, memory_, how));
    text += replay_legend() + "\n";

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
    for (const Allocation how : kAllocations)
        replays.push_back(replay_json(how, measure::replay(requests_, memory_, how)));
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
    constexpr PageMarks kMarks = {{".", "o", "#", "S"},
                                  {"\u00b7", "\u2591", "\u2593", "\u2588"},
                                  {"free", "kept for later requests", "held", "shared by several"}};
    static_assert(static_cast<int>(BlockUse::Shared) == 3);
    std::vector<uint8_t> values;
    for (const BlockUse use : pages) values.push_back(static_cast<uint8_t>(use));
    return page_map(values, pages.size(), kMarks, ascii);
}

}  // namespace runnel::commands
