#include "engine/model/first_layers.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <variant>

#include "engine/model/model.h"

namespace runnel::model {
namespace {

using namespace kernels;

// One that every step of its kind has; a norm may have none, and steps without any belong to those around
// them.
WeightId some_weight(const Step &step) {
    if (const auto *norm = std::get_if<Norm>(&step)) return norm->weight;
    if (const auto *linear = std::get_if<Linear>(&step)) return linear->parts.front().weight;
    if (const auto *heads = std::get_if<HeadLinear>(&step)) return heads->weight;
    if (const auto *experts = std::get_if<Experts>(&step)) return experts->gate;
    return kNoWeight;
}

// -1: none that is known.
int32_t layer_of(const Program &program, const Step &step) {
    constexpr std::string_view kPrefix = "blk.";
    const WeightId id = some_weight(step);
    if (id == kNoWeight) return -1;
    const std::string_view name = program.weights[static_cast<size_t>(id)].name;
    if (!name.starts_with(kPrefix)) return -1;
    int32_t layer = -1;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
    return layer;
}

// Without what the steps do not use: it would be room in the cache, or on the device.
void drop_unused(Program &program) {
    size_t cached = 0;
    for (const Step &step : program.steps)
        if (const auto *attention = std::get_if<Attention>(&step))
            cached = std::max(cached, static_cast<size_t>(attention->layer) + 1);
    program.cache_layers.resize(cached);
}

}  // namespace

Program first_layers(const Program &program, int32_t layers) {
    size_t begin = program.steps.size(), end = 0;  // of the steps that are left out
    int32_t last = -1;
    for (size_t i = 0; i < program.steps.size(); ++i) {
        const int32_t layer = layer_of(program, program.steps[i]);
        if (layer >= layers) begin = std::min(begin, i);
        if (layer >= 0) end = i + 1;
        last = std::max(last, layer);
    }
    if (layers < 1 || last < layers)
        throw ModelError("the model has " + std::to_string(last + 1) +
                         " layers: its first ones, to draft with, can be 1 to " + std::to_string(last));
    Program cut = program;
    const auto at = [&](size_t index) { return cut.steps.begin() + static_cast<std::ptrdiff_t>(index); };
    cut.steps.erase(at(begin), at(end));
    drop_unused(cut);
    return cut;
}

}  // namespace runnel::model
