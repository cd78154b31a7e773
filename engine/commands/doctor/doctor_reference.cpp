#include "engine/commands/doctor/doctor_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "gguf/half.h"
#include "gguf/quantize.h"

namespace runnel::commands {
namespace {

using namespace kernels;
using Values = std::vector<double>;

// Four sums side by side: one alone would wait for itself.
double dot(std::span<const double> a, std::span<const double> b) {
    std::array<double, 4> sums{};
    size_t i = 0;
    for (; i + 4 <= a.size(); i += 4)
        for (size_t j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
    for (; i < a.size(); ++i) sums[0] += a[i] * b[i];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void normalize(const Norm &step, std::span<double> x, std::span<const double> weight,
               std::span<const double> bias) {
    const auto n = static_cast<double>(x.size());
    if (step.kind == Norm::Kind::Layer) {
        const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
        for (double &value : x) value -= mean;
    }
    const double factor = 1 / std::sqrt(dot(x, x) / n + double{step.eps});
    for (size_t i = 0; i < x.size(); ++i)
        x[i] = x[i] * factor * (weight.empty() ? 1 : weight[i]) + (bias.empty() ? 0 : bias[i]);
}

void rotate(std::span<double> head, const RopeTable &table, int32_t position) {
    const size_t first = static_cast<size_t>(table.first), pairs = table.inv_freq.size();
    const bool adjacent = table.pairs == RopeTable::Pairs::Adjacent;
    for (size_t j = 0; j < pairs; ++j) {
        double &a = head[first + (adjacent ? 2 * j : j)],
               &b = head[first + (adjacent ? 2 * j + 1 : j + pairs)];
        const double angle = position * table.inv_freq[j];
        const double c = table.magnitude * std::cos(angle), s = table.magnitude * std::sin(angle);
        std::tie(a, b) = std::pair(a * c - b * s, a * s + b * c);
    }
}

double capped(double x, float c) {
    return c == 0 ? x : double{c} * std::tanh(x / double{c});
}

double activated(Gate::Act act, double gate, double up) {
    const double x = gate;
    switch (act) {
        case Gate::Act::Silu:
            return x / (1 + std::exp(-x)) * up;
        case Gate::Act::GeluTanh:
            return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))) * up;
        case Gate::Act::GeluErf:
            return x / 2 * (1 + std::erf(x / std::numbers::sqrt2)) * up;
        case Gate::Act::ReluSquared:
            return x > 0 ? x * x * up : 0;
        case Gate::Act::SiluClamped: {
            const double g = std::min(x, 7.0);
            return g / (1 + std::exp(-1.702 * g)) * (std::clamp(up, -7.0, 7.0) + 1);
        }
    }
    return 0;
}

void softmax(std::span<double> x) {
    const double top = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (double &value : x) sum += value = std::exp(value - top);
    for (double &value : x) value /= sum;
}

// Indices of the `count` largest, of equals the first.
std::vector<size_t> largest(std::span<const double> x, int32_t count) {
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
    order.resize(std::min(order.size(), static_cast<size_t>(count)));
    return order;
}

// Step 3 of Routing: what is not in the best groups cannot be chosen.
void drop_groups(const Routing &routing, Values &s) {
    const size_t size = s.size() / static_cast<size_t>(routing.groups);
    Values scores;
    for (size_t at = 0; at < s.size(); at += size) {
        const std::span<const double> group = std::span(s).subspan(at, size);
        double score = 0;
        for (const size_t i : largest(group, routing.group_best)) score += group[i];
        scores.push_back(score);
    }
    std::vector<bool> kept(scores.size());
    for (const size_t group : largest(scores, routing.groups_used)) kept[group] = true;
    for (size_t i = 0; i < s.size(); ++i)
        if (!kept[i / size]) s[i] = -std::numeric_limits<double>::infinity();
}

// A weight for every expert, 0 for those that are not chosen.
Values route(const Routing &routing, std::span<const double> logits, std::span<const double> selection_bias,
             std::span<const double> scales) {
    using Score = Routing::Score;
    Values p(logits.begin(), logits.end());
    if (routing.score == Score::Softmax) softmax(p);
    if (routing.score == Score::Sigmoid)
        for (double &value : p) value = 1 / (1 + std::exp(-value));
    Values s = selection_bias.empty() && routing.groups == 1 ? Values(logits.begin(), logits.end()) : p;
    for (size_t i = 0; i < selection_bias.size(); ++i) s[i] += selection_bias[i];
    if (routing.groups > 1) drop_groups(routing, s);
    const std::vector<size_t> chosen = largest(s, routing.used);
    Values w;
    for (const size_t e : chosen) w.push_back(p[e]);
    if (routing.score == Score::SelectedSoftmax) softmax(w);
    const double sum = routing.normalize ? std::max(std::accumulate(w.begin(), w.end(), 0.0), 0x1p-14) : 1;
    Values all(logits.size());
    for (size_t i = 0; i < chosen.size(); ++i)
        all[chosen[i]] = w[i] / sum * double{routing.scale} * (scales.empty() ? 1 : scales[chosen[i]]);
    return all;
}

// One sequence going through a program, a step of all tokens after the other.
class Arithmetic {
  public:
    Arithmetic(const Program &program, int32_t tokens)
        : program_(program),
          tokens_(tokens),
          slots_(program.slots.size()),
          keys_(program.cache_layers.size()),
          values_(keys_) {}

    std::vector<float> run() {
        for (const Step &step : program_.steps) std::visit([&](const auto &s) { run(s); }, step);
        return std::move(logits_);
    }

  private:
    const Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }
    size_t width(Slot slot) const {
        return static_cast<size_t>(program_.slots[static_cast<size_t>(slot)].width);
    }
    // A slot's values of all tokens, of one.
    Values &all(Slot slot) {
        Values &values = slots_[static_cast<size_t>(slot)];
        values.resize(static_cast<size_t>(tokens_) * width(slot));
        return values;
    }
    std::span<double> row(Slot slot, int32_t token) {
        return std::span(all(slot)).subspan(static_cast<size_t>(token) * width(slot), width(slot));
    }
    // Row `row` of a matrix, or of the matrices of a tensor, numbered through.
    static Values row_of(const Weight &w, int64_t row) {
        std::vector<float> floats(static_cast<size_t>(w.cols));
        gguf::dequantize_row(w.type, w.data + static_cast<size_t>(row) * gguf::row_bytes(w.type, w.cols),
                             floats.data(), w.cols);
        return {floats.begin(), floats.end()};
    }
    // A vector, or vectors one behind the other; empty for kNoWeight.
    Values vector_of(WeightId id) const {
        Values values;
        for (int64_t r = 0; id != kNoWeight && r < weight(id).rows; ++r) {
            const Values more = row_of(weight(id), r);
            values.insert(values.end(), more.begin(), more.end());
        }
        return values;
    }
    // Matrix number `matrix` of a tensor times each x: [x.size()][rows].
    static Values product(const Weight &w, int64_t matrix, const std::vector<std::span<const double>> &x) {
        const auto rows = static_cast<size_t>(w.rows);
        Values out(x.size() * rows);
        for (size_t r = 0; r < rows; ++r) {
            const Values weights = row_of(w, matrix * w.rows + static_cast<int64_t>(r));
            for (size_t i = 0; i < x.size(); ++i) out[i * rows + r] = dot(weights, x[i]);
        }
        return out;
    }
    std::vector<std::span<const double>> rows_of(Slot slot) {
        std::vector<std::span<const double>> rows;
        for (int32_t t = 0; t < tokens_; ++t) rows.push_back(row(slot, t));
        return rows;
    }

    void run(const Embed &s) {
        for (int32_t t = 0; t < tokens_; ++t) {
            Values values = row_of(weight(s.table), t);
            for (double &value : values) value *= double{s.scale};
            if (s.positions != kNoWeight) {
                const int64_t last = weight(s.positions).rows - 1;
                const Values position = row_of(weight(s.positions), std::min<int64_t>(t, last));
                for (size_t i = 0; i < values.size(); ++i) values[i] += position[i];
            }
            std::ranges::copy(values, row(s.out, t).begin());
        }
    }
    void run(const Norm &s) {
        const Values weights = vector_of(s.weight), biases = vector_of(s.bias);
        const size_t size = width(s.in) / static_cast<size_t>(s.parts);
        const auto piece = [&](const Values &of, size_t at) {
            return of.size() > size ? std::span(of).subspan(at, size) : std::span(of);
        };
        for (int32_t t = 0; t < tokens_; ++t) {
            Values x(row(s.in, t).begin(), row(s.in, t).end());
            for (size_t at = 0; at < x.size(); at += size)
                normalize(s, std::span(x).subspan(at, size), piece(weights, at), piece(biases, at));
            for (size_t i = 0; i < x.size(); ++i) {
                if (s.add != kNoSlot) x[i] += row(s.add, t)[i];
                x[i] *= double{s.scale};
            }
            std::ranges::copy(x, row(s.out, t).begin());
        }
    }
    void run(const Linear &s) {
        std::vector<Values> results;
        for (const Linear::Part &part : s.parts) {
            Values y = product(weight(part.weight), 0, rows_of(s.in));
            const Values bias = vector_of(part.bias);
            const size_t rows = width(part.out);
            for (size_t i = 0; i < y.size(); ++i) {
                y[i] = double{part.scale} * (y[i] + (bias.empty() ? 0 : bias[i % rows]));
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
            for (int32_t t = 0; t < tokens_; ++t)
                from.push_back(row(s.in, t).subspan(static_cast<size_t>(s.from.first + head * s.from.stride),
                                                    static_cast<size_t>(w.cols)));
            const Values y = product(w, head, from);
            for (int32_t t = 0; t < tokens_; ++t)
                std::copy_n(y.begin() + t * w.rows, w.rows,
                            row(s.out, t).begin() + s.to.first + head * s.to.stride);
        }
    }
    void run(const Copy &s) {
        for (int32_t t = 0; t < tokens_; ++t)
            for (int64_t i = 0; i < s.count; ++i)
                std::copy_n(row(s.in, t).begin() + s.from.first + i * s.from.stride, s.width,
                            row(s.out, t).begin() + s.to.first + i * s.to.stride);
    }
    void run(const Gate &s) {
        for (int32_t t = 0; t < tokens_; ++t)
            for (size_t i = 0; i < width(s.out); ++i)
                row(s.out, t)[i] = activated(s.act, row(s.gate, t)[i], s.up == kNoSlot ? 1 : row(s.up, t)[i]);
    }
    void run(const Logits &s) {
        const Values y = product(weight(s.weight), 0, rows_of(s.in)), bias = vector_of(s.bias);
        const auto rows = static_cast<size_t>(weight(s.weight).rows);
        for (size_t i = 0; i < y.size(); ++i) {
            const double sum = y[i] + (bias.empty() ? 0 : bias[i % rows]);
            logits_.push_back(static_cast<float>(capped(double{s.scale} * sum, s.softcap)));
        }
    }

    // --- attention

    // Steps 1 and 2 of every head of a row that stands at a position.
    Values turned(std::span<const double> heads, const Attention &s, WeightId norm, int32_t position) const {
        const Values weights = vector_of(norm);
        Values out(heads.begin(), heads.end());
        for (size_t at = 0; at < out.size(); at += static_cast<size_t>(s.head_dim_k)) {
            const auto head = std::span(out).subspan(at, static_cast<size_t>(s.head_dim_k));
            const auto rotate_it = [&] {
                if (s.rope >= 0) rotate(head, program_.ropes[static_cast<size_t>(s.rope)], position);
            };
            if (s.norm_after_rope) rotate_it();
            if (!weights.empty()) normalize({kNoSlot, kNoSlot, norm, s.norm_eps}, head, weights, {});
            if (!s.norm_after_rope) rotate_it();
        }
        return out;
    }
    static void append(Values &cache, std::span<const double> values) {
        for (const double value : values)
            cache.push_back(double{gguf::f16_to_f32(gguf::f32_to_f16(static_cast<float>(value)))});
    }
    static bool sees(const Attention &s, int32_t own, int32_t key) {
        if (s.window == 0 || key < s.sink_cells) return true;
        return s.window_kind == Attention::Window::Sliding ? own - key < s.window
                                                           : key >= own - own % s.window;
    }
    void run(const Attention &s) {
        const auto layer = static_cast<size_t>(s.cache);
        const Values sinks = vector_of(s.sinks);
        for (int32_t t = 0; t < tokens_; ++t) {
            if (s.k == kNoSlot) continue;
            append(keys_[layer], turned(row(s.k, t), s, s.k_norm, t));
            if (s.v != kNoSlot) append(values_[layer], row(s.v, t));
        }
        Values out;
        for (int32_t t = 0; t < tokens_; ++t) {
            const auto &temperature = s.temperature;
            const double steps = std::floor((double(t) + temperature.offset) / temperature.length);
            const double factor = double{s.scale} * (1 + double{temperature.beta} * std::log(1 + steps));
            const Values q = turned(row(s.q, t), s, s.q_norm, t);
            const int32_t near = std::min(t, s.window + s.sink_cells - 1);
            const Values to_sinks = s.sink_cells > 0 ? turned(row(s.q, t), s, s.q_norm, near) : Values{};
            for (int32_t head = 0; head < s.heads; ++head) {
                const auto of_head = [&](const Values &of) {
                    const auto n = static_cast<size_t>(s.head_dim_k);
                    return std::span(of).subspan(static_cast<size_t>(head) * n, n);
                };
                attend(s, t, head, factor, of_head(q), to_sinks.empty() ? of_head(q) : of_head(to_sinks),
                       sinks, out);
            }
        }
        all(s.out) = std::move(out);
    }
    // Appends steps 5 to 7 of a head to `out`.
    void attend(const Attention &s, int32_t own, int32_t head, double factor, std::span<const double> q,
                std::span<const double> to_sinks, const Values &sinks, Values &out) const {
        const auto kv_head = static_cast<size_t>(head / (s.heads / s.kv_heads));
        const auto of_key = [&](const Values &cache, int32_t key, int32_t size) {
            const size_t at = static_cast<size_t>(key) * static_cast<size_t>(s.kv_heads) + kv_head;
            return std::span(cache).subspan(at * static_cast<size_t>(size), static_cast<size_t>(size));
        };
        const auto layer = static_cast<size_t>(s.cache);
        std::vector<int32_t> seen;
        Values weights;
        for (int32_t key = 0; key <= own; ++key) {
            if (!sees(s, own, key)) continue;
            const double score =
                dot(key < s.sink_cells ? to_sinks : q, of_key(keys_[layer], key, s.head_dim_k));
            seen.push_back(key);
            weights.push_back(capped(factor * score, s.softcap));
        }
        if (!sinks.empty()) weights.push_back(sinks[static_cast<size_t>(head)]);
        softmax(weights);
        const size_t begin = out.size();
        out.resize(begin + static_cast<size_t>(s.head_dim_v));
        for (size_t i = 0; i < seen.size(); ++i) {
            const auto value = s.v == kNoSlot && values_[layer].empty()
                                   ? of_key(keys_[layer], seen[i], s.head_dim_k)
                                   : of_key(values_[layer], seen[i], s.head_dim_v);
            for (size_t d = 0; begin + d < out.size(); ++d) out[begin + d] += weights[i] * value[d];
        }
    }

    // --- experts

    void run(const Experts &s) {
        const int64_t experts = weight(s.down).count;
        const Values bias = vector_of(s.routing.selection_bias), scales = vector_of(s.routing.expert_scales);
        std::vector<Values> chosen;  // [tokens][experts]: their weights
        for (int32_t t = 0; t < tokens_; ++t)
            chosen.push_back(route(s.routing, row(s.logits, t), bias, scales));
        Values out = s.add == kNoSlot ? Values(all(s.out).size()) : all(s.add);
        for (int64_t e = 0; e < experts; ++e) {
            std::vector<int32_t> mine;
            for (int32_t t = 0; t < tokens_; ++t)
                if (chosen[static_cast<size_t>(t)][static_cast<size_t>(e)] != 0) mine.push_back(t);
            if (!mine.empty()) add_expert(s, e, mine, chosen, out);
        }
        all(s.out) = std::move(out);
    }
    void add_expert(const Experts &s, int64_t e, const std::vector<int32_t> &mine,
                    const std::vector<Values> &chosen, Values &out) {
        const auto weight_of = [&](size_t i) {
            return chosen[static_cast<size_t>(mine[i])][static_cast<size_t>(e)];
        };
        std::vector<std::span<const double>> x;
        for (const int32_t t : mine) x.push_back(row(s.in, t));
        const auto biased = [&](WeightId matrix, WeightId bias, bool weighted) {
            Values y = product(weight(matrix), e, x);
            const Values b = vector_of(bias);  // of all experts
            const auto rows = static_cast<size_t>(weight(matrix).rows);
            for (size_t i = 0; i < y.size(); ++i)
                y[i] = y[i] * (weighted ? weight_of(i / rows) : 1) +
                       (b.empty() ? 0 : b[static_cast<size_t>(e) * rows + i % rows]);
            return y;
        };
        const Values first = biased(s.gate, s.gate_bias, s.weights_on_input);
        const Values second = s.up == kNoWeight ? Values{} : biased(s.up, s.up_bias, s.weights_on_input);
        const auto hidden = static_cast<size_t>(weight(s.down).cols), rows = first.size() / mine.size();
        Values h(mine.size() * hidden);
        for (size_t i = 0; i < h.size(); ++i) {
            const size_t token = i / hidden, column = i % hidden;
            const double up = !second.empty() ? second[i]
                              : rows > hidden ? first[token * rows + hidden + column]
                                              : 1;
            h[i] = activated(s.act, first[token * rows + column], up);
        }
        x.clear();
        for (size_t i = 0; i < mine.size(); ++i) x.push_back(std::span(h).subspan(i * hidden, hidden));
        const Values y = biased(s.down, s.down_bias, false);
        const size_t size = width(s.out);
        for (size_t i = 0; i < y.size(); ++i)
            out[static_cast<size_t>(mine[i / size]) * size + i % size] +=
                (s.weights_on_input ? 1 : weight_of(i / size)) * y[i];
    }

    const Program &program_;
    const int32_t tokens_;
    std::vector<Values> slots_, keys_, values_;  // [tokens][width]; by layer, [tokens][heads][size]
    std::vector<float> logits_;
};

}  // namespace

std::vector<float> plain_logits(const Program &program, int32_t tokens) {
    return Arithmetic(program, tokens).run();
}

}  // namespace runnel::commands
