#include "kernels/reference/reference_backend.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <variant>

#include "gguf/half.h"
#include "gguf/quantize.h"
#include "kernels/reference/operations.h"
#include "kernels/steps.h"

namespace runnel::kernels::reference {
namespace {

// K or V of a layer of the cache: [block][cell][head][dimension].
struct Pages {
    size_t width;    // of a cell
    CacheType type;  // F32, F16 or BF16
    std::vector<std::byte> bytes = {};

    size_t value_bytes() const { return type == CacheType::F32 ? 4 : 2; }
    size_t block_bytes() const { return size_t{kBlockTokens} * width * value_bytes(); }

    // Value `at`, counted through all blocks.
    void set(size_t at, double value) {
        const auto x = static_cast<float>(value);
        const uint16_t half = type == CacheType::F16 ? gguf::f32_to_f16(x) : gguf::f32_to_bf16(x);
        std::memcpy(bytes.data() + at * value_bytes(),
                    type == CacheType::F32 ? static_cast<const void *>(&x) : &half, value_bytes());
    }
    double get(size_t at) const {
        float x;
        uint16_t half;
        std::memcpy(type == CacheType::F32 ? static_cast<void *>(&x) : &half,
                    bytes.data() + at * value_bytes(), value_bytes());
        if (type == CacheType::F32) return double{x};
        return double{type == CacheType::F16 ? gguf::f16_to_f32(half) : gguf::bf16_to_f32(half)};
    }
};
struct LayerPages {
    Pages keys, values;
};

class ReferenceBackend final : public Backend {
  public:
    DeviceInfo info() const override { return {"reference, double precision", "reference", 0, 0}; }

    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override {
        if (!program.parts.empty()) refuse("a partition of a program");
        if (!rounds(cache.k) || !rounds(cache.v)) refuse("a cache of this type");
        program_ = program;
        max_tokens_ = max_tokens;
        pages_.clear();
        for (const CacheLayer &layer : program.cache_layers) {
            const auto heads = static_cast<size_t>(layer.kv_heads);
            LayerPages pages{{heads * static_cast<size_t>(layer.head_dim_k), key_type(layer, cache.k)},
                             {heads * static_cast<size_t>(layer.head_dim_v), cache.v}};
            const auto blocks = static_cast<size_t>(cache.blocks.at(static_cast<size_t>(layer.group)));
            pages.keys.bytes.resize(blocks * pages.keys.block_bytes());
            pages.values.bytes.resize(blocks * pages.values.block_bytes());
            pages_.push_back(std::move(pages));
        }
        states_.assign(static_cast<size_t>(cache.states), std::vector<Row>(program.state_layers.size()));
    }

    bool execute(const Batch &batch, std::span<float> logits) override {
        assert(static_cast<int32_t>(batch.tokens.size()) <= max_tokens_);
        assert(sees_both_ways(program_, batch));
        batch_ = &batch;
        logits_ = logits;
        slots_.assign(program_.slots.size(), {});
        for (const Step &step : program_.steps) {
            if (batch.cancel != nullptr && batch.cancel->load()) return false;
            std::visit([&](const auto &s) { run(s); }, step);
        }
        return true;
    }

    void copy_blocks(int32_t group, std::span<const BlockCopy> copies) override {
        for (const BlockCopy &copy : copies)
            for_pages(group, [&](Pages &pages) {
                std::ranges::copy(block_of(pages, copy.from), block_of(pages, copy.to).begin());
            });
    }
    void read_block(int32_t group, BlockId id, std::span<std::byte> bytes) override {
        for_pages(group, [&](Pages &pages) {
            std::ranges::copy(block_of(pages, id), bytes.begin());
            bytes = bytes.subspan(pages.block_bytes());
        });
    }
    void write_block(int32_t group, BlockId id, std::span<const std::byte> bytes) override {
        for_pages(group, [&](Pages &pages) {
            std::ranges::copy(bytes.first(pages.block_bytes()), block_of(pages, id).begin());
            bytes = bytes.subspan(pages.block_bytes());
        });
    }

  private:
    static bool rounds(CacheType type) {
        return type == CacheType::F32 || type == CacheType::F16 || type == CacheType::BF16;
    }
    static std::span<std::byte> block_of(Pages &pages, BlockId id) {
        return std::span(pages.bytes)
            .subspan(static_cast<size_t>(id) * pages.block_bytes(), pages.block_bytes());
    }
    [[noreturn]] static void refuse(const std::string &what) {
        throw BackendError(BackendError::Kind::NoKernel, "the reference backend does not run " + what);
    }
    // Calls f(keys or values) for the group's layers.
    template <class F>
    void for_pages(int32_t group, F &&f) {
        for (size_t i = 0; i < pages_.size(); ++i)
            if (program_.cache_layers[i].group == group) {
                f(pages_[i].keys);
                f(pages_[i].values);
            }
    }

    size_t tokens() const { return batch_->tokens.size(); }
    const Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }
    size_t width(Slot slot) const {
        return static_cast<size_t>(program_.slots[static_cast<size_t>(slot)].width);
    }
    // A slot's values: of all tokens, or of one.
    Row &all(Slot slot) {
        Row &values = slots_[static_cast<size_t>(slot)];
        values.resize(tokens() * width(slot));
        return values;
    }
    std::span<double> row(Slot slot, size_t token) {
        return std::span(all(slot)).subspan(token * width(slot), width(slot));
    }
    std::vector<std::span<const double>> rows_of(Slot slot) {
        std::vector<std::span<const double>> rows;
        for (size_t t = 0; t < tokens(); ++t) rows.push_back(row(slot, t));
        return rows;
    }
    // A row of a tensor, or of one of its matrices.
    static Row row_of(const Weight &w, int64_t row, int64_t matrix = 0) {
        std::vector<float> floats(static_cast<size_t>(w.cols));
        gguf::dequantize_row(w.type,
                             w.matrix(matrix) + static_cast<size_t>(row) * gguf::row_bytes(w.type, w.cols),
                             floats.data(), w.cols);
        return {floats.begin(), floats.end()};
    }
    // A vector, or several vectors concatenated; empty for kNoWeight.
    Row vector_of(WeightId id) const {
        Row values;
        for (int64_t r = 0; id != kNoWeight && r < weight(id).rows; ++r) {
            const Row more = row_of(weight(id), r);
            values.insert(values.end(), more.begin(), more.end());
        }
        return values;
    }
    // Matrix number `matrix` of a tensor times each x: [x.size()][rows].
    static Row product(const Weight &w, int64_t matrix, const std::vector<std::span<const double>> &x) {
        const auto rows = static_cast<size_t>(w.rows);
        Row out(x.size() * rows);
        for (size_t r = 0; r < rows; ++r) {
            const Row weights = row_of(w, static_cast<int64_t>(r), matrix);
            for (size_t i = 0; i < x.size(); ++i) out[i * rows + r] = dot(weights, x[i]);
        }
        return out;
    }

    void run(const HashedEmbed &s) {
        for (size_t t = 0; t < tokens(); ++t) {
            const std::span<const double> ids = row(s.tokens, t);
            Row all;
            for (size_t head = 0; head < s.hash->heads.size(); ++head) {
                const Row one = row_of(weight(s.table), hashed_row(*s.hash, ids, head));
                all.insert(all.end(), one.begin(), one.end());
            }
            std::ranges::copy(all, row(s.out, t).begin());
        }
    }
    void run(const Embed &s) {
        for (size_t t = 0; t < tokens(); ++t) {
            if (s.table == kNoWeight) {
                row(s.out, t)[0] = batch_->tokens[t] + 1;
                continue;
            }
            Row values = row_of(weight(s.table), batch_->tokens[t]);
            for (double &value : values) value *= double{s.scale};
            if (s.positions != kNoWeight) {
                const int64_t last = weight(s.positions).rows - 1;
                const Row learned =
                    row_of(weight(s.positions), std::min<int64_t>(batch_->positions[t], last));
                for (size_t i = 0; i < values.size(); ++i) values[i] += learned[i];
            }
            std::ranges::copy(values, row(s.out, t).begin());
        }
    }
    void run(const Norm &s) {
        const Row weights = vector_of(s.weight), biases = vector_of(s.bias);
        for (size_t t = 0; t < tokens(); ++t) {
            Row x = norm(s, row(s.in, t), weights, biases);
            for (size_t i = 0; i < x.size(); ++i) {
                if (s.add != kNoSlot) x[i] += row(s.add, t)[i];
                x[i] *= double{s.scale};
            }
            std::ranges::copy(x, row(s.out, t).begin());
        }
    }
    void run(const Linear &s) {
        std::vector<Row> results;
        for (const Linear::Part &part : s.parts) {
            Row y = product(weight(part.weight), 0, rows_of(s.in));
            const Row bias = vector_of(part.bias);
            for (size_t i = 0; i < y.size(); ++i) {
                y[i] = double{part.scale} * (y[i] + (bias.empty() ? 0 : bias[i % bias.size()]));
                if (part.add != kNoSlot) y[i] += all(part.add)[i];
            }
            results.push_back(std::move(y));
        }
        for (size_t i = 0; i < results.size(); ++i) all(s.parts[i].out) = std::move(results[i]);
    }
    void run(const HeadLinear &s) {
        const Weight &w = weight(s.weight);
        for (int64_t head = 0; head < w.count; ++head) {
            std::vector<std::span<const double>> from;
            for (size_t t = 0; t < tokens(); ++t)
                from.push_back(row(s.in, t).subspan(static_cast<size_t>(s.from.first + head * s.from.stride),
                                                    static_cast<size_t>(w.cols)));
            const Row y = product(w, head, from);
            for (size_t t = 0; t < tokens(); ++t)
                std::copy_n(y.begin() + static_cast<std::ptrdiff_t>(t) * w.rows, w.rows,
                            row(s.out, t).begin() + s.to.first + head * s.to.stride);
        }
    }
    void run(const Copy &s) {
        for (size_t t = 0; t < tokens(); ++t)
            for (int64_t i = 0; i < s.count; ++i)
                std::copy_n(row(s.in, t).begin() + s.from.first + i * s.from.stride, s.width,
                            row(s.out, t).begin() + s.to.first + i * s.to.stride);
    }
    void run(const Rotate &s) {
        const Row signs = vector_of(s.signs);
        for (size_t t = 0; t < tokens(); ++t)
            std::ranges::copy(rotate(s, row(s.in, t), signs), row(s.out, t).begin());
    }
    // The slices of a token's rows of these slots.
    std::vector<std::span<double>> slices_of(const std::vector<Slot> &slots, int64_t width, size_t t) {
        std::vector<std::span<double>> slices;
        for (const Slot slot : slots)
            for (std::span<double> rest = row(slot, t); !rest.empty();
                 rest = rest.subspan(static_cast<size_t>(width)))
                slices.push_back(rest.first(static_cast<size_t>(width)));
        return slices;
    }
    void run(const Mix &s) {
        for (size_t t = 0; t < tokens(); ++t) {
            const auto in = slices_of(s.in, s.width, t), out = slices_of(s.out, s.width, t);
            const std::span<const double> coefficients = row_or_none(s.coefficients, t);
            for (size_t j = 0; j < out.size(); ++j)
                for (size_t k = 0; k < out[j].size(); ++k) {
                    double sum = 0;
                    for (size_t i = 0; i < in.size(); ++i)
                        sum += (coefficients.empty() ? 1 : coefficients[j * in.size() + i]) * in[i][k];
                    out[j][k] = double{s.scale} * sum;
                }
        }
    }
    void run(const StreamWeights &s) {
        const Row scales = vector_of(s.scales), bias = vector_of(s.bias);
        for (size_t t = 0; t < tokens(); ++t) {
            const StreamCoefficients out = stream_weights(s, width(s.read), row(s.in, t), scales, bias);
            std::ranges::copy(out.read, row(s.read, t).begin());
            if (s.mix != kNoSlot) std::ranges::copy(out.mix, row(s.mix, t).begin());
        }
    }
    void run(const Lerp &s) {
        const Row weight = vector_of(s.weight);
        for (size_t t = 0; t < tokens(); ++t) {
            const auto width = row(s.in(), t).size();
            const auto copy = [&](Slot slot) {
                Row values(width);
                if (slot != kNoSlot) std::ranges::copy(row(slot, t), values.begin());
                return values;
            };
            const Row from = copy(s.from), to = copy(s.to);
            const std::span<const double> of_token = row_or_none(s.coefficients, t);
            for (size_t i = 0; i < s.out.size(); ++i)
                for (size_t k = 0; k < width; ++k) {
                    const size_t at = i * width + k;
                    const double c =
                        (weight.empty() ? 0 : weight[at]) + (of_token.empty() ? 0 : of_token[at]);
                    row(s.out[i], t)[k] = from[k] + c * (to[k] - from[k]);
                }
        }
    }
    void run(const Activation &s) {
        for (size_t t = 0; t < tokens(); ++t)
            std::ranges::copy(gate(s.act, row(s.gate, t),
                                   s.up == kNoSlot ? std::span<double>() : row(s.up, t), s.parameters),
                              row(s.out, t).begin());
    }
    // --- recurrent steps

    // Calls f(token, state) for the tokens of every sequence in order. Starts from the state
    // that the span reads, and stores those that it writes.
    template <class F>
    void advance(int32_t layer, F &&f) {
        const auto index = static_cast<size_t>(layer);
        for (const SequenceSpan &sequence : batch_->sequences) {
            Row state =
                sequence.state == kNoState ? Row{} : states_[static_cast<size_t>(sequence.state)][index];
            int32_t done = 0;
            for (const StateWrite &write : sequence.state_writes) {
                for (; done < write.tokens; ++done) f(static_cast<size_t>(sequence.first + done), state);
                states_[static_cast<size_t>(write.slot)][index] = state;
            }
        }
    }
    std::span<const double> row_or_none(Slot slot, size_t t) {
        return slot == kNoSlot ? std::span<const double>() : row(slot, t);
    }
    void run(const ShortConv &s) {
        const Row w = vector_of(s.weight), bias = vector_of(s.bias);
        advance(s.state, [&](size_t t, Row &state) {
            std::ranges::copy(short_conv(s, row(s.in, t), w, bias, state), row(s.out, t).begin());
        });
    }
    void run(const SoftPool &s) {
        const Row bias = vector_of(s.bias);
        advance(s.state, [&](size_t t, Row &state) {
            std::ranges::copy(soft_pool(s, width(s.out), row(s.value, t), row(s.score, t), bias, state),
                              row(s.out, t).begin());
        });
    }
    void run(const ScanGate &s) {
        const Row bias = vector_of(s.bias), rate = vector_of(s.rate);
        for (size_t t = 0; t < tokens(); ++t) {
            const ScanGates gates = scan_gate(s, row(s.in, t), bias, rate);
            if (s.step != kNoSlot) std::ranges::copy(gates.step, row(s.step, t).begin());
            if (s.decay != kNoSlot) std::ranges::copy(gates.decay, row(s.decay, t).begin());
        }
    }
    void run(const LinearScan &s) {
        const Row rate = vector_of(s.rate), skip = vector_of(s.skip);
        advance(s.state, [&](size_t t, Row &state) {
            const ScanInput in{.q = row(s.q, t),
                               .k = row(s.k, t),
                               .v = row(s.v, t),
                               .decay = row_or_none(s.decay, t),
                               .strength = row_or_none(s.strength, t),
                               .erase_read = row_or_none(s.erase_read, t),
                               .erase_write = row_or_none(s.erase_write, t),
                               .rate = rate,
                               .skip = skip};
            std::ranges::copy(linear_scan(s, in, state), row(s.out, t).begin());
        });
    }
    void run(const SelectiveScan &s) {
        const Row rate = vector_of(s.rate), skip = vector_of(s.skip);
        advance(s.state, [&](size_t t, Row &state) {
            const Row out =
                selective_scan(row(s.x, t), row(s.dt, t), row(s.b, t), row(s.c, t), rate, skip, state);
            std::ranges::copy(out, row(s.out, t).begin());
        });
    }

    void run(const Logits &s) {
        std::vector<std::span<const double>> rows;
        for (const int32_t token : batch_->logit_rows) rows.push_back(row(s.in, static_cast<size_t>(token)));
        const Row y = product(weight(s.weight), 0, rows), bias = vector_of(s.bias);
        assert(logits_.size() == y.size());
        for (size_t i = 0; i < y.size(); ++i) {
            const double sum = y[i] + (bias.empty() ? 0 : bias[i % bias.size()]);
            logits_[i] = static_cast<float>(softcap(double{s.scale} * sum, double{s.softcap}));
        }
    }

    // --- attention

    void run(const Rope &s) {
        RopeTable table = program_.ropes[static_cast<size_t>(s.rope)];
        if (s.back)
            for (double &frequency : table.inv_freq) frequency = -frequency;
        const auto dim = static_cast<size_t>(s.head_dim);
        for (size_t t = 0; t < tokens(); ++t) {
            const int32_t end = batch_->positions[t] + 1;
            if (end % s.block != 0) continue;
            for (size_t at = 0; at < width(s.slot); at += dim)
                rope(row(s.slot, t).subspan(at, dim), table, end - s.block);
        }
    }
    void run(const JoinAttention &s) {
        for (size_t t = 0; t < tokens(); ++t) {
            std::vector<std::span<const double>> ins, sums;
            for (const JoinAttention::Part &part : s.parts)
                ins.push_back(row(part.in, t)), sums.push_back(row(part.sums, t));
            std::ranges::copy(join_attention(s, ins, sums), row(s.out, t).begin());
        }
    }

    // Norm and RoPE (steps 1 and 2 of Attention, attention_steps.h) of every head of a row at a position.
    Row turned(std::span<const double> heads, const Attention &s, const Row &norm_weight,
               int32_t position) const {
        Row out(heads.begin(), heads.end());
        for (size_t at = 0; at < out.size(); at += static_cast<size_t>(s.head_dim_k)) {
            const auto head = std::span(out).subspan(at, static_cast<size_t>(s.head_dim_k));
            const auto rotate = [&] {
                if (s.rope >= 0) rope(head, program_.ropes[static_cast<size_t>(s.rope)], position);
            };
            if (s.norm_after_rope) rotate();
            if (!norm_weight.empty())
                std::ranges::copy(rms_norm(head, norm_weight, double{s.norm_eps}), head.begin());
            if (!s.norm_after_rope) rotate();
        }
        return out;
    }
    std::span<const BlockId> table_of(const SequenceSpan &sequence, int32_t cache) const {
        return sequence.tables[static_cast<size_t>(program_.cache_layers[static_cast<size_t>(cache)].group)];
    }
    // Offset of a cell of a sequence. Precondition: its block exists.
    static size_t place(std::span<const BlockId> table, int32_t cell, size_t cell_width) {
        const auto block = static_cast<size_t>(table[static_cast<size_t>(cell / kBlockTokens)]);
        return (block * size_t{kBlockTokens} + static_cast<size_t>(cell % kBlockTokens)) * cell_width;
    }
    static void put_cell(Pages &pages, std::span<const BlockId> table, int32_t cell,
                         std::span<const double> values) {
        size_t at = place(table, cell, pages.width);
        for (const double value : values) pages.set(at++, value);
    }
    void append(const Attention &s) {
        LayerPages &pages = pages_[static_cast<size_t>(s.cache)];
        const Row norm_weight = vector_of(s.k_norm);
        const auto put = [&](const SequenceSpan &sequence, int32_t cell, int32_t token) {
            const auto table = table_of(sequence, s.cache);
            const auto t = static_cast<size_t>(token);
            const Row k = turned(row(s.k, t), s, norm_weight, batch_->positions[t]);
            put_cell(pages.keys, table, cell, k);
            if (s.v != kNoSlot) put_cell(pages.values, table, cell, row(s.v, t));
        };
        for_new_cells(put);
    }
    // Calls put(sequence, cell, token) for every cell that the batch appends.
    template <class F>
    void for_new_cells(F &&put) const {
        for (const SequenceSpan &q : batch_->sequences) {
            for (int32_t i = 0; i < q.shared; ++i) put(q, q.past - q.shared + i, q.shared_from + i);
            for (int32_t i = 0; i < q.count; ++i) put(q, q.past + i, q.first + i);
        }
    }
    // RoPE and the Hadamard matrix for each of the heads.
    Row turned(std::span<const double> heads, const Indexer &s, int32_t position) const {
        Row out(heads.begin(), heads.end());
        const auto dim = static_cast<size_t>(s.head_dim);
        for (size_t at = 0; at < out.size() && s.rope >= 0; at += dim)
            rope(std::span(out).subspan(at, dim), program_.ropes[static_cast<size_t>(s.rope)], position);
        hadamard(out, dim);
        return out;
    }
    void run(const Indexer &s) {
        Pages &keys = pages_[static_cast<size_t>(s.cache)].keys;
        for_new_cells([&](const SequenceSpan &sequence, int32_t cell, int32_t token) {
            const auto t = static_cast<size_t>(token);
            put_cell(keys, table_of(sequence, s.cache), cell, turned(row(s.k, t), s, batch_->positions[t]));
        });
        for (const SequenceSpan &sequence : batch_->sequences) {
            const Row k = cells_of(keys, table_of(sequence, s.cache), sequence.past + sequence.count);
            for (int32_t i = 0; i < sequence.count; ++i) {
                const auto t = static_cast<size_t>(sequence.first + i);
                const size_t visible = static_cast<size_t>(sequence.past + i + 1) * keys.width;
                std::ranges::copy(choose_cells(s, turned(row(s.q, t), s, batch_->positions[t]),
                                               row_or_none(s.weights, t), std::span(k).first(visible)),
                                  row(s.chosen, t).begin());
            }
        }
    }
    // Cells [0, count) of a sequence; zeros if there is no block.
    static Row cells_of(const Pages &pages, std::span<const BlockId> table, int32_t count) {
        Row out(static_cast<size_t>(count) * pages.width);
        for (int32_t cell = 0; cell < count; ++cell) {
            if (pages.width == 0 || table[static_cast<size_t>(cell / kBlockTokens)] < 0) continue;
            const size_t from = place(table, cell, pages.width), to = static_cast<size_t>(cell) * pages.width;
            for (size_t i = 0; i < pages.width; ++i) out[to + i] = pages.get(from + i);
        }
        return out;
    }
    void run(const Attention &s) {
        if (s.k != kNoSlot) append(s);
        if (!s.attends()) return;
        const LayerPages &pages = pages_[static_cast<size_t>(s.cache)];
        const Row sinks = vector_of(s.sinks), slopes = vector_of(s.slopes), norm_weight = vector_of(s.q_norm);
        for (const SequenceSpan &sequence : batch_->sequences) {
            const auto table = table_of(sequence, s.cache);
            const int32_t end = sequence.past + sequence.count;
            const Row k = cells_of(pages.keys, table, end), v = cells_of(pages.values, table, end);
            for (int32_t i = 0; i < sequence.count; ++i) {
                const auto t = static_cast<size_t>(sequence.first + i);
                const int32_t position = batch_->positions[t];
                const auto query = [&](int32_t at) {
                    Row q = turned(row(s.q, t), s, norm_weight, at);
                    for (double &value : q) value *= temperature(s.temperature, position);
                    return q;
                };
                const Row to_sinks =
                    s.sink_cells > 0 ? query(std::min(position, s.window + s.sink_cells - 1)) : Row{};
                Row sums;
                const Row out =
                    attention_heads(s, query(position), k, v, sequence.past + i, sinks, to_sinks, slopes,
                                    row_or_none(s.chosen, t), sequence.both_ways ? end : 0, &sums);
                if (s.sums != kNoSlot) std::ranges::copy(sums, row(s.sums, t).begin());
                std::ranges::copy(out, row(s.out, t).begin());
            }
        }
    }

    // --- experts

    void run(const Experts &s) {
        const Row bias = vector_of(s.routing.selection_bias), scales = vector_of(s.routing.expert_scales);
        const auto experts = static_cast<size_t>(expert_count(program_, s));
        std::vector<std::vector<Pair>> tokens_of(experts);
        for (size_t t = 0; t < tokens(); ++t) {
            size_t index = 0;
            for (const auto &[expert, w] : route(row(s.logits, t), bias, s.routing, row_or_none(s.chosen, t)))
                tokens_of[expert].push_back({t, index++, w * (scales.empty() ? 1 : scales[expert])});
        }
        Row out = s.add == kNoSlot ? Row(all(s.out).size()) : all(s.add);
        for (size_t e = 0; e < experts; ++e)
            if (!tokens_of[e].empty()) add_expert(s, static_cast<int64_t>(e), tokens_of[e], out);
        all(s.out) = std::move(out);
    }
    // A token and one of its chosen experts.
    struct Pair {
        size_t token, index;  // index: among the token's experts
        double weight;
    };
    // The products of an expert's matrix with x, [pairs][rows], times its factor and, if `weighted`, the pairs' weights,
    // plus its bias.
    Row expert_product(WeightId matrix, int64_t e, WeightId scales, WeightId bias,
                       const std::vector<std::span<const double>> &x, const std::vector<Pair> &pairs,
                       bool weighted) const {
        Row y = product(weight(matrix), e, x);
        const Row b = bias == kNoWeight ? Row{} : row_of(weight(bias), 0, e), factors = vector_of(scales);
        const double factor = factors.empty() ? 1 : factors[static_cast<size_t>(e)];
        const auto rows = static_cast<size_t>(weight(matrix).rows);
        for (size_t i = 0; i < y.size(); ++i)
            y[i] = y[i] * factor * (weighted ? pairs[i / rows].weight : 1) + (b.empty() ? 0 : b[i % rows]);
        return y;
    }
    // h of the expert for every pair.
    std::vector<Row> expert_hidden(const Experts &s, int64_t e, const std::vector<Pair> &pairs) {
        const auto hidden = static_cast<size_t>(expert_width(program_, s));
        std::vector<Row> h;
        if (s.gate == kNoWeight) {
            for (const Pair &pair : pairs) {
                const auto given = row(s.in, pair.token).subspan(pair.index * hidden, hidden);
                h.emplace_back(given.begin(), given.end());
            }
            return h;
        }
        std::vector<std::span<const double>> x;
        for (const Pair &pair : pairs) x.push_back(row(s.in, pair.token));
        const bool weighted = s.weights_on_input;
        const Row first = expert_product(s.gate, e, s.gate_scales, s.gate_bias, x, pairs, weighted);
        const Row second =
            s.up == kNoWeight ? Row{} : expert_product(s.up, e, s.up_scales, s.up_bias, x, pairs, weighted);
        const size_t rows = first.size() / pairs.size();
        for (size_t i = 0; i < pairs.size(); ++i) {
            const auto of_pair = std::span(first).subspan(i * rows, rows);
            const auto up = second.empty() ? of_pair.subspan(hidden)  // empty where there is none
                                           : std::span(second).subspan(i * hidden, hidden);
            h.push_back(gate(s.act, of_pair.first(hidden), up, s.parameters));
        }
        return h;
    }
    // Adds the expert's output to `out`, or without `down` writes its h there.
    void add_expert(const Experts &s, int64_t e, const std::vector<Pair> &pairs, Row &out) {
        const std::vector<Row> h = expert_hidden(s, e, pairs);
        const size_t size = width(s.out);
        if (s.down == kNoWeight) {
            for (size_t i = 0; i < pairs.size(); ++i)
                std::ranges::copy(h[i],
                                  out.begin() + static_cast<std::ptrdiff_t>(pairs[i].token * size +
                                                                            pairs[i].index * h[i].size()));
            return;
        }
        const Row y = expert_product(s.down, e, kNoWeight, s.down_bias, {h.begin(), h.end()}, pairs, false);
        for (size_t i = 0; i < y.size(); ++i) {
            const Pair &pair = pairs[i / size];
            out[pair.token * size + i % size] += (s.weights_on_input ? 1 : pair.weight) * y[i];
        }
    }

    Program program_;
    int32_t max_tokens_ = 0;
    std::vector<LayerPages> pages_;         // per cache layer
    std::vector<std::vector<Row>> states_;  // per state slot and recurrent step
    // The current batch.
    const Batch *batch_ = nullptr;
    std::span<float> logits_;
    std::vector<Row> slots_;  // [tokens][width]
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() {
    return std::make_unique<ReferenceBackend>();
}

std::vector<float> logits_of(const Program &program, std::span<const int32_t> tokens) {
    const auto count = static_cast<int32_t>(tokens.size());
    const int32_t blocks = (count + kBlockTokens - 1) / kBlockTokens;
    int32_t groups = 0;
    for (const CacheLayer &layer : program.cache_layers) groups = std::max(groups, layer.group + 1);
    ReferenceBackend backend;
    CacheConfig cache;
    cache.blocks.assign(static_cast<size_t>(groups), blocks);
    cache.states = 1;
    backend.load(program, cache, count);
    std::vector<BlockId> table(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), 0);
    SequenceSpan sequence{0, count, 0, {}};
    sequence.tables.assign(static_cast<size_t>(groups), table);
    sequence.state_writes = {{count, 0}};
    std::vector<float> logits(tokens.size() * static_cast<size_t>(program.vocab));
    backend.execute({tokens, positions, {&sequence, 1}, positions}, logits);
    return logits;
}

}  // namespace runnel::kernels::reference
