#include "engine/model/factors.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/model/metadata.h"
#include "gguf/printable.h"
#include "kernels/steps.h"

namespace runnel::model {
namespace {

using kernels::Program;
using kernels::WeightId;

constexpr std::string_view kMatrix = ".weight", kFactor = ".scale";

class Factors {
  public:
    Factors(const gguf::File &file, Builder &builder)
        : file_(&file), builder_(&builder), program_(&builder.program()) {}

    // The factor of a weight; 1 if the file has none.
    float of(WeightId weight) {
        std::string name = program_->weights[static_cast<size_t>(weight)].name;
        if (!name.ends_with(kMatrix)) return 1;
        name.replace(name.size() - kMatrix.size(), kMatrix.size(), kFactor);
        const gguf::Tensor *t = file_->find_tensor(name);
        if (t == nullptr || t->elements() != 1) return 1;
        if (t->type != gguf::Type::F32)
            fail(name, "its type is " + std::string(gguf::traits(t->type).name) + ", f32 is expected");
        float factor;
        std::memcpy(&factor, t->data, sizeof factor);
        if (!(factor > 0) || !std::isfinite(factor)) fail(name, "is not a positive number");
        builder_->ignore(name);
        return factor;
    }

    // The bias divided by the factor, so that multiplying both matrix and bias restores it.
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

  private:
    [[noreturn]] void fail(const std::string &tensor, const std::string &problem) const {
        throw ModelError(name_of(*file_) + ": tensor " + gguf::printable(tensor) + ": " + problem);
    }

    const gguf::File *file_;
    Builder *builder_;
    Program *program_;
};

}  // namespace

void apply_factors(const gguf::File &file, Builder &builder) {
    Factors factors(file, builder);
    const auto multiply = [&](WeightId matrix, float &scale, WeightId &bias) {
        const float factor = factors.of(matrix);
        scale *= factor;
        bias = factors.divided(bias, factor);
    };
    for (kernels::Step &step : builder.program().steps)
        std::visit(kernels::Overloaded{
                       [&](kernels::Embed &s) {
                           if (s.table != kNoWeight) s.scale *= factors.of(s.table);
                       },
                       [&](kernels::Linear &s) {
                           for (kernels::Linear::Part &part : s.parts)
                               multiply(part.weight, part.scale, part.bias);
                       },
                       [&](kernels::Logits &s) { multiply(s.weight, s.scale, s.bias); },
                       // One factor cannot apply to several matrices: the file's factors remain unused.
                       [](kernels::HashedEmbed &) {},
                       [](kernels::HeadLinear &) {},
                       [](kernels::Experts &) {},
                       // Steps without matrices.
                       [](kernels::Norm &) {},
                       [](kernels::Copy &) {},
                       [](kernels::Rotate &) {},
                       [](kernels::Mix &) {},
                       [](kernels::StreamWeights &) {},
                       [](kernels::Lerp &) {},
                       [](kernels::Rope &) {},
                       [](kernels::JoinAttention &) {},
                       [](kernels::Attention &) {},
                       [](kernels::Indexer &) {},
                       [](kernels::Activation &) {},
                       [](kernels::ShortConv &) {},
                       [](kernels::SoftPool &) {},
                       [](kernels::ScanGate &) {},
                       [](kernels::LinearScan &) {},
                       [](kernels::SelectiveScan &) {},
                   },
                   step);
}

}  // namespace runnel::model
