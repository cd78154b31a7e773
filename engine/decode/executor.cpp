#include "engine/decode/executor.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <variant>

#include "engine/decode/error.h"

namespace runnel::decode {
namespace {

using kernels::kBlockTokens;

constexpr int64_t kLargestContext =
    std::numeric_limits<int32_t>::max() / 2;       // cells and blocks count in int32
constexpr int64_t kLeastContext = 256;             // below that "reduced to what fits" helps nobody
constexpr size_t kWorkMemory = size_t{256} << 20;  // left for activations, logits, and everything else

int32_t groups_of(const kernels::Program &program) {
    int32_t groups = 0;
    for (const kernels::CacheLayer &layer : program.cache_layers) groups = std::max(groups, layer.group + 1);
    return groups;
}

int32_t blocks_for(int64_t cells) {
    return static_cast<int32_t>((cells + kBlockTokens - 1) / kBlockTokens);
}

int32_t embedding_rows(const kernels::Program &program) {
    for (const kernels::Step &step : program.steps)
        if (const auto *embed = std::get_if<kernels::Embed>(&step))
            return static_cast<int32_t>(program.weights[static_cast<size_t>(embed->table)].rows);
    return static_cast<int32_t>(program.vocab);
}

std::string megabytes(size_t bytes) {
    return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB";
}

}  // namespace

size_t cache_bytes(const kernels::Program &program, int64_t cells) {
    size_t block = 0;
    for (int32_t group = 0; group < groups_of(program); ++group)
        block += kernels::cache_block_bytes(program, group);
    return block * static_cast<size_t>(blocks_for(cells));
}

size_t weight_bytes(const kernels::Program &program) {
    size_t bytes = 0;
    for (const kernels::Weight &weight : program.weights) bytes += weight.bytes();
    return bytes;
}

ContextPlan plan_context(const kernels::Program &program, const kernels::DeviceInfo &device, int64_t asked,
                         int64_t own) {
    const auto fail = [&](const std::string &what) {
        throw DecodeError(DecodeError::Kind::OutOfMemory, what);
    };
    const size_t free = device.memory_free;
    if (asked > 0) {
        if (asked > kLargestContext)
            fail("a context of " + std::to_string(asked) + " tokens is more than can be numbered: choose " +
                 std::to_string(kLargestContext) + " or less with -c");
        const size_t bytes = cache_bytes(program, asked);
        if (bytes > free)
            fail("a context of " + std::to_string(asked) + " tokens needs " + megabytes(bytes) +
                 " of cache, but only " + megabytes(free) +
                 " of memory are free: choose a smaller one with -c");
        return {static_cast<int32_t>(asked), false, bytes};
    }
    // Weights are read from the page cache: memory that is only useful if they stay there.
    const size_t taken = weight_bytes(program) + kWorkMemory;
    const size_t budget = std::max(free > taken ? free - taken : 0, free / 8);
    const size_t block = cache_bytes(program, kBlockTokens);
    const int64_t blocks = block == 0 ? kLargestContext / kBlockTokens : static_cast<int64_t>(budget / block);
    const int64_t wanted = std::clamp<int64_t>(own, 1, kLargestContext);
    const int64_t fitting = std::min(wanted, std::min(blocks, kLargestContext / kBlockTokens) * kBlockTokens);
    if (fitting < std::min(wanted, kLeastContext))
        fail("not enough memory for a context: " + std::to_string(kLeastContext) + " tokens need " +
             megabytes(cache_bytes(program, kLeastContext)) + " of cache beside " +
             megabytes(weight_bytes(program)) + " of weights, but only " + megabytes(free) +
             " of memory are free");
    return {static_cast<int32_t>(fitting), fitting < wanted, cache_bytes(program, fitting)};
}

void SequenceCache::truncate(int32_t length) {
    assert(length >= 0 && length <= this->length());
    for (cache::Sequence &group : groups_) group.truncate(length);
    length_ = length;
}

bool SequenceCache::append(int32_t count) {
    const int32_t before = length();
    for (size_t i = 0; i < groups_.size(); ++i)
        if (!groups_[i].append(count)) {
            for (size_t done = 0; done < i; ++done) groups_[done].truncate(before);
            return false;
        }
    length_ = before + count;
    return true;
}

Executor::Executor(std::unique_ptr<kernels::Backend> backend, const kernels::Program &program,
                   const ExecutorOptions &options)
    : backend_(std::move(backend)),
      options_(options),
      vocab_(static_cast<int32_t>(program.vocab)),
      token_ids_(embedding_rows(program)) {
    assert(options.context > 0 && options.batch > 0 && options.sequences > 0);
    if (options_.cells == 0)  // whole blocks for each
        options_.cells = int64_t{blocks_for(options.context)} * kBlockTokens * options.sequences;
    options_.cells = std::clamp<int64_t>(options_.cells, options.context, kLargestContext);
    options_.batch =
        static_cast<int32_t>(std::min<int64_t>(options.batch, int64_t{options.context} * options.sequences));
    kernels::CacheConfig config;
    for (int32_t group = 0; group < groups_of(program); ++group) {
        config.blocks.push_back(blocks_for(options_.cells));
        pools_.push_back(std::make_unique<cache::BlockPool>(config.blocks.back()));
    }
    backend_->load(program, config, options_.batch);
}

SequenceCache Executor::new_sequence() {
    SequenceCache sequence;
    for (const auto &pool : pools_) sequence.groups_.emplace_back(*pool);
    return sequence;
}

FreeBlocks Executor::free_blocks() const {
    FreeBlocks free;
    for (const auto &pool : pools_) free.push_back(pool->free_blocks());
    return free;
}

bool Executor::claim(FreeBlocks &free, const SequenceCache &cache, int64_t length) const {
    const int32_t blocks = blocks_for(std::min<int64_t>(length, options_.context));
    for (size_t i = 0; i < free.size(); ++i) {
        free[i] -= std::max(0, blocks - static_cast<int32_t>(cache.groups_[i].table().size()));
        if (free[i] < 0) return false;
    }
    return true;
}

bool Executor::add(const StepInput &input) {
    SequenceCache &cache = *input.cache;
    const int32_t count = static_cast<int32_t>(input.tokens.size()), past = cache.length();
    const int32_t first = step_tokens();
    assert(count > 0 && input.logit_rows <= count && past + count <= options_.context);
    assert(first + count <= options_.batch);
    for (const TokenId id : input.tokens)
        if (id < 0 || id >= token_ids_)
            throw DecodeError(DecodeError::Kind::BadInput, "token " + std::to_string(id) +
                                                               " is not in the model's vocabulary of " +
                                                               std::to_string(token_ids_));
    if (!cache.append(count)) return false;
    grown_.push_back({&cache, past});
    kernels::SequenceSpan span{first, count, past, {}};
    for (const cache::Sequence &group : cache.groups_) span.tables.push_back(group.table());
    spans_.push_back(std::move(span));
    tokens_.insert(tokens_.end(), input.tokens.begin(), input.tokens.end());
    for (int32_t i = 0; i < count; ++i) positions_.push_back(past + i);
    for (int32_t i = count - input.logit_rows; i < count; ++i) rows_.push_back(first + i);
    return true;
}

void Executor::begin_step() {
    tokens_.clear();
    positions_.clear();
    rows_.clear();
    spans_.clear();
    grown_.clear();
}

void Executor::discard() {
    for (const Grown &grown : grown_) grown.cache->truncate(grown.before);
    begin_step();
}

bool Executor::run(std::vector<float> &logits, const std::atomic<bool> *cancel) {
    assert(!tokens_.empty());
    logits.resize(rows_.size() * static_cast<size_t>(vocab_));
    bool finished = false;
    try {
        finished = backend_->execute({tokens_, positions_, spans_, rows_, cancel}, logits);
    } catch (...) {
        discard();
        throw;
    }
    finished ? begin_step() : discard();
    return finished;
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
