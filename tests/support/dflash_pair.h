// A small model and a DFlash drafter for it, in F32.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "gguf/file.h"
#include "tests/support/dflash_file.h"
#include "tests/support/model_maker.h"

namespace runnel::testing {

inline constexpr int64_t kDFlashVocab = 260, kDFlashWidth = 32;

class DFlashPair {
  public:
    // arch: of the target, a name of model_families.h. The drafter can be changed before the first file().
    explicit DFlashPair(const DFlashShape &shape = {}, const std::string &arch = "llama")
        : model_(shape_of(arch)),
          target_(std::make_unique<const gguf::File>(gguf::File::open(model_.path))),
          drafter(*target_, shape) {}

    const std::filesystem::path &target_path() const { return model_.path; }
    std::filesystem::path path() const { return *directory_ / "dflash.gguf"; }
    const gguf::File &target() const { return *target_; }
    // Of the drafter.
    const gguf::File &file() {
        if (!file_) {
            drafter.write(path());
            file_ = std::make_unique<const gguf::File>(gguf::File::open(path()));
        }
        return *file_;
    }

  private:
    static ModelShape shape_of(const std::string &arch) {
        ModelShape shape;
        shape.arch = arch, shape.layers = 4, shape.width = kDFlashWidth, shape.ff = 48;
        shape.vocab = kDFlashVocab, shape.threads = 1;
        return shape;
    }

    TemporaryModel model_;
    std::unique_ptr<const TemporaryDirectory> directory_ = std::make_unique<const TemporaryDirectory>();
    std::unique_ptr<const gguf::File> target_, file_;

  public:
    DFlashFile drafter;
};

}  // namespace runnel::testing
