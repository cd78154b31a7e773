#include "engine/model/builder.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "gguf/printable.h"
#include "gguf/quantize.h"
#include "kernels/steps.h"

namespace runnel::model {

using kernels::kNoWeight;
using kernels::Weight;
using kernels::WeightId;

namespace {

std::string text_of(Size size) {
    return std::to_string(size.value) + " (" + std::string(size.keys) + ")";
}

// Tensors that the computation does not need: leftovers of old converters, draft layers (nextn), scales
// of activations for other programs, and experts for images (vis).
bool ignorable(std::string_view name) {
    for (const std::string_view part :
         {".attn_rot_embd", ".nextn.", ".input_scale", ".attention.rotary_emb", ".vis_"})
        if (name.find(part) != std::string_view::npos) return true;
    return false;
}

}  // namespace

Builder::Builder(const gguf::File &file, const Metadata &metadata, const HyperParameters &hyper,
                 int64_t context)
    : file_(&file),
      hyper_(hyper),
      metadata_(metadata),
      asked_(context > 0),
      context_(asked_ ? context : hyper.context_length) {}

void Builder::limit_context(int64_t tokens) {
    hyper_.context_length = std::min(hyper_.context_length, tokens);
    hyper_.context_is_limit = true;
    context_ = std::min(context_, tokens);
}

void Builder::fail(const std::string &tensor, const std::string &problem) const {
    throw ModelError(name_of(*file_) + ": tensor " + tensor + ": " + problem);
}

const gguf::Tensor &Builder::tensor(const std::string &name) const {
    const gguf::Tensor *tensor = file_->find_tensor(name);
    if (!tensor) fail(name, "missing");
    const gguf::TypeTraits &type = gguf::traits(tensor->type);
    if (!type.supported) fail(name, "its type " + std::string(type.name) + " is not supported yet");
    if (!type.quantized && tensor->type != gguf::Type::F32 && tensor->type != gguf::Type::F16 &&
        tensor->type != gguf::Type::BF16)
        fail(name, "weights cannot have the type " + std::string(type.name));
    return *tensor;
}

const gguf::Tensor &Builder::vector_tensor(const std::string &name) const {
    const gguf::Tensor *tensor = file_->find_tensor(name);
    if (!tensor) fail(name, "missing");
    if (tensor->type != gguf::Type::F32)
        fail(name, "its type is " + std::string(gguf::traits(tensor->type).name) + ", f32 is expected");
    return *tensor;
}

void Builder::check_shape(const gguf::Tensor &t, Size rows, Size cols) const {
    // Weights of convolutions and interpolations may have dimensions of 1 between the two.
    const bool fits =
        t.shape[1] == rows.value ||
        (t.shape[1] == 1 && (t.shape[2] == rows.value || (t.shape[2] == 1 && t.shape[3] == rows.value)));
    if (t.shape[0] == cols.value && t.elements() == rows.value * cols.value && fits) return;
    fail(std::string(t.name), "its shape is " + std::to_string(t.shape[0]) + " x " +
                                  std::to_string(t.shape[1]) + (t.rank > 2 ? " x ..." : "") + ", expected " +
                                  text_of(cols) + " x " + text_of(rows));
}

// Rows [first, first + rows) of a tensor whose shape is checked.
WeightId Builder::add_rows(const gguf::Tensor &t, int64_t first, int64_t rows, int64_t cols, int64_t count) {
    // Kernels load plain numbers directly, so these must be aligned; blocks may be at any address.
    const gguf::TypeTraits &type = gguf::traits(t.type);
    const size_t alignment = type.quantized ? 1 : type.block_bytes;
    if (reinterpret_cast<uintptr_t>(t.data) % alignment != 0)
        fail(std::string(t.name), "its data is not aligned to " + std::to_string(alignment) + " bytes");
    used_.insert(t.name);
    const std::byte *data = t.data + static_cast<size_t>(first) * gguf::row_bytes(t.type, cols);
    const Weight weight{std::string(t.name), t.type, rows, cols, data, count};
    const auto [known, added] = weight_ids_.try_emplace(data, static_cast<WeightId>(program_.weights.size()));
    if (!added) {  // tensors may share their bytes with each other
        const Weight &other = program_.weights[static_cast<size_t>(known->second)];
        if (other.type == t.type && other.rows == rows && other.cols == cols && other.count == count)
            return known->second;
        known->second = static_cast<WeightId>(program_.weights.size());
    }
    program_.weights.push_back(weight);
    return known->second;
}

WeightId Builder::weight(const gguf::Tensor &t, Size rows, Size cols) {
    check_shape(t, rows, cols);
    return add_rows(t, 0, rows.value, cols.value);
}

WeightId Builder::matrix(const std::string &name, Size rows, Size cols) {
    return weight(tensor(name), rows, cols);
}

WeightId Builder::vector(const std::string &name, Size size) {
    return weight(vector_tensor(name), {1, "a vector"}, size);
}

WeightId Builder::optional_vector(const std::string &name, Size size) {
    return has(name) ? vector(name, size) : kNoWeight;
}

WeightId Builder::optional_factors(const std::string &name, Size size) {
    if (!has(name)) return kNoWeight;
    for (const float factor : values(name, {1, "a vector"}, size))
        if (!(factor > 0) || !std::isfinite(factor))
            fail(name, "holds a factor that is not a positive number");
    return vector(name, size);
}

WeightId Builder::flat_vector(const std::string &name, Size rows, Size cols) {
    const gguf::Tensor &t = vector_tensor(name);
    check_shape(t, rows, cols);
    return add_rows(t, 0, 1, rows.value * cols.value);
}

WeightId Builder::vectors(const std::string &name, Size count, Size size) {
    const gguf::Tensor &t = vector_tensor(name);
    check_shape(t, count, size);
    return add_rows(t, 0, 1, size.value, count.value);
}

kernels::Linear Builder::split(const std::string &name, Size cols, bool bias_required, kernels::Slot in,
                               const std::vector<Share> &shares) {
    Size all{0, ""};
    std::string keys;
    for (const Share &share : shares) {
        all.value += share.rows.value;
        keys += (keys.empty() ? "" : " + ") + std::string(share.rows.keys);
    }
    all.keys = keys;
    const gguf::Tensor &w = tensor(name + ".weight");
    check_shape(w, all, cols);
    const bool has_bias = bias_required || has(name + ".bias");
    if (has_bias) check_shape(vector_tensor(name + ".bias"), {1, "a vector"}, all);
    kernels::Linear linear{in, {}};
    int64_t first = 0;
    for (const Share &share : shares) {
        WeightId bias = kNoWeight;
        if (has_bias) {  // one value per row of the matrix
            gguf::Tensor shifted = vector_tensor(name + ".bias");
            shifted.data += static_cast<size_t>(first) * sizeof(float);
            bias = add_rows(shifted, 0, 1, share.rows.value);
        }
        linear.parts.push_back(
            {add_rows(w, first, share.rows.value, cols.value), bias, share.out, kernels::kNoSlot});
        first += share.rows.value;
    }
    return linear;
}

WeightId Builder::matrices(const std::string &name, Size count, Size rows, Size cols) {
    const gguf::Tensor &t = tensor(name);
    const bool stacked = t.shape[1] == rows.value && t.shape[2] == count.value,
               below = t.shape[1] == rows.value * count.value;
    if (t.shape[0] != cols.value || t.elements() != cols.value * rows.value * count.value ||
        (!stacked && !below))
        fail(name, "its shape is " + std::to_string(t.shape[0]) + " x " + std::to_string(t.shape[1]) + " x " +
                       std::to_string(t.shape[2]) + ", expected " + text_of(cols) + " x " + text_of(rows) +
                       " x " + text_of(count));
    return add_rows(t, 0, rows.value, cols.value, count.value);
}

WeightId Builder::constant(const std::string &name, std::vector<float> values, int64_t count, int64_t rows,
                           int64_t cols) {
    const auto kept = std::make_shared<const std::vector<float>>(std::move(values));
    program_.constants.push_back(kept);
    program_.weights.push_back(
        {name, gguf::Type::F32, rows, cols, reinterpret_cast<const std::byte *>(kept->data()), count});
    return static_cast<WeightId>(program_.weights.size() - 1);
}

std::vector<float> Builder::values(const std::string &name, Size rows, Size cols) {
    const gguf::Tensor &t = tensor(name);
    check_shape(t, rows, cols);
    used_.insert(t.name);
    std::vector<float> out(static_cast<size_t>(t.elements()));
    gguf::dequantize_row(t.type, t.data, out.data(), t.elements());
    return out;
}

std::vector<float> Builder::number_sets(const std::string &name, Size rows, Size cols, int64_t end) {
    const gguf::Tensor *t = file_->find_tensor(name);
    if (!t) fail(name, "missing");
    if (t->type != gguf::Type::I32)
        fail(name, "its type is " + std::string(gguf::traits(t->type).name) + ", i32 is expected");
    check_shape(*t, rows, cols);
    used_.insert(t->name);
    std::vector<float> all(static_cast<size_t>(t->elements()));
    gguf::dequantize_row(t->type, t->data, all.data(), t->elements());
    for (auto row = all.begin(); row != all.end(); row += cols.value) {
        std::sort(row, row + cols.value);
        if (row[0] < 0 || row[cols.value - 1] >= static_cast<float>(end) ||
            std::adjacent_find(row, row + cols.value) != row + cols.value)
            fail(name, "a row is not " + std::to_string(cols.value) + " different numbers below " +
                           std::to_string(end));
    }
    return all;
}

void Builder::ignore(const std::string &name) {
    if (const gguf::Tensor *t = file_->find_tensor(name)) used_.insert(t->name);
}

int64_t Builder::cols_of(const std::string &name) const {
    const gguf::Tensor *tensor = file_->find_tensor(name);
    return tensor ? tensor->shape[0] : 0;
}

int64_t Builder::rows_of(const std::string &name) const {
    const gguf::Tensor *tensor = file_->find_tensor(name);
    return tensor ? tensor->shape[1] : 0;
}

kernels::Slot Builder::slot(const std::string &name, int64_t width) {
    for (size_t i = 0; i < program_.slots.size(); ++i)
        if (program_.slots[i].name == name && program_.slots[i].width == width)
            return static_cast<kernels::Slot>(i);
    program_.slots.push_back({name, width});
    return static_cast<kernels::Slot>(program_.slots.size() - 1);
}

void Builder::add(kernels::Step step) {
    kernels::set_layer(step, layer_);
    program_.steps.push_back(std::move(step));
}

int32_t Builder::cache_layer(kernels::CacheLayer layer, int32_t window) {
    const auto known = std::find(group_windows_.begin(), group_windows_.end(), window);
    layer.group = static_cast<int32_t>(known - group_windows_.begin());
    if (known == group_windows_.end()) group_windows_.push_back(window);
    program_.cache_layers.push_back(layer);
    return static_cast<int32_t>(program_.cache_layers.size() - 1);
}

int32_t Builder::state_layer(int64_t floats) {
    program_.state_layers.push_back({floats});
    return static_cast<int32_t>(program_.state_layers.size() - 1);
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
    else if (kind == "longrope" || kind == "su")
        scaling.kind = scaling.factor != 1 ? RopeScaling::Kind::Linear : RopeScaling::Kind::None;
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

// The divisors of `rope_freqs`, or the long or short factors of LongRoPE (Ding et al. 2024): long ones if
// the context in use exceeds the original one. The choice is the same for all positions, because cached
// keys are not rotated again.
std::vector<float> Builder::rope_divisors(const RopeScaling &scaling) {
    const bool is_long = static_cast<double>(context_) > scaling.original_context;
    const std::string chosen = is_long ? "rope_factors_long.weight" : "rope_factors_short.weight";
    used_.insert({"rope_factors_long.weight", "rope_factors_short.weight"});
    const std::string name = has("rope_freqs.weight") ? "rope_freqs.weight" : chosen;
    if (!has(name)) return {};
    const Size pairs{hyper_.rope_dimensions / 2, "rope.dimension_count / 2"};
    const gguf::Tensor &t = vector_tensor(name);
    check_shape(t, {1, "a vector"}, pairs);
    std::vector<float> divisors(static_cast<size_t>(pairs.value));
    std::memcpy(divisors.data(), t.data, divisors.size() * sizeof(float));
    for (const float d : divisors)
        if (!(d > 0) || !std::isfinite(d)) fail(name, "holds a factor that is not a positive number");
    return divisors;
}

int32_t Builder::add_rope(kernels::RopeTable table) {
    // Numbers that are valid alone can be invalid together: a tiny divisor and a tiny factor.
    const auto finite = [](double number) { return std::isfinite(number); };
    if (!finite(table.magnitude) || !std::all_of(table.inv_freq.begin(), table.inv_freq.end(), finite))
        metadata_.fail("rope.*",
                       "together with the file's factors, these give rotations that are not finite");
    program_.ropes.push_back(std::move(table));
    return static_cast<int32_t>(program_.ropes.size() - 1);
}

bool Builder::has_position_axes() const {
    const char *key = "rope.dimension_sections";
    const auto sections = metadata_.reals(key);
    if (!sections) return false;
    if (sections->size() > 4) metadata_.fail(key, "has more than four entries");
    for (const float pairs : *sections)
        if (pairs < 0) metadata_.fail(key, "holds a negative number");
    return sections->size() > 1 && (*sections)[0] > 0 && (*sections)[1] > 0;
}

int32_t Builder::rope(kernels::RopeTable::Pairs pairs, double base_factor, int32_t dimensions) {
    // Checks the axes and marks their key as read; families with adjacent pairs must check them themselves.
    if (pairs == kernels::RopeTable::Pairs::Halves) (void)has_position_axes();
    // In families without RoPE, heads may have any size.
    if (hyper_.rope_dimensions == 0) metadata_.fail("rope.dimension_count", "0: nothing would be rotated");
    if (dimensions == 0) dimensions = hyper_.rope_dimensions;
    if (hyper_.rope_dimensions % 2 != 0)
        metadata_.fail("rope.dimension_count", std::to_string(hyper_.rope_dimensions) +
                                                   " is odd (the default is attention.key_length)");
    if (dimensions % 2 != 0) metadata_.fail("rope.dimension_count", "half of it is odd");
    const double base = metadata_.real("rope.freq_base").value_or(10000) * base_factor;
    if (!(base > 1)) metadata_.fail("rope.freq_base", "must be greater than 1");
    const RopeScaling scaling = rope_scaling();
    std::vector<float> divisors = rope_divisors(scaling);
    if (!divisors.empty()) divisors.resize(static_cast<size_t>(dimensions / 2));
    return add_rope(make_rope(pairs, dimensions, base, scaling, divisors));
}

int32_t Builder::unscaled_rope(kernels::RopeTable::Pairs pairs, double base, int32_t dimensions) {
    if (!(base > 1)) metadata_.fail("rope.freq_base_swa", "must be greater than 1");
    return add_rope(make_rope(pairs, dimensions > 0 ? dimensions : hyper_.rope_dimensions, base, {}, {}));
}

void Builder::check_all_used() const {
    const auto factor_of_used = [&](std::string_view name) {
        constexpr std::string_view kFactor = ".scale";
        if (!name.ends_with(kFactor)) return false;
        return used_.contains(std::string(name.substr(0, name.size() - kFactor.size())) + ".weight");
    };
    for (const gguf::Tensor &t : file_->tensors()) {
        const bool of_layer = t.name.starts_with("blk.");
        if ((!of_layer && !factor_of_used(t.name)) || used_.contains(t.name) || ignorable(t.name)) continue;
        const std::string name = gguf::printable(t.name);
        if (!of_layer) fail(name, "a factor must be a single number");
        const int64_t layer = std::strtoll(std::string(t.name.substr(4)).c_str(), nullptr, 10);
        if (layer >= hyper_.block_count && layer < hyper_.block_count + hyper_.draft_layers) continue;
        if (layer >= hyper_.block_count)
            metadata_.fail("block_count",
                           std::to_string(hyper_.block_count) + ", but there is a tensor " + name);
        if (name.ends_with(".scale"))
            fail(name, "a factor must be a single number, or one per expert of a matrix without biases");
        fail(name, "the architecture " + gguf::printable(hyper_.architecture) + " has no such weight");
    }
}

kernels::Program Builder::take() {
    if (!draft_block()) check_all_used();
    program_.vocab = hyper_.vocab;
    return std::move(program_);
}

}  // namespace runnel::model
