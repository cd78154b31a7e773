#include "engine/model/builder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/printable.h"

namespace runnel::model {

using kernels::kNoWeight;
using kernels::WeightId;

Builder::Builder(const gguf::File &file, const HyperParameters &hyper)
    : file_(&file), hyper_(hyper), metadata_(file) {}

void Builder::fail(const std::string &tensor, const std::string &problem) const {
    throw ModelError(name_of(*file_) + ": tensor " + tensor + ": " + problem);
}

WeightId Builder::weight(const gguf::Tensor &tensor, int64_t rows, int64_t cols) {
    const std::string name(tensor.name);
    if (tensor.shape[0] != cols || tensor.elements() != rows * cols || tensor.shape[1] != rows)
        fail(name, "its shape is " + std::to_string(tensor.shape[0]) + " x " +
                       std::to_string(tensor.shape[1]) + (tensor.rank > 2 ? " x ..." : "") +
                       ", the metadata asks for " + std::to_string(cols) + " x " + std::to_string(rows));
    if (!gguf::traits(tensor.type).supported)
        fail(name, "its type " + std::string(gguf::traits(tensor.type).name) + " is not supported yet");
    // Kernels load plain numbers directly; blocks may stand anywhere.
    const size_t alignment = gguf::traits(tensor.type).quantized ? 1 : gguf::traits(tensor.type).block_bytes;
    if (reinterpret_cast<uintptr_t>(tensor.data) % alignment != 0)
        fail(name, "its data is not aligned to " + std::to_string(alignment) + " bytes");
    const auto [known, added] =
        weight_ids_.try_emplace(tensor.data, static_cast<WeightId>(program_.weights.size()));
    if (added) program_.weights.push_back({name, tensor.type, rows, cols, tensor.data});
    return known->second;
}

WeightId Builder::matrix(const std::string &name, int64_t rows, int64_t cols) {
    const gguf::Tensor *tensor = file_->find_tensor(name);
    if (!tensor) fail(name, "missing");
    const gguf::TypeTraits &type = gguf::traits(tensor->type);
    if (type.supported && !type.quantized && tensor->type != gguf::Type::F32 &&
        tensor->type != gguf::Type::F16 && tensor->type != gguf::Type::BF16)
        fail(name, "its type " + std::string(type.name) + " is not one that weights are stored in");
    return weight(*tensor, rows, cols);
}

WeightId Builder::vector(const std::string &name, int64_t size) {
    const gguf::Tensor *tensor = file_->find_tensor(name);
    if (!tensor) fail(name, "missing");
    if (tensor->type != gguf::Type::F32)
        fail(name, "its type is " + std::string(gguf::traits(tensor->type).name) + ", f32 is expected");
    return weight(*tensor, 1, size);
}

WeightId Builder::optional_vector(const std::string &name, int64_t size) {
    return has(name) ? vector(name, size) : kNoWeight;
}

kernels::Slot Builder::slot(std::string name, int64_t width) {
    program_.slots.push_back({std::move(name), width});
    return static_cast<kernels::Slot>(program_.slots.size() - 1);
}

RopeScaling Builder::rope_scaling() const {
    RopeScaling scaling;
    const std::string_view kind = metadata_.text("rope.scaling.type").value_or("linear");
    const double factor =
        metadata_.real("rope.scaling.factor", 0).value_or(metadata_.real("rope.scale_linear", 0).value_or(0));
    scaling.factor = factor == 0 ? 1 : factor;
    if (kind == "yarn")
        scaling.kind = RopeScaling::Kind::Yarn;
    else if (kind == "linear" && scaling.factor != 1)
        scaling.kind = RopeScaling::Kind::Linear;
    else if (kind != "linear" && kind != "none")
        metadata_.fail("rope.scaling.type",
                       "\"" + gguf::printable(kind) + "\" is not supported for this architecture");
    scaling.original_context =
        static_cast<double>(metadata_.integer("rope.scaling.original_context_length", 1, INT32_MAX)
                                .value_or(hyper_.context_length));
    scaling.beta_fast = metadata_.real("rope.scaling.yarn_beta_fast").value_or(32);
    scaling.beta_slow = metadata_.real("rope.scaling.yarn_beta_slow").value_or(1);
    scaling.extrapolation = metadata_.real("rope.scaling.yarn_ext_factor").value_or(1);
    scaling.attention_factor = metadata_.real("rope.scaling.attn_factor").value_or(1);
    scaling.log_multiplier = metadata_.real("rope.scaling.yarn_log_multiplier").value_or(0);
    return scaling;
}

std::vector<float> Builder::rope_divisors() {
    const WeightId id = optional_vector("rope_freqs.weight", hyper_.rope_dimensions / 2);
    if (id == kNoWeight) return {};
    const kernels::Weight &w = program_.weights[static_cast<size_t>(id)];
    std::vector<float> divisors(static_cast<size_t>(w.cols));
    std::memcpy(divisors.data(), w.data, w.bytes());
    for (const float d : divisors)
        if (!(d > 0) || !std::isfinite(d)) fail(w.name, "holds a factor that is not a positive number");
    return divisors;
}

int32_t Builder::rope(kernels::RopeTable::Pairs pairs) {
    const double base = metadata_.real("rope.freq_base").value_or(10000);
    if (!(base > 1)) metadata_.fail("rope.freq_base", "must be greater than 1");
    kernels::RopeTable table =
        make_rope(pairs, hyper_.rope_dimensions, base, rope_scaling(), rope_divisors());
    // Each number by itself may make sense when together they do not: a tiny divisor and a tiny factor.
    const auto finite = [](double number) { return std::isfinite(number); };
    if (!finite(table.magnitude) || !std::all_of(table.inv_freq.begin(), table.inv_freq.end(), finite))
        metadata_.fail("rope.*", "together with rope_freqs.weight, these give rotations without end");
    program_.ropes.push_back(std::move(table));
    return static_cast<int32_t>(program_.ropes.size() - 1);
}

kernels::Program Builder::take() {
    program_.vocab = hyper_.vocab;
    return std::move(program_);
}

}  // namespace runnel::model
