#include "engine/measure/planner.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <stdexcept>

#include "kernels/backend.h"
#include "kernels/steps.h"

namespace runnel::measure {
namespace {

using decode::CacheTypes;
using kernels::Program, kernels::Slot, kernels::Weight, kernels::WeightId;

constexpr int64_t kMostValue = int64_t{1} << 24;

struct Field {
    const char *name;
    int64_t BareShape::*value;
};
constexpr Field kFields[] = {{"layers", &BareShape::layers},
                             {"width", &BareShape::width},
                             {"heads", &BareShape::heads},
                             {"kv-heads", &BareShape::kv_heads},
                             {"head-dim", &BareShape::head_dim},
                             {"ff", &BareShape::ff},
                             {"vocab", &BareShape::vocab},
                             {"window", &BareShape::window},
                             {"window-layers", &BareShape::window_layers},
                             {"latent", &BareShape::latent}};

[[noreturn]] void refuse(const std::string &what) {
    throw std::invalid_argument(what);
}

void set_field(BareShape &shape, const std::string &name, const std::string &text) {
    int64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || rest != text.data() + text.size() || value < 0 || value > kMostValue)
        refuse(name + ": expected a whole number up to " + std::to_string(kMostValue));
    if (name == "tied") {
        shape.tied = value != 0;
        return;
    }
    const auto field = std::ranges::find_if(kFields, [&](const Field &f) { return f.name == name; });
    if (field == std::end(kFields))
        refuse(
            "write layers, width, heads, kv-heads, head-dim, ff, vocab, window, window-layers and latent as "
            "NAME=NUMBER, and tied=1");
    shape.*field->value = value;
}

void check(const BareShape &shape) {
    for (const auto &[name, value] : {std::pair{"layers", shape.layers},
                                      {"width", shape.width},
                                      {"heads", shape.heads},
                                      {"ff", shape.ff},
                                      {"vocab", shape.vocab}})
        if (value < 1) refuse(std::string("a shape needs ") + name + "=N");
    if (shape.layers > 4096 || shape.heads > 65536) refuse("a shape has at most 4096 layers and 65536 heads");
    if (shape.kv_heads > 0 && shape.heads % shape.kv_heads != 0)
        refuse("heads must be a multiple of kv-heads");
    if (shape.head_dim == 0 && shape.width % shape.heads != 0)
        refuse("width must be a multiple of heads, unless head-dim is given");
    const int64_t kv_heads = shape.kv_heads > 0 ? shape.kv_heads : shape.heads,
                  head_dim = shape.head_dim > 0 ? shape.head_dim : shape.width / shape.heads;
    if (static_cast<double>(shape.layers) * static_cast<double>(kv_heads) * static_cast<double>(head_dim) >
        0x1p30)
        refuse("layers x kv-heads x head-dim: at most 2^30");
    if (shape.window_layers > shape.layers) refuse("window-layers is larger than layers");
    if (shape.window_layers > 0 && shape.window == 0) refuse("window-layers needs window=N");
}

// Emits the model's steps for counting only: without norms, and a latent layer's products are not connected with its attention.
class ShapeProgram {
  public:
    explicit ShapeProgram(const BareShape &shape) : shape_(shape) {
        const int64_t head = shape.head_dim > 0 ? shape.head_dim : shape.width / shape.heads;
        const int64_t kv_heads = shape.kv_heads > 0 ? shape.kv_heads : shape.heads;
        x_ = slot("x", shape.width);
        q_ = slot("q", shape.heads * head), attended_ = slot("attended", shape.heads * head);
        k_ = slot("k", kv_heads * head), v_ = slot("v", kv_heads * head);
        gate_ = slot("gate", shape.ff), up_ = slot("up", shape.ff);
        if (shape.latent > 0) {
            latent_ = slot("latent", shape.latent), both_ = slot("kv", 2 * shape.heads * head);
            latent_q_ = slot("latent q", shape.heads * shape.latent);
            latent_out_ = slot("latent attended", shape.heads * shape.latent);
        }
        program_.vocab = shape.vocab;
        const WeightId table = weight("token_embd.weight", shape.vocab, shape.width);
        program_.steps.push_back(kernels::Embed{.table = table, .out = x_});
        for (int64_t layer = 0; layer < shape.layers; ++layer) {
            const size_t first = program_.steps.size();
            add_layer(layer, head, kv_heads);
            for (size_t i = first; i < program_.steps.size(); ++i)
                std::visit([&](auto &step) { step.layer = static_cast<int32_t>(layer); }, program_.steps[i]);
        }
        const WeightId output = shape.tied ? table : weight("output.weight", shape.vocab, shape.width);
        program_.steps.push_back(kernels::Logits{.in = x_, .weight = output});
    }
    Program take() { return std::move(program_); }

  private:
    Slot slot(const char *name, int64_t width) {
        program_.slots.push_back({name, width});
        return static_cast<Slot>(program_.slots.size() - 1);
    }
    int64_t width(Slot slot) const { return program_.slots[static_cast<size_t>(slot)].width; }
    WeightId weight(const std::string &name, int64_t rows, int64_t cols) {
        program_.weights.push_back({name, gguf::Type::F16, rows, cols, nullptr});
        return static_cast<WeightId>(program_.weights.size() - 1);
    }
    void linear(const std::string &name, Slot in, Slot out, Slot add = kernels::kNoSlot) {
        program_.steps.push_back(
            kernels::Linear{in, {{weight(name, width(out), width(in)), kernels::kNoWeight, out, add}}});
    }
    void add_layer(int64_t layer, int64_t head, int64_t kv_heads) {
        const std::string name = "blk." + std::to_string(layer) + ".";
        const bool latent = shape_.latent > 0;
        linear(name + "attn_q.weight", x_, q_);
        if (latent) {
            linear(name + "attn_kv_a.weight", x_, latent_);
            linear(name + "attn_kv_b.weight", latent_, both_);
        } else {
            linear(name + "attn_k.weight", x_, k_);
            linear(name + "attn_v.weight", x_, v_);
        }
        const int64_t windowed = shape_.window_layers > 0 ? shape_.window_layers : shape_.layers;
        const bool window = shape_.window > 0 && layer < windowed;
        const bool groups = shape_.window > 0 && windowed < shape_.layers;
        const auto cache = static_cast<int32_t>(program_.cache_layers.size());
        const auto dim = static_cast<int32_t>(latent ? shape_.latent : head);
        program_.cache_layers.push_back(
            {latent ? 1 : static_cast<int32_t>(kv_heads), dim, latent ? 0 : dim, groups && window ? 1 : 0});
        program_.steps.push_back(
            kernels::Attention{.q = latent ? latent_q_ : q_,
                               .k = latent ? latent_ : k_,
                               .v = latent ? kernels::kNoSlot : v_,
                               .out = latent ? latent_out_ : attended_,
                               .cache = cache,
                               .heads = static_cast<int32_t>(shape_.heads),
                               .kv_heads = latent ? 1 : static_cast<int32_t>(kv_heads),
                               .head_dim_k = dim,
                               .head_dim_v = dim,
                               .scale = 1,
                               .window = window ? static_cast<int32_t>(shape_.window) : 0});
        linear(name + "attn_output.weight", attended_, x_, x_);
        linear(name + "ffn_gate.weight", x_, gate_);
        linear(name + "ffn_up.weight", x_, up_);
        program_.steps.push_back(kernels::Activation{.gate = gate_, .up = up_, .out = gate_});
        linear(name + "ffn_down.weight", gate_, x_, x_);
    }

    const BareShape &shape_;
    Program program_;
    Slot x_{}, q_{}, k_{}, v_{}, attended_{}, gate_{}, up_{};
    Slot latent_{}, both_{}, latent_q_{}, latent_out_{};
};

// Calls f(weight) once for every weight that a step uses.
template <class F>
void for_each_weight(const Program &program, F &&f) {
    std::set<WeightId> seen;
    for (const kernels::Step &step : program.steps)
        kernels::visit_weights(step, [&](WeightId id) {
            if (seen.insert(id).second) f(program.weights[static_cast<size_t>(id)]);
        });
}

double elements(const Weight &weight) {
    return static_cast<double>(weight.rows) * static_cast<double>(weight.cols) *
           static_cast<double>(weight.count);
}

}  // namespace

BareShape parse_shape(const std::string &text) {
    BareShape shape;
    for (size_t from = 0; from <= text.size();) {
        const size_t comma = std::min(text.find(',', from), text.size());
        const std::string part = text.substr(from, comma - from);
        const size_t equals = part.find('=');
        set_field(shape, part.substr(0, equals), equals == std::string::npos ? "" : part.substr(equals + 1));
        from = comma + 1;
    }
    check(shape);
    return shape;
}

Program program_of(const BareShape &shape) {
    return ShapeProgram(shape).take();
}

Parameters parameters_of(const Program &program) {
    Parameters parameters;
    for_each_weight(program, [&](const Weight &weight) {
        const auto has = [&](const char *part) { return weight.name.find(part) != std::string::npos; };
        double &kind = has("attn")  ? parameters.attention
                       : has("ffn") ? parameters.feed_forward
                       : has("token_embd") || weight.name.starts_with("output.weight") ? parameters.embedding
                                                                                       : parameters.other;
        kind += elements(weight);
    });
    return parameters;
}

double bits_per_weight(gguf::Type format) {
    const gguf::TypeTraits &traits = gguf::traits(format);
    return 8.0 * static_cast<double>(traits.block_bytes) / static_cast<double>(traits.block_size);
}

double weight_bytes(const Program &program, gguf::Type format) {
    double bytes = 0;
    for_each_weight(program, [&](const Weight &weight) {
        bytes += weight.rows == 1 ? static_cast<double>(weight.bytes())
                                  : elements(weight) * bits_per_weight(format) / 8;
    });
    return bytes;
}

double weight_bytes(const Program &program) {
    double bytes = 0;
    for_each_weight(program, [&](const Weight &weight) { bytes += static_cast<double>(weight.bytes()); });
    return bytes;
}

size_t CellGroup::bytes(CacheTypes types) const {
    const kernels::CacheType k = f16_keys ? kernels::CacheType::F16 : types.k;
    return static_cast<size_t>(kv_heads) *
           (kernels::cache_row_bytes(k, head_dim_k) + kernels::cache_row_bytes(types.v, head_dim_v));
}

std::vector<CellGroup> cell_groups(const Program &program) {
    std::vector<CellGroup> groups;
    const auto add = [&](const kernels::CacheUse &use) {
        if (!use.appends) return;
        const kernels::CacheLayer &layer = program.cache_layers[static_cast<size_t>(use.cache)];
        const auto same = std::ranges::find_if(groups, [&](const CellGroup &g) {
            return g.kv_heads == layer.kv_heads && g.head_dim_k == layer.head_dim_k &&
                   g.head_dim_v == layer.head_dim_v && g.window == use.window && g.sinks == use.sink_cells &&
                   g.f16_keys == layer.f16_keys;
        });
        if (same != groups.end())
            ++same->layers;
        else
            groups.push_back({1, layer.kv_heads, layer.head_dim_k, layer.head_dim_v, use.window,
                              use.sink_cells, layer.f16_keys});
    };
    for (const kernels::Step &step : program.steps) kernels::visit_caches(step, add);
    return groups;
}

size_t cell_bytes(const Program &program, CacheTypes types) {
    size_t bytes = 0;
    for (const CellGroup &group : cell_groups(program))
        if (group.window == 0) bytes += static_cast<size_t>(group.layers) * group.bytes(types);
    return bytes;
}

std::string cell_formula(const Program &program, CacheTypes types) {
    std::string text;
    const auto number = [](double value) {
        std::string digits = std::to_string(value);
        digits.erase(digits.find_last_not_of('0') + 1);
        if (digits.ends_with('.')) digits.pop_back();
        return digits;
    };
    for (const CellGroup &g : cell_groups(program)) {
        if (g.window > 0) continue;
        const kernels::CacheType k_type = g.f16_keys ? kernels::CacheType::F16 : types.k;
        const double k = static_cast<double>(kernels::cache_row_bytes(k_type, g.head_dim_k)) / g.head_dim_k;
        const double v =
            g.head_dim_v == 0
                ? 0
                : static_cast<double>(kernels::cache_row_bytes(types.v, g.head_dim_v)) / g.head_dim_v;
        if (!text.empty()) text += " + ";
        const std::string layers = std::to_string(g.layers) + " layers x " + std::to_string(g.kv_heads) +
                                   (g.kv_heads == 1 ? " head x " : " heads x ");
        if (g.head_dim_k == g.head_dim_v && k == v)
            text += "2 x " + layers + std::to_string(g.head_dim_k) + " values x " + number(k) + " bytes";
        else if (g.head_dim_v == 0)
            text += layers + std::to_string(g.head_dim_k) + " values x " + number(k) + " bytes";
        else
            text += layers + "(" + std::to_string(g.head_dim_k) + " x " + number(k) + " + " +
                    std::to_string(g.head_dim_v) + " x " + number(v) + " bytes)";
    }
    return text.empty() ? "no layer keeps all tokens" : text;
}

int64_t sequences_that_fit(const Program &program, double weights, double memory, int64_t context,
                           CacheTypes types) {
    int64_t low = 0, high = std::min<int64_t>(decode::kMostContext / context, 1 << 20) + 1;
    while (high - low > 1) {  // `low` sequences fit; `high` do not, or are above the limit
        const int64_t middle = low + (high - low) / 2;
        const auto sequences = static_cast<int32_t>(middle);
        const decode::CacheShape shape{
            .cells = decode::cells_for(context, sequences), .sequences = sequences, .types = types};
        const bool fits = weights + static_cast<double>(decode::cache_bytes(program, shape)) <= memory;
        (fits ? low : high) = middle;
    }
    return low;
}

}  // namespace runnel::measure
