// A small Gemma 4 model and an assistant for it, in F32.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "gguf/file.h"
#include "tests/support/assistant_file.h"
#include "tests/support/edited_model.h"
#include "tests/support/model_maker.h"

namespace runnel::testing {

inline constexpr int64_t kAssistantVocab = 260, kAssistantTargetWidth = 32;

class AssistantPair {
  public:
    // target: a name of model_families.h. window: of the target and the assistant. The assistant can be changed before
    // the first file().
    explicit AssistantPair(const std::string &target = "gemma4", const AssistantShape &shape = {},
                           int64_t window = 24)
        : model_(shape_of(target, window)), target_(write()), assistant(*target_, shape) {}

    const std::filesystem::path &target_path() const { return target_path_; }
    std::filesystem::path path() const { return *directory_ / "assistant.gguf"; }
    const gguf::File &target() const { return *target_; }
    // Of the assistant.
    const gguf::File &file() {
        if (!file_) {
            assistant.write(path());
            file_ = std::make_unique<const gguf::File>(gguf::File::open(path()));
        }
        return *file_;
    }

  private:
    static ModelShape shape_of(const std::string &arch, int64_t window) {
        ModelShape shape;
        shape.arch = arch, shape.layers = 6, shape.width = kAssistantTargetWidth, shape.ff = 48;
        shape.head_dim = 16, shape.vocab = kAssistantVocab, shape.sliding_window = window;
        shape.threads = 1;
        return shape;
    }

    // In files with shared keys, the last four layers read them, so that the last ones that have any are of both kinds,
    // in the order that llama.cpp expects.
    std::unique_ptr<const gguf::File> write() {
        const char *key = "gemma4.attention.shared_kv_layers";
        if (model_.original().find(key)->as_int().value_or(0) > 0) model_.set(key, uint32_t{4});
        target_path_ = model_.write();
        return std::make_unique<const gguf::File>(gguf::File::open(target_path_));
    }

    EditedModel model_;
    std::filesystem::path target_path_;
    std::unique_ptr<const TemporaryDirectory> directory_ = std::make_unique<const TemporaryDirectory>();
    std::unique_ptr<const gguf::File> target_, file_;

  public:
    AssistantFile assistant;
};

}  // namespace runnel::testing
