// A small model and an EAGLE-3 head for it.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gguf/file.h"
#include "tests/support/eagle_head.h"
#include "tests/support/edited_model.h"

namespace runnel::testing {

inline constexpr int64_t kEagleVocab = 260, kEagleWidth = 32;

// Both in F32. The head can be changed before the first file().
class EaglePair {
  public:
    explicit EaglePair(const HeadShape &shape = {}, const std::string &arch = "llama")
        : EaglePair(EditedModel(target_shape(arch)), shape) {}

    // The next token depends on the last one alone, in the model as in the head. rows: as in HeadShape.
    static EaglePair ruled(int64_t rows) {
        EditedModel silent(target_shape("llama"));
        for (int32_t i = 0; i < 4; ++i) {
            const std::string layer = "blk." + std::to_string(i);
            silent.values(layer + ".attn_output.weight",
                          std::vector<float>(static_cast<size_t>(kEagleWidth * kEagleWidth)));
            silent.values(layer + ".ffn_down.weight",
                          std::vector<float>(static_cast<size_t>(kEagleWidth * 48)));
        }
        EaglePair pair(
            std::move(silent),
            {.heads = 1, .kv_heads = 1, .rows = rows, .own_output = true, .norm_before_residual = true});
        pair.head.obey_rule(pair.of_target("output_norm.weight"));
        const EagleHead::Values output = pair.of_target("output.weight");
        if (rows == 0) pair.head.at("output.weight") = output;
        for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
            std::copy_n(
                output.all.begin() + pair.head.tokens[row] * kEagleWidth, kEagleWidth,
                pair.head.at("output.weight").all.begin() + static_cast<std::ptrdiff_t>(row) * kEagleWidth);
        return pair;
    }

    std::filesystem::path head_path() const { return *directory_ / "head.gguf"; }
    const std::filesystem::path &target_path() const { return target_->path(); }
    const gguf::File &target() const { return *target_; }
    // Of the head.
    const gguf::File &file() {
        if (!file_) file_ = std::make_unique<gguf::File>(head.write_and_open(head_path()));
        return *file_;
    }
    EagleHead::Values of_target(const std::string &name) const {
        const gguf::Tensor &t = *target_->find_tensor(name);
        const auto *data = reinterpret_cast<const float *>(t.data);
        return {{t.shape, t.shape + t.rank}, {data, data + t.elements()}};
    }

  private:
    EaglePair(EditedModel edited, const HeadShape &shape)
        : edited_(std::move(edited)),
          target_(std::make_unique<const gguf::File>(gguf::File::open(edited_.write()))),
          head(*target_, shape) {}

    static ModelShape target_shape(const std::string &arch) {
        ModelShape shape;
        shape.arch = arch, shape.layers = 4, shape.width = kEagleWidth, shape.ff = 48;
        shape.vocab = kEagleVocab, shape.threads = 1;
        return shape;
    }

    EditedModel edited_;
    std::unique_ptr<const TemporaryDirectory> directory_ = std::make_unique<const TemporaryDirectory>();
    std::unique_ptr<const gguf::File> target_;
    std::unique_ptr<gguf::File> file_;

  public:
    EagleHead head;
};

}  // namespace runnel::testing
