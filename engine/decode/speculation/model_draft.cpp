#include "engine/decode/speculation/model_draft.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "engine/decode/error.h"
#include "engine/decode/scheduler.h"

namespace runnel::decode {

// Makes the sequence hold `text`; tokens are due then. False when there is no room for a draft.
bool ModelDraft::read(std::span<const TokenId> text) {
    const auto context = static_cast<size_t>(entry_.executor().context());
    const size_t wanted = static_cast<size_t>(most_);
    if (context < 2 * wanted + 2) return false;
    if (skipped_ >= text.size() || text.size() + wanted <= context) skipped_ = 0;
    if (text.size() - skipped_ + wanted > context) skipped_ = text.size() - context / 2;
    readable_.assign(text.begin() + static_cast<std::ptrdiff_t>(skipped_), text.end());
    for (TokenId &id : readable_)
        if (id < 0 || id >= entry_.executor().vocab()) id = 0;
    const size_t known = entry_.sequence().reuse(readable_);
    append(std::span(readable_).subspan(known));
    return true;
}

// Requests what the writer needs of the row: for a greedy token also its probability and the runner-up.
void ModelDraft::append(std::span<const TokenId> tokens) {
    const Sampler &sampler = writer_.sampler();
    constexpr int32_t kGreedy = 8;  // leaves a runner-up even if some are forbidden
    const bool greedy = !(sampler.options().temperature > 0);
    const int32_t most = entry_.executor().most_candidates(), needed = sampler.candidates_needed(most);
    const bool enough = needed > 0 && (!greedy || (most > 1 && entry_.executor().vocab() > 1));
    RowMask mask;
    if (sampler.constraint())
        mask = [this](std::span<const TokenId>, std::span<uint64_t> bits) {
            // (The draft model may have fewer tokens than the model whose grammar it is.)
            if (!writer_.sampler().mask(writer_.history(), bits)) return false;
            const auto vocab = static_cast<size_t>(entry_.executor().vocab());
            if (vocab % 64 != 0) bits.back() &= (uint64_t{1} << vocab % 64) - 1;
            return std::ranges::any_of(bits, [](uint64_t word) { return word != 0; });
        };
    entry_.want_candidates(!enough  ? 0
                           : greedy ? std::min(most, std::max(needed, kGreedy))
                                    : needed,
                           std::move(mask));
    entry_.append(tokens);
}

void ModelDraft::advance() {
    if (!writer_.add(entry_.rows()[0]) || writer_.last() >= entry_.executor().vocab()) return;
    const TokenId last = writer_.last();
    append({&last, 1});
}

void ModelDraft::stop(bool forget) {
    entry_.truncate(forget ? 0 : static_cast<size_t>(entry_.sequence().cache().length()));
}

void ModelDraft::fail(std::exception_ptr error) {
    stop(false);
    failure_ = std::move(error);
}

Draft ModelDraft::finish() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return writer_.take();
}

PendingDraft *ModelDraft::begin(std::span<const TokenId> text, int32_t most, float least_probability,
                                Sampler &sampler) {
    failure_ = nullptr;
    most_ = most;
    writer_.begin(text, most, least_probability, sampler);
    if (most <= 0 || text.empty() || !read(text)) return nullptr;
    return this;
}

Draft ModelDraft::draft(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) {
    if (PendingDraft *self = begin(text, most, least_probability, sampler))
        draft_together({&self, 1}, nullptr);
    return finish();
}

namespace {

// Drafts the next token, or ends the draft with the error if its row cannot be sampled from.
void advance(ModelDraft &draft) {
    try {
        draft.advance();
    } catch (const DecodeError &) {
        draft.fail(std::current_exception());
    } catch (const kernels::BackendError &) {
        draft.fail(std::current_exception());
    }
}

// Completes drafts that all have the same executor.
void drive(std::span<ModelDraft *const> drafts, const StopRequest *stop) {
    Scheduler scheduler(drafts[0]->entry().executor(), {.parallel = static_cast<int32_t>(drafts.size())});
    std::unordered_map<const ScheduledSequence *, ModelDraft *> of;
    for (ModelDraft *draft : drafts) {
        of[&draft->entry()] = draft;
        scheduler.add(draft->entry());
    }
    const auto due = [](ModelDraft *draft) { return draft->entry().due(); };
    const auto end_all = [&](auto &&end) {
        for (ModelDraft *draft : drafts)
            if (due(draft)) end(*draft);
    };
    const auto fail = [](ModelDraft &draft) { draft.fail(std::current_exception()); };
    try {
        while (std::ranges::any_of(drafts, due)) {
            if (!scheduler.step(stop)) return end_all([](ModelDraft &draft) { draft.stop(false); });
            for (ScheduledSequence *entry : scheduler.ready()) advance(*of.at(entry));
        }
    } catch (const DecodeError &error) {
        if (error.kind != DecodeError::Kind::OutOfMemory) return end_all(fail);
        end_all([](ModelDraft &draft) { draft.stop(true); });  // others may need their blocks
    } catch (const kernels::BackendError &) {
        end_all(fail);
    }
}

}  // namespace

void ModelDraft::complete(std::span<PendingDraft *const> drafts, const StopRequest *stop) {
    std::vector<ModelDraft *> models;
    for (PendingDraft *draft : drafts) models.push_back(static_cast<ModelDraft *>(draft));
    drive(models, stop);
}

}  // namespace runnel::decode
