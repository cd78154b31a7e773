#include "tests/gpu/model/calibration.h"

#include <stdexcept>

namespace runnel::tests::model {

namespace {

// Parameters that a token reads: of a dense model, or with `active` experts per layer.
double parameters(const Shape &s, int active = 1) {
    const double width = s.width, heads = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    const double layer = 2 * width * heads + 2 * width * kv + 3.0 * active * width * s.feed_forward;
    return s.layers * layer + width * s.vocab;
}

const Shape kLlama7 = {"Llama-2-7B", 32, 4096, 11008, 32, 32, 128, 32000};
const Shape kLlama13 = {"Llama-2-13B", 40, 5120, 13824, 40, 40, 128, 32000};
const Shape kMistral = {"Mistral-7B", 32, 4096, 14336, 32, 8, 128, 32000};
const Shape kYi = {"Yi-34B", 60, 7168, 20480, 56, 8, 128, 64000};

struct Boundary {
    const char *program;
    double microseconds;
};
constexpr Boundary kBoundaries[] = {
    {"calm", 4.5},      // six grid barriers per layer, and nothing is loaded across one
    {"gpt-fast", 8.2},  // kernels of a compiled graph; the number of launches is an estimate
    {"graphs with PDL", 1.55},
    {"megakernel", 1.7},
    {"llama.cpp", 2.05},  // the number of launches is an estimate
};

}  // namespace

double boundary_of(const std::string &program) {
    for (const Boundary &b : kBoundaries)
        if (program == b.program) return b.microseconds;
    throw std::out_of_range("no program " + program + " in the calibration");
}

// Sources: calm, gpt-fast: their READMEs; graphs with PDL and megakernel (Hazy Research's): Llama-1B of
// msaroufim/megakernels-vs-cuda-graphs, docs/RESULTS; llama.cpp: am17an in its discussion 17621.
std::vector<CalibrationPoint> calibration_points() {
    constexpr double kFp16 = 2, kFp8 = 1, kGf4 = 0.5;  // bytes per parameter
    // 4 bits and, per 32 parameters, a scale and a zero point of 16 bits; the logits' matrix has 16 bits.
    constexpr double kInt4 = 0.625;
    constexpr double kClose = 0.05, kLoose = 0.1;
    const double logits = double{4096} * 32000;
    const double llama1 = parameters(shape("Llama-3.2-1B"));
    const double mixture = static_cast<double>(one_token(shape("Qwen3-30B-A3B"), FileType::Q4_K_M).bytes());
    return {
        {"calm", "Llama-2-7B fp16", "RTX 4090", 67, kFp16 * parameters(kLlama7), 193, kClose},
        {"calm", "Llama-2-7B fp8", "RTX 4090", 128, kFp8 * parameters(kLlama7), 193, kClose},
        {"calm", "Llama-2-7B gf4", "RTX 4090", 225, kGf4 * parameters(kLlama7), 193, kClose},
        {"calm", "Llama-2-13B fp8", "RTX 4090", 68, kFp8 * parameters(kLlama13), 241, kClose},
        {"calm", "Llama-2-13B gf4", "RTX 4090", 126, kGf4 * parameters(kLlama13), 241, kClose},
        {"calm", "Mistral-7B fp8", "RTX 4090", 120, kFp8 * parameters(kMistral), 193, kClose},
        {"calm", "Mistral-7B gf4", "RTX 4090", 219, kGf4 * parameters(kMistral), 193, kClose},
        {"calm", "Yi-34B gf4", "RTX 4090", 49, kGf4 * parameters(kYi), 361, kClose},
        {"calm", "Mixtral-8x7B gf4", "RTX 4090", 128, kGf4 * parameters(kMistral, 2), 225, kClose},
        {"gpt-fast", "Llama-2-7B bf16", "A100 80 GB", 105, kFp16 * parameters(kLlama7), 291, kLoose},
        {"gpt-fast", "Llama-2-7B int8", "A100 80 GB", 156, kFp8 * parameters(kLlama7), 291, kLoose},
        {"gpt-fast", "Llama-2-7B int4", "A100 80 GB", 197,
         kInt4 * (parameters(kLlama7) - logits) + kFp16 * logits, 291, kLoose},
        {"graphs with PDL", "Llama-3.2-1B bf16", "H100 SXM", 1021, kFp16 * llama1, 100, kClose},
        {"graphs with PDL", "Llama-3.2-1B bf16", "H200", 1258, kFp16 * llama1, 100, kClose},
        {"megakernel", "Llama-3.2-1B bf16", "H100 SXM", 1028, kFp16 * llama1, 82, kClose},
        {"megakernel", "Llama-3.2-1B bf16", "H200", 1316, kFp16 * llama1, 82, kClose},
        {"llama.cpp", "Qwen3-30B-A3B Q4_K_M", "RTX 4090", 271, mixture, 816, kLoose},
        {"llama.cpp", "Qwen3-30B-A3B Q4_K_M", "RTX 5090", 352, mixture, 816, kLoose},
    };
}

// 2026-11-26-h200.md and 2026-11-26-h200-after.md, the newest of each model and type.
std::vector<MeasuredRun> measured_runs() {
    return {
        {"Llama-3.2-1B", FileType::Q4_K_M, "H200", 1191}, {"Llama-3.2-1B", FileType::Q8_0, "H200", 946},
        {"Llama-3.2-1B", FileType::F16, "H200", 845},     {"Llama-3-8B", FileType::Q4_K_M, "H200", 378},
        {"Llama-3-8B", FileType::Q8_0, "H200", 253},      {"Llama-3-8B", FileType::F16, "H200", 197},
        {"Qwen3-30B-A3B", FileType::Q4_K_M, "H200", 276},
    };
}

std::vector<MeasuredBatch> measured_batches() {
    return {
        {"Llama-3.2-1B", FileType::Q4_K_M, "H200", {1.282, 1.275, 1.238}},
        {"Llama-3.2-1B", FileType::Q8_0, "H200", {1.177, 1.276, 1.212}},
        {"Llama-3.2-1B", FileType::F16, "H200", {1.120, 1.144, 1.135}},
        {"Llama-3-8B", FileType::Q4_K_M, "H200", {1.286, 1.303, 1.294}},
        {"Llama-3-8B", FileType::Q8_0, "H200", {1.131, 1.307, 1.176}},
        {"Llama-3-8B", FileType::F16, "H200", {1.155, 1.182}},
        {"Qwen3-30B-A3B", FileType::Q8_0, "H200", {2.254}},
        {"Qwen3-30B-A3B", FileType::F16, "H200", {2.278}},
    };
}

double modeled(const CalibrationPoint &point, double boundary_us, double read) {
    const double rate = read > 0 ? read : device(point.device).read.middle;
    return 1 / (point.bytes / (rate * 1e9) + point.boundaries * boundary_us * 1e-6);
}

}  // namespace runnel::tests::model
