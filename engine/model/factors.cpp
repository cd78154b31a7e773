#include "engine/model/factors.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "engine/model/metadata.h"
#include "gguf/printable.h"

namespace runnel::model {
namespace {

using kernels::Program;
using kernels::WeightId;

constexpr std::string_view kMatrix = ".weight", kFactor = ".scale";

class Factors {
  public:
    Factors(const gguf::File &file, Program &program) : file_(&file), program_(&program) {}

    // 1 when the file has none.
    float of(WeightId weight) {
        std::string name = program_->weights[static_cast<size_t>(weight)].name;
        if (!name.ends_with(kMatrix)) return 1;
        name.replace(name.size() - kMatrix.size(), kMatrix.size(), kFactor);
        const gguf::Tensor *t = file_->find_tensor(name);
        if (t == nullptr) return 1;
        if (t->type != gguf::Type::F32)
            fail(name, "its type is " + std::string(gguf::traits(t->type).name) + ", f32 is expected");
        if (t->elements() != 1)
            fail(name, "holds " + std::to_string(t->elements()) + " numbers, one is expected");
        float factor;
        std::memcpy(&factor, t->data, sizeof factor);
        if (!(factor > 0) || !std::isfinite(factor)) fail(name, "is not a positive number");
        used_.insert(t->name);
        return factor;
    }

    // A bias that comes out right when it is multiplied together with the matrix.
    WeightId divided(WeightId bias, float factor) {
        if (bias == kernels::kNoWeight || factor == 1) return bias;
        kernels::Weight w = program_->weights[static_cast<size_t>(bias)];
        std::vector<float> values(static_cast<size_t>(w.rows * w.cols));
        std::memcpy(values.data(), w.data, values.size() * sizeof(float));
        for (float &value : values) value /= factor;
        const auto kept = std::make_shared<const std::vector<float>>(std::move(values));
        program_->constants.push_back(kept);
        w.data = reinterpret_cast<const std::byte *>(kept->data());
        program_->weights.push_back(std::move(w));
        return static_cast<WeightId>(program_->weights.size() - 1);
    }

    // A matrix that is not part of the program (of a layer for drafting) needs none.
    void check_all_used() const {
        std::unordered_set<std::string_view> in_program;
        for (const kernels::Weight &w : program_->weights) in_program.insert(w.name);
        for (const gguf::Tensor &t : file_->tensors()) {
            if (!t.name.ends_with(kFactor) || used_.contains(t.name)) continue;
            const std::string matrix =
                std::string(t.name.substr(0, t.name.size() - kFactor.size())) + std::string(kMatrix);
            if (in_program.contains(matrix) || file_->find_tensor(matrix) == nullptr)
                fail(std::string(t.name),
                     "factors are supported beside matrices of their own, not of experts or other tensors");
        }
    }

  private:
    [[noreturn]] void fail(const std::string &tensor, const std::string &problem) const {
        throw ModelError(name_of(*file_) + ": tensor " + gguf::printable(tensor) + ": " + problem);
    }

    const gguf::File *file_;
    Program *program_;
    std::unordered_set<std::string_view> used_;  // names of tensors
};

}  // namespace

void apply_factors(const gguf::File &file, Program &program) {
    Factors factors(file, program);
    for (kernels::Step &step : program.steps) {
        if (auto *linear = std::get_if<kernels::Linear>(&step)) {
            for (kernels::Linear::Part &part : linear->parts) {
                const float factor = factors.of(part.weight);
                part.scale *= factor;
                part.bias = factors.divided(part.bias, factor);
            }
        } else if (auto *logits = std::get_if<kernels::Logits>(&step)) {
            const float factor = factors.of(logits->weight);
            logits->scale *= factor;
            logits->bias = factors.divided(logits->bias, factor);
        } else if (auto *embed = std::get_if<kernels::Embed>(&step)) {
            embed->scale *= factors.of(embed->table);
        }
    }
    factors.check_all_used();
}

}  // namespace runnel::model
