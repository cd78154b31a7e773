// Everything that speculation for one model needs: the models that draft, and a speculator for each sequence.
//
// A model's own first layers (--self-draft) run as a second program over the same weights: in place on the
// CPU, where weights are read from the mapped file; a second copy of those layers on a GPU, which the
// target's engine leaves room for (EngineOptions::first_layers), or else on the CPU. Their keys and values
// have a cache of their own, with as many cells as the target's but only for those layers. It holds the same
// bits as the target's cache, since what a layer caches depends on the layers below it alone; with two
// caches, neither program sees the other's unfinished cells.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/speculation/draft_vocabulary.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/decode/speculation/state_draft.h"

namespace runnel::decode {

struct DraftingOptions {
    std::optional<EngineOptions> model = {};  // of a draft model; context and sequences follow the target's
    int32_t self_layers = 0;                  // this many first layers of the target draft; 0: none
    Mtp mtp = Mtp::Off;                       // the target's draft block drafts, if its engine has one
    bool head = false;                        // the target's head drafts (EngineOptions::head)
    bool lookup = false;                      // draft from the text so far, before any model drafts
    SpeculationOptions how = {};

    bool any() const { return model || self_layers > 0 || lookup || head || mtp != Mtp::Off; }
};

// What the engine's draft blocks or its head need to draft for `sequences` sequences at a time. `target` must outlive it.
// Throws BackendError. Precondition: the engine has draft_blocks().
std::unique_ptr<StateDrafter> state_drafter(Engine &target, int32_t sequences);

class Drafting {
  public:
    // For `sequences` sequences at a time. `target` must outlive this object. Throws what Engine throws for
    // the draft model, model::ModelError, and DecodeError{BadInput} if `model` and `self_layers` are set.
    Drafting(const DraftingOptions &options, Engine &target, int32_t sequences);

    // False: no source is left, since there is no draft block, or no memory for it.
    bool any() const { return options_.lookup || draft_ || first_layers_ || block_; }
    // A speculator for one more sequence. This object must outlive it.
    std::unique_ptr<Speculator> speculator();

    // Notes for the user, one line each.
    const std::vector<std::string> &notes() const { return notes_; }

  private:
    void load_model(Engine &target, int32_t sequences);
    void cut_model(Engine &target, int32_t sequences);
    void load_block(Engine &target, int32_t sequences);

    DraftingOptions options_;
    std::shared_ptr<SharedCosts> costs_ = std::make_shared<SharedCosts>();
    std::unique_ptr<Engine> draft_;
    std::optional<DraftVocabulary> vocabulary_;  // of the draft model
    std::unique_ptr<Executor> first_layers_;
    std::unique_ptr<StateDrafter> block_;
    std::vector<std::string> notes_;
};

}  // namespace runnel::decode
