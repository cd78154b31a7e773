// Small models with draft blocks (next-token-prediction blocks), whose weights a test can change.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/writer.h"
#include "tests/support/model_maker.h"
#include "tests/support/random.h"

namespace runnel::testing {

inline constexpr const char *kDraftArchs[] = {
    "glm4moe", "deepseek2",      "hy_v3", "qwen35",     "qwen35moe", "qwen3next",  "deepseek32",
    "glm-dsa", "nemotron_h_moe", "mimo2", "cohere2moe", "step35",    "bailingmoe3"};

inline constexpr int64_t kDraftWidth = 32, kDraftVocab = 260, kDraftHidden = 48;

// A model in F32 of two layers and a draft block, which was made as its third. In hybrids, the first is recurrent, and
// the interval says the same of the third; in models with windows, the first is full.
class DraftModel {
  public:
    struct Values {
        std::vector<int64_t> shape;
        std::vector<float> all;
    };
    // Of one layer, in families where these keys are arrays.
    struct LayerKeys {
        bool window = false;
        int32_t heads = 4, kv_heads = 2, hidden = 0;
        float limit = 0.25f;  // of SiLU
    };

    explicit DraftModel(const std::string &arch)
        : arch_(arch), made_(std::make_shared<const TemporaryModel>(shape_of(arch))) {
        for (const gguf::Tensor &t : made_->file.tensors()) {
            const auto *data = reinterpret_cast<const float *>(t.data);
            REQUIRE(t.type == gguf::Type::F32);
            tensors[std::string(t.name)] = {{t.shape, t.shape + t.rank}, {data, data + t.elements()}};
        }
        // The third layer's tensors, for the second.
        std::map<std::string, Values> attention = layer("blk.2.", "blk.1."),
                                      former = layer("blk.1.", "blk.2.");
        std::erase_if(tensors, [](const auto &tensor) { return tensor.first.starts_with("blk.1."); });
        tensors.merge(attention);
        if (arch == "nemotron_h_moe") {  // a layer has one half, but the block has both
            former.erase("blk.2.attn_norm.weight");
            tensors.merge(former);
            add("blk.2.post_attention_norm.weight", {kDraftWidth}, 1, 0.3f);
            keys = {{.kv_heads = 0}, {}, {.hidden = kDraftHidden}};
        }
        if (arch == "mimo2") {
            std::erase_if(tensors, [](const auto &tensor) {
                return tensor.first.starts_with("blk.2.ffn_") &&
                       tensor.first.find("norm") == std::string::npos;
            });
            tensors.erase("blk.2.exp_probs_b.bias");
            fuse_attention("blk.2.");
            for (const char *name : {"blk.2.ffn_gate.weight", "blk.2.ffn_up.weight"})
                add(name, {kDraftWidth, kDraftHidden}, 0, 0.2f);
            add("blk.2.ffn_down.weight", {kDraftHidden, kDraftWidth}, 0, 0.2f);
            keys = {{.kv_heads = 4, .hidden = kDraftHidden},
                    {.window = true, .hidden = kDraftHidden},
                    {.window = true, .hidden = kDraftHidden}};
        }
        if (arch == "step35") {
            keys = {{.window = true, .heads = 8, .hidden = kDraftHidden},
                    {.hidden = kDraftHidden, .limit = 0},
                    {.window = true, .hidden = kDraftHidden}};
        }
        if (arch == "bailingmoe3") keys = {{.kv_heads = 0}, {.kv_heads = 1}, {.kv_heads = 1}};
        add("blk.2.nextn.eh_proj.weight", {2 * kDraftWidth, kDraftWidth}, 0, 0.2f);
        for (const std::string &norm : {std::string("nextn.enorm"), std::string("nextn.hnorm"), last_norm()})
            add("blk.2." + norm + ".weight", {kDraftWidth}, 1, 0.3f);
    }
    // The name of a block's last norm.
    std::string last_norm() const {
        return arch_ == "bailingmoe3" ? "layer_output_norm" : "nextn.shared_head_norm";
    }

    // Joins the matrices of Q, K and V, as llama.cpp wants them in some blocks.
    void fuse_attention(const std::string &prefix) {
        Values all{{kDraftWidth, 0}, {}};
        for (const char *name : {"attn_q.weight", "attn_k.weight", "attn_v.weight"}) {
            const Values one = tensors.extract(prefix + name).mapped();
            all.shape[1] += one.shape[1];
            all.all.insert(all.all.end(), one.all.begin(), one.all.end());
        }
        tensors[prefix + "attn_qkv.weight"] = std::move(all);
    }

    // Further blocks like the first, with other weights.
    void chain(int32_t blocks) {
        const std::map<std::string, Values> first = layer("blk.2.", "");
        for (blocks_ = 1; blocks_ < blocks; ++blocks_) {
            for (const auto &[name, values] : first) {
                Values other = values;
                for (size_t i = other.all.size(); i > 1; --i)
                    std::swap(other.all[i - 1], other.all[rng_.below(i)]);
                tensors["blk." + std::to_string(2 + blocks_) + "." + name] = std::move(other);
            }
            if (!keys.empty()) keys.push_back(keys.back());
        }
    }
    std::map<std::string, Values> layer(const std::string &prefix, const std::string &renamed) const {
        std::map<std::string, Values> all;
        for (const auto &[name, values] : tensors)
            if (name.starts_with(prefix)) all[renamed + name.substr(prefix.size())] = values;
        return all;
    }
    // The output matrix gives the same logits if a number is added to all values of the state.
    void ignore_mean() {
        const char *output = tensors.contains("output.weight") ? "output.weight" : "token_embd.weight";
        std::vector<float> &all = tensors.at(output).all;
        for (auto row = all.begin(); row != all.end(); row += kDraftWidth) {
            const float mean = std::accumulate(row, row + kDraftWidth, 0.0f) / kDraftWidth;
            std::for_each(row, row + kDraftWidth, [&](float &x) { x -= mean; });
        }
    }

    void add(const std::string &name, std::vector<int64_t> shape, float mean, float sigma) {
        int64_t count = 1;
        for (const int64_t n : shape) count *= n;
        Values values{std::move(shape), std::vector<float>(static_cast<size_t>(count), mean)};
        if (sigma > 0)
            for (float &x : values.all) x = mean + sigma * rng_.normal();
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
    void project(float token, float before, const std::string &block = "blk.2.") {
        std::vector<float> &all = tensors.at(block + "nextn.eh_proj.weight").all;
        std::ranges::fill(all, 0.0f);
        for (size_t i = 0; i < size_t{kDraftWidth}; ++i) {
            all[i * 2 * kDraftWidth + i] = token;
            all[i * 2 * kDraftWidth + kDraftWidth + i] = before;
        }
    }
    std::filesystem::path path() const { return made_->directory / "draft.gguf"; }  // of write()
    // With one layer, which is no recurrent one, without what would be refused as unread.
    gguf::File write(const std::string &name, uint32_t layers, uint32_t draft_layers) const {
        const std::string blocks = arch_ + ".block_count", interval = arch_ + ".full_attention_interval";
        const auto is_left_out = [&](std::string_view key) {
            return key == blocks || key == interval || (layers == 1 && key.ends_with(".kda.head_dim"));
        };
        gguf::Writer writer;
        for (const auto &[key, value] : made_->file.metadata())
            if (!is_left_out(key) && !is_by_layer(key, value)) writer.add(key, value);
        for (const auto &[key, value] : made_->file.metadata())
            if (is_by_layer(key, value)) writer.add(key, by_layer(key, value.element_type(), layers));
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
        for (const char *prefix : {"blk.0.", "blk.1."}) silence(prefix);
        if (arch_ == "nemotron_h_moe")  // whose block's last norm removes the mean
            ignore_mean(), fill("output_norm.weight", 1);
        for (int32_t i = 0; i < blocks_; ++i) {
            const std::string block = "blk." + std::to_string(2 + i) + ".";
            silence(block);
            project(1, 0, block);
            fill(block + "nextn.enorm.weight", 1);
            tensors[block + last_norm() + ".weight"] = tensors.at("output_norm.weight");
        }
    }
    gguf::File write() const {
        return write("draft.gguf", static_cast<uint32_t>(2 + blocks_), static_cast<uint32_t>(blocks_));
    }

    std::map<std::string, Values> tensors;
    std::vector<LayerKeys> keys;  // empty: the file has no such arrays

  private:
    // Whether LayerKeys has the key.
    bool is_by_layer(std::string_view key, const gguf::Value &value) const {
        if (keys.empty() || value.type() != gguf::ValueType::Array) return false;
        return key.ends_with(".head_count") || key.ends_with(".head_count_kv") ||
               key.ends_with(".feed_forward_length") || key.ends_with("_pattern") ||
               key.find(".swiglu_clamp_") != key.npos;
    }
    gguf::Array by_layer(std::string_view key, gguf::ValueType type, uint32_t layers) const {
        gguf::Array array(type);
        for (uint32_t i = 0; i < layers; ++i) {
            const LayerKeys &of = keys.at(i);
            if (type == gguf::ValueType::Bool)
                array.push(of.window);
            else if (type == gguf::ValueType::F32)
                array.push(of.limit);
            else
                array.push(key.ends_with("_kv")      ? of.kv_heads
                           : key.ends_with("_count") ? of.heads
                                                     : of.hidden);
        }
        return array;
    }
    static ModelShape shape_of(const std::string &arch) {
        ModelShape shape;
        shape.arch = arch, shape.layers = 3, shape.width = kDraftWidth, shape.ff = kDraftHidden;
        shape.vocab = kDraftVocab, shape.threads = 1;
        // All experts: a choice between equally good ones would depend on rounding.
        if (arch != "qwen35") shape.experts.count = shape.experts.used = 2;
        return shape;
    }

    std::string arch_;
    std::shared_ptr<const TemporaryModel> made_;
    int32_t blocks_ = 1;
    Random rng_{7};
};

}  // namespace runnel::testing
