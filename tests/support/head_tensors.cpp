#include "tests/support/head_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>

#include "gguf/quantize.h"
#include "tests/support/model_maker.h"

namespace runnel::testing {
namespace {

bool is_vector(const std::string &name) {
    return name.find("norm") != std::string::npos || name.find("scale") != std::string::npos ||
           name.starts_with("rope_freqs");
}

gguf::Type type_of(const std::string &name, const std::string &type, int64_t row) {
    if (is_vector(name)) return gguf::Type::F32;
    const gguf::Type wanted = parse_type(type);
    return row % gguf::traits(wanted).block_size == 0 ? wanted : gguf::Type::F16;
}

}  // namespace

int64_t number_of(const gguf::File &target, const std::string &key, int64_t absent) {
    const std::string arch(target.find("general.architecture")->as_string().value_or(""));
    const gguf::Value *value = target.find(arch + "." + key);
    const int64_t found = value ? value->as_int().value_or(-1) : absent;
    if (found < 0) throw std::invalid_argument("the target has no " + key);
    return found;
}

int64_t vocab_of(const gguf::File &target) {
    const gguf::Tensor *embedding = target.find_tensor("token_embd.weight");
    if (!embedding) throw std::invalid_argument("the target has no token_embd.weight");
    return embedding->shape[1];
}

void HeadTensors::fill(const std::string &name, float value) {
    std::ranges::fill(tensors.at(name).all, value);
}

void HeadTensors::add(const std::string &name, std::vector<int64_t> shape, float mean, float sigma) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    Values values{std::move(shape), std::vector<float>(static_cast<size_t>(count), mean)};
    if (sigma > 0)
        for (float &x : values.all) x = mean + sigma * random_.normal();
    tensors[name] = std::move(values);
}

void HeadTensors::add_matrix(const std::string &name, int64_t cols, int64_t rows, float gain) {
    add(name + ".weight", {cols, rows}, 0, gain / std::sqrt(static_cast<float>(cols)));
}

void HeadTensors::describe(gguf::Writer &writer, const std::string &type) const {
    for (const auto &[name, values] : tensors)
        writer.add_tensor(name, type_of(name, type, values.shape[0]), values.shape);
}

void HeadTensors::write(gguf::Writer &writer, const std::string &type) const {
    for (const auto &[name, values] : tensors) {
        const int64_t row = values.shape[0];
        const gguf::Type kind = type_of(name, type, row);
        std::vector<std::byte> bytes(gguf::row_bytes(kind, row));
        for (auto at = values.all.begin(); at != values.all.end(); at += row) {
            gguf::quantize_row(kind, &*at, bytes.data(), row, gguf::Effort::Fast);
            writer.write(bytes);
        }
    }
}

}  // namespace runnel::testing
