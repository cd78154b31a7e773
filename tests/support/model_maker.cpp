#include "tests/support/model_maker.h"

#include <algorithm>
#include <functional>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gguf/writer.h"
#include "tests/support/model_families.h"
#include "tests/support/model_metadata.h"
#include "tests/support/model_tensors.h"
#include "tests/support/model_vocabulary.h"
#include "tests/support/random.h"
#include "tests/support/random_codebook.h"

namespace runnel::testing {
namespace {

using gguf::Type;

void require(bool condition, const std::string &what) {
    if (!condition) throw std::invalid_argument("make_model: " + what);
}

// The shape with its defaults filled in, checked.
ModelShape complete(ModelShape shape) {
    const FamilyFiles *family = find_family_files(shape.arch);
    require(family != nullptr, "unknown arch " + shape.arch);
    const std::string &scaling = shape.rope_scaling;
    require(scaling.empty() || scaling == "linear" || scaling == "yarn" || scaling == "llama3" ||
                scaling == "longrope",
            "unknown rope scaling " + scaling);
    for (const int64_t n : {shape.layers, shape.width, shape.ff, shape.heads, shape.kv_heads, shape.context})
        require(n > 0, "sizes must be positive");
    require(shape.heads % shape.kv_heads == 0, "heads must be a multiple of kv_heads");
    require(shape.head_dim > 0 || shape.width % shape.heads == 0, "width must be a multiple of heads");
    if (shape.head_dim == 0) shape.head_dim = shape.width / shape.heads;
    require(shape.head_dim % 2 == 0, "head_dim must be even");
    shape.bias = shape.bias || family->biases != FamilyFiles::Biases::None;
    shape.tied = shape.tied || family->tied;
    ExpertShape &experts = shape.experts;
    require(experts.count == 0 || family->experts, "this family has no experts");
    if (family->experts && experts.count == 0) experts.count = 8;
    require(experts.used > 0 && (experts.count == 0 || experts.used <= experts.count),
            "experts used: between 1 and all");
    if (experts.ff == 0) experts.ff = shape.ff;
    if (shape.original_context == 0)
        shape.original_context = static_cast<int64_t>(static_cast<double>(shape.context) / shape.rope_factor);
    return shape;
}

// Fills row `row` of the tensor.
void draw(const PlannedTensor &plan, uint64_t seed, int64_t row, std::span<float> out) {
    if (!plan.values.empty()) {
        const size_t at = static_cast<size_t>(row) * out.size() % plan.values.size();
        std::copy_n(plan.values.begin() + static_cast<std::ptrdiff_t>(at), out.size(), out.begin());
        return;
    }
    Random random(splitmix(splitmix(seed) ^ splitmix(hash(plan.name))) + static_cast<uint64_t>(row));
    for (float &value : out) value = plan.mean + plan.sigma * random.normal();
}

void encode_row(Type type, std::span<const float> values, std::byte *out, gguf::Effort effort) {
    if (is_codebook_type(type)) return random_codebook_row(type, values, out);
    if (type == Type::I32) {
        std::vector<int32_t> numbers(values.begin(), values.end());
        std::copy_n(reinterpret_cast<const std::byte *>(numbers.data()), numbers.size() * sizeof(int32_t),
                    out);
        return;
    }
    gguf::quantize_row(type, values.data(), out, static_cast<int64_t>(values.size()), effort);
}

// Calls body(first, last) for parts of [0, count) on `threads` threads; the last part runs on this one.
void split(int64_t count, int threads, const std::function<void(int64_t, int64_t)> &body) {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i)
        others.emplace_back([&, i] { body(count * (i - 1) / threads, count * i / threads); });
    body(count * (threads - 1) / threads, count);
}

// Numbers of experts have no other type.
Type stored_type(const PlannedTensor &plan, const ModelShape &shape) {
    return shape.dequantized && plan.type != Type::I32 ? Type::F32 : plan.type;
}

void write_tensor(const PlannedTensor &plan, const ModelShape &shape, gguf::Writer &writer) {
    constexpr int64_t kChunk = 1 << 21;  // weights at a time
    const int64_t cols = plan.shape[0];
    int64_t rows = 1;
    for (size_t i = 1; i < plan.shape.size(); ++i) rows *= plan.shape[i];
    const size_t row_bytes = gguf::row_bytes(plan.type, cols),
                 float_bytes = static_cast<size_t>(cols) * sizeof(float);
    const bool dequantized = stored_type(plan, shape) != plan.type;
    const size_t stored = dequantized ? float_bytes : row_bytes;
    const int64_t most = std::min(rows, std::max<int64_t>(1, kChunk / cols));
    std::vector<std::byte> buffer(static_cast<size_t>(most) * stored);
    const auto make_row = [&](int64_t row, std::span<float> values, std::byte *out) {
        draw(plan, shape.seed, row, values);
        if (!dequantized) return encode_row(plan.type, values, out, shape.effort);
        std::vector<std::byte> blocks(row_bytes);
        encode_row(plan.type, values, blocks.data(), shape.effort);
        gguf::dequantize_row(plan.type, blocks.data(), values.data(), cols);
        std::copy_n(reinterpret_cast<const std::byte *>(values.data()), float_bytes, out);
    };
    for (int64_t first = 0; first < rows; first += most) {
        const int64_t count = std::min(most, rows - first);
        if (first == 0 || !shape.repeated)
            split(count, count * cols > 10000 ? shape.threads : 1, [&](int64_t from, int64_t to) {
                std::vector<float> values(static_cast<size_t>(cols));
                for (int64_t r = from; r < to; ++r)
                    make_row(first + r, values, buffer.data() + static_cast<size_t>(r) * stored);
            });
        writer.write(std::span(buffer).first(static_cast<size_t>(count) * stored));
    }
}

}  // namespace

gguf::Type parse_type(const std::string &name) {
    const auto same = [](char a, char b) { return std::tolower(a) == std::tolower(b); };
    for (uint32_t id = 0; id < gguf::kTypeIds; ++id) {
        const gguf::TypeTraits *type = gguf::find_type(id);
        if (type == nullptr || (!gguf::can_quantize(type->type) && !is_codebook_type(type->type))) continue;
        if (std::equal(name.begin(), name.end(), type->name.begin(), type->name.end(), same))
            return type->type;
    }
    throw std::invalid_argument("make_model: unknown type " + name);
}

void make_model(const ModelShape &wanted, const std::filesystem::path &out,
                const gguf::OutputOptions &options) {
    ModelShape shape = complete(wanted);
    const Vocabulary vocabulary(shape.vocab_from, shape.vocab);
    shape.vocab = vocabulary.size();
    const std::vector<PlannedTensor> plans = plan_tensors(shape);
    gguf::Writer writer;
    add_metadata(shape, writer);
    vocabulary.add_to(writer);
    for (const PlannedTensor &plan : plans)
        writer.add_tensor(plan.name, stored_type(plan, shape), plan.shape);
    writer.start(out, options);
    for (const PlannedTensor &plan : plans) write_tensor(plan, shape, writer);
    writer.finish();
}

}  // namespace runnel::testing
