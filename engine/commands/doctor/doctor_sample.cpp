// A synthetic program for machines without a model.
#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "engine/commands/doctor/doctor_cases.h"
#include "gguf/quantize.h"

namespace runnel::commands {
namespace {

using namespace kernels;

class Sample {
  public:
    Program make(bool large) {
        const Slot x = slot("x", kWidth), y = slot("y", kWidth), h = slot("h", kHidden),
                   u = slot("u", kHidden), router = slot("router", kExpertCount);
        program_.steps.push_back(Embed{matrix(gguf::Type::Q8_0, 300, kWidth), x});
        program_.steps.push_back(Norm{x, y, vector(kWidth), 1e-5f});
        for (const gguf::Type type : types()) {
            program_.steps.push_back(Linear{x, {{matrix(type, kHidden, kWidth), kNoWeight, h, kNoSlot}}});
            if (large && measured(type))
                program_.steps.push_back(
                    Linear{x, {{matrix(type, kLargeRows, kWidth), kNoWeight, large_, kNoSlot}}});
        }
        program_.steps.push_back(
            Linear{x,
                   {{matrix(gguf::Type::Q4_K, kHidden, kWidth), kNoWeight, h, kNoSlot},
                    {matrix(gguf::Type::Q4_K, kHidden, kWidth), kNoWeight, u, kNoSlot}}});
        program_.steps.push_back(Activation{h, u, h});
        add_attention(64, 8, 2);
        add_attention(128, 4, 4);
        Experts experts{};
        experts.in = x, experts.logits = router, experts.out = y;
        experts.routing.used = 2;
        experts.gate = matrix(gguf::Type::Q4_0, kHidden, kWidth, kExpertCount);
        experts.up = matrix(gguf::Type::Q4_0, kHidden, kWidth, kExpertCount);
        experts.down = matrix(gguf::Type::Q4_0, kWidth, kHidden, kExpertCount);
        program_.steps.push_back(experts);
        program_.vocab = 300;
        program_.steps.push_back(Logits{x, matrix(gguf::Type::Q6_K, 300, kWidth)});
        return std::move(program_);
    }

  private:
    static constexpr int64_t kWidth = 1024, kHidden = 256, kExpertCount = 4, kLargeRows = 16384;

    static std::vector<gguf::Type> types() {
        std::vector<gguf::Type> all;
        for (uint32_t id = 0; id < gguf::kTypeIds; ++id) {
            const gguf::TypeTraits *t = gguf::find_type(id);
            if (t && t->supported && gguf::can_quantize(t->type)) all.push_back(t->type);
        }
        return all;
    }
    static bool measured(gguf::Type type) {
        return type == gguf::Type::F16 || type == gguf::Type::Q8_0 || type == gguf::Type::Q4_K;
    }
    Slot slot(const char *name, int64_t width) {
        program_.slots.push_back({name, width});
        return static_cast<Slot>(program_.slots.size() - 1);
    }
    // A few rows are quantized and repeated: quantizing all rows would take longer than the checks.
    WeightId matrix(gguf::Type type, int64_t rows, int64_t cols, int64_t count = 1) {
        constexpr int64_t kDifferent = 64;
        const size_t row_bytes = gguf::row_bytes(type, cols), all = static_cast<size_t>(rows * count);
        auto memory = std::make_shared<std::vector<float>>((all * row_bytes + 3) / 4);
        auto *to = reinterpret_cast<std::byte *>(memory->data());
        std::normal_distribution<float> value(0, 0.02f);
        std::vector<float> row(static_cast<size_t>(cols));
        for (size_t r = 0; r < all; ++r) {
            if (r >= static_cast<size_t>(kDifferent)) {
                std::copy_n(to + (r - kDifferent) * row_bytes, row_bytes, to + r * row_bytes);
                continue;
            }
            for (float &v : row) v = value(random_);
            gguf::quantize_row(type, row.data(), to + r * row_bytes, cols, gguf::Effort::Fast);
        }
        program_.weights.push_back({"random", type, rows, cols, to, count});
        program_.constants.push_back(std::move(memory));
        return static_cast<WeightId>(program_.weights.size() - 1);
    }
    WeightId vector(int64_t size) {
        std::normal_distribution<float> value(1, 0.1f);
        std::vector<float> values(static_cast<size_t>(size));
        for (float &v : values) v = value(random_);
        auto kept = std::make_shared<const std::vector<float>>(std::move(values));
        program_.weights.push_back(
            {"random", gguf::Type::F32, 1, size, reinterpret_cast<const std::byte *>(kept->data())});
        program_.constants.push_back(std::move(kept));
        return static_cast<WeightId>(program_.weights.size() - 1);
    }
    void add_attention(int32_t dims, int32_t heads, int32_t kv_heads) {
        RopeTable rope{};
        rope.pairs = RopeTable::Pairs::Halves;
        for (int32_t i = 0; i < dims / 2; ++i) rope.inv_freq.push_back(1 / (1 + 100.0 * i / dims));
        program_.ropes.push_back(rope);
        program_.cache_layers.push_back({kv_heads, dims, dims});
        Attention a{};
        a.q = slot("q", int64_t{heads} * dims), a.k = slot("k", int64_t{kv_heads} * dims);
        a.v = slot("v", int64_t{kv_heads} * dims), a.out = slot("attended", int64_t{heads} * dims);
        a.cache = static_cast<int32_t>(program_.cache_layers.size()) - 1;
        a.heads = heads, a.kv_heads = kv_heads, a.head_dim_k = a.head_dim_v = dims;
        a.scale = dims == 64 ? 0.125f : 0.0883883f;
        a.rope = static_cast<int32_t>(program_.ropes.size()) - 1;
        program_.steps.push_back(a);
    }

    Program program_;
    std::mt19937 random_{7};
    Slot large_ = slot("large", kLargeRows);
};

}  // namespace

Program sample_program(bool large) {
    return Sample().make(large);
}

}  // namespace runnel::commands
