#include "engine/convert/plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "gguf/file.h"
#include "gguf/half.h"
#include "gguf/mapping.h"
#include "gguf/printable.h"

namespace runnel::convert {
namespace {

using gguf::Type;

// The types that models are stored in; nullptr for others.
const Type *float_type(std::string_view dtype) {
    static constexpr Type kF32 = Type::F32, kF16 = Type::F16, kBF16 = Type::BF16;
    return dtype == "F32" ? &kF32 : dtype == "F16" ? &kF16 : dtype == "BF16" ? &kBF16 : nullptr;
}

size_t bytes_of(Type type) {
    return type == Type::F32 ? 4 : 2;
}

float load(Type type, const std::byte *from) {
    if (type == Type::F32) {
        float value;
        std::memcpy(&value, from, sizeof value);
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return type == Type::F16 ? gguf::f16_to_f32(bits) : gguf::bf16_to_f32(bits);
}

void store(Type type, float value, std::byte *to) {
    if (type == Type::F32) {
        std::memcpy(to, &value, sizeof value);
        return;
    }
    const uint16_t bits = type == Type::F16 ? gguf::f32_to_f16(value) : gguf::f32_to_bf16(value);
    std::memcpy(to, &bits, sizeof bits);
}

// Tensors that every runner expects as F32, whatever their shape.
bool is_always_f32(const std::string &name) {
    return name.find("_norm") != std::string::npos || name.find("ffn_gate_inp") != std::string::npos ||
           name.find("altup_correct_coef") != std::string::npos ||
           name.find("altup_predict_coef") != std::string::npos ||
           name.find("conv1d.") != std::string::npos || name.find("shortconv.conv.") != std::string::npos ||
           !name.ends_with(".weight");
}

// One output row from one source row.
void convert_row(const SourceTensor &source, const Rows &rows, int64_t row, Type to, const std::string &name,
                 std::span<std::byte> out) {
    const Type from = *float_type(source.dtype);
    const std::byte *const in =
        source.bytes.data() + static_cast<size_t>(row * source.columns()) * bytes_of(from);
    if (from == to && !rows.value && !rows.column_order) {
        std::memcpy(out.data(), in, out.size());
        return;
    }
    for (int64_t column = 0; column < rows.columns; ++column) {
        const int64_t taken = rows.column_order ? rows.column_order(column) : column;
        float value = load(from, in + static_cast<size_t>(taken) * bytes_of(from));
        if (rows.value) value = rows.value(value);
        if (to == Type::F16 && std::isfinite(value) && std::fabs(value) >= 65520)
            throw gguf::FileError("tensor " + gguf::quoted(name) +
                                  " has numbers beyond the range of F16; use --type bf16");
        store(to, value, out.data() + static_cast<size_t>(column) * bytes_of(to));
    }
}

}  // namespace

void refuse_tensor(const SourceTensor &tensor, const std::string &problem) {
    throw gguf::FileError("tensor " + gguf::quoted(tensor.name) + " " + problem);
}

void check_shape(const SourceTensor &tensor, const std::vector<int64_t> &shape) {
    if (tensor.shape == shape) return;
    const auto shown = [](const std::vector<int64_t> &dimensions) {
        std::string text;
        for (const int64_t n : dimensions) text += (text.empty() ? "[" : ", ") + std::to_string(n);
        return text.empty() ? "[]" : text + "]";
    };
    refuse_tensor(tensor, "has the shape " + shown(tensor.shape) + ", config.json implies " + shown(shape));
}

Rows all_rows(const SourceTensor &source) {
    const int64_t columns = source.columns();
    return {.sources = {&source}, .rows = columns == 0 ? 0 : source.elements() / columns, .columns = columns};
}

Plan::Plan(const Safetensors &folder, std::string architecture, Matrices matrices)
    : folder_(folder), architecture_(std::move(architecture)), matrices_(matrices) {
    writer_.add("general.architecture", architecture_);
}

const SourceTensor *Plan::find(const std::string &name) {
    const SourceTensor *const found = folder_.find(name);
    if (!found) return nullptr;
    used_.insert(name);
    if (!float_type(found->dtype))
        refuse_tensor(
            *found, "is of type " + gguf::quoted(found->dtype) + "; only F32, F16 and BF16 can be converted");
    return found;
}

const SourceTensor &Plan::require(const std::string &name) {
    const SourceTensor *const found = find(name);
    if (!found) throw gguf::FileError("the folder lacks the tensor " + gguf::quoted(name));
    return *found;
}

const SourceTensor &Plan::require_bytes(const std::string &name) {
    const SourceTensor *const found = folder_.find(name);
    if (!found) throw gguf::FileError("the folder lacks the tensor " + gguf::quoted(name));
    used_.insert(name);
    if (found->dtype != "U8") refuse_tensor(*found, "is of type " + gguf::quoted(found->dtype) + ", not U8");
    return *found;
}

Type Plan::type_of(const std::string &name, const std::vector<int64_t> &shape,
                   const SourceTensor &source) const {
    if (shape.size() < 2 || is_always_f32(name)) return Type::F32;
    switch (matrices_) {
        case Matrices::F32:
            return Type::F32;
        case Matrices::F16:
            return Type::F16;
        case Matrices::BF16:
            return Type::BF16;
        case Matrices::AsStored:
            break;
    }
    return *float_type(source.dtype);
}

void Plan::add_output(const std::string &name, Type type, const std::vector<int64_t> &shape,
                      std::vector<const SourceTensor *> sources,
                      std::function<void(int64_t, std::span<std::byte>)> write_row) {
    int64_t rows = 1;
    for (size_t d = 1; d < shape.size(); ++d) rows *= shape[d];
    for (const int64_t n : shape)
        if (n < 1) throw gguf::FileError("tensor " + gguf::quoted(name) + " would be empty");
    if (shape.size() > 4)
        throw gguf::FileError("tensor " + gguf::quoted(name) + " has more than 4 dimensions");
    const gguf::TypeTraits &traits = gguf::traits(type);
    if (shape[0] % traits.block_size != 0)
        throw gguf::FileError("tensor " + gguf::quoted(name) + " has rows of " + std::to_string(shape[0]) +
                              " weights, not a multiple of " + std::to_string(traits.block_size));
    writer_.add_tensor(name, type, shape);
    outputs_.push_back({name, rows, static_cast<uint64_t>(shape[0]) / traits.block_size * traits.block_bytes,
                        std::move(sources), std::move(write_row)});
}

void Plan::add(const std::string &name, std::vector<int64_t> shape, Rows rows) {
    int64_t all = 1;
    for (size_t d = 1; d < shape.size(); ++d) all *= shape[d];
    for (const SourceTensor *const source : rows.sources)
        if ((!rows.column_order && rows.columns != source->columns()) ||
            (!rows.order && rows.rows * source->columns() != source->elements()))
            refuse_tensor(*source, "does not have the shape that config.json implies");
    if (rows.sources.empty() || shape.empty() || shape[0] != rows.columns ||
        all != rows.rows * static_cast<int64_t>(rows.sources.size()))
        throw gguf::FileError("tensor " + gguf::quoted(name) +
                              " would not have the shape that config.json implies");
    const Type type = type_of(name, shape, *rows.sources.front());
    const std::vector<const SourceTensor *> sources = rows.sources;
    add_output(name, type, shape, sources,
               [rows = std::move(rows), type, name](int64_t row, std::span<std::byte> out) {
                   const SourceTensor &source = *rows.sources[static_cast<size_t>(row / rows.rows)];
                   const int64_t within = row % rows.rows;
                   convert_row(source, rows, rows.order ? rows.order(within) : within, type, name, out);
               });
}

void Plan::add_values(const std::string &name, std::vector<float> values) {
    const std::vector<int64_t> shape{static_cast<int64_t>(values.size())};
    add_output(name, Type::F32, shape, {}, [values = std::move(values)](int64_t, std::span<std::byte> out) {
        std::memcpy(out.data(), values.data(), out.size());
    });
}

void Plan::add_blocks(const std::string &name, Type type, std::vector<int64_t> shape,
                      std::vector<const SourceTensor *> sources,
                      std::function<void(int64_t, std::span<std::byte>)> write_row) {
    add_output(name, type, shape, std::move(sources), std::move(write_row));
}

void Plan::copy(const SourceTensor &from, const std::string &to) {
    std::vector<int64_t> shape(from.shape.rbegin(), from.shape.rend());
    if (shape.empty()) shape.push_back(1);
    add(to, std::move(shape), all_rows(from));
}

void Plan::check_all_used(const std::function<bool(std::string_view)> &may_drop) const {
    for (const auto &[name, tensor] : folder_.tensors())
        if (!used_.contains(name) && !may_drop(name))
            refuse_tensor(tensor, "belongs to no part of the model that runnel knows");
}

uint64_t Plan::bytes() const {
    uint64_t sum = 0;
    for (const Output &output : outputs_) sum += static_cast<uint64_t>(output.rows) * output.row_bytes;
    return sum;
}

bool Plan::write(const std::filesystem::path &path, const gguf::OutputOptions &options,
                 const std::function<bool(uint64_t)> &progress) {
    constexpr uint64_t kPiece = uint64_t{4} << 20;
    writer_.start(path, options);
    std::vector<std::byte> buffer;
    uint64_t done = 0;
    for (const Output &output : outputs_) {
        const auto at_once = static_cast<int64_t>(std::max<uint64_t>(1, kPiece / output.row_bytes));
        for (int64_t row = 0; row < output.rows; row += at_once) {
            const int64_t count = std::min(at_once, output.rows - row);
            buffer.resize(static_cast<size_t>(count) * output.row_bytes);
            for (int64_t i = 0; i < count; ++i)
                output.write_row(row + i, std::span(buffer).subspan(static_cast<size_t>(i) * output.row_bytes,
                                                                    output.row_bytes));
            writer_.write(buffer);
            done += buffer.size();
            if (!progress(done)) return false;
        }
        for (const SourceTensor *const source : output.sources) gguf::forget_pages(source->bytes);
    }
    writer_.finish();
    return true;
}

}  // namespace runnel::convert
