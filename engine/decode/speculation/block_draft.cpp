#include "engine/decode/speculation/block_draft.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "engine/decode/error.h"
#include "engine/decode/scheduled_sequence.h"
#include "engine/decode/stop_request.h"

namespace runnel::decode {
namespace {

using kernels::BlockId, kernels::kBlockTokens;

// For the cached cells of the block that drafts begin in, and for drafts.
constexpr int32_t kScratch = 2;
static_assert(kBlockTokens - 1 + kMostDrafts <= kScratch * kBlockTokens);

}  // namespace

DraftBlock::DraftBlock(const MakeBackend &make_backend, std::span<const kernels::Program> programs,
                       const Executor &target, std::shared_ptr<HiddenStates> states, int32_t sequences,
                       const model::Eagle3 *head)
    : states_(std::move(states)),
      ahead_(head ? 1 : 0),
      tokens_(head ? head->tokens : std::vector<TokenId>()),
      context_(target.context()),
      batch_(target.batch_size()),
      sequences_(std::clamp(sequences, 1, kMostTogether)),
      vocab_(target.vocab()),
      rows_of_output_(static_cast<int32_t>(programs.front().vocab)),
      scratch_(static_cast<BlockId>(states_->blocks())) {
    assert((states_->pairs() == HiddenStates::Pairs::WithNext) == is_head());
    const CacheTypes types = target.types();
    batch_ = std::max(batch_, sequences_ * static_cast<int32_t>(programs.size()));
    for (const kernels::Program &program : programs) {
        const kernels::Program::Part &part = program.parts.front();
        blocks_.push_back({make_backend(), part.in.front(), part.out.front()});
        blocks_.back().backend->load(program,
                                     {.blocks = {scratch_ + kScratch * sequences_},
                                      .k = types.k,
                                      .v = types.v,
                                      .context = context_ + kScratch * kBlockTokens},
                                     batch_);
    }
}

int32_t DraftBlock::most_steps() const {
    return chained() ? static_cast<int32_t>(blocks_.size()) : kMostDrafts + 1;
}

std::span<const BlockId> DraftBlock::table_of(const cache::SequenceCache &cache) const {
    return cache.table(states_->group());
}

// Runs rows_ through draft block `index`.
bool DraftBlock::execute(size_t index, std::span<float> logits) {
    return blocks_[index].backend->execute(
        {rows_.tokens, rows_.positions, rows_.spans, rows_.logits, cancel_}, logits);
}

// Computes cells that draft block `index` lacks, in one pass; `found`: there were some. False when a stop was requested.
bool DraftBlock::compute_missing(size_t index, std::span<const size_t> sequences, bool &found) {
    const Block &block = blocks_[index];
    rows_ = {};
    std::vector<std::span<const TokenId>> texts;               // of the spans
    std::vector<bool> written(static_cast<size_t>(scratch_));  // cache blocks, in this pass
    const kernels::SlotRows rows = block.backend->exchange(block.before);
    for (const size_t sequence : sequences) {
        const cache::SequenceCache &cache = *tails_[sequence].cache;
        const int32_t length = cells(cache), room = batch_ - static_cast<int32_t>(rows_.tokens.size());
        const std::span<const BlockId> table = table_of(cache);
        const auto used = table.first(static_cast<size_t>((length + kBlockTokens - 1) / kBlockTokens));
        // A sequence that shares a cache block with an earlier one finds its cells in the next pass.
        if (room == 0 ||
            std::ranges::any_of(used, [&](BlockId id) { return written[static_cast<size_t>(id)]; }))
            continue;
        const std::span<const TokenId> tokens = cache.tokens();
        const int32_t from = states_->next_unmarked(table, 0, length, index, tokens);
        int32_t end = from;
        while (end < std::min(length, from + room) && !states_->is_marked(table, end, index, tokens)) ++end;
        if (end == from) continue;
        rows_.spans.push_back({static_cast<int32_t>(rows_.tokens.size()), end - from, from, {table}});
        texts.push_back(tokens);
        for (int32_t cell = from; cell < end; ++cell) {
            states_->get(table, cell - 1 + ahead_,
                         {rows.data + static_cast<int64_t>(rows_.tokens.size()) * rows.stride, width()});
            rows_.tokens.push_back(tokens[static_cast<size_t>(cell + ahead_)]);
            rows_.positions.push_back(cell);
            written[static_cast<size_t>(table[static_cast<size_t>(cell / kBlockTokens)])] = true;
        }
    }
    found = !rows_.spans.empty();
    if (!found) return true;
    if (!execute(index, {})) return false;
    for (size_t i = 0; i < texts.size(); ++i) {
        const kernels::SequenceSpan &span = rows_.spans[i];
        for (int32_t cell = span.past; cell < span.past + span.count; ++cell)
            states_->mark(span.tables[0], cell, index, texts[i]);
    }
    return true;
}

DraftBlock::Tail DraftBlock::tail_of(const cache::SequenceCache &cache, BlockId scratch) const {
    const std::span<const BlockId> table = table_of(cache);
    Tail tail{.cache = &cache, .table = {}, .tokens = {}, .states = {}};
    // The last cache block may be shared with other sequences, which have other tokens after these.
    tail.table.assign(table.begin(), table.begin() + cells(cache) / kBlockTokens);
    for (int32_t i = 0; i < kScratch; ++i) tail.table.push_back(scratch + i);
    return tail;
}

// Copies the cells in the sequence's last cache block to where drafts continue them.
void DraftBlock::copy_end(const Block &block, const Tail &tail) {
    const int32_t length = cells(*tail.cache);
    if (length % kBlockTokens == 0) return;
    const auto whole = static_cast<size_t>(length / kBlockTokens);
    const kernels::BlockCopy copy{table_of(*tail.cache)[whole], tail.table[whole]};
    block.backend->copy_blocks(0, {&copy, 1});
}

bool DraftBlock::prepare(size_t index, std::span<const size_t> sequences) {
    for (bool found = true; found;)
        if (!compute_missing(index, sequences, found)) return false;
    for (const size_t sequence : sequences) copy_end(blocks_[index], tails_[sequence]);
    return true;
}

bool DraftBlock::begin(std::span<const cache::SequenceCache *const> caches, const std::atomic<bool> *cancel) {
    assert(caches.size() <= static_cast<size_t>(sequences_));
    cancel_ = cancel;
    tails_.clear();
    std::vector<size_t> all;
    for (const cache::SequenceCache *cache : caches) {
        all.push_back(tails_.size());
        tails_.push_back(tail_of(*cache, scratch_ + kScratch * static_cast<BlockId>(tails_.size())));
    }
    return prepare(0, all);
}

// Adds the tokens of a sequence's steps from `known` on to the pass, and asks for the logits of all: a device may leave
// the states of those alone.
void DraftBlock::add_rows(const Block &block, const Tail &tail, size_t known) {
    const kernels::SlotRows in = block.backend->exchange(block.before);
    const auto first = static_cast<int32_t>(rows_.tokens.size());
    const int32_t length = cells(*tail.cache);
    for (size_t i = known; i < tail.tokens.size(); ++i) {
        const auto row = static_cast<int32_t>(rows_.tokens.size());
        const std::span<float> before{in.data + row * in.stride, width()};
        if (i == 0)
            states_->get(table_of(*tail.cache), length - 1 + ahead_, before);
        else
            std::ranges::copy(std::span(tail.states).subspan((i - 1) * width(), width()), before.begin());
        rows_.tokens.push_back(tail.tokens[i]);
        rows_.positions.push_back(length + static_cast<int32_t>(i));
        rows_.logits.push_back(row);
    }
    const auto count = static_cast<int32_t>(tail.tokens.size() - known);
    rows_.spans.push_back({first, count, length + static_cast<int32_t>(known), {tail.table}});
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
        assert(cells(*tail.cache) + static_cast<int32_t>(done) <
               static_cast<int32_t>(tail.table.size()) * kBlockTokens);
        tail.tokens.push_back(token);
        add_rows(block, tail, chained() ? 0 : done);  // the next block lacks keys and values of earlier steps
    }
    const auto vocab = static_cast<size_t>(rows_of_output_);
    logits_.resize(rows_.tokens.size() * vocab);
    if (!execute(index, logits_)) return {};
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
    return by_token(std::span(logits_).first(next.size() * vocab), next.size());
}

// The logits of the model's tokens from those of the rows of the output matrix. Tokens without a row are never drafted.
std::span<const float> DraftBlock::by_token(std::span<const float> rows, size_t count) {
    if (tokens_.empty()) return rows;
    constexpr float kNever = -1e30f;  // finite, for the softmax
    const auto vocab = static_cast<size_t>(vocab_);
    by_token_.assign(count * vocab, kNever);
    for (size_t i = 0; i < count; ++i)
        for (size_t row = 0; row < tokens_.size(); ++row)
            by_token_[i * vocab + static_cast<size_t>(tokens_[row])] = rows[i * tokens_.size() + row];
    return by_token_;
}

std::vector<size_t> DraftBlock::together(std::span<const cache::SequenceCache *const> caches) const {
    std::vector<size_t> all;
    if (!is_head()) {
        all.resize(caches.size());
        std::iota(all.begin(), all.end(), size_t{0});
        return all;
    }
    std::vector<TokenId> next(static_cast<size_t>(scratch_), text::kNoToken);  // after a cache block
    for (size_t i = 0; i < caches.size(); ++i) {
        const std::span<const TokenId> tokens = caches[i]->tokens();
        const std::span<const BlockId> table =
            table_of(*caches[i]).first(static_cast<size_t>(cells(*caches[i]) / kBlockTokens));
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

void BlockDraft::follow(const cache::SequenceCache *cache, const StopRequest *stop) {
    cache_ = cache;
    cancel_ = stop ? stop->flag() : nullptr;
}

PendingDraft *BlockDraft::begin(std::span<const TokenId> text, int32_t most, float least_probability,
                                Sampler &sampler) {
    const auto length = static_cast<int64_t>(text.size());
    most = static_cast<int32_t>(
        std::min<int64_t>({most, block_->context() - length, kMostDrafts, block_->most_steps()}));
    failure_ = nullptr;
    writer_.begin(text, most, least_probability, sampler);
    // (An evicted sequence has no cells.)
    if (!cache_ || cache_->length() + 1 != length || most <= 0 || !is_known(text.back())) return nullptr;
    if (block_->is_head() && cache_->length() == 0) return nullptr;  // there is no state yet
    last_ = text.back();
    return this;
}

Draft BlockDraft::finish() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return writer_.take();
}

Draft BlockDraft::draft(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) {
    if (PendingDraft *self = begin(text, most, least_probability, sampler))
        draft_together({&self, 1}, nullptr);
    return finish();
}

// Adds the next token. False when the draft is complete.
bool BlockDraft::advance(std::span<const float> row) {
    try {
        if (!writer_.add(row)) return false;
    } catch (const DecodeError &) {
        failure_ = std::current_exception();
        return false;
    }
    last_ = writer_.last();
    return is_known(last_);
}

void BlockDraft::complete(std::span<PendingDraft *const> drafts, const StopRequest *stop) {
    const std::atomic<bool> *cancel = stop ? stop->flag() : cancel_;
    std::vector<PendingDraft *> waiting(drafts.begin(), drafts.end());
    while (!waiting.empty()) {
        std::vector<const cache::SequenceCache *> caches;
        for (PendingDraft *draft : waiting) caches.push_back(static_cast<BlockDraft *>(draft)->cache_);
        std::vector<size_t> chosen = block_->together(caches);
        chosen.resize(std::min(chosen.size(), static_cast<size_t>(block_->sequences())));
        std::vector<PendingDraft *> now;
        for (const size_t i : chosen) now.push_back(std::exchange(waiting[i], nullptr));
        std::erase(waiting, nullptr);
        complete(*block_, now, cancel);
    }
}

void BlockDraft::complete(DraftBlock &block, std::span<PendingDraft *const> drafts,
                          const std::atomic<bool> *cancel) {
    std::vector<BlockDraft *> all;
    std::vector<const cache::SequenceCache *> caches;
    std::vector<DraftBlock::Next> next, after;
    for (PendingDraft *pending : drafts) {
        auto *draft = static_cast<BlockDraft *>(pending);
        next.push_back({all.size(), draft->last_});
        all.push_back(draft);
        caches.push_back(draft->cache_);
    }
    try {
        if (!block.begin(caches, cancel)) return;
        while (!next.empty()) {
            std::span<const float> rows = block.step(next);
            if (rows.empty()) return;
            after.clear();
            for (const DraftBlock::Next &one : next) {
                const auto vocab = static_cast<size_t>(block.vocab());
                if (all[one.sequence]->advance(rows.first(vocab)))
                    after.push_back({one.sequence, all[one.sequence]->last_});
                rows = rows.subspan(vocab);
            }
            next.swap(after);
        }
    } catch (const kernels::BackendError &) {
        for (BlockDraft *draft : all) draft->failure_ = std::current_exception();
    }
}

}  // namespace runnel::decode
