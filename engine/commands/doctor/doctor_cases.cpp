#include "engine/commands/doctor/doctor_cases.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "engine/commands/doctor/small_program.h"
#include "kernels/steps.h"

namespace runnel::commands {
namespace {

using namespace kernels;

constexpr int32_t kTokens = 36;  // larger than a tile of the prefill kernels, and not a multiple of it
constexpr int64_t kFewExperts = 8;
constexpr uint32_t kSeed = 20;
// Relative errors: of float arithmetic; of activations of 11 or 12 bits, in up to three consecutive matrices
// (a single outlier among 256 activations costs 2e-3); of a softmax whose weights have 16 bits.
constexpr double kExact = 1e-5, kMatrix = 8e-3, kAttention = 5e-3;

// Everything that a device's choice of a kernel may depend on: kind of step, shapes, formats, options. Two
// steps with equal keys are one case.
using CaseKey = std::vector<int64_t>;
enum Kind : int64_t {
    kEmbed,
    kNorm,
    kLinear,
    kGated,
    kHeads,
    kCopy,
    kRotate,
    kMix,
    kStreams,
    kLerp,
    kRope,
    kJoin,
    kAttend,
    kGate,
    kExperts,
    kConv,
    kPool,
    kScanGate,
    kScan,
    kSelective,
    kLogits
};

int64_t bits(float value) {
    return std::bit_cast<int32_t>(value);
}

std::string shape_of(const Weight &w) {
    return std::to_string(w.rows) + " x " + std::to_string(w.cols);
}
std::string format_of(const Weight &w) {
    return std::string(gguf::traits(w.type).name);
}

class Cases {
  public:
    Cases(const Program &program, int32_t attention_tokens)
        : program_(program), attention_tokens_(attention_tokens) {}

    std::vector<StepCase> run() {
        for (size_t i = 0; i < program_.steps.size(); ++i) {
            if (const auto both = gated_linear(program_, i)) gated(*both);
            std::visit([&](const auto &step) { add(step); }, program_.steps[i]);
        }
        return std::move(cases_);
    }

  private:
    const Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }
    int64_t width(Slot slot) const { return program_.slots[static_cast<size_t>(slot)].width; }
    bool seen(const CaseKey &key) { return !cases_by_key_.try_emplace(key, cases_.size()).second; }
    int64_t type(WeightId id) const { return id == kNoWeight ? -1 : static_cast<int64_t>(weight(id).type); }
    SmallProgram small(int32_t tokens = kTokens) const { return {program_, kSeed, tokens}; }

    using Make = std::function<Program()>;
    void push(std::string name, std::string example, Make program, Make reference, double tolerance) {
        const int count = ++names_[name];
        if (count > 1) name += ", variant " + std::to_string(count);
        cases_.push_back({std::move(name), std::move(example), std::move(program), std::move(reference),
                          kTokens, tolerance, true});
    }
    // Adds a case in which the reference computes the same program.
    void push(std::string name, std::string example, const Make &program, double tolerance) {
        push(std::move(name), std::move(example), program, program, tolerance);
    }
    // Adds a case for a step without matrices: no device rounds its activations.
    StepCase &push_exact(std::string name, std::string example, const Make &program, double tolerance) {
        push(std::move(name), std::move(example), program, program, tolerance);
        cases_.back().rounded = false;
        return cases_.back();
    }

    // The hash of a token that came three times.
    void add(const HashedEmbed &step) {
        const Weight &table = weight(step.table);
        push_exact(
            "embeddings of n-grams " + format_of(table) + " " + shape_of(table), table.name,
            [this, step] {
                SmallProgram part = small();
                part.program().slots.push_back({"token", 1});
                const auto token = static_cast<Slot>(part.program().slots.size() - 1);
                part.step(Embed{kNoWeight, token});
                part.step(Copy{token, step.tokens, {}, {0, 1}, static_cast<int32_t>(width(step.tokens)), 1});
                return part.step(step).look_at(step.out);
            },
            kExact);
    }
    void add(const Embed &step) {
        if (step.table == kNoWeight) return;  // checked together with the hash of tokens
        const Weight &table = weight(step.table);
        if (seen({kEmbed, type(step.table), table.rows, table.cols, step.scale != 1, type(step.positions)}))
            return;
        std::string name = "embeddings " + format_of(table) + " " + shape_of(table);
        if (step.positions != kNoWeight) name += ", positions";
        const auto tokens = static_cast<int32_t>(std::min<int64_t>(kTokens, table.rows));
        push_exact(
            std::move(name), table.name,
            [this, step, tokens] { return small(tokens).step(step).look_at(step.out); }, kExact)
            .tokens = tokens;
    }

    void add(const Norm &step) {
        const bool shared = step.weight != kNoWeight && weight(step.weight).cols < width(step.in);
        if (seen({kNorm, static_cast<int64_t>(step.kind), width(step.in), step.parts, bits(step.eps),
                  type(step.weight), shared, type(step.bias), step.add != kNoSlot, step.scale != 1,
                  step.out == step.in, step.out == step.add}))
            return;
        std::string name = step.kind == Norm::Kind::Rms ? "RMS norm" : "layer norm";
        name += " of " + std::to_string(width(step.in));
        if (step.parts > 1) name += " in " + std::to_string(step.parts) + " parts";
        if (step.bias != kNoWeight) name += ", bias";
        if (step.add != kNoSlot) name += ", residual";
        if (step.scale != 1) name += ", scaled";
        push_exact(
            std::move(name), step.weight == kNoWeight ? "" : weight(step.weight).name,
            [this, step] { return small().input(step.in).input(step.add).step(step).look_at(step.out); },
            kExact);
    }

    // Adds one case for each matrix of the step.
    void add(const Linear &step) {
        for (const Linear::Part &part : step.parts) {
            const Weight &w = weight(part.weight);
            const CaseKey key = {kLinear,
                                 type(part.weight),
                                 w.rows,
                                 w.cols,
                                 type(part.bias),
                                 part.scale != 1,
                                 part.add != kNoSlot,
                                 part.add == part.out};
            if (!seen(key)) add_matrix(step.in, part);
            cases_[cases_by_key_.at(key)].same.push_back(part.weight);
        }
    }
    void add_matrix(Slot in, const Linear::Part &part) {
        const Weight &w = weight(part.weight);
        std::string name = "matrix " + format_of(w) + " " + shape_of(w);
        if (part.bias != kNoWeight) name += ", bias";
        if (part.scale != 1) name += ", scaled";
        if (part.add != kNoSlot) name += ", residual";
        const auto program = [this, in, part] {
            return small().input(in).input(part.add).step(Linear{in, {part}}).look_at(part.out);
        };
        const auto reference = [this, in, part] {
            SmallProgram plain = small();
            plain.input(in).input(part.add);
            return plain.look_at(plain.some_rows(in, part));
        };
        push(std::move(name), w.name, program, reference, kMatrix);
        cases_.back().bytes = w.bytes();
    }

    // Gate and up with the activation after them, which devices compute in one pass.
    void gated(const GatedLinear &both) {
        const Linear::Part first = both.gate, second = both.up;
        const Activation gate = *both.act;
        const Weight &w = weight(first.weight), &v = weight(second.weight);
        if (seen({kGated, type(first.weight), type(second.weight), w.rows, w.cols, v.rows, type(first.bias),
                  type(second.bias), first.add != kNoSlot, second.add != kNoSlot,
                  first.scale != 1 || second.scale != 1, static_cast<int64_t>(gate.act),
                  gate.out == gate.gate, gate.out == gate.up}))
            return;
        const std::string name = "gate and up " + format_of(w) +
                                 (w.type == v.type ? "" : ", " + format_of(v)) + " " + shape_of(w) +
                                 ", activation";
        const auto program = [this, in = both.in, first, second, gate] {
            return small()
                .input(in)
                .input(first.add)
                .input(second.add)
                .step(Linear{in, {first, second}})
                .step(gate)
                .look_at(gate.out);
        };
        const auto reference = [this, in = both.in, first, second, gate] {
            SmallProgram plain = small();
            plain.input(in).input(first.add).input(second.add);
            const Slot a = plain.some_rows(in, first), b = plain.some_rows(in, second);
            return plain.step(Activation{a, b, a, gate.act, gate.parameters}).look_at(a);
        };
        push(name, w.name, program, reference, 2 * kMatrix);
    }

    void add(const HeadLinear &step) {
        const Weight &w = weight(step.weight);
        if (seen({kHeads, type(step.weight), w.count, w.rows, w.cols, width(step.in), width(step.out),
                  step.from.first, step.from.stride, step.to.first, step.to.stride, step.in == step.out}))
            return;
        push(
            "matrices of heads " + format_of(w) + " " + std::to_string(w.count) + " x " + shape_of(w), w.name,
            [this, step] { return small().input(step.in).input(step.out).step(step).look_at(step.out); },
            kMatrix);
    }

    void add(const Copy &step) {
        if (seen({kCopy, width(step.in), width(step.out), step.from.first, step.from.stride, step.to.first,
                  step.to.stride, step.count, step.width}))
            return;
        push_exact(
            "copies of " + std::to_string(step.count) + " x " + std::to_string(step.width), "",
            [this, step] { return small().input(step.in).input(step.out).step(step).look_at(step.out); },
            kExact);
    }

    void add(const Rotate &step) {
        if (seen({kRotate, width(step.in), step.block, type(step.signs), step.signs_last,
                  step.in == step.out}))
            return;
        push_exact(
            "rotation of " + std::to_string(width(step.in)) + " in blocks of " + std::to_string(step.block),
            "", [this, step] { return small().input(step.in).step(step).look_at(step.out); }, kExact);
    }

    void add(const Mix &step) {
        int64_t in = 0, out = 0;  // floats
        for (const Slot slot : step.in) in += width(slot);
        for (const Slot slot : step.out) out += width(slot);
        if (seen({kMix, static_cast<int64_t>(step.in.size()), static_cast<int64_t>(step.out.size()), in, out,
                  step.width, step.coefficients == kNoSlot, step.scale != 1}))
            return;
        push_exact(
            "mix of " + std::to_string(in / step.width) + " x " + std::to_string(step.width) + " to " +
                std::to_string(out / step.width),
            "",
            [this, step] {
                SmallProgram one = small();
                for (const Slot slot : step.in) one.input(slot);
                return one.input(step.coefficients).step(step).look_at(step.out.back());
            },
            kExact);
    }

    void add(const StreamWeights &step) {
        const Slot out = step.mix == kNoSlot ? step.read : step.mix;
        if (seen({kStreams, width(step.in), width(out), step.iterations, bits(step.eps)})) return;
        push_exact(
            "weights of " + std::to_string(width(step.read)) + " streams" +
                (out == step.read ? "" : ", mixed"),
            weight(step.bias).name,
            [this, step, out] { return small().input(step.in).step(step).look_at(out); }, kExact);
    }

    // A block that is longer than the test sequence has no last token there: no row would change.
    void add(Rope step) {
        step.block = std::min(step.block, kTokens / 4);
        if (seen({kRope, width(step.slot), step.head_dim, step.rope, step.back, step.block})) return;
        push_exact(
            "rope of " + std::to_string(width(step.slot) / step.head_dim) + " x " +
                std::to_string(step.head_dim) + (step.back ? ", back" : "") +
                (step.block > 1 ? ", of blocks" : ""),
            "", [this, step] { return small().input(step.slot).step(step).look_at(step.slot); }, kExact);
    }

    void add(const JoinAttention &step) {
        const auto parts = static_cast<int64_t>(step.parts.size());
        if (seen({kJoin, parts, width(step.out), step.heads})) return;
        push_exact(
            "attention to " + std::to_string(parts) + " kinds of keys, joined", "",
            [this, step] {
                SmallProgram all = small();
                for (const auto &[in, sums] : step.parts)  // sums are positive
                    all.input(in).input(sums).step(
                        Activation{sums, kNoSlot, sums, Activation::Kind::Sigmoid});
                return all.step(step).look_at(step.out);
            },
            kExact);
    }

    void add(const Lerp &step) {
        const auto outputs = static_cast<int64_t>(step.out.size());
        if (seen({kLerp, width(step.in()), outputs, step.from == kNoSlot, step.to == kNoSlot,
                  step.coefficients == kNoSlot, type(step.weight)}))
            return;
        push_exact(
            "interpolation, " + std::to_string(outputs) + " x " + std::to_string(width(step.in())), "",
            [this, step] {
                SmallProgram one = small();
                return one.input(step.from)
                    .input(step.to)
                    .input(step.coefficients)
                    .step(step)
                    .look_at(step.out.back());
            },
            kExact);
    }

    void add(const Attention &step) {
        // For shared K and V, only the layer that appends them is checked. A step that only appends has no output.
        if (step.k == kNoSlot || !step.attends()) return;
        const CacheLayer &layer = program_.cache_layers[static_cast<size_t>(step.cache)];
        const auto &t = step.temperature;
        if (seen({kAttend,
                  step.heads,
                  step.kv_heads,
                  step.head_dim_k,
                  step.head_dim_v,
                  layer.head_dim_v,
                  step.v == kNoSlot,
                  bits(step.scale),
                  step.window,
                  static_cast<int64_t>(step.window_kind),
                  step.sink_cells,
                  step.rope,
                  type(step.q_norm),
                  type(step.k_norm),
                  bits(step.norm_eps),
                  step.norm_after_rope,
                  bits(step.softcap),
                  type(step.sinks),
                  type(step.slopes),
                  step.chosen != kNoSlot,
                  step.chosen_lists,
                  step.chosen_block,
                  step.stride,
                  step.sums != kNoSlot,
                  bits(t.beta),
                  t.length,
                  t.offset}))
            return;
        // A window longer than the test sequence would hide no token and so not be tested.
        const int32_t window = std::min(step.window, attention_tokens_ / 2);
        const auto program = [this, step, window] {
            if (step.chosen != kNoSlot) return sparse(step);
            Attention first = step;
            first.cache = 0;
            first.window = window;
            first.sink_cells = std::min(step.sink_cells, attention_tokens_ / 8);
            first.stride = std::min(step.stride, attention_tokens_ / 8);
            SmallProgram alone = small(attention_tokens_);
            CacheLayer only = program_.cache_layers[static_cast<size_t>(step.cache)];
            only.group = 0;
            alone.program().cache_layers = {only};
            return alone.input(step.q).input(step.k).input(step.v).step(first).look_at(step.out);
        };
        push_exact(attention_name(step, window), "", program, kAttention).tokens = attention_tokens_;
    }
    // An indexer that chooses about half of the cells, then attention to these.
    Program sparse(Attention attention) const {
        Indexer indexer{};
        for_each_step<Indexer>(program_, [&](const Indexer &step) {
            if (step.chosen == attention.chosen) indexer = step;
        });
        // Blocks longer than an eighth of the test sequence would all be chosen.
        indexer.block = attention.chosen_block = std::min(indexer.block, attention_tokens_ / 8);
        indexer.top_k = attention_tokens_ / 2 / indexer.block;
        indexer.local = std::min(indexer.local, indexer.top_k);
        if (attention.stride > 1) attention.stride = indexer.block;
        SmallProgram both = small(attention_tokens_);
        both.program().slots[static_cast<size_t>(indexer.chosen)].width =
            int64_t{indexer.lists()} * indexer.top_k;
        for (const int32_t cache : {attention.cache, indexer.cache})
            both.program().cache_layers.push_back(program_.cache_layers[static_cast<size_t>(cache)]);
        for (CacheLayer &layer : both.program().cache_layers) layer.group = 0;
        attention.cache = 0, indexer.cache = 1;
        both.input(indexer.q).input(indexer.k).input(indexer.weights).step(indexer);
        return both.input(attention.q)
            .input(attention.k)
            .input(attention.v)
            .step(attention)
            .look_at(attention.out);
    }
    void add(const Indexer &) {}  // checked together with the attention that reads its choice
    static std::string attention_name(const Attention &step, int32_t window) {
        std::string name = "attention, " + std::to_string(step.heads) + " heads of " +
                           std::to_string(step.head_dim_k) + ", " + std::to_string(step.kv_heads) + " of K/V";
        if (step.window > 0) {
            const bool sliding = step.window_kind == Attention::Window::Sliding;
            name += (sliding ? ", window " : ", chunks of ") + std::to_string(step.window);
            if (window != step.window) name += " (here " + std::to_string(window) + ")";
        }
        if (step.chosen != kNoSlot) name += ", with an indexer";
        if (step.stride > 1) name += ", one of " + std::to_string(step.stride) + " keys";
        if (step.sink_cells > 0) name += ", with sink cells";
        if (step.softcap > 0) name += ", soft-cap";
        if (step.sinks != kNoWeight) name += ", sinks";
        if (step.slopes != kNoWeight) name += ", biases by distance";
        if (step.q_norm != kNoWeight || step.k_norm != kNoWeight) name += ", norms";
        if (step.temperature.beta != 0) name += ", temperature";
        if (step.rope < 0 && step.slopes == kNoWeight) name += ", no positions";
        return name;
    }

    void add(const Activation &step) {
        static constexpr const char *kNames[] = {
            "SiLU", "GELU (tanh)", "GELU (erf)", "squared ReLU",  "SiLU, clamped", "sigmoid", "product",
            "ReLU", "clamp",       "xIELU",      "SiLU, limited", "limit, SiLU",   "tanh",    "signed root"};
        static_assert(std::size(kNames) == static_cast<size_t>(Activation::Kind::SignedRoot) + 1);
        if (seen({kGate, static_cast<int64_t>(step.act), width(step.gate), step.up != kNoSlot,
                  step.out == step.gate, step.out == step.up}))
            return;
        const std::string name = std::string(kNames[static_cast<size_t>(step.act)]) + " of " +
                                 std::to_string(width(step.gate)) + (step.up == kNoSlot ? "" : ", gated");
        push_exact(
            name, "",
            [this, step] { return small().input(step.gate).input(step.up).step(step).look_at(step.out); },
            kMatrix / 10);
    }

    void add(const Experts &step) {
        const Weight &gate = weight(step.gate), &down = weight(step.down);
        const Routing &r = step.routing;
        if (seen({kExperts,
                  type(step.gate),
                  type(step.up),
                  type(step.down),
                  gate.rows,
                  gate.cols,
                  down.rows,
                  down.cols,
                  down.count,
                  type(step.gate_bias),
                  type(step.up_bias),
                  type(step.down_bias),
                  type(step.gate_scales),
                  type(step.up_scales),
                  static_cast<int64_t>(step.act),
                  step.chosen != kNoSlot,
                  step.weights_on_input,
                  step.add != kNoSlot,
                  static_cast<int64_t>(r.score),
                  r.used,
                  type(r.selection_bias),
                  r.groups,
                  r.groups_used,
                  r.group_best,
                  r.normalize,
                  r.scale != 1,
                  type(r.expert_scales)}))
            return;
        const std::string name = std::to_string(r.used) + " of " + std::to_string(down.count) + " experts, " +
                                 format_of(gate) + " " + shape_of(gate) + ", " + format_of(down) + " " +
                                 shape_of(down);
        const int64_t count = experts_for(r, down.count);
        push(
            name, gate.name, [this, step, count] { return experts(step, count); }, 2 * kMatrix);
    }
    // Cases use only the first experts: in each group, as many as the routing needs.
    static int64_t experts_for(const Routing &routing, int64_t all) {
        const int64_t least = routing.used + 2;
        if (routing.groups <= 1) return std::min(all, std::max(kFewExperts, least));
        const int64_t each =
            std::max<int64_t>(routing.group_best, (least + routing.groups_used - 1) / routing.groups_used);
        return std::min(all, routing.groups * each);
    }
    Program experts(Experts step, int64_t count) const {
        SmallProgram part = small();
        Program &program = part.program();
        program.slots[static_cast<size_t>(step.logits)].width = count;
        const auto put = [&](const Weight &w) {
            program.weights.push_back(w);
            return static_cast<WeightId>(program.weights.size() - 1);
        };
        for (WeightId *id :
             {&step.gate, &step.up, &step.down, &step.gate_bias, &step.up_bias, &step.down_bias}) {
            if (*id == kNoWeight) continue;
            Weight w = weight(*id);
            w.count = count;
            *id = put(w);
        }
        for (WeightId *id : {&step.routing.selection_bias, &step.routing.expert_scales, &step.gate_scales,
                             &step.up_scales}) {
            if (*id == kNoWeight) continue;
            Weight w = weight(*id);
            w.cols = count;
            *id = put(w);
        }
        if (step.chosen != kNoSlot) {
            const int64_t used = step.routing.used;
            std::vector<float> numbers;
            for (int64_t i = 0; i < kTokens * used; ++i) numbers.push_back(static_cast<float>(i % used));
            part.step(Embed{add_floats(program, "numbers of experts", kTokens, used, std::move(numbers)),
                            step.chosen});
        }
        return part.input(step.in).input(step.logits).input(step.add).step(step).look_at(step.out);
    }

    // A block that is longer than the test sequence has no last token there: all rows would be zeros.
    void add(SoftPool step) {
        step.block = std::min(step.block, kTokens / 4);
        if (seen({kPool, width(step.score), width(step.out), step.block})) return;
        push_exact(
            "pooled blocks, " + std::to_string(width(step.out)) + " channels", weight(step.bias).name,
            [this, step] { return small().input(step.value).input(step.score).step(step).look_at(step.out); },
            kExact);
    }
    void add(const ShortConv &step) {
        const Weight &w = weight(step.weight);
        if (seen({kConv, w.rows, w.cols, type(step.bias), step.silu})) return;
        push_exact(
            "convolution of " + std::to_string(w.rows) + " tokens, " + std::to_string(w.cols) + " channels" +
                (step.silu ? ", SiLU" : ""),
            w.name, [this, step] { return small().input(step.in).step(step).look_at(step.out); }, kExact);
    }
    void add(const ScanGate &step) {
        const Slot out = step.decay != kNoSlot ? step.decay : step.step;
        if (seen({kScanGate, static_cast<int64_t>(step.form), width(step.in), type(step.bias),
                  type(step.rate), step.step != kNoSlot}))
            return;
        push_exact(
            "scan gates, " + std::to_string(width(step.in)), "",
            [this, step, out] { return small().input(step.in).step(step).look_at(out); }, kExact);
    }
    // Keys and queries of unit length; decays and strengths between 0 and 1.
    void add(const LinearScan &step) {
        const bool channels = step.decay != kNoSlot && width(step.decay) != step.heads;
        if (seen({kScan, step.heads, step.key_heads, step.dk, step.dv, step.neighbors, step.delta,
                  step.decay != kNoSlot, channels, step.strength != kNoSlot, step.erase_read != kNoSlot,
                  step.reads_before, type(step.skip)}))
            return;
        const bool erases = step.erase_read != kNoSlot;
        const std::string name = std::string(step.delta ? "delta rule"
                                             : erases   ? "scan that erases"
                                                        : "scan") +
                                 ", " + std::to_string(step.heads) + " heads of " + std::to_string(step.dk) +
                                 " x " + std::to_string(step.dv);
        const auto program = [this, step] {
            SmallProgram part = small();
            for (const Slot slot : {step.q, step.k, step.erase_read, step.erase_write}) {
                if (slot == kNoSlot) continue;
                const Norm unit{.in = slot,
                                .out = slot,
                                .weight = kNoWeight,
                                .eps = 1e-6f,
                                .parts = step.key_heads,
                                .scale = 1 / std::sqrt(static_cast<float>(step.dk))};
                part.input(slot).step(unit);
            }
            for (const Slot slot : {step.decay, step.strength})
                if (slot != kNoSlot)
                    part.input(slot).step(Activation{slot, kNoSlot, slot, Activation::Kind::Sigmoid});
            return part.input(step.v).step(step).look_at(step.out);
        };
        push_exact(name, "", program, 10 * kExact);
    }
    void add(const SelectiveScan &step) {
        if (seen({kSelective, width(step.x), width(step.b)})) return;
        const auto program = [this, step] {
            SmallProgram part = small();
            part.input(step.x).input(step.b).input(step.c).input(step.dt);
            return part.step(Activation{step.dt, kNoSlot, step.dt, Activation::Kind::Sigmoid})
                .step(step)
                .look_at(step.out);
        };
        push_exact("scan of " + std::to_string(width(step.x)) + " channels, " +
                       std::to_string(width(step.b)) + " states each",
                   weight(step.rate).name, program, 10 * kExact);
    }

    // Computes all rows, like any matrix, and compares some of them.
    void add(const Logits &step) {
        const Weight &w = weight(step.weight);
        if (seen({kLogits, type(step.weight), w.rows, w.cols, type(step.bias), step.scale != 1,
                  step.softcap > 0}))
            return;
        const std::string name = "output matrix " + format_of(w) + " " + shape_of(w);
        const auto make = [this, step](bool floats) {
            SmallProgram part = small();
            part.input(step.in);
            part.program().slots.push_back({"logits", weight(step.weight).rows});
            const auto out = static_cast<Slot>(part.program().slots.size() - 1);
            const Linear::Part matrix{step.weight, step.bias, out, kNoSlot, step.scale};
            if (floats) return part.look_at(part.some_rows(step.in, matrix), step.softcap);
            return part.step(Linear{step.in, {matrix}}).look_at(out, step.softcap);
        };
        push(
            name, w.name, [make] { return make(false); }, [make] { return make(true); }, kMatrix);
        cases_.back().bytes = w.bytes();
        cases_.back().same = {step.weight};
    }

    const Program &program_;
    int32_t attention_tokens_;
    std::vector<StepCase> cases_;
    std::map<CaseKey, size_t> cases_by_key_;
    std::map<std::string, int> names_;  // how many cases have each name
};

}  // namespace

std::vector<StepCase> step_cases(const Program &program, int32_t attention_tokens) {
    const auto cases = std::make_shared<Cases>(program, attention_tokens);
    std::vector<StepCase> made = cases->run();
    // Cases keep the data of their programs alive.
    for (StepCase &one : made) {
        one.program = [cases, make = std::move(one.program)] { return make(); };
        one.reference = [cases, make = std::move(one.reference)] { return make(); };
    }
    return made;
}

Program repeated(const StepCase &step, const Program &program, int32_t count) {
    const Weight &w = program.weights[static_cast<size_t>(step.same.front())];
    Program many;
    many.weights = program.weights;
    many.constants = program.constants;
    many.slots = {{"in", w.cols}, {"out", w.rows}};
    std::mt19937 random(kSeed);
    many.steps.push_back(Embed{add_floats(many, "random rows", 1, w.cols, activations(w.cols, random)), 0});
    for (int32_t i = 0; i < count; ++i) {
        const WeightId id = step.same[static_cast<size_t>(i) % step.same.size()];
        many.steps.push_back(Linear{0, {{id, kNoWeight, 1, kNoSlot}}});
    }
    const int64_t columns = std::min(kComparedColumns, w.rows);
    many.steps.push_back(
        Logits{1, add_floats(many, "some columns", columns, w.rows, selection(columns, w.rows))});
    many.vocab = columns;
    return many;
}

}  // namespace runnel::commands
