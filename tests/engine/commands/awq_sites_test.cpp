// Which inputs AWQ can scale, in all families, and that folding any scales leaves what the model computes unchanged.
#include "engine/commands/quantize/awq_sites.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/model_families.h"
#include "tests/support/model_maker.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::commands;
using namespace runnel::testing;

namespace {

testing::ModelShape tiny(const std::string &arch) {
    testing::ModelShape shape;
    shape.arch = arch, shape.layers = 7, shape.width = 32, shape.ff = 64, shape.heads = 4, shape.vocab = 260,
    shape.context = 128, shape.threads = 1;
    if (arch == "llama4") shape.sliding_window = 24;
    shape.experts.used = 8;  // all experts: a choice between equally good ones would depend on rounding
    return shape;
}

quantize::QuantizePlan plan_of(const gguf::File &file, const char *type) {
    quantize::QuantizeRequest request;
    request.mix = quantize::find_mix(type);
    request.types.pure = true;
    return quantize::plan_quantization(file, request);
}

AwqSites sites_of(const gguf::File &file) {
    return find_awq_sites(file, model::build(file).program, plan_of(file, "Q4_0"));
}

std::vector<std::string> first_readers(const AwqSites &sites, const std::string &layer) {
    std::vector<std::string> names;
    for (const AwqSite &site : sites.scalable)
        if (const std::string name(site.readers.front().tensor->name); name.starts_with(layer))
            names.push_back(name.substr(layer.size()));
    return names;
}

// The reason why this input is not scaled; empty if it is.
std::string reason_of(const AwqSites &sites, const std::string &matrix) {
    for (const NotScaled &kind : sites.not_scaled)
        if (std::ranges::find(kind.matrices, matrix) != kind.matrices.end()) return kind.reason;
    return {};
}

// Random scales for all sites, all of them powers of four: then dividing by them or by their roots rounds nothing.
quantize::TensorScalesByName random_scales(const AwqSites &sites, Random &random) {
    quantize::TensorScalesByName tensors;
    for (const AwqSite &site : sites.scalable) {
        std::vector<float> scales;
        for (int64_t i = 0; i < site.input.channels; ++i)
            scales.push_back(std::array{0.25f, 1.0f, 4.0f, 16.0f}[random.below(4)]);
        fold_scales(site, scales, tensors);
    }
    return tensors;
}

std::vector<float> logits_of(const gguf::File &file) {
    const std::vector<int32_t> tokens = {3, 40, 7, 99, 41, 5, 63, 8, 8};
    return kernels::reference::logits_of(model::build(file).program, tokens);
}

}  // namespace

TEST_CASE("awq: scales folded into the tensors of any family leave its logits unchanged") {
    constexpr uint64_t kSeed = 20261124;
    CAPTURE(kSeed);
    Random random(kSeed);
    size_t with_sites = 0;
    for (const FamilyFiles &family : family_files()) {
        CAPTURE(family.name);
        const TemporaryModel model(tiny(family.name));
        const AwqSites sites = sites_of(model.file);
        if (sites.scalable.empty()) continue;
        ++with_sites;
        const quantize::TensorScalesByName scales = random_scales(sites, random);
        quantize::QuantizeRequest request;
        request.mix = quantize::find_mix("F32");
        request.scales = &scales;
        const auto folded = model.directory / "folded.gguf";
        REQUIRE(quantize::quantize(model.file, plan_of(model.file, "F32"), request, folded));
        const std::vector<float> before = logits_of(model.file), after = logits_of(gguf::File::open(folded));
        REQUIRE(before.size() == after.size());
        double most = 0;
        for (size_t i = 0; i < before.size(); ++i)
            most = std::max(most, std::fabs(double{before[i]} - double{after[i]}));
        CHECK(most < 1e-4);
    }
    CHECK(with_sites > 90);
}

TEST_CASE(
    "awq: the inputs of a llama's matrices are scaled, four in each layer and that of the output matrix") {
    testing::ModelShape shape = tiny("llama");
    shape.layers = 2;
    const TemporaryModel model(shape);
    const AwqSites sites = sites_of(model.file);
    CHECK(first_readers(sites, "blk.1.") == std::vector<std::string>{"attn_q.weight", "attn_output.weight",
                                                                     "ffn_gate.weight", "ffn_down.weight"});
    CHECK(sites.scalable.size() == 9);
    CHECK(sites.not_scaled.empty());
    // Two query heads share the values of a head.
    const AwqSite &output = sites.scalable[1];
    CHECK(output.input.channels == 16);
    CHECK(output.makers.front().tensor->name == "blk.0.attn_v.weight");
    CHECK(output.input.channel_of[9] == 1);
    CHECK(output.input.channel_of[16] == 8);
    shape.tied = true;
    const TemporaryModel tied(shape);
    CHECK(reason_of(sites_of(tied.file), "token_embd.weight") ==
          "another step reads one of the matrices, too");
}

TEST_CASE("awq: what cannot be scaled has a reason") {
    std::deque<TemporaryModel> models;  // sites point into them
    const auto sites = [&](const std::string &arch) {
        return sites_of(models.emplace_back(tiny(arch)).file);
    };
    CHECK(reason_of(sites("gpt2"), "blk.0.ffn_down.weight") == "the activation before it is not linear");
    CHECK(reason_of(sites("olmo2"), "blk.0.attn_q.weight") != "");
    CHECK(reason_of(sites("gpt-oss"), "blk.0.ffn_down_exps.weight") ==
          "the activation before it is not linear");
    // One norm feeds attention and the feed-forward matrices.
    const AwqSites falcon = sites("falcon");
    CHECK(first_readers(falcon, "blk.0.").front() == "attn_qkv.weight");
    CHECK(falcon.scalable.front().readers.size() == 2);
    // The router, the experts and, each with scales of their own, their down matrices.
    const AwqSites experts = sites("qwen3moe");
    size_t down = 0;
    for (const AwqSite &site : experts.scalable) {
        const std::string_view name = site.readers.front().tensor->name;
        down += name == "blk.0.ffn_down_exps.weight";
        if (name == "blk.0.ffn_gate_inp.weight") CHECK(site.readers.size() == 3);
    }
    CHECK(down == 8);
}

TEST_CASE("awq: tensors that are copied in quantized form are not scaled") {
    testing::ModelShape shape = tiny("llama");
    shape.type = "Q8_0", shape.layers = 1, shape.pure = true;
    const TemporaryModel model(shape);
    quantize::QuantizeRequest request;
    request.mix = quantize::find_mix("Q4_0");
    request.allow_requantize = true;
    request.types.pure = true;
    request.types.overrides.emplace_back(std::regex("attn_k|attn_v|ffn_up"), gguf::Type::Q8_0);
    const AwqSites sites = find_awq_sites(model.file, model::build(model.file).program,
                                          quantize::plan_quantization(model.file, request));
    CHECK(reason_of(sites, "blk.0.attn_q.weight") == "a matrix that reads it stays quantized as it is");
    CHECK(reason_of(sites, "blk.0.attn_output.weight") ==
          "the tensor that makes it stays quantized as it is");
}
