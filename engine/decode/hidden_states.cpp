#include "engine/decode/hidden_states.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>
#include <variant>

#include "gguf/half.h"
#include "kernels/forwarding_backend.h"
#include "kernels/program.h"
#include "kernels/steps.h"

namespace runnel::decode {
namespace {

using kernels::BlockId, kernels::kBlockTokens;

size_t block_of(std::span<const BlockId> table, int32_t cell) {
    return static_cast<size_t>(table[static_cast<size_t>(cell / kBlockTokens)]);
}

uint32_t bit_of(int32_t cell) {
    return uint32_t{1} << (cell % kBlockTokens);
}

// At least the blocks of the model's group without a window: devices that divide it have whole ranges each.
int64_t blocks_of_whole_group(const CacheShape &shape) {
    const int64_t ranges = shape.ranks > 1 ? int64_t{shape.ranks} * cache::kRangeBlocks : 1;
    return (blocks_for(shape.cells) + ranges - 1) / ranges * ranges;
}

}  // namespace

void HiddenStates::resize(size_t blocks, int64_t width, size_t group) {
    blocks_.assign(blocks, {});
    width_ = width;
    group_ = group;
}

void HiddenStates::put(std::span<const BlockId> table, int32_t cell, std::span<const float> state) {
    Block &block = blocks_[block_of(table, cell)];
    const auto width = static_cast<size_t>(width_);
    if (block.states.empty()) block.states.resize(kBlockTokens * width);
    const auto to = block.states.begin() + (cell % kBlockTokens) * width_;
    std::transform(state.begin(), state.begin() + width_, to, gguf::f32_to_f16);
    block.known |= bit_of(cell);
    uint32_t changed = bit_of(cell);
    if (pairs_ == Pairs::WithNext && cell % kBlockTokens != 0) changed |= bit_of(cell - 1);
    for (uint32_t &marked : block.marked) marked &= ~changed;
}

void HiddenStates::get(std::span<const BlockId> table, int32_t cell, std::span<float> state) const {
    const Block *block = cell < 0 ? nullptr : &blocks_[block_of(table, cell)];
    if (!block || (block->known & bit_of(cell)) == 0) {
        std::ranges::fill(state, 0.0f);
        return;
    }
    const auto from = block->states.begin() + (cell % kBlockTokens) * width_;
    std::transform(from, from + width_, state.begin(), gguf::f16_to_f32);
}

void HiddenStates::copy(BlockId from, BlockId to) {
    Block &block = blocks_[static_cast<size_t>(to)];
    block = blocks_[static_cast<size_t>(from)];
    block.marked = {};
}

void HiddenStates::forget(BlockId block) {
    blocks_[static_cast<size_t>(block)] = {};
}

// The last cell of a block depends on the first token of the next one, which differs between sequences that share the
// block.
bool HiddenStates::ends_block_for_other(const Block &block, int32_t cell,
                                        std::span<const int32_t> tokens) const {
    return pairs_ == Pairs::WithNext && cell % kBlockTokens == kBlockTokens - 1 &&
           block.next != tokens[static_cast<size_t>(cell) + 1];
}

bool HiddenStates::is_marked(std::span<const BlockId> table, int32_t cell, size_t block,
                             std::span<const int32_t> tokens) const {
    const Block &in = blocks_[block_of(table, cell)];
    return (in.marked[block] & bit_of(cell)) != 0 && !ends_block_for_other(in, cell, tokens);
}

void HiddenStates::mark(std::span<const BlockId> table, int32_t cell, size_t block,
                        std::span<const int32_t> tokens) {
    Block &in = blocks_[block_of(table, cell)];
    in.marked[block] |= bit_of(cell);
    if (pairs_ == Pairs::WithNext && cell % kBlockTokens == kBlockTokens - 1)
        in.next = tokens[static_cast<size_t>(cell) + 1];
}

int32_t HiddenStates::next_unmarked(std::span<const BlockId> table, int32_t cell, int32_t length,
                                    size_t block, std::span<const int32_t> tokens) const {
    while (cell < length) {
        const Block &in = blocks_[block_of(table, cell)];
        const int32_t marked = std::countr_one(in.marked[block] >> (cell % kBlockTokens));
        cell += marked;
        if (marked == 0 || cell % kBlockTokens != 0) break;
        if (cell <= length && ends_block_for_other(in, cell - 1, tokens)) return cell - 1;
    }
    return std::min(cell, length);
}

std::optional<size_t> whole_group(const kernels::Program &program) {
    std::optional<size_t> found;
    std::vector<bool> whole(program.cache_layers.size(), true);
    for (const kernels::Step &step : program.steps)
        kernels::visit_caches(step, [&](const kernels::CacheUse &use) {
            if (use.window > 0) whole[static_cast<size_t>(use.cache)] = false;
        });
    for (size_t i = 0; i < whole.size(); ++i) {
        const auto group = static_cast<size_t>(program.cache_layers[i].group);
        if (whole[i]) found = std::min(found.value_or(group), group);
    }
    return found;
}

kernels::CacheConfig draft_block_cache(const kernels::Program &block, const CacheShape &shape) {
    CacheShape undivided = shape;
    undivided.ranks = 1;
    kernels::CacheConfig config = cache_config(block, undivided, shape.cells);
    bool own = false;
    for (const kernels::Step &step : block.steps)
        kernels::visit_caches(step, [&](const kernels::CacheUse &use) { own |= use.appends; });
    std::ranges::fill(config.blocks, own ? static_cast<int32_t>(blocks_of_whole_group(shape)) : 0);
    return config;
}

size_t draft_block_bytes(std::span<const kernels::Program> blocks, const CacheShape &shape) {
    size_t bytes = 0;
    for (const kernels::Program &block : blocks)
        bytes += kernels::block_bytes(block, draft_block_cache(block, shape));
    if (blocks.empty()) return 0;
    const auto width = static_cast<size_t>(model::state_of(blocks.front()).width),
               cells = static_cast<size_t>(blocks_of_whole_group(shape)) * kBlockTokens;
    return bytes + cells * width * sizeof(uint16_t);
}

namespace {

class StateKeepingBackend final : public kernels::ForwardingBackend {
  public:
    StateKeepingBackend(std::unique_ptr<kernels::Backend> backend, std::shared_ptr<HiddenStates> states,
                        const kernels::SlotInfo &state)
        : ForwardingBackend(std::move(backend)), states_(std::move(states)), state_(state) {}

    void load(const kernels::Program &program, const kernels::CacheConfig &cache,
              int32_t max_tokens) override {
        const kernels::Program parts = with_state_part(program, state_);
        hidden_ = parts.parts.front().out.front();
        const size_t group = whole_group(program).value();
        states_->resize(static_cast<size_t>(cache.blocks[group]), state_.width, group);
        ForwardingBackend::load(parts, cache, max_tokens);
    }

    bool execute(const kernels::Batch &batch, std::span<float> logits) override {
        return compute(batch) &&
               (batch.logit_rows.empty() || ForwardingBackend::execute(output(batch), logits));
    }
    bool execute(const kernels::Batch &batch, int32_t count, std::span<kernels::TopLogit> candidates,
                 std::span<kernels::ExpSum> sums) override {
        return compute(batch) && (batch.logit_rows.empty() ||
                                  ForwardingBackend::execute(output(batch), count, candidates, sums));
    }

    void copy_blocks(int32_t group, std::span<const kernels::BlockCopy> copies) override {
        ForwardingBackend::copy_blocks(group, copies);
        if (!is_of_states(group)) return;
        for (const kernels::BlockCopy &copy : copies) states_->copy(copy.from, copy.to);
    }
    void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) override {
        if (is_of_states(group)) states_->forget(block);
        ForwardingBackend::write_block(group, block, bytes);
    }
    std::span<std::byte> block_memory(int32_t, BlockId) override { return {}; }  // see write_block()

  private:
    bool is_of_states(int32_t group) const { return static_cast<size_t>(group) == states_->group(); }
    static kernels::Batch output(kernels::Batch batch) {
        batch.part = 1;
        return batch;
    }

    // Computes all steps before the logits, and keeps the states.
    bool compute(const kernels::Batch &batch) {
        if (!ForwardingBackend::execute(batch, {})) return false;
        const kernels::SlotRows rows = exchange(hidden_);
        for (const kernels::SequenceSpan &span : batch.sequences) {
            const auto put = [&](int32_t cell, int32_t token) {
                const float *row = rows.data + token * rows.stride;
                states_->put(span.tables[states_->group()], cell,
                             {row, static_cast<size_t>(states_->width())});
            };
            for (int32_t i = 0; i < span.shared; ++i) put(span.past - span.shared + i, span.shared_from + i);
            for (int32_t i = 0; i < span.count; ++i) put(span.past + i, span.first + i);
        }
        return true;
    }

    std::shared_ptr<HiddenStates> states_;
    kernels::SlotInfo state_;
    kernels::Slot hidden_ = kernels::kNoSlot;
};

}  // namespace

kernels::Program with_state_part(const kernels::Program &program, const kernels::SlotInfo &state) {
    assert(program.parts.empty() && program.gives_logits());
    const auto at = std::ranges::find_if(program.slots, [&](const kernels::SlotInfo &one) {
        return one.name == state.name && one.width == state.width;
    });
    assert(at != program.slots.end());
    const auto slot = static_cast<kernels::Slot>(at - program.slots.begin());
    kernels::Program parts = program;
    // Some devices compute the last steps for tokens with logits only, but not those of an earlier part.
    parts.parts = {{model::steps_to(parts, slot), {}, {slot}}, {parts.steps.size(), {}, {}}};
    return parts;
}

std::unique_ptr<kernels::Backend> keep_hidden_states(std::unique_ptr<kernels::Backend> backend,
                                                     std::shared_ptr<HiddenStates> states,
                                                     const kernels::SlotInfo &state) {
    return std::make_unique<StateKeepingBackend>(std::move(backend), std::move(states), state);
}

}  // namespace runnel::decode
