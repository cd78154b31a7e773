#include "engine/decode/executor.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <future>
#include <new>

#include "engine/decode/error.h"
#include "gguf/base/random_seed.h"

namespace runnel::decode {
namespace {

ExecutorOptions checked(ExecutorOptions options) {
    assert(options.context > 0 && options.batch > 0 && options.sequences > 0);
    const int64_t blocks = (int64_t{options.context} + cache::kBlockTokens - 1) / cache::kBlockTokens;
    const int64_t most = int64_t{options.context} * options.sequences;
    options.batch = static_cast<int32_t>(std::min<int64_t>(options.batch, most));
    if (options.cells == 0) options.cells = blocks * cache::kBlockTokens * options.sequences;
    options.cells = std::max<int64_t>(options.cells, options.context);
    return options;
}

CacheShape shape_of(const ExecutorOptions &options) {
    return {options.cells, options.sequences, options.batch, options.slack,
            options.types, options.kept,      options.ranks};
}

cache::StateLayout state_layout(const kernels::Program &program, const CacheShape &shape) {
    return {state_slots(program, shape), shape.sequences};
}

}  // namespace

Executor::Executor(std::unique_ptr<kernels::Backend> backend, const kernels::Program &program,
                   const ExecutorOptions &options)
    : backend_(std::move(backend)),
      options_(checked(options)),
      vocab_(static_cast<int32_t>(program.vocab)),
      token_ids_(static_cast<int32_t>(program.token_ids())),
      cache_(group_layouts(program, shape_of(options_)), options_.slack,
             {base::random_seed(), base::random_seed()}, state_layout(program, shape_of(options_))),
      state_bytes_(kernels::state_bytes(program)),
      copies_(cache_.groups()) {
    config_ = {.blocks = {}, .k = options.types.k, .v = options.types.v, .context = options_.context};
    for (size_t group = 0; group < cache_.groups(); ++group) {
        config_.blocks.push_back(cache_.pool(group).size());
        config_.shares.push_back(cache_.pool(group).shares());
    }
    if (cache_.states()) config_.states = cache_.states()->size();
    for (size_t group = 0; group < cache_.groups(); ++group)
        block_bytes_.push_back(kernels::cache_block_bytes(program, static_cast<int32_t>(group),
                                                          options.types.k, options.types.v));
    backend_->load(program, config_, options_.batch);
}

kernels::CacheConfig Executor::shared_cache() const {
    kernels::CacheConfig config = config_;
    config.states = 0;
    config.pools = backend_->cache_pools();
    return config;
}

void Executor::read_block(size_t group, cache::BlockId block, std::span<std::byte> bytes) {
    assert(bytes.size() == block_bytes_[group]);
    backend_->read_block(static_cast<int32_t>(group), block, bytes);
}

void Executor::read_state(kernels::StateId slot, std::span<std::byte> bytes) {
    assert(bytes.size() == state_bytes_);
    backend_->read_state(slot, bytes);
}

bool Executor::restore(std::span<const TokenId> tokens, const cache::HeldBlocks &held,
                       const SavedBlocks &saved) {
    auto sequence = cache_.allocate(tokens, held);
    if (!sequence) return false;
    std::vector<Place> places;
    const size_t blocks = held.empty() ? 0 : held.front().size();  // (a model may have recurrent layers only)
    for (size_t b = 0; b < blocks; ++b)
        for (size_t group = 0; group < held.size(); ++group)
            // (kNoBlock if no later token reads it.)
            if (const cache::BlockId block = sequence->table(group)[b];
                held[group][b] && block != cache::kNoBlock)
                places.push_back({group, b, block});
    const bool is_here =
        !places.empty() &&
        !backend_->block_memory(static_cast<int32_t>(places[0].group), places[0].block).empty();
    if (!(is_here ? fill_memory(places, saved) : fill_device(places, saved))) return false;
    if (sequence->state() != kernels::kNoState) {
        std::vector<std::byte> bytes(state_bytes_);
        if (!saved.read_state(bytes)) return false;
        backend_->write_state(sequence->state(), bytes);
    }
    cache_.publish(*sequence);
    return true;
}

// Two threads read straight into the cache: half of the time goes into the first touch of its pages.
bool Executor::fill_memory(std::span<const Place> places, const SavedBlocks &saved) {
    std::atomic<size_t> next{0};
    std::atomic<bool> failed{false};
    const auto fill = [&] {
        try {
            while (!failed) {
                const size_t i = next++;
                if (i >= places.size()) return;
                const Place &place = places[i];
                const auto memory = backend_->block_memory(static_cast<int32_t>(place.group), place.block);
                if (!saved.read_block(place.group, place.index, memory)) failed = true;
            }
        } catch (const std::bad_alloc &) {
            failed = true;
        }
    };
    // (Where no thread can be started, get() does the work.)
    std::future<void> other = std::async(std::launch::async | std::launch::deferred, fill);
    fill();
    other.get();
    return !failed;
}

bool Executor::fill_device(std::span<const Place> places, const SavedBlocks &saved) {
    std::vector<std::byte> bytes;
    for (const Place &place : places) {
        bytes.resize(block_bytes_[place.group]);
        if (!saved.read_block(place.group, place.index, bytes)) return false;
        backend_->write_block(static_cast<int32_t>(place.group), place.block, bytes);
    }
    return true;
}

FreeBlocks Executor::free_blocks() const {
    FreeBlocks free;
    for (size_t group = 0; group < cache_.groups(); ++group)
        free.push_back(cache_.pool(group).free_blocks() + cache_.pool(group).idle_blocks());
    if (const cache::BlockPool *states = cache_.states())
        free.push_back(states->free_blocks() + states->idle_blocks());
    return free;
}

bool Executor::claim(FreeBlocks &free, const SequenceCache &cache, int64_t length) const {
    const int32_t to = static_cast<int32_t>(std::min<int64_t>(length, options_.context));
    for (size_t group = 0; group < cache_.groups(); ++group) {
        free[group] -= cache.blocks_to_hold(group, to, options_.batch);
        if (free[group] < 0) return false;
    }
    if (!cache_.states()) return true;
    free.back() -= cache.states_to_hold();
    return free.back() >= 0;
}

// Copies right away, so that a later failure cannot leave a block unfilled.
void Executor::copy_blocks() {
    for (size_t group = 0; group < copies_.size(); ++group) {
        if (!copies_[group].empty()) backend_->copy_blocks(static_cast<int32_t>(group), copies_[group]);
        copies_[group].clear();
    }
}

bool Executor::add(const StepInput &input) {
    SequenceCache &cache = *input.cache;
    const int32_t before = cache.length(), past = before + input.shared;
    const std::span<const TokenId> own = input.tokens.subspan(static_cast<size_t>(input.shared));
    const int32_t count = static_cast<int32_t>(own.size()), first = step_tokens();
    assert(count > 0 && input.logit_rows <= count && past + count <= options_.context);
    assert(first + count <= options_.batch);
    for (const TokenId id : input.tokens)
        if (id < 0 || id >= token_ids_)
            throw DecodeError(DecodeError::Kind::BadInput, "token " + std::to_string(id) +
                                                               " is not in the model's vocabulary of " +
                                                               std::to_string(token_ids_));
    // Recurrent layers: the state that a draft branch would begin with is not kept.
    if (input.shared > 0 && cache_.states()) return false;
    const int32_t settled = input.shared > 0 ? before : past + count - std::max(0, input.logit_rows - 1);
    cache::StateStep states;
    if (!cache_.grow(cache, input.tokens, copies_, past + count - settled, &states)) return false;
    copy_blocks();
    grown_.push_back({&cache, before, settled});
    kernels::SequenceSpan span{first, count, past, {}, input.shared, input.shared_from};
    for (size_t group = 0; group < cache_.groups(); ++group) span.tables.push_back(cache.table(group));
    span.state = states.read;
    span.state_writes = std::move(states.writes);
    spans_.push_back(std::move(span));
    tokens_.insert(tokens_.end(), own.begin(), own.end());
    for (int32_t i = 0; i < count; ++i) positions_.push_back(past + i);
    if (input.logit_rows > 0) {
        const bool enough = input.candidates > 0 && (rows_.empty() || candidates_ > 0);
        candidates_ = enough ? std::max(candidates_, input.candidates) : 0;
    }
    for (int32_t i = count - input.logit_rows; i < count; ++i) rows_.push_back(first + i);
    return true;
}

void Executor::begin_step() {
    tokens_.clear();
    positions_.clear();
    rows_.clear();
    spans_.clear();
    grown_.clear();
    candidates_ = 0;
}

void Executor::discard() {
    for (const Grown &grown : grown_) grown.cache->truncate(grown.before);
    begin_step();
}

bool Executor::run(std::vector<float> &logits, const std::atomic<bool> *cancel) {
    return execute(cancel, {}, [&](const kernels::Batch &batch) {
        logits.resize(rows_.size() * static_cast<size_t>(vocab_));
        return backend_->execute(batch, logits);
    });
}

bool Executor::run(StepOutput &output, const std::atomic<bool> *cancel,
                   std::span<const kernels::TokenMask> masks) {
    assert(masks.empty() || masks.size() == rows_.size());
    const int32_t count = std::min({candidates_, most_candidates(), vocab_});
    const size_t rows = rows_.size();
    output.candidates.resize(rows * static_cast<size_t>(count));
    sums_.resize(count > 1 ? rows : 0);
    output.sums.clear();
    output.masked.clear();
    if (count == 0) return run(output.logits, cancel);
    for (const kernels::TokenMask mask : masks) output.masked.push_back(!mask.empty());
    const bool done = execute(cancel, masks, [&](const kernels::Batch &batch) {
        return backend_->execute(batch, count, output.candidates, sums_);
    });
    for (size_t row = 0; done && row < sums_.size(); ++row)
        output.sums.push_back(
            sums_[row].relative_to(output.candidates[row * static_cast<size_t>(count)].logit));
    return done;
}

// on_device(batch) returns false when it was cancelled.
template <class Execute>
bool Executor::execute(const std::atomic<bool> *cancel, std::span<const kernels::TokenMask> masks,
                       Execute &&on_device) {
    assert(!tokens_.empty());
    bool finished = false;
    try {
        finished = on_device(kernels::Batch{tokens_, positions_, spans_, rows_, cancel, 0, masks});
    } catch (...) {
        discard();
        throw;
    }
    if (!finished) {
        discard();
        return false;
    }
    for (const Grown &grown : grown_) cache_.publish(*grown.cache, grown.settled);
    begin_step();
    return true;
}

bool Executor::step(std::span<const StepInput> inputs, std::vector<float> &logits,
                    const std::atomic<bool> *cancel) {
    try {
        for (const StepInput &input : inputs)
            if (!add(input))
                throw DecodeError(DecodeError::Kind::OutOfMemory,
                                  "the cache is full: choose a larger context with -c");
    } catch (...) {
        discard();
        throw;
    }
    return run(logits, cancel);
}

}  // namespace runnel::decode
