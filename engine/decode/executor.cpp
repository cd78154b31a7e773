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

Executor::Executor(std::unique_ptr<kernels::Backend> backend, const kernels::Program &program,
                   const ExecutorOptions &options)
    : backend_(std::move(backend)),
      options_(options),
      vocab_(static_cast<int32_t>(program.vocab)),
      token_ids_(embedding_rows(program)) {
    assert(options.context > 0 && options.batch > 0 && options.sequences > 0);
    options_.batch =
        static_cast<int32_t>(std::min<int64_t>(options.batch, int64_t{options.context} * options.sequences));
    kernels::CacheConfig config;
    for (int32_t group = 0; group < groups_of(program); ++group) {
        config.blocks.push_back(blocks_for(options.context) * options.sequences);
        pools_.push_back(std::make_unique<cache::BlockPool>(config.blocks.back()));
    }
    backend_->load(program, config, options_.batch);
}

SequenceCache Executor::new_sequence() {
    SequenceCache sequence;
    for (const auto &pool : pools_) sequence.groups_.emplace_back(*pool);
    return sequence;
}

bool Executor::step(std::span<const StepInput> inputs, std::vector<float> &logits,
                    const std::atomic<bool> *cancel) {
    std::vector<int32_t> before;
    size_t rows = 0;
    for (const StepInput &input : inputs) {
        before.push_back(input.cache->length());
        rows += static_cast<size_t>(input.logit_rows);
        for (const TokenId id : input.tokens)
            if (id < 0 || id >= token_ids_)
                throw DecodeError(DecodeError::Kind::BadInput, "token " + std::to_string(id) +
                                                                   " is not in the model's vocabulary of " +
                                                                   std::to_string(token_ids_));
    }
    logits.resize(rows * static_cast<size_t>(vocab_));
    const auto undo = [&] {
        for (size_t i = 0; i < inputs.size(); ++i)
            inputs[i].cache->truncate(std::min(before[i], inputs[i].cache->length()));
    };
    try {
        if (execute(inputs, logits, cancel)) return true;
    } catch (...) {
        undo();
        throw;
    }
    undo();
    return false;
}

bool Executor::execute(std::span<const StepInput> inputs, std::span<float> logits,
                       const std::atomic<bool> *cancel) {
    tokens_.clear();
    positions_.clear();
    rows_.clear();
    spans_.clear();
    for (const StepInput &input : inputs) {
        SequenceCache &cache = *input.cache;
        const int32_t count = static_cast<int32_t>(input.tokens.size()), past = cache.length();
        assert(count > 0 && input.logit_rows <= count && past + count <= options_.context);
        kernels::SequenceSpan span{static_cast<int32_t>(tokens_.size()), count, past, {}};
        // All groups grow, or step() undoes those that did.
        for (cache::Sequence &group : cache.groups_)
            if (!group.append(count))
                throw DecodeError(DecodeError::Kind::OutOfMemory,
                                  "the cache is full: choose a larger context with -c");
        cache.length_ = past + count;
        for (const cache::Sequence &group : cache.groups_) span.tables.push_back(group.table());
        for (int32_t i = 0; i < count; ++i) {
            if (i >= count - input.logit_rows) rows_.push_back(static_cast<int32_t>(tokens_.size()));
            tokens_.push_back(input.tokens[static_cast<size_t>(i)]);
            positions_.push_back(past + i);
        }
        spans_.push_back(std::move(span));
    }
    assert(!tokens_.empty() && static_cast<int32_t>(tokens_.size()) <= options_.batch);
    return backend_->execute({tokens_, positions_, spans_, rows_, cancel}, logits);
}

}  // namespace runnel::decode
