// Small random programs of the decoder shape, and their results in double precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "kernels/program.h"
#include "tests/support/reference.h"

namespace runnel::tests {

// A feed-forward part of experts, each `feed_forward` wide.
struct TinyExperts {
    int32_t count = 0;  // 0: none, the program is dense
    kernels::Routing routing{.used = 2};
    bool selection_bias = false, biases = false;
    bool merged = false;  // gate and up in one tensor
    bool weights_on_input = false;
    bool scales = false;     // a factor for the output of each expert
    bool in_scales = false;  // factors for the gate and up products of each expert
    bool shared = false;     // an additional expert for all tokens
    kernels::Activation::Kind act = kernels::Activation::Kind::Silu;
};

struct TinyShape {
    int32_t layers = 2;
    int64_t width = 64, feed_forward = 96, vocab = 50;
    int32_t heads = 4, kv_heads = 2, head_dim_k = 16, head_dim_v = 16;
    int32_t window = 0;
    kernels::RopeTable::Pairs pairs = kernels::RopeTable::Pairs::Adjacent;
    bool head_norm = false, bias = false;
    bool varied = false;                // every layer uses a random choice of all options of program.h
    gguf::Type type = gguf::Type::F32;  // of all matrices
    TinyExperts experts = {};
};

// A Program and the memory its weights point into. Movable.
class TinyProgram {
  public:
    TinyProgram(const TinyShape &shape, uint32_t seed);
    const kernels::Program &program() const { return program_; }

  private:
    // `count` matrices in one tensor.
    kernels::WeightId matrices(gguf::Type type, int64_t count, int64_t rows, int64_t cols);
    kernels::WeightId matrix(int64_t rows, int64_t cols);
    kernels::WeightId vector(int64_t size, float center, float spread);
    kernels::Slot slot(int64_t width);
    bool chance(double probability);
    // A random kind of norm with `parts` parts.
    kernels::Norm varied_norm(kernels::Slot in, kernels::Slot out, kernels::Slot add, int32_t parts = 1);
    kernels::Linear::Part part(kernels::Slot in, kernels::Slot out, kernels::Slot add);
    kernels::Attention attention();
    void vary(kernels::Attention &attention);
    void add_output_of_block(kernels::Slot from);
    void add_layer();
    void add_feed_forward();
    void add_experts();
    void absorb_into_queries();
    void add_varied_layer();
    void mix_halves();
    void interpolate();

    TinyShape shape_;
    std::mt19937 random_;
    kernels::Program program_;
    std::vector<std::vector<std::byte>> memory_;
    kernels::Slot x_, normed_, q_, k_, v_, attended_, gate_, up_, branch_, router_;
};

// The same program with two steps, one that appends and one that attends, for every Attention that does both.
kernels::Program with_separate_appends(const kernels::Program &program);

// Logits of every token of a sequence from kernels/reference/, one row each.
std::vector<reference::Row> reference_logits(const kernels::Program &program,
                                             std::span<const int32_t> tokens);

}  // namespace runnel::tests
