#include "engine/quantize/type_search.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/quantize/allocation.h"
#include "engine/quantize/parallel.h"
#include "engine/quantize/rows.h"
#include "gguf/quantize.h"

namespace runnel::quantize {
namespace {

using gguf::Type;

// In a larger tensor, errors are computed on about this many weights.
constexpr int64_t kSampledWeights = int64_t{1} << 17;
constexpr int64_t kFewestRows = 16;
// Neighboring layers are measured together, so that a deep model takes no more measurements than one of 8 layers.
constexpr int64_t kBands = 8;

// clang-format off
constexpr Type kDefaultTypes[] = {
    Type::IQ1_S, Type::IQ1_M, Type::IQ2_XXS, Type::IQ2_XS, Type::IQ2_S, Type::Q2_K, Type::IQ3_XXS, Type::IQ3_S,
    Type::Q3_K, Type::IQ4_XS, Type::Q4_K, Type::Q5_K, Type::Q6_K, Type::Q8_0,
    // For rows that are not whole blocks of 256.
    Type::IQ4_NL, Type::Q4_0, Type::Q4_1, Type::Q5_0, Type::Q5_1,
    Type::F16, Type::BF16};
// clang-format on

bool is_fallback(Type type) {
    return type == Type::IQ4_NL || type == Type::Q4_0 || type == Type::Q4_1 || type == Type::Q5_0 ||
           type == Type::Q5_1;
}

// The rise of the perplexity of LLaMA-7B with one kind of matrix at about 2 bits in all layers (llama.cpp issue
// 1256). The figure of the output matrix, which was not measured there, is that of the demo model in tests/models.
double figure_of(Role role) {
    switch (role) {
        case Role::Output:
            return 1.2;
        case Role::Embedding:
            return 0.05;
        case Role::Value:
            return 0.782;
        case Role::Key:
            return 0.109;
        case Role::Query:
            return 0.125;
        case Role::AttentionOutput:
            return 0.390;
        case Role::Up:
            return 0.566;
        case Role::Gate:
            return 0.392;
        case Role::Down:
            return 1.083;
        case Role::Other:
            return 0.4;
    }
    return 0;
}

void set_figures(const gguf::File &source, std::vector<OpenTensor> &tensors) {
    const bool tied = source.find_tensor("output.weight") == nullptr;
    std::map<Role, int64_t> count;
    for (const OpenTensor &tensor : tensors) ++count[tensor.role];
    for (OpenTensor &tensor : tensors) {
        const bool is_output = tied && tensor.name == "token_embd.weight";
        tensor.slope = (figure_of(tensor.role) + (is_output ? figure_of(Role::Output) : 0)) /
                       static_cast<double>(count[tensor.role]);
    }
}

uint64_t padded(uint64_t bytes) {
    return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

uint64_t bytes_in(const gguf::Tensor &tensor, Type type) {
    const auto rows = static_cast<uint64_t>(tensor.elements() / tensor.shape[0]);
    return padded(type == tensor.type ? tensor.bytes : rows * gguf::row_bytes(type, tensor.shape[0]));
}

int64_t sampled_rows(const gguf::Tensor &tensor) {
    const int64_t rows = tensor.elements() / tensor.shape[0];
    return std::min(rows, std::max(kFewestRows, kSampledWeights / tensor.shape[0]));
}

// The error of one row in every option's type, and the row's energy.
struct RowErrors {
    std::vector<double> squares;
    double energy = 0;
};

RowErrors row_errors(const OpenTensor &tensor, int64_t row, const QuantizeRequest &request,
                     std::span<const float> importance) {
    const auto columns = static_cast<size_t>(tensor.source->shape[0]);
    std::vector<float> values(columns), decoded(columns);
    std::vector<std::byte> blocks;
    read_row(*tensor.source, row, values);
    const std::span<const float> weights = row_importance(*tensor.source, row, importance);
    const auto weight = [&](size_t i) { return weights.empty() ? 1.0 : double{weights[i]}; };
    RowErrors result;
    for (size_t i = 0; i < columns; ++i) result.energy += weight(i) * double{values[i]} * double{values[i]};
    for (const TypeOption &option : tensor.options) {
        double squares = 0;
        if (option.type != tensor.source->type) {
            blocks.resize(gguf::row_bytes(option.type, static_cast<int64_t>(columns)));
            encode_row(request.method, option.type, values, weights, blocks.data());
            gguf::dequantize_row(option.type, blocks.data(), decoded.data(), static_cast<int64_t>(columns));
            for (size_t i = 0; i < columns; ++i) {
                const double difference = double{values[i]} - double{decoded[i]};
                squares += weight(i) * difference * difference;
            }
        }
        result.squares.push_back(squares);
    }
    return result;
}

void measure_tensor(OpenTensor &tensor, const QuantizeRequest &request) {
    const std::span<const float> importance = importance_of(*tensor.source, request.importance);
    const int64_t rows = tensor.source->elements() / tensor.source->shape[0],
                  count = sampled_rows(*tensor.source);
    std::vector<RowErrors> errors(static_cast<size_t>(count));
    in_parallel(request.threads, count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            errors[static_cast<size_t>(i)] =
                row_errors(tensor, (2 * i + 1) * rows / (2 * count), request, importance);
    });
    double energy = 0;
    for (const RowErrors &row : errors) energy += row.energy;
    for (size_t k = 0; k < tensor.options.size(); ++k) {
        double squares = 0;
        for (const RowErrors &row : errors) squares += row.squares[k];
        tensor.options[k].error = energy > 0 ? squares / energy : squares;
    }
    std::erase_if(tensor.options, [](const TypeOption &option) { return !std::isfinite(option.error); });
}

std::string role_name(const OpenTensor &tensor) {
    constexpr std::string_view kWeight = ".weight";
    std::string name = tensor.name;
    if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
    if (tensor.layer >= 0) name = name.substr(name.find('.', 4) + 1);
    return name;
}

uint32_t file_type_of(std::span<const OpenTensor> tensors, std::span<const Type> types) {
    std::map<Type, int64_t> elements;
    for (size_t i = 0; i < tensors.size(); ++i) elements[types[i]] += tensors[i].source->elements();
    const auto most = std::ranges::max_element(elements, {}, [](const auto &pair) { return pair.second; });
    const Mix *found = nullptr;
    for (const Mix &mix : mixes()) {
        if (most == elements.end() || mix.base != most->first) continue;
        const bool same_name = find_mix(gguf::traits(mix.base).name) == &mix;
        if (!found || same_name) found = &mix;
    }
    return found ? found->file_type : find_mix("F16")->file_type;
}

std::string mebibytes(uint64_t bytes) {
    char text[48];
    std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
    return text;
}

}  // namespace

const TypeOption *OpenTensor::find(Type type) const {
    const auto found = std::ranges::find(options, type, &TypeOption::type);
    return found == options.end() ? nullptr : &*found;
}

std::span<const Type> default_types() {
    return kDefaultTypes;
}

std::vector<OpenTensor> open_tensors(const gguf::File &source, const QuantizeRequest &request,
                                     std::span<const Type> types) {
    // A tensor is open if its type depends on the mix.
    QuantizeRequest probe = with_choice(request, {});
    const QuantizePlan larger = plan_quantization(source, probe);
    probe.mix = find_mix("Q4_0");
    const QuantizePlan smaller = plan_quantization(source, probe);
    std::vector<OpenTensor> tensors;
    for (size_t i = 0; i < larger.tensors.size(); ++i) {
        const PlannedTensor &planned = larger.tensors[i];
        if (planned.type == smaller.tensors[i].type) continue;
        const gguf::Tensor &from = *planned.source;
        OpenTensor tensor{&from, planned.name, role_of(planned.name), layer_of(planned.name), {}};
        const bool has_importance = !importance_of(from, request.importance).empty();
        const bool whole = from.shape[0] % gguf::kSuperBlock == 0;
        for (const Type type : types) {
            const gguf::TypeTraits &traits = gguf::traits(type);
            if (type == from.type || from.shape[0] % traits.block_size != 0) continue;
            if (gguf::row_bytes(type, from.shape[0]) >= gguf::row_bytes(from.type, from.shape[0])) continue;
            if (!has_importance && needs_importance(type, *find_mix("F16"))) continue;
            if (whole && is_fallback(type) && types.data() == kDefaultTypes) continue;
            tensor.options.push_back({type, bytes_in(from, type)});
        }
        tensor.options.push_back({from.type, bytes_in(from, from.type)});
        tensors.push_back(std::move(tensor));
    }
    set_figures(source, tensors);
    return tensors;
}

bool measure_errors(std::vector<OpenTensor> &tensors, const QuantizeRequest &request,
                    const std::function<bool(uint64_t, uint64_t)> &progress) {
    const auto work = [](const OpenTensor &tensor) {
        return static_cast<uint64_t>(sampled_rows(*tensor.source) * tensor.source->shape[0]) *
               tensor.options.size();
    };
    uint64_t done = 0, all = 0;
    for (const OpenTensor &tensor : tensors) all += work(tensor);
    for (OpenTensor &tensor : tensors) {
        if (!progress(done, all)) return false;
        done += work(tensor);
        measure_tensor(tensor, request);
    }
    return progress(all, all);
}

std::vector<SlopeGroup> slope_groups(std::span<const OpenTensor> tensors) {
    int64_t layers = 1;
    for (const OpenTensor &tensor : tensors) layers = std::max(layers, tensor.layer + 1);
    const auto band_of = [&](int64_t layer) { return layers <= kBands ? layer : layer * kBands / layers; };
    std::vector<SlopeGroup> groups;
    std::map<std::pair<std::string, int64_t>, size_t> known;
    std::vector<std::pair<int64_t, int64_t>> spans;
    for (size_t i = 0; i < tensors.size(); ++i) {
        const int64_t layer = tensors[i].layer, band = layer < 0 ? -1 : band_of(layer);
        const auto [at, added] = known.try_emplace({role_name(tensors[i]), band}, groups.size());
        if (added) groups.push_back({role_name(tensors[i]), {}}), spans.emplace_back(layer, layer);
        groups[at->second].tensors.push_back(i);
        spans[at->second].second = std::max(spans[at->second].second, layer);
    }
    for (size_t g = 0; g < groups.size(); ++g) {
        const auto [first, last] = spans[g];
        if (first < 0) continue;
        groups[g].name += first == last ? " of layer " + std::to_string(first)
                                        : " of layers " + std::to_string(first) + "-" + std::to_string(last);
    }
    return groups;
}

const TypeOption *probe_type(const OpenTensor &tensor) {
    for (const Type type : {Type::Q3_K, Type::Q4_0, Type::IQ4_NL, Type::Q4_1, Type::Q5_0})
        if (const TypeOption *option = tensor.find(type)) return option;
    const auto smallest = std::ranges::min_element(tensor.options, {}, &TypeOption::bytes);
    return smallest == tensor.options.end() || smallest->type == tensor.source->type ? nullptr : &*smallest;
}

const TypeOption *next_smaller(const OpenTensor &tensor, Type type) {
    const TypeOption *from = tensor.find(type), *next = nullptr;
    for (const TypeOption &option : tensor.options)
        if (from && option.bytes < from->bytes && option.error > from->error &&
            (!next || option.bytes > next->bytes ||
             (option.bytes == next->bytes && option.error < next->error)))
            next = &option;
    return next;
}

const TypeOption *next_larger(const OpenTensor &tensor, Type type) {
    const TypeOption *from = tensor.find(type), *next = nullptr;
    for (const TypeOption &option : tensor.options)
        if (from && option.bytes > from->bytes && option.error < from->error &&
            (!next || option.bytes < next->bytes ||
             (option.bytes == next->bytes && option.error < next->error)))
            next = &option;
    return next;
}

double read_share(const gguf::File &source, const gguf::Tensor &tensor) {
    const bool is_table = tensor.name == "token_embd.weight" || tensor.name == "per_layer_token_embd.weight";
    const bool tied = tensor.name == "token_embd.weight" && !source.find_tensor("output.weight");
    const int64_t rows = tensor.elements() / tensor.shape[0];
    if (is_table && !tied) return 1.0 / static_cast<double>(rows);
    if (tensor.name.find("_exps.") == tensor.name.npos) return 1;
    const gguf::Value *architecture = source.find("general.architecture");
    const std::string prefix =
        architecture ? std::string(architecture->as_string().value_or("")) + "." : std::string();
    const auto count = [&](const char *key) {
        const gguf::Value *value = source.find(prefix + key);
        return value ? value->as_int().value_or(0) : 0;
    };
    const int64_t all = count("expert_count"), used = count("expert_used_count");
    return 0 < used && used < all ? static_cast<double>(used) / static_cast<double>(all) : 1;
}

double damage_of(std::span<const OpenTensor> tensors, const TypeChoice &choice) {
    double sum = 0;
    for (const OpenTensor &tensor : tensors)
        if (const TypeOption *option = tensor.find(choice.assigned.at(tensor.name)))
            sum += tensor.slope * option->error;
    return sum;
}

QuantizeRequest with_choice(QuantizeRequest request, const TypeChoice &choice) {
    request.assigned = choice.assigned;
    request.types.pure = true;
    request.mix = find_mix("Q8_0");
    const auto is_file_type = [](const auto &pair) { return pair.first == "general.file_type"; };
    if (std::ranges::none_of(request.overrides, is_file_type))
        request.overrides.emplace_back("general.file_type", int64_t{choice.file_type});
    return request;
}

TypeChoice choose_for_target(const gguf::File &source, const QuantizeRequest &request,
                             std::span<const OpenTensor> tensors, const TypeTarget &target) {
    std::vector<std::vector<AllocationOption>> items;
    QuantizeRequest largest = with_choice(request, {});
    uint64_t smallest_open = 0, most_open = 0;
    const auto counted = [&](const gguf::Tensor &tensor, uint64_t bytes) {
        if (target.cost == Cost::Disk) return bytes;
        return static_cast<uint64_t>(std::ceil(static_cast<double>(bytes) * read_share(source, tensor)));
    };
    for (const OpenTensor &tensor : tensors) {
        std::vector<AllocationOption> &options = items.emplace_back();
        for (const TypeOption &option : tensor.options)
            options.push_back({counted(*tensor.source, option.bytes), tensor.slope * option.error});
        smallest_open += std::ranges::min_element(options, {}, &AllocationOption::bytes)->bytes;
        most_open += std::ranges::max_element(options, {}, &AllocationOption::bytes)->bytes;
        largest.assigned[tensor.name] = tensor.source->type;
    }
    // The bytes that do not depend on the choice: metadata, and tensors that are not open.
    const QuantizePlan whole = plan_quantization(source, largest);
    uint64_t fixed = 0;
    TypeChoice choice{};
    choice.elements = whole.elements;
    if (target.file_bytes) {
        choice.asked = *target.file_bytes;
        fixed = output_bytes(source, whole, largest) - most_open;
    } else {
        choice.elements = 0;
        for (const PlannedTensor &planned : whole.tensors) {
            fixed += counted(*planned.source, padded(planned.bytes));
            choice.elements += static_cast<int64_t>(
                counted(*planned.source, static_cast<uint64_t>(planned.source->elements())));
        }
        choice.asked =
            target.data_bytes
                ? *target.data_bytes
                : static_cast<uint64_t>(*target.bits_per_weight * static_cast<double>(choice.elements) / 8);
        fixed -= most_open;
    }
    choice.smallest = fixed + smallest_open, choice.most = fixed + most_open;
    const auto chosen = choice.asked < fixed ? std::nullopt : allocate(items, choice.asked - fixed);
    if (!chosen) {
        const auto shown = [&](uint64_t bytes) {
            if (target.file_bytes) return mebibytes(bytes);
            char text[48];
            std::snprintf(text, sizeof text, "%.3f bits per weight",
                          8.0 * static_cast<double>(bytes) / static_cast<double>(choice.elements));
            return std::string(text);
        };
        throw QuantizeError(
            "the target of " + shown(choice.asked) + " is too small: the types allow " +
            shown(choice.smallest) + " to " + shown(choice.most) +
            (request.importance ? "" : " (smaller types need an importance matrix: --imatrix FILE)"));
    }
    std::vector<Type> types;
    choice.bytes = fixed;
    for (size_t i = 0; i < tensors.size(); ++i) {
        const size_t k = (*chosen)[i];
        types.push_back(tensors[i].options[k].type);
        choice.assigned[tensors[i].name] = types.back();
        choice.bytes += items[i][k].bytes;
        choice.damage += items[i][k].cost;
    }
    choice.file_type = file_type_of(tensors, types);
    return choice;
}

}  // namespace runnel::quantize
