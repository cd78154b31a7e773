#include "engine/quantize/quantizer.h"

#include <algorithm>
#include <charconv>

#include "engine/quantize/model_parts.h"
#include "engine/quantize/parallel.h"
#include "engine/quantize/rows.h"
#include "gguf/mapping.h"
#include "gguf/printable.h"
#include "gguf/quantize.h"
#include "gguf/writer.h"

namespace runnel::quantize {
namespace {

using gguf::Type;

constexpr int64_t kSlabElements = int64_t{1} << 22;   // 16 MiB of floats at a time
constexpr int64_t kPieceElements = int64_t{1} << 16;  // weights that a thread takes at a time

std::string name_of(Type type) {
    return std::string(gguf::traits(type).name);
}

// The number under `key`; of an array (layers differ), its first element.
int64_t number(const gguf::File &file, const std::string &key) {
    const gguf::Value *value = file.find(key);
    if (!value) return 0;
    if (const auto one = value->as_int()) return *one;
    int64_t first = 0;
    value->for_each([&](uint64_t i, const gguf::Value &element) {
        if (i == 0) first = element.as_int().value_or(0);
    });
    return first;
}

ModelShape shape_of(const gguf::File &file) {
    ModelShape model;
    if (const gguf::Value *name = file.find("general.architecture"))
        model.architecture = std::string(name->as_string().value_or(""));
    const std::string prefix = model.architecture + ".";
    model.layers = number(file, prefix + "block_count");
    model.heads = number(file, prefix + "attention.head_count");
    model.kv_heads = number(file, prefix + "attention.head_count_kv");
    model.experts = number(file, prefix + "expert_count");
    return model;
}

// Throws if the type needs importance and the tensor has none.
void check_importance(const gguf::Tensor &tensor, Type type, const Mix &mix, const QuantizeRequest &request,
                      std::span<const float> importance) {
    const bool is_table = tensor.name == "output.weight" || tensor.name == "token_embd.weight";
    const bool needed = gguf::standard_needs_importance(type) || (needs_importance(type, mix) && !is_table);
    if (!needed || !importance.empty()) return;
    const char *const reason = request.method == Method::Awq
                                   ? ", which needs importance, and the text has none for it"
                               : request.importance ? ", and the importance matrix has no entry for it"
                                                    : ", which needs an importance matrix: --imatrix FILE";
    throw QuantizeError(called(tensor) + " would become " + name_of(type) + reason);
}

void check(const gguf::Tensor &tensor, Type type, const Mix &mix, const QuantizeRequest &request) {
    if (type == tensor.type) return;
    if (!gguf::can_quantize_standard(type))
        throw QuantizeError(called(tensor) + " would become " + name_of(type) +
                            ", which runnel does not write");
    if (!gguf::traits(tensor.type).supported)
        throw QuantizeError(called(tensor) + " has type " + name_of(tensor.type) +
                            ", which runnel does not read");
    if (gguf::traits(tensor.type).quantized && !request.allow_requantize)
        throw QuantizeError(called(tensor) + " is " + name_of(tensor.type) +
                            " already: quantizing it again to " + name_of(type) +
                            " adds errors; start from F16, BF16 or F32, or add --allow-requantize");
    if (request.method == Method::Absmax) {
        if (gguf::can_quantize(type)) return;
        throw QuantizeError(called(tensor) + " would become " + name_of(type) +
                            ", a type with a codebook, which --method absmax cannot write");
    }
    // AWQ measures importance later.
    if (request.method != Method::Awq)
        check_importance(tensor, type, mix, request, importance_of(tensor, request.importance));
}

// The name of a tensor after pruning; empty if its layer is pruned.
std::string pruned_name(std::string_view name, const std::set<int64_t> &pruned) {
    constexpr std::string_view kPrefix = "blk.";
    int64_t layer = -1;
    if (pruned.empty() || !name.starts_with(kPrefix)) return std::string(name);
    const char *const begin = name.data() + kPrefix.size(), *const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(begin, end, layer);
    if (error != std::errc() || rest == end || *rest != '.') return std::string(name);
    if (pruned.contains(layer)) return {};
    const auto before = std::distance(pruned.begin(), pruned.lower_bound(layer));
    return std::string(kPrefix) + std::to_string(layer - before) + std::string(rest, end);
}

void check_pruned(const ModelShape &model, const std::set<int64_t> &pruned) {
    if (pruned.empty()) return;
    if (*pruned.begin() < 0 || *pruned.rbegin() >= model.layers)
        throw QuantizeError(
            "layer " + std::to_string(*pruned.begin() < 0 ? *pruned.begin() : *pruned.rbegin()) +
            " cannot be pruned: the model has layers 0 to " + std::to_string(model.layers - 1));
    if (static_cast<int64_t>(pruned.size()) >= model.layers)
        throw QuantizeError("all layers would be pruned");
}

// Writes the layer count, or an array with one element per layer, without the pruned layers. False: it is neither.
bool write_pruned(std::string_view key, const gguf::Value &value, const ModelShape &model,
                  const std::set<int64_t> &pruned, gguf::Writer &writer) {
    if (pruned.empty() || !key.starts_with(model.architecture + ".")) return false;
    if (key == model.architecture + ".block_count") {
        writer.add(key, static_cast<uint32_t>(model.layers - static_cast<int64_t>(pruned.size())));
        return true;
    }
    if (value.type() != gguf::ValueType::Array || static_cast<int64_t>(value.size()) != model.layers)
        return false;
    gguf::Array left(value.element_type());
    const std::vector<int64_t> ints = value.as_ints();
    const std::vector<float> floats = value.as_floats();
    for (size_t i = 0; i < static_cast<size_t>(model.layers); ++i) {
        if (pruned.contains(static_cast<int64_t>(i))) continue;
        switch (value.element_type()) {
            case gguf::ValueType::Bool:
                left.push(ints[i] != 0);
                break;
            case gguf::ValueType::U32:
                left.push(static_cast<uint32_t>(ints[i]));
                break;
            case gguf::ValueType::I32:
                left.push(static_cast<int32_t>(ints[i]));
                break;
            case gguf::ValueType::F32:
                left.push(floats[i]);
                break;
            default:
                return false;
        }
    }
    writer.add(key, left);
    return true;
}

bool is_integer(gguf::ValueType type) {
    return type != gguf::ValueType::Bool && gguf::fixed_size(type) > 0 && type != gguf::ValueType::F32 &&
           type != gguf::ValueType::F64;
}

bool is_same_kind(const gguf::Value &value, const Override &wish) {
    using gguf::ValueType;
    switch (value.type()) {
        case ValueType::F32:
        case ValueType::F64:
            return std::holds_alternative<double>(wish);
        case ValueType::Bool:
            return std::holds_alternative<bool>(wish);
        case ValueType::String:
            return std::holds_alternative<std::string>(wish);
        default:
            return is_integer(value.type()) && std::holds_alternative<int64_t>(wish);
    }
}

void check_overrides(const gguf::File &source, const QuantizeRequest &request) {
    for (const auto &[key, wish] : request.overrides) {
        if (key == "general.alignment" || key.starts_with("split.") || key.starts_with("quantize."))
            throw QuantizeError("metadata " + gguf::quoted(key) +
                                " cannot be overridden: it describes how the file is written");
        const gguf::Value *value = source.find(key);
        if (value && !is_same_kind(*value, wish))
            throw QuantizeError("metadata " + gguf::quoted(key) +
                                " cannot be overridden: its value is of type " +
                                std::string(gguf::name(value->type())));
    }
}

void write_override(const std::string &key, const Override &wish, gguf::Writer &writer) {
    if (const auto *integer = std::get_if<int64_t>(&wish)) {
        if (*integer >= 0 && *integer <= UINT32_MAX)
            writer.add(key, static_cast<uint32_t>(*integer));
        else
            writer.add(key, *integer);
    } else if (const auto *number = std::get_if<double>(&wish)) {
        writer.add(key, static_cast<float>(*number));
    } else if (const auto *truth = std::get_if<bool>(&wish)) {
        writer.add(key, *truth);
    } else {
        writer.add(key, std::get<std::string>(wish));
    }
}

bool is_overridden(std::string_view key, const QuantizeRequest &request) {
    return std::ranges::any_of(request.overrides, [&](const auto &pair) { return pair.first == key; });
}

// Copies metadata in the source's order, except keys about the source's parts and types, which are replaced.
void copy_metadata(const gguf::File &source, const QuantizeRequest &request, gguf::Writer &writer) {
    const ModelShape model = shape_of(source);
    for (const auto &[key, value] : source.metadata()) {
        if (key.starts_with("split.") || key == "general.quantization_version" ||
            key == "general.file_type" || key == "general.alignment" || is_overridden(key, request))
            continue;
        if (!write_pruned(key, value, model, request.pruned, writer)) writer.add(key, value);
    }
    if (!is_overridden("general.quantization_version", request))
        writer.add("general.quantization_version", uint32_t{2});
    if (!is_overridden("general.file_type", request)) writer.add("general.file_type", request.mix->file_type);
    for (const auto &[key, wish] : request.overrides) write_override(key, wish, writer);
    if (!request.importance) return;
    constexpr size_t kMost = 127;
    writer.add("quantize.imatrix.file", request.importance_file.substr(0, kMost));
    if (!request.importance->dataset().empty())
        writer.add("quantize.imatrix.dataset", request.importance->dataset().substr(0, kMost));
    writer.add("quantize.imatrix.entries_count", static_cast<uint32_t>(request.importance->entries()));
    if (request.importance->chunks() > 0)
        writer.add("quantize.imatrix.chunks_count", request.importance->chunks());
}

class Conversion {
  public:
    Conversion(const QuantizeRequest &request, PartsWriter &writer) : request_(request), writer_(writer) {}

    bool convert(const PlannedTensor &planned) {
        const gguf::Tensor &tensor = *planned.source;
        const TensorScales *const scales = scales_of(tensor);
        if (planned.type == tensor.type && !(scales && scales->scales())) return copy(tensor);
        if (const auto found = request_.prepared.find(tensor.name); found != request_.prepared.end()) {
            writer_.write(found->second);
            return advance(tensor.bytes);
        }
        const int64_t columns = tensor.shape[0];
        const int64_t rows = tensor.elements() / columns;
        const std::span<const float> importance = scales && !scales->importance.empty()
                                                      ? std::span<const float>(scales->importance)
                                                      : importance_of(tensor, request_.importance);
        if (request_.method != Method::Absmax)
            check_importance(tensor, planned.type, *request_.mix, request_, importance);
        const size_t row_before = gguf::row_bytes(tensor.type, columns),
                     row_after = gguf::row_bytes(planned.type, columns);
        const int64_t slab = std::max<int64_t>(1, kSlabElements / columns);
        for (int64_t first = 0; first < rows; first += slab) {
            const int64_t count = std::min(slab, rows - first);
            out_.resize(static_cast<size_t>(count) * row_after);
            in_parallel(request_.threads, count, std::max<int64_t>(1, kPieceElements / columns),
                        [&](int64_t begin, int64_t end) {
                            std::vector<float> values(static_cast<size_t>(columns));
                            for (int64_t r = begin; r < end; ++r)
                                convert_row(request_.method, tensor, first + r, planned.type, scales,
                                            importance, values,
                                            out_.data() + static_cast<size_t>(r) * row_after);
                        });
            writer_.write(out_);
            gguf::forget_pages({tensor.data + static_cast<size_t>(first) * row_before,
                                static_cast<size_t>(count) * row_before});
            if (!advance(static_cast<uint64_t>(count) * row_before)) return false;
        }
        return true;
    }

  private:
    const TensorScales *scales_of(const gguf::Tensor &tensor) const {
        if (!request_.scales) return nullptr;
        const auto found = request_.scales->find(tensor.name);
        return found == request_.scales->end() ? nullptr : &found->second;
    }

    bool copy(const gguf::Tensor &tensor) {
        constexpr size_t kPiece = size_t{16} << 20;
        for (size_t at = 0; at < tensor.bytes; at += kPiece) {
            const size_t bytes = std::min<size_t>(kPiece, tensor.bytes - at);
            writer_.write({tensor.data + at, bytes});
            gguf::forget_pages({tensor.data + at, bytes});
            if (!advance(bytes)) return false;
        }
        return true;
    }

    bool advance(uint64_t bytes) {
        done_ += bytes;
        return !request_.progress || request_.progress(done_);
    }

    const QuantizeRequest &request_;
    PartsWriter &writer_;
    std::vector<std::byte> out_;
    uint64_t done_ = 0;
};

// A writer with the metadata and the tensors' names, types and shapes.
PartsWriter described(const gguf::File &source, const QuantizePlan &plan, const QuantizeRequest &request) {
    PartsWriter writer(output_parts(source, request), kTensorAlignment);
    copy_metadata(source, request, writer.first());
    for (const PlannedTensor &planned : plan.tensors)
        writer.add_tensor(request.keep_split ? planned.source->part : 0, planned.name, planned.type,
                          {planned.source->shape, static_cast<size_t>(planned.source->rank)});
    return writer;
}

}  // namespace

QuantizePlan plan_quantization(const gguf::File &source, const QuantizeRequest &request) {
    ModelShape model = shape_of(source);
    check_pruned(model, request.pruned);
    check_overrides(source, request);
    if (output_parts(source, request) > kMostParts)
        throw QuantizeError("the model has " + std::to_string(source.parts()) + " parts; at most " +
                            std::to_string(kMostParts) + " can be kept");
    model.layers -= static_cast<int64_t>(request.pruned.size());
    std::vector<const gguf::Tensor *> tensors;
    std::vector<std::string> names;
    for (const gguf::Tensor &t : source.tensors())
        if (std::string name = pruned_name(t.name, request.pruned); !name.empty()) {
            tensors.push_back(&t);
            names.push_back(std::move(name));
        }
    std::vector<TensorShape> shapes;
    for (size_t i = 0; i < tensors.size(); ++i) {
        const gguf::Tensor &t = *tensors[i];
        shapes.push_back({names[i], t.type, {t.shape[0], t.shape[1], t.shape[2], t.shape[3]}});
    }
    MixOptions options = request.types;
    options.has_importance = request.importance != nullptr || request.method == Method::Awq;
    QuantizePlan plan;
    for (Choice &choice : choose_types(*request.mix, model, shapes, options)) {
        const gguf::Tensor &tensor = *tensors[choice.tensor];
        const auto assigned = request.assigned.find(names[choice.tensor]);
        if (assigned != request.assigned.end()) choice.type = assigned->second, choice.note.clear();
        check(tensor, choice.type, *request.mix, request);
        const int64_t rows = tensor.elements() / tensor.shape[0];
        const uint64_t bytes = choice.type == tensor.type ? tensor.bytes
                                                          : static_cast<uint64_t>(rows) *
                                                                gguf::row_bytes(choice.type, tensor.shape[0]);
        plan.bytes_before += tensor.bytes;
        plan.bytes_after += bytes;
        plan.elements += tensor.elements();
        plan.tensors.push_back({&tensor, names[choice.tensor], choice.type, bytes, std::move(choice.note)});
    }
    if (request.keep_split)
        std::ranges::stable_sort(plan.tensors, {},
                                 [](const PlannedTensor &tensor) { return tensor.source->part; });
    return plan;
}

size_t output_parts(const gguf::File &source, const QuantizeRequest &request) {
    return request.keep_split ? source.parts() : 1;
}

uint64_t output_bytes(const gguf::File &source, const QuantizePlan &plan, const QuantizeRequest &request) {
    return described(source, plan, request).file_bytes();
}

bool quantize(const gguf::File &source, const QuantizePlan &plan, const QuantizeRequest &request,
              const std::filesystem::path &path) {
    PartsWriter writer = described(source, plan, request);
    writer.start(path, {.overwrite = true});  // the caller checked; never overwrites the source
    Conversion conversion(request, writer);
    for (const PlannedTensor &planned : plan.tensors)
        if (!conversion.convert(planned)) return false;
    writer.finish();
    return true;
}

}  // namespace runnel::quantize
