// Every operation of kernels/program.h, in double precision and in the plainest way: what optimised kernels
// and whole models are compared with. Rows are vectors of doubles; a matrix is row-major.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/program.h"

namespace runnel::reference {

using Row = std::vector<double>;

Row to_row(std::span<const float> x);

// weight * x / sqrt(mean(x^2) + eps)
Row rms_norm(std::span<const double> x, std::span<const double> weight, double eps);

// Rotates one head in place for a position; magnitude and untouched dimensions as RopeTable says.
void rope(std::span<double> head, const kernels::RopeTable &table, int32_t position);

// sum over keys begin <= i < end of softmax_i(scale * q . k_i) v_i.
//   k: [keys][head_dim_k], v: [keys][head_dim_v] of one K/V head.
Row attention(std::span<const double> q, std::span<const double> k, std::span<const double> v,
              int64_t head_dim_v, int64_t begin, int64_t end, double scale);

// All heads of one token that stands at index `own` of the keys: q [heads][head_dim_k],
// k [keys][kv_heads][head_dim_k], v [keys][kv_heads][head_dim_v] -> [heads][head_dim_v]. window 0: all
// earlier keys.
Row attention_heads(std::span<const double> q, std::span<const double> k, std::span<const double> v,
                    int64_t heads, int64_t kv_heads, int64_t head_dim_k, int64_t head_dim_v, int64_t own,
                    int64_t window, double scale);

// silu(gate) * up
Row swiglu(std::span<const double> gate, std::span<const double> up);

// W x (+ bias, if not empty); W: [bias or rows][x.size()].
Row linear(std::span<const double> weight, std::span<const double> x, std::span<const double> bias = {});

// The chosen experts in ascending order, each with its weight. selection_bias: [experts] or empty.
std::vector<std::pair<size_t, double>> route(std::span<const double> logits,
                                             std::span<const double> selection_bias,
                                             const kernels::Routing &routing);

double log_sum_exp(std::span<const double> x);

}  // namespace runnel::reference
