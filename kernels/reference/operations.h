// The operations of the steps in kernels/program.h in double precision, written as plainly as possible: the
// reference for optimized kernels. Rows are vectors of doubles; a matrix is row-major.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/program.h"

namespace runnel::kernels::reference {

using Row = std::vector<double>;

double dot(std::span<const double> a, std::span<const double> b);

// weight * x / sqrt(mean(x^2) + eps); an empty weight means ones
Row rms_norm(std::span<const double> x, std::span<const double> weight, double eps);

// weight * (x - mean(x)) / sqrt(variance(x) + eps)
Row layer_norm(std::span<const double> x, std::span<const double> weight, double eps);

// A Norm step without its `add`: each slice of x separately, then + bias unless it is empty.
Row norm(const Norm &step, std::span<const double> x, std::span<const double> weight,
         std::span<const double> bias);

// Rotates one head in place for a position, as RopeTable defines it.
void rope(std::span<double> head, const RopeTable &table, int32_t position);

// Steps 5 to 7 of Attention for all heads of one token, which is at index `own` of the keys: q
// [heads][head_dim_k], k [keys][kv_heads][head_dim_k], v [keys][kv_heads][head_dim_v] (empty: the
// first dimensions of k), sinks and slopes [heads] or empty, sink_q: q for the sink cells, if there are any;
// chosen: the row that an Indexer wrote, if there is one. The token sees keys before `end`, and up to its own
// in any case. Returns [heads][head_dim_v]. sums: receives Attention::sums.
Row attention_heads(const Attention &step, std::span<const double> q, std::span<const double> k,
                    std::span<const double> v, int64_t own, std::span<const double> sinks = {},
                    std::span<const double> sink_q = {}, std::span<const double> slopes = {},
                    std::span<const double> chosen = {}, int64_t end = 0, Row *sums = nullptr);

// JoinAttention of one token: ins[i] and sums[i] are those of part i.
Row join_attention(const JoinAttention &step, std::span<const std::span<const double>> ins,
                   std::span<const std::span<const double>> sums);

// Multiplies each head of `size` dimensions, in place, by the Hadamard matrix of rotates_keys() (backend.h).
void hadamard(std::span<double> heads, size_t size);

// Steps 4 and 5 of Indexer for one token: q [heads][head_dim], weights [heads] or empty, k [keys][head_dim], all keys
// up to the token's own. Returns [lists()][top_k].
Row choose_cells(const Indexer &step, std::span<const double> q, std::span<const double> weights,
                 std::span<const double> k);

// The row that a head of HashedEmbed chooses. tokens: [n].
int64_t hashed_row(const HashedEmbed::Hash &hash, std::span<const double> tokens, size_t head);

// Rotate of one row. signs: [width], or empty.
Row rotate(const Rotate &step, std::span<const double> in, std::span<const double> signs);

// StreamWeights of one token.
struct StreamCoefficients {
    Row read, mix;
};
StreamCoefficients stream_weights(const StreamWeights &step, size_t streams, std::span<const double> in,
                                  std::span<const double> scales, std::span<const double> bias);

// 1 + beta * ln(1 + floor((position + offset) / length))
double temperature(const Attention::Temperature &temperature, int32_t position);

// c * tanh(x / c), or x if c is 0
double softcap(double x, double c);

// act(gate) * up, or act(gate) if up is empty
Row gate(Activation::Kind act, std::span<const double> gate, std::span<const double> up,
         const Activation::Parameters &parameters = {});

// The recurrent steps, for one token. `state` is the state before the token, empty for the first token of a
// sequence. x: the token's input; weights are shaped as the step defines.
Row short_conv(const ShortConv &step, std::span<const double> x, std::span<const double> weight,
               std::span<const double> bias, Row &state);
// `state`: value and score of every earlier token of the sequence.
Row soft_pool(const SoftPool &step, size_t width, std::span<const double> value,
              std::span<const double> score, std::span<const double> bias, Row &state);
struct ScanGates {
    Row step, decay;
};
ScanGates scan_gate(const ScanGate &step, std::span<const double> x, std::span<const double> bias,
                    std::span<const double> rate);
struct ScanInput {
    // Empty where the step has none.
    std::span<const double> q, k, v, decay, strength, erase_read, erase_write, rate, skip;
};
Row linear_scan(const LinearScan &step, const ScanInput &in, Row &state);
// rate: [n][channels]
Row selective_scan(std::span<const double> x, std::span<const double> dt, std::span<const double> b,
                   std::span<const double> c, std::span<const double> rate, std::span<const double> skip,
                   Row &state);

// W x (+ bias, if not empty); W: [rows][x.size()].
Row linear(std::span<const double> weight, std::span<const double> x, std::span<const double> bias = {});

// The chosen experts in ascending order, each with its weight. selection_bias: [experts] or empty. given: the experts of
// Experts::chosen, or empty.
std::vector<std::pair<size_t, double>> route(std::span<const double> logits,
                                             std::span<const double> selection_bias, const Routing &routing,
                                             std::span<const double> given = {});

double log_sum_exp(std::span<const double> x);

}  // namespace runnel::kernels::reference
