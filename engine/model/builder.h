// What a family file writes with: checked access to tensors and a Program that grows step by step.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/model/metadata.h"
#include "engine/model/model.h"
#include "engine/model/rope.h"
#include "gguf/file.h"
#include "kernels/program.h"

namespace runnel::model {

class Builder {
  public:
    Builder(const gguf::File &file, const HyperParameters &hyper);

    const HyperParameters &hyper() const { return hyper_; }
    const Metadata &metadata() const { return metadata_; }
    kernels::Program &program() { return program_; }

    // The named tensor as a weight of exactly this shape, added once however often it is asked for.
    // Throws ModelError when it is missing, has another shape, or a type that this build cannot read.
    kernels::WeightId matrix(const std::string &name, int64_t rows, int64_t cols);
    kernels::WeightId vector(const std::string &name, int64_t size);  // F32
    // kNoWeight when the file has no such tensor.
    kernels::WeightId optional_vector(const std::string &name, int64_t size);
    bool has(const std::string &name) const { return file_->find_tensor(name) != nullptr; }

    kernels::Slot slot(std::string name, int64_t width);
    void add(kernels::Step step) { program_.steps.push_back(std::move(step)); }

    // The frequencies that the file's rope.* keys and `rope_freqs.weight` describe. Returns an index into
    // ropes.
    int32_t rope(kernels::RopeTable::Pairs pairs);

    kernels::Program take();

  private:
    kernels::WeightId weight(const gguf::Tensor &tensor, int64_t rows, int64_t cols);
    RopeScaling rope_scaling() const;
    std::vector<float> rope_divisors();  // empty when the file has none
    [[noreturn]] void fail(const std::string &tensor, const std::string &problem) const;

    const gguf::File *file_;
    HyperParameters hyper_;
    Metadata metadata_;
    kernels::Program program_;
    std::unordered_map<const std::byte *, kernels::WeightId> weight_ids_;
};

// What the pre-norm decoder families have in common:
//   h = x + Wo Attention(RMS(x));  y = h + Wdown (silu(Wgate RMS(h)) * Wup RMS(h))
// and how they differ.
struct DecoderTraits {
    kernels::RopeTable::Pairs pairs;
    bool head_norm = false;        // RMS norm of q and k per head, before RoPE
    bool biases_required = false;  // attn_{q,k,v}.bias must be present; otherwise they are used when present
};
void emit_decoder(Builder &builder, const DecoderTraits &traits);

}  // namespace runnel::model
