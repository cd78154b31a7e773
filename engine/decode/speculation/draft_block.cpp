#include "engine/decode/speculation/draft_block.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace runnel::decode {

using kernels::BlockId, kernels::kBlockTokens;

DraftBlock::DraftBlock(const MakeBackend &make_backend, std::span<const kernels::Program> programs,
                       const Executor &target, std::shared_ptr<HiddenStates> states, int32_t sequences,
                       const model::DraftHead *head)
    : states_(std::move(states)),
      by_token_(head ? head->tokens : std::vector<TokenId>(), target.vocab()),
      context_(target.context()),
      sequences_(std::clamp(sequences, 1, kMostDraftedTogether)),
      vocab_(target.vocab()),
      rows_of_output_(static_cast<int32_t>(programs.front().vocab)),
      batch_(std::max(target.batch_size(), sequences_ * static_cast<int32_t>(programs.size()))),
      cells_(states_, batch_, sequences_) {
    assert(is_head() == (head != nullptr));
    for (const kernels::Program &program : programs) {
        const kernels::Program::Part &part = program.parts.front();
        blocks_.push_back({make_backend(), part.in.front(), part.out.front()});
        blocks_.back().backend->load(program, cells_.cache(target), batch_);
    }
}

int32_t DraftBlock::most_steps() const {
    return chained() ? static_cast<int32_t>(blocks_.size()) : kMostDrafts + 1;
}

bool DraftBlock::prepare(size_t index, std::span<const size_t> sequences) {
    std::vector<const DraftCells::Place *> places;
    for (const size_t sequence : sequences) places.push_back(&tails_[sequence].place);
    kernels::Backend &backend = *blocks_[index].backend;
    if (!cells_.fill(backend, blocks_[index].before, index, places, cancel_)) return false;
    cells_.copy_ends(backend, places);
    return true;
}

bool DraftBlock::begin(std::span<const cache::SequenceCache *const> caches, int32_t /*most*/,
                       const std::atomic<bool> *cancel) {
    assert(caches.size() <= static_cast<size_t>(sequences_));
    cancel_ = cancel;
    tails_.clear();
    std::vector<size_t> all;
    for (const cache::SequenceCache *cache : caches) {
        all.push_back(tails_.size());
        tails_.push_back({.place = cells_.place(*cache, tails_.size()), .tokens = {}, .states = {}});
    }
    return prepare(0, all);
}

// Adds the tokens of a sequence's steps from `known` on to the pass, and asks for the logits of all: a device may leave
// the states of those alone.
void DraftBlock::add_rows(const Block &block, const Tail &tail, size_t known) {
    const kernels::SlotRows in = block.backend->exchange(block.before);
    const auto first = static_cast<int32_t>(rows_.tokens.size());
    const cache::SequenceCache &cache = *tail.place.cache;
    const int32_t length = cells_.length(cache);
    for (size_t i = known; i < tail.tokens.size(); ++i) {
        const auto row = static_cast<int32_t>(rows_.tokens.size());
        const std::span<float> before{in.data + row * in.stride, width()};
        if (i == 0)
            states_->get(cells_.table(cache), cache.length() - 1, before);
        else
            std::ranges::copy(std::span(tail.states).subspan((i - 1) * width(), width()), before.begin());
        rows_.tokens.push_back(tail.tokens[i]);
        rows_.positions.push_back(length + static_cast<int32_t>(i));
        rows_.logits.push_back(row);
    }
    const auto count = static_cast<int32_t>(tail.tokens.size() - known);
    rows_.spans.push_back({first, count, length + static_cast<int32_t>(known), {tail.place.table}});
}

std::span<const float> DraftBlock::step(std::span<const Next> next) {
    const size_t done = tails_[next.front().sequence].tokens.size();
    const size_t index = chained() ? done : 0;
    const Block &block = blocks_[index];
    std::vector<size_t> sequences;
    for (const Next &one : next) sequences.push_back(one.sequence);
    if (index > 0 && !prepare(index, sequences)) return {};
    rows_ = {};
    for (const auto &[sequence, token] : next) {
        Tail &tail = tails_[sequence];
        assert(tail.tokens.size() == done);
        assert(cells_.length(*tail.place.cache) + static_cast<int32_t>(done) <
               static_cast<int32_t>(tail.place.table.size()) * kBlockTokens);
        tail.tokens.push_back(token);
        add_rows(block, tail, chained() ? 0 : done);  // the next block lacks keys and values of earlier steps
    }
    const auto vocab = static_cast<size_t>(rows_of_output_);
    logits_.resize(rows_.tokens.size() * vocab);
    if (!block.backend->execute({rows_.tokens, rows_.positions, rows_.spans, rows_.logits, cancel_}, logits_))
        return {};
    const kernels::SlotRows states = block.backend->exchange(block.state);
    for (size_t i = 0; i < next.size(); ++i) {
        const kernels::SequenceSpan &span = rows_.spans[i];
        const auto last = static_cast<size_t>(span.first + span.count - 1);
        const float *state = states.data + static_cast<int64_t>(last) * states.stride;
        std::vector<float> &known = tails_[next[i].sequence].states;
        known.insert(known.end(), state, state + width());
        if (last > i)
            std::ranges::copy(std::span(logits_).subspan(last * vocab, vocab),
                              logits_.begin() + static_cast<std::ptrdiff_t>(i * vocab));
    }
    return by_token_.of(std::span(logits_).first(next.size() * vocab));
}

std::vector<size_t> DraftBlock::together(std::span<const cache::SequenceCache *const> caches) const {
    if (!is_head()) return StateDrafter::together(caches);
    std::vector<size_t> all;
    std::vector<TokenId> next(states_->blocks(), text::kNoToken);  // after a cache block
    for (size_t i = 0; i < caches.size(); ++i) {
        const std::span<const TokenId> tokens = caches[i]->tokens();
        const std::span<const BlockId> table =
            cells_.table(*caches[i]).first(static_cast<size_t>(cells_.length(*caches[i]) / kBlockTokens));
        const auto after = [&](size_t block) { return tokens[(block + 1) * kBlockTokens]; };
        bool fits = true;
        for (size_t block = 0; block < table.size() && fits; ++block) {
            const TokenId known = next[static_cast<size_t>(table[block])];
            fits = known == text::kNoToken || known == after(block);
        }
        if (!fits) continue;
        for (size_t block = 0; block < table.size(); ++block)
            next[static_cast<size_t>(table[block])] = after(block);
        all.push_back(i);
    }
    return all;
}

}  // namespace runnel::decode
