#include "engine/commands/doctor/doctor_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "engine/commands/doctor/doctor_checks.h"
#include "gguf/quantize.h"
#include "kernels/cpu/linear_lookup.h"
#include "kernels/cpu/vector.h"
#include "kernels/steps.h"

namespace runnel::commands {
namespace {

using kernels::cpu::LinearKernels;
using kernels::cpu::VectorKernels;
using Verdict = Finding::Verdict;

constexpr int64_t kRows = 37;
constexpr int32_t kSpeedTokens = 5;
constexpr double kTolerance = 4e-2;  // activations have 8 bits

struct Free {
    void operator()(void *p) const { std::free(p); }
};
using Buffer = std::unique_ptr<void, Free>;

Buffer aligned(size_t bytes) {
    return Buffer(std::aligned_alloc(64, (bytes + 127) / 64 * 64));
}

std::vector<float> random_values(int64_t count) {
    std::mt19937 random(11);
    std::normal_distribution<float> value;
    std::vector<float> x(static_cast<size_t>(count));
    for (float &v : x) v = value(random);
    return x;
}

// [token][row]
std::vector<float> multiply(const LinearKernels &kernels, const kernels::Weight &w, int64_t rows,
                            const std::vector<float> &x) {
    const auto format = kernels::cpu::act_format(w.type);
    const Buffer packed = aligned(kernels::cpu::packed_bytes(format, w.cols, kSpeedTokens)),
                 scratch = aligned(kernels.scratch_bytes(w.cols));
    kernels.pack(format, x.data(), w.cols, w.cols, kSpeedTokens, 0, kSpeedTokens, 0, w.cols, packed.get());
    std::vector<float> out(static_cast<size_t>(rows * kSpeedTokens));
    kernels.multiply(w.type, w.data, w.cols, 0, rows, packed.get(), kSpeedTokens, out.data(), rows,
                     scratch.get(), nullptr);
    return out;
}

// The same by looking up sums; empty if these kernels never do that with such a matrix.
std::vector<float> look_up(const LinearKernels &kernels, const kernels::Weight &w, int64_t rows,
                           const std::vector<float> &x) {
    const kernels::cpu::LookupKernels *lookup = kernels.lookup;
    if (lookup == nullptr || lookup->most_tokens(w.type) == 0 ||
        kernels::cpu::lookup_stride(w.type, w.cols) == 0)
        return {};
    const auto format = kernels::cpu::act_format(w.type);
    const Buffer packed = aligned(kernels::cpu::packed_bytes(format, w.cols, kSpeedTokens)),
                 tiles = aligned(kernels::cpu::lookup_bytes(w.type, rows, w.cols)),
                 sums = aligned(kernels::cpu::lookup_sums_bytes(w.cols, kSpeedTokens));
    kernels.pack(format, x.data(), w.cols, w.cols, kSpeedTokens, 0, kSpeedTokens, 0, w.cols, packed.get());
    kernels::cpu::write_lookup_tiles(w.type, w.data, w.cols, 0, rows, static_cast<std::byte *>(tiles.get()));
    lookup->sum(packed.get(), w.cols, kSpeedTokens, sums.get());
    std::vector<float> out(static_cast<size_t>(rows * kSpeedTokens));
    lookup->multiply(w.type, static_cast<const std::byte *>(tiles.get()), w.cols, 0, rows, sums.get(),
                     kSpeedTokens, out.data(), rows, nullptr);
    return out;
}

std::vector<float> in_double(const kernels::Weight &w, int64_t rows, const std::vector<float> &x) {
    std::vector<float> out(static_cast<size_t>(rows * kSpeedTokens)), row(static_cast<size_t>(w.cols));
    for (int64_t r = 0; r < rows; ++r) {
        gguf::dequantize_row(w.type, w.data + static_cast<size_t>(r) * gguf::row_bytes(w.type, w.cols),
                             row.data(), w.cols);
        for (int64_t t = 0; t < kSpeedTokens; ++t) {
            double sum = 0;
            for (int64_t k = 0; k < w.cols; ++k)
                sum += double{row[static_cast<size_t>(k)]} * double{x[static_cast<size_t>(t * w.cols + k)]};
            out[static_cast<size_t>(t * rows + r)] = static_cast<float>(sum);
        }
    }
    return out;
}

bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Finding check_format(const kernels::Weight &w, const std::vector<const LinearKernels *> &kernels) {
    const int64_t rows = std::min(kRows, w.rows);
    const std::vector<float> x = random_values(kSpeedTokens * w.cols);
    const std::vector<float> first = multiply(*kernels.front(), w, rows, x);
    const Distance d = distance(first, in_double(w, rows, x), rows);
    char error[32];
    std::snprintf(error, sizeof error, "error %.1e", d.all);
    Finding finding{Finding::Area::Cpu, "matrices " + std::string(gguf::traits(w.type).name),
                    d.all <= kTolerance ? Verdict::Right : Verdict::Wrong, error};
    if (std::isfinite(d.all)) finding.numbers["error"] = d.all;
    std::string same = kernels.front()->name, other;
    size_t compared = 1;
    const auto compare = [&](const std::vector<float> &result, const std::string &name) {
        const bool equal = same_bits(result, first);
        (equal ? same : other) += (equal ? ", " : " ") + name;
        ++compared;
    };
    for (size_t i = 0; i < kernels.size(); ++i) {
        if (i > 0) compare(multiply(*kernels[i], w, rows, x), kernels[i]->name);
        const std::vector<float> looked_up = look_up(*kernels[i], w, rows, x);
        if (!looked_up.empty()) compare(looked_up, std::string(kernels[i]->name) + " looking up");
    }
    finding.detail += "; " + same + (compared > 1 ? ": the same bits" : "");
    finding.numbers["tensor"] = w.name;
    if (!other.empty()) {
        finding.verdict = Verdict::Wrong;
        finding.detail += ", but not" + other;
    }
    return finding;
}

// The results of the operators for the same rows, one after the other.
std::vector<float> operators(const VectorKernels &k, const std::vector<float> &x,
                             const std::vector<float> &y) {
    const auto n = static_cast<int64_t>(x.size());
    std::vector<float> all, out(x.size());
    const auto keep = [&] { all.insert(all.end(), out.begin(), out.end()); };
    k.rms_norm(x.data(), {y.data(), nullptr, nullptr}, n, 1e-5f, out.data()), keep();
    k.layer_norm(x.data(), {y.data(), x.data(), nullptr}, n, 1e-5f, out.data()), keep();
    using Act = kernels::Activation::Kind;
    for (const Act act :
         {Act::Silu, Act::GeluTanh, Act::GeluErf, Act::ReluSquared, Act::SiluClamped, Act::Sigmoid,
          Act::Identity, Act::Relu, Act::Clamp, Act::XIelu, Act::Tanh, Act::SignedRoot})
        k.gate(act, {0.8f, -0.9f, 0.5f, -1e-6f}, x.data(), y.data(), n, out.data()), keep();
    k.softcap(3, x.data(), n, out.data()), keep();
    k.exp(x.data(), n, out.data()), keep();
    k.add(x.data(), y.data(), n, out.data()), keep();
    k.scale(1.5f, x.data(), n, out.data()), keep();
    k.lerp(x.data(), y.data(), x.data(), y.data(), n, out.data()), keep();
    k.add_scaled(0.3f, y.data(), n, out.data()), keep();
    std::vector<uint16_t> halves(x.size());
    k.to_half(x.data(), n, halves.data());
    k.from_half(halves.data(), n, out.data()), keep();
    all.push_back(static_cast<float>(k.argmax(x.data(), n)));
    return all;
}

Finding check_operators() {
    constexpr int64_t kWidth = 1003;  // not a multiple of any vector width
    const std::vector<float> x = random_values(kWidth);
    std::vector<float> y(x.rbegin(), x.rend());
    const std::vector<float> first = operators(kernels::cpu::vector_scalar(), x, y);
    Finding finding{Finding::Area::Cpu, "norms, activations, conversions", Verdict::Right, "scalar"};
    for (const VectorKernels *k : {kernels::cpu::vector_avx2(), kernels::cpu::vector_avx512()}) {
        if (k == nullptr) continue;
        const bool same = same_bits(operators(*k, x, y), first);
        finding.detail += std::string(same ? ", " : ", not ") + k->name;
        if (!same) finding.verdict = Verdict::Wrong;
    }
    finding.detail += ": the same bits";
    return finding;
}

}  // namespace

std::vector<const LinearKernels *> linear_kernels() {
    std::vector<const LinearKernels *> all = {&kernels::cpu::linear_scalar()};
    for (const LinearKernels *k :
         {kernels::cpu::linear_avx2(), kernels::cpu::linear_avx512(), kernels::cpu::linear_amx()})
        if (k) all.push_back(k);
    return all;
}

std::vector<Finding> check_cpu_kernels(const kernels::Program &program,
                                       const std::vector<const LinearKernels *> &kernels) {
    std::map<gguf::Type, const kernels::Weight *> formats;  // with the widest matrix of each
    const auto see = [&](kernels::WeightId id, kernels::Use) {
        const kernels::Weight &w = program.weights[static_cast<size_t>(id)];
        const kernels::Weight *&known = formats[w.type];
        if (known == nullptr || w.cols > known->cols) known = &w;
    };
    for (const kernels::Step &step : program.steps) kernels::visit_matrices(step, see);
    std::vector<Finding> findings;
    for (const auto &[type, w] : formats) findings.push_back(check_format(*w, kernels));
    findings.push_back(check_operators());
    return findings;
}

}  // namespace runnel::commands
