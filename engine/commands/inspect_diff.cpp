// The differences between two model files: metadata by key, tensors by name, and the error of their values.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/commands.h"
#include "engine/commands/json.h"
#include "gguf/file.h"
#include "gguf/printable.h"
#include "gguf/quantize.h"

namespace runnel::commands {
namespace {

std::string text_of(const gguf::Value *value) {
    if (!value) return "-";
    if (const auto text = value->as_string()) return gguf::printable(*text, 60);
    if (const auto number = value->as_int()) return std::to_string(*number);
    if (const auto truth = value->as_bool()) return *truth ? "true" : "false";
    char text[32];
    if (const auto number = value->as_float()) {
        std::snprintf(text, sizeof text, "%.9g", *number);
        return text;
    }
    return std::to_string(value->size()) + " elements";
}

bool is_same(const gguf::Value &a, const gguf::Value &b) {
    return a.type() == b.type() && a.size() == b.size() &&
           (a.type() != gguf::ValueType::Array || a.element_type() == b.element_type()) &&
           std::ranges::equal(a.payload(), b.payload());
}

std::string shape_of(const gguf::Tensor *t) {
    if (!t) return "-";
    std::string text(gguf::traits(t->type).name);
    for (uint32_t i = 0; i < t->rank; ++i) text += (i == 0 ? " " : " x ") + std::to_string(t->shape[i]);
    return text;
}

bool has_same_bytes(const gguf::Tensor &a, const gguf::Tensor &b) {
    return a.type == b.type && std::equal(a.shape, a.shape + 4, b.shape) && a.bytes == b.bytes &&
           std::equal(a.data, a.data + a.bytes, b.data);
}

// sum (a - b)^2 / sum a^2, computed row by row; nullopt if the shapes differ or a type cannot be read.
std::optional<double> relative_error(const gguf::Tensor &a, const gguf::Tensor &b) {
    if (!std::equal(a.shape, a.shape + 4, b.shape) || !gguf::traits(a.type).supported ||
        !gguf::traits(b.type).supported || a.elements() == 0)
        return {};
    const int64_t columns = a.shape[0], rows = a.elements() / columns;
    std::vector<float> x(static_cast<size_t>(columns)), y(x.size());
    double error = 0, all = 0;
    for (int64_t r = 0; r < rows; ++r) {
        const auto row = static_cast<size_t>(r);
        gguf::dequantize_row(a.type, a.data + row * gguf::row_bytes(a.type, columns), x.data(), columns);
        gguf::dequantize_row(b.type, b.data + row * gguf::row_bytes(b.type, columns), y.data(), columns);
        for (size_t i = 0; i < x.size(); ++i) {
            const double difference = double{x[i]} - double{y[i]};
            error += difference * difference;
            all += double{x[i]} * double{x[i]};
        }
    }
    if (error == 0) return 0.0;
    return all > 0 ? error / all : INFINITY;
}

struct Difference {
    std::string name, first, second;
    std::optional<double> error = {};  // for tensors, the relative squared error
};

struct Differences {
    std::vector<Difference> metadata, tensors;
    size_t same_tensors = 0;
};

Differences compare(const gguf::File &a, const gguf::File &b) {
    Differences result;
    for (const auto &[key, value] : a.metadata()) {
        const gguf::Value *other = b.find(key);
        if (!other || !is_same(value, *other))
            result.metadata.push_back({std::string(key), text_of(&value), text_of(other)});
    }
    for (const auto &[key, value] : b.metadata())
        if (!a.find(key)) result.metadata.push_back({std::string(key), "-", text_of(&value)});
    for (const gguf::Tensor &tensor : a.tensors()) {
        const gguf::Tensor *other = b.find_tensor(tensor.name);
        if (other && has_same_bytes(tensor, *other))
            ++result.same_tensors;
        else
            result.tensors.push_back({std::string(tensor.name), shape_of(&tensor), shape_of(other),
                                      other ? relative_error(tensor, *other) : std::nullopt});
    }
    for (const gguf::Tensor &tensor : b.tensors())
        if (!a.find_tensor(tensor.name))
            result.tensors.push_back({std::string(tensor.name), "-", shape_of(&tensor)});
    return result;
}

std::string table(const Differences &all) {
    std::string text;
    for (const Difference &d : all.metadata)
        text += gguf::printable(d.name, 200) + ": " + d.first + " -> " + d.second + "\n";
    for (const Difference &d : all.tensors) {
        text += gguf::printable(d.name, 200) + ": " + d.first + " -> " + d.second;
        char error[48];
        if (d.error) std::snprintf(error, sizeof error, "  (relative squared error %.4g)", *d.error);
        text += std::string(d.error ? error : "") + "\n";
    }
    return text + std::to_string(all.metadata.size()) + " metadata keys and " +
           std::to_string(all.tensors.size()) + " tensors differ, " + std::to_string(all.same_tensors) +
           " tensors are the same\n";
}

Json table_json(const Differences &all) {
    Json metadata = Json::array(), tensors = Json::array();
    for (const Difference &d : all.metadata)
        metadata.push_back(
            {{"key", gguf::printable(d.name, 4096)}, {"first", d.first}, {"second", d.second}});
    for (const Difference &d : all.tensors) {
        Json tensor = {{"name", gguf::printable(d.name, 4096)}, {"first", d.first}, {"second", d.second}};
        if (d.error && std::isfinite(*d.error)) tensor["relative_error"] = *d.error;
        tensors.push_back(std::move(tensor));
    }
    return {{"metadata", metadata}, {"tensors", tensors}, {"same_tensors", all.same_tensors}};
}

}  // namespace

int inspect_difference(const std::string &first, const std::string &second, bool as_json, Io &io) {
    const gguf::File a = gguf::File::open(first), b = gguf::File::open(second);
    const Differences all = compare(a, b);
    io.out.write(as_json ? dump(table_json(all)) : table(all));
    return exit_code::kDone;
}

}  // namespace runnel::commands
