// Files with rotated weights, made here in double precision from plain files, whose logits they must have.
#include "engine/model/rotation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/split_backend.h"
#include "kernels/tensor_backend.h"
#include "tests/support/edited_model.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using testing::EditedModel;
using testing::ModelShape;

namespace {

constexpr std::string_view kRotated[] = {"attn_q",    "attn_k",      "attn_v",  "attn_qkv",
                                         "attn_gate", "attn_output", "ssm_out", "ffn_gate",
                                         "ffn_up",    "ffn_down",    "output"};

// Three value heads for each of two key heads.
ModelShape shape_of(const std::string &arch) {
    ModelShape shape;
    shape.arch = arch, shape.layers = 3, shape.width = 64, shape.ff = 160, shape.heads = 6,
    shape.kv_heads = 2;
    shape.head_dim = 16, shape.vocab = 260, shape.threads = 1;
    return shape;
}

struct Options {
    int32_t block = 32;
    bool with_signs = true, grouped = true, table = true;
};

// Multiplies by the Walsh-Hadamard matrix that Sylvester's construction gives: H(2 n) = [H(n) H(n); H(n) -H(n)].
void multiply(std::span<double> x) {
    if (x.size() == 1) return;
    const size_t half = x.size() / 2;
    multiply(x.first(half));
    multiply(x.subspan(half));
    for (size_t i = 0; i < half; ++i) {
        const double a = x[i], b = x[half + i];
        x[i] = a + b, x[half + i] = a - b;
    }
}

int sign_of(int64_t width, size_t column) {
    return (column * column * 7 + column / 3 + static_cast<size_t>(width)) % 5 < 2 ? -1 : 1;
}

// H (s row): the row w of a matrix, so that H (s row) . H (s x) = w . x; and the row of a table.
std::vector<double> folded(std::vector<double> row, const Options &options) {
    const auto width = static_cast<int64_t>(row.size());
    for (size_t i = 0; i < row.size(); ++i)
        if (options.with_signs) row[i] *= sign_of(width, i);
    const auto block = static_cast<size_t>(options.block);
    for (size_t at = 0; at < row.size(); at += block) multiply(std::span(row).subspan(at, block));
    for (double &value : row) value /= std::sqrt(static_cast<double>(options.block));
    return row;
}

// Columns of `size` of heads [repeat][group] in the order [group][repeat].
std::vector<double> by_group(const std::vector<double> &row, size_t groups, size_t repeats, size_t size) {
    std::vector<double> result;
    for (size_t g = 0; g < groups; ++g)
        for (size_t r = 0; r < repeats; ++r)
            for (size_t i = 0; i < size; ++i) result.push_back(row[(r * groups + g) * size + i]);
    return result;
}

bool is_rotated(std::string_view name) {
    for (const std::string_view part : kRotated)
        if (name == std::string(part) + ".weight" || name.ends_with("." + std::string(part) + ".weight"))
            return true;
    return false;
}

// The file of the shape with rotated weights.
EditedModel rotated(const ModelShape &shape, const Options &options) {
    EditedModel model(shape);
    gguf::Array matrices(gguf::ValueType::String), tables(gguf::ValueType::String),
        widths(gguf::ValueType::I32), signs(gguf::ValueType::I8);
    for (const gguf::Tensor &t : model.original().tensors()) {
        const bool table = options.table && t.name == "token_embd.weight";
        if (!table && !is_rotated(t.name)) continue;
        (table ? tables : matrices).push(std::string_view(t.name));
        const auto width = static_cast<size_t>(t.shape[0]);
        std::vector<float> values(static_cast<size_t>(t.elements()));
        std::memcpy(values.data(), t.data, t.bytes);
        for (size_t at = 0; at < values.size(); at += width) {
            const auto first = values.begin() + static_cast<std::ptrdiff_t>(at);
            std::vector<double> row(first, first + static_cast<std::ptrdiff_t>(width));
            if (options.grouped && t.name.ends_with(".ssm_out.weight")) row = by_group(row, 2, 3, width / 6);
            row = folded(row, options);
            std::copy(row.begin(), row.end(), first);
        }
        model.values(t.name, values);
    }
    model.set("prism.hadamard.version", 1u);
    model.set("prism.hadamard.transform", "normalized-sylvester-walsh-hadamard");
    model.set("prism.hadamard.axis", "input-last-dimension");
    model.set("prism.hadamard.block_size", static_cast<uint32_t>(options.block));
    model.set("prism.hadamard.sign_mode", options.with_signs ? "explicit" : "identity");
    if (options.with_signs) {
        for (const int32_t width : {64, 96, 160}) {
            widths.push(width);
            for (int32_t i = 0; i < width; ++i)
                signs.push(static_cast<int8_t>(sign_of(width, static_cast<size_t>(i))));
        }
        model.set("prism.hadamard.sign_widths", widths);
        model.set("prism.hadamard.sign_values", signs);
    }
    model.set("prism.hadamard.weight_names", matrices);
    if (options.table) model.set("prism.hadamard.inverse_weight_names", tables);
    if (options.grouped) model.set("prism.hadamard.gdn_v_grouped", true);
    return model;
}

std::vector<int32_t> tokens() {
    std::vector<int32_t> list;
    for (int32_t i = 0; i < 24; ++i) list.push_back((i * 37 + i * i) % 260);
    return list;
}

// Logits of every token.
std::vector<reference::Row> compute(std::unique_ptr<Backend> backend, const Program &program) {
    const std::vector<int32_t> text = tokens();
    const auto count = static_cast<int32_t>(text.size());
    backend->load(program, {.blocks = {2}, .states = 1}, count);
    const std::vector<BlockId> table = {0, 1};
    std::vector<int32_t> positions(text.size());
    std::iota(positions.begin(), positions.end(), 0);
    SequenceSpan span{0, count, 0, {}};
    span.tables.assign(1, table);
    span.state_writes = {{count, 0}};
    const auto vocab = static_cast<size_t>(program.vocab);
    std::vector<float> logits(text.size() * vocab);
    REQUIRE(backend->execute({text, positions, {&span, 1}, positions}, logits));
    std::vector<reference::Row> rows;
    for (size_t t = 0; t < text.size(); ++t)
        rows.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(t * vocab),
                          logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * vocab));
    return rows;
}

double largest_difference(const std::vector<reference::Row> &a, const std::vector<reference::Row> &b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (size_t t = 0; t < a.size(); ++t)
        for (size_t v = 0; v < a[t].size(); ++v) {
            const double difference = std::fabs(a[t][v] - b[t][v]);
            if (!(difference <= largest)) largest = difference;
        }
    return largest;
}

}  // namespace

TEST_CASE("rotation: a file with rotated weights computes what the plain file does") {
    const struct {
        const char *arch;
        Options options;
    } cases[] = {
        {"qwen35", {}},
        {"qwen35", {.block = 16}},
        {"qwen35", {.with_signs = false, .grouped = false}},
        {"llama", {.block = 16, .grouped = false}},
        {"qwen3", {.grouped = false, .table = false}},
    };
    for (const auto &[arch, options] : cases) {
        CAPTURE(arch);
        CAPTURE(options.block);
        CAPTURE(options.with_signs);
        const EditedModel made = rotated(shape_of(arch), options);
        const gguf::File file = gguf::File::open(made.write());
        const model::Model plain = model::build(made.original()), turned = model::build(file);
        const auto expected = tests::reference_logits(plain.program, tokens());
        CHECK(largest_difference(tests::reference_logits(turned.program, tokens()), expected) < 1e-5);
        // A key or value near the middle of two F16 numbers may be rounded to the other one.
        CHECK(largest_difference(compute(cpu::make_cpu_backend(1), turned.program), expected) < 5e-4);
        CHECK(largest_difference(compute(cuda::make_cuda_backend(0), turned.program), expected) < 4e-3);
    }
}

TEST_CASE("rotation: devices that share the layers, or the rows, give the bits of one") {
    const EditedModel made = rotated(shape_of("qwen35"), {});
    const gguf::File file = gguf::File::open(made.write());
    const model::Model turned = model::build(file);
    std::mt19937 random(6);
    for (const auto make :
         {+[] { return cpu::make_cpu_backend(1); }, +[] { return cuda::make_cuda_backend(0); }}) {
        const auto two = [&] {
            std::vector<std::unique_ptr<Backend>> devices;
            for (int i = 0; i < 2; ++i) devices.push_back(make());
            return devices;
        };
        const auto expected = compute(make(), turned.program);
        std::vector<uint8_t> device;
        for (size_t i = 0; i < turned.program.steps.size(); ++i) device.push_back(random() % 2);
        const auto same = [&](std::unique_ptr<Backend> backend) {
            return largest_difference(compute(std::move(backend), turned.program), expected) == 0;
        };
        CHECK(same(make_split_backend(two(), [&](const Program &) { return device; }, {"one", "two"})));
        CHECK(same(make_tensor_backend(two(), {2, 1})));
    }
}

TEST_CASE("rotation: without a part of it, the results would differ") {
    const EditedModel made = rotated(shape_of("qwen35"), {});
    const model::Model plain = model::build(made.original());
    const auto expected = tests::reference_logits(plain.program, tokens());
    const auto differs = [&](EditedModel edited) {
        const gguf::File file = gguf::File::open(edited.write());
        return largest_difference(tests::reference_logits(model::build(file).program, tokens()), expected) >
               0.1;
    };
    CHECK(differs(EditedModel(made).set("prism.hadamard.gdn_v_grouped", false)));
    CHECK(differs(EditedModel(made).without("prism.hadamard.inverse_weight_names")));
    CHECK(differs(EditedModel(made).set("prism.hadamard.block_size", 16u)));
}

TEST_CASE("rotation: keys and tensors that are not supported are refused") {
    const EditedModel made = rotated(shape_of("qwen35"), {});
    REQUIRE(made.error() == "");
    const auto refused = [&](const char *key, auto value, std::string_view message) {
        const std::string error = EditedModel(made).set(key, value).error();
        CAPTURE(error);
        CHECK(error.find(std::string(key) + ": " + std::string(message)) != std::string::npos);
        CHECK(error.find('\n') == std::string::npos);
    };
    const auto numbers = [](std::initializer_list<int32_t> list) { return gguf::Array(std::span(list)); };
    const auto names = [](std::initializer_list<std::string_view> list) {
        gguf::Array array(gguf::ValueType::String);
        for (const std::string_view name : list) array.push(name);
        return array;
    };
    refused("prism.hadamard.version", 2u, "is not 1");
    refused("prism.hadamard.version", "1", "is not an integer");
    refused("prism.hadamard.transform", "haar", "is not \"normalized-sylvester");
    refused("prism.hadamard.axis", 3u, "is not \"input-last-dimension\"");
    refused("prism.hadamard.block_size", 48u, "is not a power of two");
    refused("prism.hadamard.block_size", 1u << 21, "is not a power of two from 2 to 1048576");
    refused("prism.hadamard.block_size", 128u, "128 does not divide an input of 64");
    refused("prism.hadamard.sign_mode", "random", "is neither");
    CHECK(EditedModel(made)
              .set("prism.hadamard.sign_mode", "identity")
              .error()
              .find("sign_widths: there are signs") != std::string::npos);
    CHECK(EditedModel(made)
              .set("prism.hadamard.sign_widths", numbers({64, 96}))
              .error()
              .find("sign_values: has 320 signs, 160 are expected") != std::string::npos);
    CHECK(EditedModel(made)
              .set("prism.hadamard.sign_widths", numbers({64, 96, 161}))
              .error()
              .find("sign_values: has 320 signs, which sign_widths does not divide") != std::string::npos);
    refused("prism.hadamard.sign_widths", numbers({64, 256}), "an input of ");
    refused("prism.hadamard.sign_widths", numbers({64, 64, 192}), "holds 64 twice");
    refused("prism.hadamard.sign_widths", numbers({64, 96, 80, 80}), "holds 80 twice");
    refused("prism.hadamard.sign_values", numbers({1, -1, 0}), "holds a number that is neither 1 nor -1");
    refused("prism.hadamard.sign_values", numbers({1, -1}), "has 2 signs");
    refused("prism.hadamard.weight_names", "all", "is not a list of names");
    refused("prism.hadamard.weight_names", names({"blk.0.ffn_upward.weight"}), "there is no tensor");
    refused("prism.hadamard.weight_names", names({"output_norm.weight"}),
            "output_norm.weight is used in a way");
    refused("prism.hadamard.weight_names", names({"token_embd.weight"}),
            "token_embd.weight is used in a way");
    refused("prism.hadamard.inverse_weight_names", names({"output.weight"}),
            "output.weight is used in a way");
    refused("prism.hadamard.gdn_v_grouped", 1u, "is not a bool");
    refused("prism.hadamard.extra", 1u, "unknown");
    const auto moe = rotated(shape_of("qwen35moe"), {});
    CHECK(moe.error() == "");  // without the experts
    CHECK(EditedModel(moe)
              .set("prism.hadamard.weight_names", names({"blk.0.ffn_up_exps.weight"}))
              .error()
              .find("blk.0.ffn_up_exps.weight is used in a way") != std::string::npos);
}
