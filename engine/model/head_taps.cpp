#include "engine/model/head_taps.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "engine/model/builder.h"
#include "engine/model/head_parts.h"
#include "engine/model/layers.h"
#include "gguf/printable.h"
#include "kernels/steps.h"

namespace runnel::model {
namespace {

using namespace kernels;

constexpr const char *kKey = "target_layers";

// Layers that are computed several times count as often. The last ones may have no steps.
int32_t layer_count(const Model &target) {
    return std::max(target.hyper.block_count, layers_of(target.program).count);
}

Slot add_slot(Program &program, const std::string &name, int64_t width) {
    program.slots.push_back({name, width});
    return static_cast<Slot>(program.slots.size() - 1);
}

// The slot that the target's layers read and write in turn.
Slot residual_stream(const Model &target, HeadKind kind, const gguf::File &head) {
    const Program &program = target.program;
    const auto slot = std::ranges::find_if(program.slots, [&](const SlotInfo &one) {
        return one.name == kResidual && one.width == target.hyper.embedding_length;
    });
    bool mixed = false;
    for_each_step<Mix>(program, [&](const Mix &) { mixed = true; });
    if (slot == program.slots.end() || mixed)
        throw ModelError(name_of(head) + ": " + std::string(head_title(kind)) + " does not work with this " +
                         gguf::printable(target.hyper.architecture) +
                         " model: its layers do not pass on a single residual stream");
    return static_cast<Slot>(slot - program.slots.begin());
}

// Whether the last state of these families is the one before the output norm.
bool before_norm(const std::string &architecture) {
    return architecture == "gpt-oss" || architecture == "mimo2" || architecture == "step35";
}

// Where a copy of the residual stream before layer `layer` belongs: after the layer's first step if that leaves it as it is.
// It is mostly a norm, which often shares a launch with another step. After the last layer with steps: the output's.
size_t place_of_tap(const Program &program, int32_t layer, Slot residual) {
    const Layers layers = layers_of(program);
    const auto begins = [&](int32_t other) { return other >= std::min(layer, layers.count); };
    const auto first =
        static_cast<size_t>(std::ranges::find_if(layers.of_step, begins) - layers.of_step.begin());
    return writes_slot(program.steps[first], residual) ? first : first + 1;
}

void insert(Program &program, size_t place, Step step) {
    program.steps.insert(program.steps.begin() + static_cast<std::ptrdiff_t>(place), std::move(step));
}

// Adds copies of the states, one after the other, in a new slot.
Slot add_taps(Model &target, Slot residual, std::span<const int64_t> layers) {
    Program &program = target.program;
    const int64_t width = target.hyper.embedding_length;
    const int32_t count = layer_count(target);
    const Slot taps = add_slot(program, "tapped states", static_cast<int64_t>(layers.size()) * width);
    for (size_t i = 0; i < layers.size(); ++i) {
        const auto layer = static_cast<int32_t>(layers[i]);
        Copy copy{.in = residual,
                  .out = taps,
                  .from = {},
                  .to = {.first = static_cast<int64_t>(i) * width},
                  .width = width};
        const bool last = layer == count;
        if (!last) copy.layer = layer;
        if (last && !before_norm(target.hyper.architecture)) {
            copy.in = std::get<Logits>(program.steps.back()).in;
            insert(program, program.steps.size() - 1, copy);
        } else {
            insert(program, place_of_tap(program, layer, residual), copy);
        }
    }
    return taps;
}

}  // namespace

std::vector<int64_t> tapped_layers(const Metadata &head, size_t least, size_t most) {
    const gguf::Value *value = head.find(kKey);
    if (!value) head.fail(kKey, "missing");
    const bool fits =
        value->type() == gguf::ValueType::Array && value->size() >= least && value->size() <= most;
    std::vector<int64_t> layers = fits ? value->as_ints() : std::vector<int64_t>();
    if (layers.empty())
        head.fail(kKey, "expected an array of " + std::to_string(least) +
                            (least == most ? "" : " to " + std::to_string(most)) + " layers");
    return layers;
}

void check_taps(const Metadata &head, std::span<const int64_t> layers, const Model &target) {
    const int32_t count = layer_count(target);
    for (const int64_t layer : layers)
        if (layer < 0 || layer > count)
            head.fail(kKey,
                      "holds " + std::to_string(layer) + ", but " + target_has(target, count, " layers"));
}

void fuse_taps(Model &target, HeadKind kind, const gguf::File &head, std::span<const int64_t> layers,
               const Fusion &fusion) {
    const Slot taps = add_taps(target, residual_stream(target, kind, head), layers);
    Program &program = target.program;
    const Slot fused = add_slot(program, fusion.slot, fusion.width);
    const auto import = [&](const Weight &weight) {
        program.weights.push_back(weight);
        return static_cast<WeightId>(program.weights.size() - 1);
    };
    const auto norm = [&](Slot slot, const Weight *weight) {
        if (weight)
            insert(program, program.steps.size() - 1,
                   Norm{.in = slot, .out = slot, .weight = import(*weight), .eps = fusion.eps});
    };
    norm(taps, fusion.before);
    insert(program, program.steps.size() - 1,
           Linear{taps, {{import(fusion.matrix), kNoWeight, fused, kNoSlot}}});
    norm(fused, fusion.after);
}

}  // namespace runnel::model
