// Small models with a draft block (a next-token-prediction block), whose weights a test can change.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gguf/writer.h"
#include "tests/support/model_maker.h"

namespace runnel::testing {

inline constexpr const char *kDraftArchs[] = {"glm4moe", "deepseek2", "hy_v3",
                                              "qwen35",  "qwen35moe", "qwen3next"};

inline constexpr int64_t kDraftWidth = 32, kDraftVocab = 260;

// A model in F32 of two layers and a draft block, which was made as its third. In hybrids, the first is recurrent,
// and the interval says the same of the third.
class DraftModel {
  public:
    struct Values {
        std::vector<int64_t> shape;
        std::vector<float> all;
    };

    explicit DraftModel(const std::string &arch)
        : arch_(arch), made_(std::make_shared<const TemporaryModel>(shape_of(arch))) {
        for (const gguf::Tensor &t : made_->file.tensors()) {
            const auto *data = reinterpret_cast<const float *>(t.data);
            REQUIRE(t.type == gguf::Type::F32);
            tensors[std::string(t.name)] = {{t.shape, t.shape + t.rank}, {data, data + t.elements()}};
        }
        std::map<std::string, Values> attention;  // the third layer's tensors, for the second
        for (const auto &[name, values] : tensors)
            if (name.starts_with("blk.2.")) attention["blk.1." + name.substr(6)] = values;
        std::erase_if(tensors, [](const auto &tensor) { return tensor.first.starts_with("blk.1."); });
        tensors.merge(attention);
        add("blk.2.nextn.eh_proj.weight", {2 * kDraftWidth, kDraftWidth}, 0, 0.2f);
        for (const char *norm : {"enorm", "hnorm", "shared_head_norm"})
            add("blk.2.nextn." + std::string(norm) + ".weight", {kDraftWidth}, 1, 0.3f);
    }

    void add(const std::string &name, std::vector<int64_t> shape, float mean, float sigma) {
        int64_t count = 1;
        for (const int64_t n : shape) count *= n;
        std::normal_distribution<float> normal(mean, sigma);
        Values values{std::move(shape), std::vector<float>(static_cast<size_t>(count), mean)};
        if (sigma > 0)
            for (float &x : values.all) x = normal(rng_);
        tensors[name] = std::move(values);
    }
    void fill(const std::string &name, float value) {
        const auto at = tensors.find(name);
        REQUIRE_MESSAGE(at != tensors.end(), name);
        std::ranges::fill(at->second.all, value);
    }
    // Layers that add nothing to the residual stream.
    void silence(const std::string &prefix) {
        for (auto &[name, values] : tensors)
            for (const char *output : {"attn_output.", "ssm_out.", "ffn_down"})
                if (name.starts_with(prefix) && name.find(output) != std::string::npos)
                    std::ranges::fill(values.all, 0.0f);
    }
    // eh_proj = [token * I; before * I]
    void project(float token, float before) {
        std::vector<float> &all = tensors.at("blk.2.nextn.eh_proj.weight").all;
        std::ranges::fill(all, 0.0f);
        for (size_t i = 0; i < size_t{kDraftWidth}; ++i) {
            all[i * 2 * kDraftWidth + i] = token;
            all[i * 2 * kDraftWidth + kDraftWidth + i] = before;
        }
    }
    std::filesystem::path path() const { return made_->directory / "draft.gguf"; }  // of write()
    gguf::File write(const std::string &name, uint32_t layers, uint32_t draft_layers) const {
        const std::string blocks = arch_ + ".block_count", interval = arch_ + ".full_attention_interval";
        gguf::Writer writer;
        for (const auto &[key, value] : made_->file.metadata())
            if (key != blocks && key != interval) writer.add(key, value);
        writer.add(blocks, layers);
        writer.add(arch_ + ".nextn_predict_layers", draft_layers);
        if (arch_.starts_with("qwen")) writer.add(interval, uint32_t{layers == 1 ? 1u : 2u});
        for (const auto &[tensor, values] : tensors) writer.add_tensor(tensor, gguf::Type::F32, values.shape);
        const auto path = made_->directory / name;
        writer.start(path);
        for (const auto &[tensor, values] : tensors) writer.write(std::as_bytes(std::span(values.all)));
        writer.finish();
        return gguf::File::open(path);
    }
    // The next token depends on the last one alone, in the model as in the block.
    void obey_rule() {
        for (const char *layer : {"blk.0.", "blk.1.", "blk.2."}) silence(layer);
        project(1, 0);
        fill("blk.2.nextn.enorm.weight", 1);
        tensors["blk.2.nextn.shared_head_norm.weight"] = tensors.at("output_norm.weight");
    }
    gguf::File write() const { return write("draft.gguf", 3, 1); }

    std::map<std::string, Values> tensors;

  private:
    static ModelShape shape_of(const std::string &arch) {
        ModelShape shape;
        shape.arch = arch, shape.layers = 3, shape.width = kDraftWidth, shape.ff = 48;
        shape.vocab = kDraftVocab, shape.threads = 1;
        // All experts: a choice between equally good ones would depend on rounding.
        if (arch != "qwen35") shape.experts.count = shape.experts.used = 2;
        return shape;
    }

    std::string arch_;
    std::shared_ptr<const TemporaryModel> made_;
    std::mt19937 rng_{7};
};

}  // namespace runnel::testing
