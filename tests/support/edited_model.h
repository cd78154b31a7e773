// A model file with wrong contents.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model/model.h"
#include "gguf/writer.h"
#include "tests/support/model_maker.h"

namespace runnel::testing {

// The file of a model with some of its keys and tensors changed.
class EditedModel {
  public:
    explicit EditedModel(const ModelShape &shape = {})
        : original_(std::make_shared<const TemporaryModel>(shape)) {
        for (const gguf::Tensor &t : original_->file.tensors())
            tensors_.push_back({std::string(t.name), t.type, std::vector<int64_t>(t.shape, t.shape + t.rank),
                                std::vector<std::byte>(t.data, t.data + t.bytes)});
    }

    template <class T>
    EditedModel &set(const std::string &key, T value) {
        without(key);
        added_.emplace_back(key, [key, value](gguf::Writer &writer) { writer.add(key, value); });
        return *this;
    }
    EditedModel &without(const std::string &key) {
        removed_.push_back(key);
        std::erase_if(added_, [&](const auto &pair) { return pair.first == key; });
        return *this;
    }
    EditedModel &without_tensor(const std::string &name) {
        std::erase_if(tensors_, [&](const Tensor &t) { return t.name == name; });
        return *this;
    }
    EditedModel &tensor(const std::string &name, gguf::Type type, const std::vector<int64_t> &shape,
                        float value = 0) {
        without_tensor(name);
        size_t bytes = gguf::row_bytes(type, shape[0]);
        for (size_t d = 1; d < shape.size(); ++d) bytes *= static_cast<size_t>(shape[d]);
        Tensor added{name, type, shape, std::vector<std::byte>(bytes)};
        if (type == gguf::Type::F32)
            for (size_t at = 0; at < bytes; at += sizeof value)
                std::memcpy(added.data.data() + at, &value, sizeof value);
        tensors_.push_back(std::move(added));
        return *this;
    }

    EditedModel &values(const std::string &name, const std::vector<int64_t> &shape,
                        const std::vector<float> &numbers) {
        tensor(name, gguf::Type::F32, shape);
        std::memcpy(tensors_.back().data.data(), numbers.data(), tensors_.back().data.size());
        return *this;
    }

    // F32 values in place of a tensor's own.
    EditedModel &values(std::string_view name, const std::vector<float> &values) {
        for (Tensor &t : tensors_) {
            if (t.name != name) continue;
            t.type = gguf::Type::F32;
            const auto bytes = std::as_bytes(std::span(values));
            t.data.assign(bytes.begin(), bytes.end());
        }
        return *this;
    }

    const gguf::File &original() const { return original_->file; }

    // The error message of build(); empty if it succeeds.
    std::string error() const {
        kernels::Program program;
        return built(program);
    }
    // Like error(), and returns the program; the file's weights are freed at the end of this call.
    std::string built(kernels::Program &program) const {
        const gguf::File file = gguf::File::open(write());
        try {
            program = model::build(file).program;
        } catch (const model::ModelError &error) {
            return error.what();
        }
        return {};
    }
    // Writes the file; it exists as long as this object.
    std::filesystem::path write() const {
        gguf::Writer writer;
        for (const auto &[key, value] : original_->file.metadata())
            if (std::find(removed_.begin(), removed_.end(), key) == removed_.end()) writer.add(key, value);
        for (const auto &[key, add] : added_) add(writer);
        for (const Tensor &t : tensors_) writer.add_tensor(t.name, t.type, t.shape);
        const std::filesystem::path path = original_->directory / "edited.gguf";
        std::filesystem::remove(path);  // a file that this process has read must not be overwritten
        writer.start(path);
        for (const Tensor &t : tensors_) writer.write(t.data);
        writer.finish();
        return path;
    }

  private:
    struct Tensor {
        std::string name;
        gguf::Type type;
        std::vector<int64_t> shape;
        std::vector<std::byte> data;
    };
    std::shared_ptr<const TemporaryModel> original_;
    std::vector<std::string> removed_;
    std::vector<std::pair<std::string, std::function<void(gguf::Writer &)>>> added_;
    std::vector<Tensor> tensors_;
};

}  // namespace runnel::testing
