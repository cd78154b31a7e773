#include "tests/support/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace runnel::reference {
namespace {

double dot(std::span<const double> a, std::span<const double> b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

}  // namespace

Row to_row(std::span<const float> x) {
    return Row(x.begin(), x.end());
}

Row rms_norm(std::span<const double> x, std::span<const double> weight, double eps) {
    const double scale = 1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + eps);
    Row out(x.size());
    for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight[i];
    return out;
}

void rope(std::span<double> head, const kernels::RopeTable &table, int32_t position) {
    const size_t pairs = table.inv_freq.size();
    for (size_t j = 0; j < pairs; ++j) {
        const bool adjacent = table.pairs == kernels::RopeTable::Pairs::Adjacent;
        const auto [first, second] = adjacent ? std::pair(2 * j, 2 * j + 1) : std::pair(j, j + pairs);
        const double a = head[first], b = head[second], angle = position * table.inv_freq[j];
        head[first] = (a * std::cos(angle) - b * std::sin(angle)) * table.magnitude;
        head[second] = (a * std::sin(angle) + b * std::cos(angle)) * table.magnitude;
    }
}

Row attention(std::span<const double> q, std::span<const double> k, std::span<const double> v,
              int64_t head_dim_v, int64_t begin, int64_t end, double scale) {
    const auto row = [](std::span<const double> matrix, int64_t index, size_t width) {
        return matrix.subspan(static_cast<size_t>(index) * width, width);
    };
    Row scores;
    for (int64_t key = begin; key < end; ++key) scores.push_back(scale * dot(q, row(k, key, q.size())));
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    Row out(static_cast<size_t>(head_dim_v), 0.0);
    for (int64_t key = begin; key < end; ++key) {
        const double p = std::exp(scores[static_cast<size_t>(key - begin)] - largest);
        const auto value = row(v, key, out.size());
        for (size_t d = 0; d < out.size(); ++d) out[d] += p * value[d];
        sum += p;
    }
    for (double &x : out) x /= sum;
    return out;
}

Row attention_heads(std::span<const double> q, std::span<const double> k, std::span<const double> v,
                    int64_t heads, int64_t kv_heads, int64_t head_dim_k, int64_t head_dim_v, int64_t own,
                    int64_t window, double scale) {
    // The keys and values of one K/V head, as a matrix of their own.
    const auto head_of = [&](std::span<const double> all, int64_t head, int64_t width) {
        Row out;
        for (int64_t key = 0; key <= own; ++key) {
            const auto from = all.begin() + (key * kv_heads + head) * width;
            out.insert(out.end(), from, from + width);
        }
        return out;
    };
    Row out;
    for (int64_t head = 0; head < heads; ++head) {
        const int64_t kv_head = head / (heads / kv_heads);
        const auto row =
            attention(q.subspan(static_cast<size_t>(head * head_dim_k), static_cast<size_t>(head_dim_k)),
                      head_of(k, kv_head, head_dim_k), head_of(v, kv_head, head_dim_v), head_dim_v,
                      window > 0 ? std::max<int64_t>(0, own - window + 1) : 0, own + 1, scale);
        out.insert(out.end(), row.begin(), row.end());
    }
    return out;
}

Row swiglu(std::span<const double> gate, std::span<const double> up) {
    Row out(gate.size());
    for (size_t i = 0; i < gate.size(); ++i) out[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    return out;
}

Row linear(std::span<const double> weight, std::span<const double> x, std::span<const double> bias) {
    Row out(weight.size() / x.size());
    for (size_t r = 0; r < out.size(); ++r)
        out[r] = dot(weight.subspan(r * x.size(), x.size()), x) + (bias.empty() ? 0.0 : bias[r]);
    return out;
}

namespace {

// Indices of the `count` largest, best first, of equals the first.
std::vector<size_t> largest(std::span<const double> x, size_t count) {
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
    order.resize(count);
    return order;
}

Row softmax(std::span<const double> x) {
    Row out;
    for (const double value : x) out.push_back(std::exp(value - log_sum_exp(x)));
    return out;
}

// Experts outside the best groups get minus infinity.
void drop_groups(Row &s, const kernels::Routing &routing) {
    const size_t size = s.size() / static_cast<size_t>(routing.groups);
    Row scores;
    for (size_t g = 0; g < static_cast<size_t>(routing.groups); ++g) {
        const auto group = std::span(s).subspan(g * size, size);
        double score = 0;
        for (const size_t i : largest(group, static_cast<size_t>(routing.group_best))) score += group[i];
        scores.push_back(score);
    }
    std::vector<size_t> kept = largest(scores, static_cast<size_t>(routing.groups_used));
    for (size_t i = 0; i < s.size(); ++i)
        if (std::find(kept.begin(), kept.end(), i / size) == kept.end())
            s[i] = -std::numeric_limits<double>::infinity();
}

}  // namespace

std::vector<std::pair<size_t, double>> route(std::span<const double> logits,
                                             std::span<const double> selection_bias,
                                             const kernels::Routing &routing) {
    using Score = kernels::Routing::Score;
    Row p(logits.begin(), logits.end());
    if (routing.score == Score::Softmax) p = softmax(logits);
    if (routing.score == Score::Sigmoid)
        for (double &value : p) value = 1 / (1 + std::exp(-value));
    Row s = p;
    for (size_t i = 0; i < selection_bias.size(); ++i) s[i] += selection_bias[i];
    if (routing.groups > 1) drop_groups(s, routing);
    std::vector<size_t> chosen = largest(s, static_cast<size_t>(routing.used));
    std::sort(chosen.begin(), chosen.end());
    Row w;
    for (const size_t expert : chosen) w.push_back(p[expert]);
    if (routing.score == Score::SelectedSoftmax) w = softmax(w);
    if (routing.normalize) {
        const double sum = std::max(std::accumulate(w.begin(), w.end(), 0.0), 0x1p-14);
        for (double &value : w) value /= sum;
    }
    std::vector<std::pair<size_t, double>> result;
    for (size_t i = 0; i < chosen.size(); ++i)
        result.emplace_back(chosen[i], w[i] * static_cast<double>(routing.scale));
    return result;
}

double log_sum_exp(std::span<const double> x) {
    const double largest = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const double value : x) sum += std::exp(value - largest);
    return largest + std::log(sum);
}

}  // namespace runnel::reference
