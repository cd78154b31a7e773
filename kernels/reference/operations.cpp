#include "kernels/reference/operations.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

namespace runnel::kernels::reference {
// Four independent sums, so that an addition need not wait for the previous one.
double dot(std::span<const double> a, std::span<const double> b) {
    std::array<double, 4> sums{};
    size_t i = 0;
    for (; i + 4 <= a.size(); i += 4)
        for (size_t j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
    for (; i < a.size(); ++i) sums[0] += a[i] * b[i];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

Row rms_norm(std::span<const double> x, std::span<const double> weight, double eps) {
    const double scale = 1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + eps);
    Row out(x.size());
    for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * (weight.empty() ? 1 : weight[i]);
    return out;
}

Row layer_norm(std::span<const double> x, std::span<const double> weight, double eps) {
    const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
    Row centered(x.begin(), x.end());
    for (double &value : centered) value -= mean;
    return rms_norm(centered, weight, eps);
}

Row norm(const Norm &step, std::span<const double> x, std::span<const double> weight,
         std::span<const double> bias) {
    const size_t n = x.size() / static_cast<size_t>(step.parts);
    const auto of_part = [&](std::span<const double> all, size_t at) {
        return all.size() == x.size() ? all.subspan(at, n) : all;
    };
    Row out;
    for (size_t at = 0; at < x.size(); at += n) {
        const bool rms = step.kind == Norm::Kind::Rms;
        Row part = (rms ? rms_norm : layer_norm)(x.subspan(at, n), of_part(weight, at), step.eps);
        for (size_t i = 0; i < n && !bias.empty(); ++i) part[i] += of_part(bias, at)[i];
        out.insert(out.end(), part.begin(), part.end());
    }
    return out;
}

void rope(std::span<double> head, const RopeTable &table, int32_t position) {
    head = head.subspan(static_cast<size_t>(table.first));
    const size_t pairs = table.inv_freq.size();
    for (size_t j = 0; j < pairs; ++j) {
        const bool adjacent = table.pairs == RopeTable::Pairs::Adjacent;
        const auto [first, second] = adjacent ? std::pair(2 * j, 2 * j + 1) : std::pair(j, j + pairs);
        const double a = head[first], b = head[second], angle = position * table.inv_freq[j];
        head[first] = (a * std::cos(angle) - b * std::sin(angle)) * table.magnitude;
        head[second] = (a * std::sin(angle) + b * std::cos(angle)) * table.magnitude;
    }
}

double softcap(double x, double c) {
    return c == 0 ? x : c * std::tanh(x / c);
}

double temperature(const Attention::Temperature &t, int32_t position) {
    const double steps = std::floor((static_cast<double>(position) + t.offset) / t.length);
    return 1 + static_cast<double>(t.beta) * std::log(1 + steps);
}

Row attention_heads(const Attention &step, std::span<const double> q, std::span<const double> k,
                    std::span<const double> v, int64_t own, std::span<const double> sinks,
                    std::span<const double> sink_q, std::span<const double> slopes,
                    std::span<const double> chosen, int64_t end, Row *sums) {
    const size_t dk = static_cast<size_t>(step.head_dim_k), dv = static_cast<size_t>(step.head_dim_v);
    const size_t kv_heads = static_cast<size_t>(step.kv_heads);
    const size_t lists = static_cast<size_t>(step.chosen_lists);
    const auto visible = [&](size_t kv_head, int64_t key) {
        if ((key + 1) % step.stride != 0) return false;
        if (!chosen.empty()) {
            const auto list =
                chosen.subspan(lists == 1 ? 0 : kv_head * (chosen.size() / lists), chosen.size() / lists);
            const auto block = static_cast<double>(key / step.chosen_block);
            if (std::ranges::find(list, block) == list.end()) return false;
        }
        if (step.window == 0 || key < step.sink_cells) return true;
        if (step.window_kind == Attention::Window::Sliding) return own - key < step.window;
        return key / step.window == own / step.window;
    };
    const auto bias = [&](size_t head, int64_t key) {
        if (slopes.empty()) return 0.0;
        const int64_t at =
            key < step.sink_cells ? std::min<int64_t>(own, step.window + step.sink_cells - 1) : own;
        return slopes[head] * static_cast<double>(key - at);
    };
    Row out;
    for (size_t head = 0; head < static_cast<size_t>(step.heads); ++head) {
        const size_t kv_head = head / static_cast<size_t>(step.heads / step.kv_heads);
        const auto row = [&](std::span<const double> all, int64_t key, size_t width) {
            return all.subspan((static_cast<size_t>(key) * kv_heads + kv_head) * width, width);
        };
        std::vector<std::pair<int64_t, double>> scores;
        for (int64_t key = 0; key < std::max(own + 1, end); ++key)
            if (visible(kv_head, key))
                scores.emplace_back(
                    key, bias(head, key) +
                             softcap(static_cast<double>(step.scale) *
                                         dot((key < step.sink_cells ? sink_q : q).subspan(head * dk, dk),
                                             row(k, key, dk)),
                                     static_cast<double>(step.softcap)));
        if (scores.empty() && sinks.empty()) {
            out.resize(out.size() + dv);
            if (sums != nullptr) sums->insert(sums->end(), {-1e30, 0});
            continue;
        }
        double largest = sinks.empty() ? scores[0].second : sinks[head];
        for (const auto &[key, score] : scores) largest = std::max(largest, score);
        double sum = sinks.empty() ? 0 : std::exp(sinks[head] - largest);
        Row mixed(dv, 0.0);
        for (const auto &[key, score] : scores) {
            const double p = std::exp(score - largest);
            const auto value = v.empty() ? row(k, key, dk).first(dv) : row(v, key, dv);
            for (size_t d = 0; d < dv; ++d) mixed[d] += p * value[d];
            sum += p;
        }
        for (const double x : mixed) out.push_back(x / sum);
        if (sums != nullptr) sums->insert(sums->end(), {largest, sum});
    }
    return out;
}

Row join_attention(const JoinAttention &step, std::span<const std::span<const double>> ins,
                   std::span<const std::span<const double>> sums) {
    Row out(ins[0].size());
    const size_t heads = static_cast<size_t>(step.heads), size = out.size() / heads;
    for (size_t h = 0; h < heads; ++h) {
        double largest = sums[0][2 * h], total = 0;
        for (const auto &of_part : sums) largest = std::max(largest, of_part[2 * h]);
        for (size_t i = 0; i < ins.size(); ++i) {
            const double w = sums[i][2 * h + 1] * std::exp(sums[i][2 * h] - largest);
            for (size_t d = 0; d < size; ++d) out[h * size + d] += w * ins[i][h * size + d];
            total += w;
        }
        for (size_t d = 0; d < size; ++d) out[h * size + d] /= total;
    }
    return out;
}

void hadamard(std::span<double> heads, size_t size) {
    const size_t block = size & (~size + 1);  // the largest power of two that divides it
    for (; !heads.empty(); heads = heads.subspan(block)) {
        const Row x(heads.begin(), heads.begin() + static_cast<std::ptrdiff_t>(block));
        for (size_t i = 0; i < block; ++i) {
            double sum = 0;
            for (size_t j = 0; j < block; ++j) sum += std::popcount(i & j) % 2 == 0 ? x[j] : -x[j];
            heads[i] = sum / std::sqrt(static_cast<double>(block));
        }
    }
}

Row choose_cells(const Indexer &step, std::span<const double> q, std::span<const double> weights,
                 std::span<const double> k) {
    const auto dim = static_cast<size_t>(step.head_dim), top_k = static_cast<size_t>(step.top_k),
               block = static_cast<size_t>(step.block), local = static_cast<size_t>(step.local);
    const size_t cells = k.size() / dim, whole = cells / block, count = (cells + block - 1) / block;
    Row chosen;
    for (size_t list = 0; list < static_cast<size_t>(step.lists()); ++list) {
        const auto product = [&](size_t head, size_t cell) {
            return dot(q.subspan(head * dim, dim), k.subspan(cell * dim, dim));
        };
        const auto score_of = [&](size_t cell) {
            if (weights.empty()) return product(list, cell);
            double score = 0;
            for (size_t h = 0; h < weights.size(); ++h) score += weights[h] * std::max(product(h, cell), 0.0);
            return score;
        };
        std::vector<std::pair<double, size_t>> blocks;  // -score, block
        for (size_t i = 0; i < count; ++i) {
            double largest = -std::numeric_limits<double>::infinity();
            for (size_t cell = i * block; !step.pooled && cell < std::min(cells, (i + 1) * block); ++cell)
                largest = std::max(largest, score_of(cell));
            if (step.pooled && i < whole) largest = score_of((i + 1) * block - 1);
            const bool forced = step.pooled ? i == whole : i + local >= count;
            blocks.emplace_back(forced ? -std::numeric_limits<double>::infinity() : -largest, i);
        }
        std::ranges::sort(blocks);
        blocks.resize(std::min(count, step.pooled && whole == count ? top_k - 1 : top_k));
        Row own;
        for (const auto &[score, i] : blocks) own.push_back(static_cast<double>(i));
        std::ranges::sort(own);
        own.resize(top_k, -1);
        chosen.insert(chosen.end(), own.begin(), own.end());
    }
    return chosen;
}

int64_t hashed_row(const HashedEmbed::Hash &hash, std::span<const double> tokens, size_t head) {
    std::vector<uint64_t> ids;
    for (const double token : tokens) ids.push_back(static_cast<uint64_t>(token - 1));
    const auto end = static_cast<uint64_t>(hash.end);
    const auto missing = std::find_if(tokens.begin() + 1, tokens.end(),
                                      [&](double token) { return token == 0 || token == hash.end + 1; });
    std::fill(ids.begin() + (missing - tokens.begin()), ids.end(), end);
    ids.resize(2 + head / static_cast<size_t>(hash.heads_per_gram));
    uint64_t all = 0;
    for (size_t i = 0; i < ids.size(); ++i) all ^= ids[i] * hash.multipliers[i];
    return static_cast<int64_t>(hash.heads[head].offset + all % hash.heads[head].size);
}

Row rotate(const Rotate &step, std::span<const double> in, std::span<const double> signs) {
    Row out(in.begin(), in.end());
    const auto multiply = [&] {
        for (size_t i = 0; i < signs.size(); ++i) out[i] *= signs[i];
    };
    if (!step.signs_last) multiply();
    const auto block = static_cast<size_t>(step.block);
    for (size_t at = 0; at < out.size(); at += block) hadamard(std::span(out).subspan(at, block), block);
    if (step.signs_last) multiply();
    return out;
}

StreamCoefficients stream_weights(const StreamWeights &step, size_t n, std::span<const double> in,
                                  std::span<const double> scales, std::span<const double> bias) {
    const auto x = [&](size_t group, size_t i) { return scales[group] * in[i] + bias[i]; };
    const auto sigmoid = [](double value) { return 1 / (1 + std::exp(-value)); };
    StreamCoefficients out;
    for (size_t i = 0; i < n; ++i) out.read.push_back(sigmoid(x(0, i)) + double{step.eps});
    if (step.mix == kNoSlot) return out;
    std::vector<Row> c;
    for (size_t i = 0; i < n; ++i) {
        Row row;
        double sum = 0;
        for (size_t j = 0; j < n; ++j) row.push_back(std::exp(x(2, 2 * n + i * n + j)));
        for (const double value : row) sum += value;
        for (double &value : row) value = value / sum + double{step.eps};
        c.push_back(row);
    }
    const auto divide_columns = [&] {
        for (size_t j = 0; j < n; ++j) {
            double sum = double{step.eps};
            for (const Row &row : c) sum += row[j];
            for (Row &row : c) row[j] /= sum;
        }
    };
    divide_columns();
    for (int32_t k = 1; k < step.iterations; ++k) {
        for (Row &row : c) {
            const double sum = std::accumulate(row.begin(), row.end(), double{step.eps});
            for (double &value : row) value /= sum;
        }
        divide_columns();
    }
    for (size_t j = 0; j < n; ++j) {
        for (size_t i = 0; i < n; ++i) out.mix.push_back(c[i][j]);
        out.mix.push_back(2 * sigmoid(x(1, n + j)));
    }
    return out;
}

namespace {

double activation(Activation::Kind act, double x, const Activation::Parameters &parameters) {
    using Act = Activation::Kind;
    switch (act) {
        case Act::Silu:
            return x / (1 + std::exp(-x));
        case Act::GeluTanh:
            return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
        case Act::GeluErf:
            return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
        case Act::ReluSquared:
            return x > 0 ? x * x : 0;
        case Act::SiluClamped:
            return std::min(x, 7.0) / (1 + std::exp(-1.702 * std::min(x, 7.0)));
        case Act::SiluThenLimit:
            return std::min(x / (1 + std::exp(-x)), double{parameters.positive});
        case Act::LimitThenSilu:
            return std::min(x, double{parameters.positive}) /
                   (1 + std::exp(-std::min(x, double{parameters.positive})));
        case Act::Sigmoid:
            return 1 / (1 + std::exp(-x));
        case Act::Identity:
            return x;
        case Act::Relu:
            return std::max(x, 0.0);
        case Act::Tanh:
            return std::tanh(x);
        case Act::Clamp:
            return std::clamp(x, double{parameters.negative}, double{parameters.positive});
        case Act::SignedRoot:
            return x == 0 ? 0
                          : std::copysign(std::sqrt(std::max(std::abs(x), double{parameters.positive})), x);
        case Act::XIelu:
            return parameters.beta * x +
                   (x > 0 ? parameters.positive * x * x
                          : parameters.negative * (std::expm1(std::min(x, double{parameters.eps})) - x));
    }
    return 0;
}

}  // namespace

Row gate(Activation::Kind act, std::span<const double> gate, std::span<const double> up,
         const Activation::Parameters &parameters) {
    Row out(gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
        double factor = up.empty() ? 1 : up[i];
        if (act == Activation::Kind::SiluClamped) factor = std::clamp(factor, -7.0, 7.0) + 1;
        if (act == Activation::Kind::SiluThenLimit || act == Activation::Kind::LimitThenSilu)
            factor = std::clamp(factor, -double{parameters.positive}, double{parameters.positive});
        out[i] = activation(act, gate[i], parameters) * factor;
    }
    return out;
}

Row short_conv(const ShortConv &step, std::span<const double> x, std::span<const double> weight,
               std::span<const double> bias, Row &state) {
    const size_t n = x.size(), taps = weight.size() / n;
    state.resize((taps - 1) * n);
    Row window = state;
    window.insert(window.end(), x.begin(), x.end());
    Row out(n);
    for (size_t c = 0; c < n; ++c) {
        for (size_t j = 0; j < taps; ++j) out[c] += weight[j * n + c] * window[j * n + c];
        if (!bias.empty()) out[c] += bias[c];
        if (step.silu) out[c] = activation(Activation::Kind::Silu, out[c], {});
    }
    state.assign(window.begin() + static_cast<std::ptrdiff_t>(n), window.end());
    return out;
}

Row soft_pool(const SoftPool &step, size_t width, std::span<const double> value,
              std::span<const double> score, std::span<const double> bias, Row &state) {
    const size_t all = value.size(), block = static_cast<size_t>(step.block);
    state.insert(state.end(), value.begin(), value.end());
    state.insert(state.end(), score.begin(), score.end());
    const size_t tokens = state.size() / (2 * all);
    Row out(width);
    if (tokens % block != 0) return out;
    for (size_t c = 0; c < width; ++c) {
        double sum = 0;
        const auto add = [&](size_t token, size_t channel) {
            const double *row = state.data() + token * 2 * all;
            const double p = std::exp(row[all + channel] + bias[token % block * all + channel]);
            out[c] += p * row[channel];
            sum += p;
        };
        for (size_t token = tokens - block; token < tokens; ++token)
            add(token, step.overlaps ? width + c : c);
        for (size_t token = tokens - block; step.overlaps && tokens > block && token > tokens - 2 * block;)
            add(--token, c);
        out[c] /= sum;
    }
    return out;
}

ScanGates scan_gate(const ScanGate &step, std::span<const double> x, std::span<const double> bias,
                    std::span<const double> rate) {
    ScanGates out;
    for (size_t i = 0; i < x.size(); ++i) {
        const double raw = x[i] + (bias.empty() ? 0.0 : bias[i]);
        const double a = rate.empty() ? 0.0 : rate[i / (x.size() / rate.size())];
        out.step.push_back(raw > 30 ? raw : std::log1p(std::exp(raw)));
        const bool sigmoid = step.form == ScanGate::Form::Sigmoid;
        out.decay.push_back(std::exp(step.form == ScanGate::Form::Softplus ? a * out.step.back()
                                     : sigmoid ? double{step.bound} / (1 + std::exp(-a * raw))
                                               : -std::exp(raw)));
    }
    return out;
}

// In the order of program.h: scale S and erase, read it with k, correct it, and read it with q.
Row linear_scan(const LinearScan &step, const ScanInput &in, Row &state) {
    const auto dk = static_cast<size_t>(step.dk), dv = static_cast<size_t>(step.dv),
               heads = static_cast<size_t>(step.heads), key_heads = static_cast<size_t>(step.key_heads);
    state.resize(heads * dk * dv);
    Row out(heads * dv);
    for (size_t h = 0; h < heads; ++h) {
        const size_t key = (step.neighbors ? h * key_heads / heads : h % key_heads) * dk;
        double *s = state.data() + h * dk * dv;
        Row erased(dv);
        for (size_t i = 0; i < dk && step.reads_before; ++i)
            for (size_t j = 0; j < dv; ++j) out[h * dv + j] += s[i * dv + j] * in.q[key + i];
        for (size_t i = 0; i < dk && !in.erase_read.empty(); ++i)
            for (size_t j = 0; j < dv; ++j) erased[j] += s[i * dv + j] * in.erase_read[key + i];
        for (size_t i = 0; i < dk; ++i) {
            double decay = in.rate.empty() ? 1 : std::exp(in.rate[h]);
            if (!in.decay.empty()) decay = in.decay[in.decay.size() == heads ? h : h * dk + i];
            const double write = in.erase_write.empty() ? 0 : in.erase_write[key + i];
            for (size_t j = 0; j < dv; ++j) s[i * dv + j] = decay * s[i * dv + j] - write * erased[j];
        }
        for (size_t j = 0; j < dv; ++j) {
            const double v = in.v[h * dv + j];
            double old = 0;
            for (size_t i = 0; i < dk && step.delta; ++i) old += s[i * dv + j] * in.k[key + i];
            const double d = (in.strength.empty() ? 1 : in.strength[h]) * (v - old);
            for (size_t i = 0; i < dk; ++i) s[i * dv + j] += in.k[key + i] * d;
            for (size_t i = 0; i < dk && !step.reads_before; ++i)
                out[h * dv + j] += s[i * dv + j] * in.q[key + i];
            if (!in.skip.empty()) out[h * dv + j] += in.skip[h] * v;
        }
    }
    return out;
}

Row selective_scan(std::span<const double> x, std::span<const double> dt, std::span<const double> b,
                   std::span<const double> c, std::span<const double> rate, std::span<const double> skip,
                   Row &state) {
    state.resize(rate.size());
    Row out(x.size());
    for (size_t j = 0; j < x.size(); ++j) {
        out[j] = skip[j] * x[j];
        for (size_t i = 0; i < b.size(); ++i) {
            double &h = state[i * x.size() + j];
            h = h * std::exp(dt[j] * rate[i * x.size() + j]) + dt[j] * b[i] * x[j];
            out[j] += h * c[i];
        }
    }
    return out;
}

Row linear(std::span<const double> weight, std::span<const double> x, std::span<const double> bias) {
    Row out(weight.size() / x.size());
    for (size_t r = 0; r < out.size(); ++r)
        out[r] = dot(weight.subspan(r * x.size(), x.size()), x) + (bias.empty() ? 0.0 : bias[r]);
    return out;
}

namespace {

// Indices of the `count` largest in descending order, the lower index first among equals.
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

// Sets experts outside the best groups to minus infinity.
void drop_groups(Row &s, const Routing &routing) {
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

// The weight of a chosen expert (Routing::Score::SparseMixer).
double mixer_weight(std::span<const double> l, size_t own) {
    double sum = 1;
    for (size_t i = 0; i < l.size(); ++i) {
        const bool after = l[i] < l[own] || (l[i] == l[own] && i > own);
        const double bound = double{Routing::kNear} * std::max(std::fabs(l[i]), l[own]);
        if (after && l[own] - l[i] <= bound) sum += std::exp(l[i] - l[own]);
    }
    return 1 / sum;
}

}  // namespace

std::vector<std::pair<size_t, double>> route(std::span<const double> logits,
                                             std::span<const double> selection_bias, const Routing &routing,
                                             std::span<const double> given) {
    using Score = Routing::Score;
    Row p(logits.begin(), logits.end());
    if (routing.score == Score::Softmax) p = softmax(logits);
    if (routing.score == Score::Sigmoid)
        for (double &value : p) value = 1 / (1 + std::exp(-value));
    if (routing.score == Score::SqrtSoftplus)
        for (double &value : p) value = std::sqrt(value > 30 ? value : std::log1p(std::exp(value)));
    Row s = selection_bias.empty() && routing.groups == 1 ? Row(logits.begin(), logits.end()) : p;
    for (size_t i = 0; i < selection_bias.size(); ++i) s[i] += selection_bias[i];
    if (routing.groups > 1) drop_groups(s, routing);
    std::vector<size_t> chosen = given.empty() ? largest(s, static_cast<size_t>(routing.used))
                                               : std::vector<size_t>(given.begin(), given.end());
    std::sort(chosen.begin(), chosen.end());
    Row w;
    for (const size_t expert : chosen)
        w.push_back(routing.score == Score::SparseMixer ? mixer_weight(logits, expert) : p[expert]);
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

}  // namespace runnel::kernels::reference
