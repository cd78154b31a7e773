#include "engine/commands/doctor/small_program.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "gguf/quantize.h"
#include "kernels/steps.h"

namespace runnel::commands {

using namespace kernels;

WeightId add_floats(Program &program, std::string name, int64_t rows, int64_t cols,
                    std::vector<float> values) {
    auto kept = std::make_shared<const std::vector<float>>(std::move(values));
    program.weights.push_back(
        {std::move(name), gguf::Type::F32, rows, cols, reinterpret_cast<const std::byte *>(kept->data())});
    program.constants.push_back(std::move(kept));
    return static_cast<WeightId>(program.weights.size() - 1);
}

std::vector<float> activations(int64_t count, std::mt19937 &random) {
    std::normal_distribution<float> value(0, 1);
    std::vector<float> x(static_cast<size_t>(count));
    for (float &v : x) v = random() % 256 == 0 ? 20 * value(random) : value(random);
    return x;
}

std::vector<float> selection(int64_t columns, int64_t width, std::vector<int64_t> *chosen) {
    std::vector<float> rows(static_cast<size_t>(columns * width));
    for (int64_t i = 0; i < columns; ++i) {
        const int64_t column = columns > 1 ? i * (width - 1) / (columns - 1) : 0;
        rows[static_cast<size_t>(i * width + column)] = 1;
        if (chosen) chosen->push_back(column);
    }
    return rows;
}

namespace {

// The given rows of a matrix as F32.
std::vector<float> floats_of(const Weight &w, const std::vector<int64_t> &rows) {
    std::vector<float> values(rows.size() * static_cast<size_t>(w.cols));
    float *to = values.data();
    for (const int64_t row : rows) {
        gguf::dequantize_row(w.type, w.data + static_cast<size_t>(row) * gguf::row_bytes(w.type, w.cols), to,
                             w.cols);
        to += w.cols;
    }
    return values;
}

}  // namespace

SmallProgram::SmallProgram(const Program &from, uint32_t seed, int32_t tokens)
    : random_(seed), tokens_(tokens) {
    program_.weights = from.weights;
    program_.constants = from.constants;
    program_.ropes = from.ropes;
    program_.slots = from.slots;
    program_.state_layers = from.state_layers;
}

SmallProgram &SmallProgram::input(Slot slot) {
    if (slot == kNoSlot || !filled_.insert(slot).second) return *this;
    const WeightId table = add_floats(program_, "random rows", tokens_, width(slot),
                                      activations(tokens_ * width(slot), random_));
    program_.steps.push_back(Embed{table, slot});
    return *this;
}

SmallProgram &SmallProgram::step(Step step) {
    program_.steps.push_back(std::move(step));
    return *this;
}

Slot SmallProgram::some_rows(Slot in, const Linear::Part &part) {
    const Weight w = program_.weights[static_cast<size_t>(part.weight)];
    const int64_t columns = std::min(kComparedColumns, w.rows);
    std::vector<int64_t> chosen;
    std::vector<float> choice = selection(columns, w.rows, &chosen);
    const auto slot = [&] {
        program_.slots.push_back({"some columns", columns});
        return static_cast<Slot>(program_.slots.size() - 1);
    };
    const WeightId rows = add_floats(program_, w.name, columns, w.cols, floats_of(w, chosen));
    const Slot product = slot();
    step(Linear{in, {{rows, some_of(part.bias, chosen), product, kNoSlot, part.scale}}});
    if (part.add == kNoSlot) return product;
    const Slot sum = slot();
    const WeightId pick = add_floats(program_, "some columns", columns, w.rows, std::move(choice));
    step(Linear{part.add, {{pick, kNoWeight, sum, product}}});
    return sum;
}

// The elements of a bias for the chosen rows, as F32; kNoWeight without a bias.
WeightId SmallProgram::some_of(WeightId bias, const std::vector<int64_t> &chosen) {
    if (bias == kNoWeight) return kNoWeight;
    const std::vector<float> all = floats_of(program_.weights[static_cast<size_t>(bias)], {0});
    std::vector<float> some;
    for (const int64_t column : chosen) some.push_back(all[static_cast<size_t>(column)]);
    const auto size = static_cast<int64_t>(some.size());
    return add_floats(program_, "bias", 1, size, std::move(some));
}

Program SmallProgram::look_at(Slot slot, float softcap) {
    const int64_t columns = std::min(kComparedColumns, width(slot));
    Logits last{slot,
                add_floats(program_, "some columns", columns, width(slot), selection(columns, width(slot)))};
    last.softcap = softcap;
    program_.steps.push_back(last);
    program_.vocab = columns;
    return std::move(program_);
}

}  // namespace runnel::commands
