#include "engine/decode/speculation/drafting.h"

#include <algorithm>

#include "engine/decode/error.h"
#include "engine/decode/speculation/assistant_draft.h"
#include "engine/decode/speculation/dflash_draft.h"
#include "engine/decode/speculation/draft_block.h"
#include "engine/decode/speculation/lookup_draft.h"
#include "engine/decode/speculation/model_draft.h"
#include "engine/decode/speculation/translated_draft.h"
#include "engine/model/first_layers.h"

namespace runnel::decode {

std::unique_ptr<StateDrafter> state_drafter(Engine &target, int32_t sequences) {
    const model::DraftHead *head = target.head();
    if (head && head->kind == model::HeadKind::Assistant)
        return std::make_unique<AssistantDraft>(target.draft_backend(), *head, target.executor(),
                                                target.hidden_states(), sequences);
    if (head && head->kind == model::HeadKind::DFlash)
        return std::make_unique<DFlashDraft>([&] { return target.draft_backend(); }, *head, target.executor(),
                                             target.hidden_states(), sequences);
    return std::make_unique<DraftBlock>([&] { return target.draft_backend(); }, target.draft_blocks(),
                                        target.executor(), target.hidden_states(), sequences, head);
}

Drafting::Drafting(const DraftingOptions &options, Engine &target, int32_t sequences) : options_(options) {
    if (options_.model && options_.self_layers > 0)
        throw DecodeError(DecodeError::Kind::BadInput,
                          "a draft model and the model's own first layers cannot both draft: choose one");
    if (options_.model) load_model(target, sequences);
    if (options_.self_layers > 0) cut_model(target, sequences);
    if ((options_.mtp != Mtp::Off || options_.head) && !target.draft_blocks().empty())
        load_block(target, sequences);
}

void Drafting::load_model(Engine &target, int32_t sequences) {
    EngineOptions &options = *options_.model;
    const int64_t own = model::build(gguf::File::open(options.model)).hyper.context_length;
    options.context = std::min<int64_t>(own, target.executor().context());
    options.sequences = sequences;
    draft_ = std::make_unique<Engine>(options);
    for (const std::string &note : draft_->notes()) notes_.push_back("draft model: " + note);
    vocabulary_.emplace(target.tokenizer(), target.executor().vocab(), draft_->tokenizer(),
                        draft_->executor().vocab());
    if (!vocabulary_->note().empty()) notes_.push_back(vocabulary_->note());
}

void Drafting::cut_model(Engine &target, int32_t sequences) {
    first_layers_ = target.executor_beside(model::first_layers(target.model().program, options_.self_layers),
                                           sequences, notes_);
}

void Drafting::load_block(Engine &target, int32_t sequences) {
    try {
        block_ = state_drafter(target, sequences);
    } catch (const kernels::BackendError &error) {
        if (options_.mtp == Mtp::On || options_.head || error.kind == kernels::BackendError::Kind::Cancelled)
            throw;
        notes_.push_back(std::string("the next-token-prediction block does not draft: ") + error.what());
    }
}

std::unique_ptr<Speculator> Drafting::speculator() {
    const bool rejection = options_.how.rule == DraftRule::Rejection;
    std::vector<std::unique_ptr<DraftSource>> sources;
    if (options_.lookup) sources.push_back(std::make_unique<LookupDraft>());
    if (draft_)
        sources.push_back(
            translated(std::make_unique<ModelDraft>(draft_->executor(), "model", rejection), *vocabulary_));
    if (first_layers_) sources.push_back(std::make_unique<ModelDraft>(*first_layers_, "self", rejection));
    if (block_) sources.push_back(std::make_unique<StateDraft>(*block_, rejection));
    return std::make_unique<Speculator>(std::move(sources), options_.how, costs_);
}

}  // namespace runnel::decode
