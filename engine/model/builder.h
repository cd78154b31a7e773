// What a family file writes with: checked access to tensors and a Program that grows step by step.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/model/metadata.h"
#include "engine/model/model.h"
#include "engine/model/rope.h"
#include "gguf/file.h"
#include "kernels/program.h"

namespace runnel::model {

// A size that a tensor must have, and the keys it comes from: for the message when it has another.
struct Size {
    int64_t value;
    std::string_view keys;
};

class Builder {
  public:
    // context: the length that will be used; 0: the model's own (for RoPE factors that depend on it).
    Builder(const gguf::File &file, const HyperParameters &hyper, int64_t context);

    const HyperParameters &hyper() const { return hyper_; }
    const Metadata &metadata() const { return metadata_; }
    kernels::Program &program() { return program_; }

    // The named tensor as a weight of exactly this shape, added once however often it is asked for.
    // Throws ModelError when it is missing, has another shape, or a type that this build cannot read.
    kernels::WeightId matrix(const std::string &name, Size rows, Size cols);
    kernels::WeightId vector(const std::string &name, Size size);  // F32
    // kNoWeight when the file has no such tensor.
    kernels::WeightId optional_vector(const std::string &name, Size size);
    // A stack of `count` matrices, on the tensor's third dimension or (older files) one below the other.
    kernels::WeightId matrices(const std::string &name, Size count, Size rows, Size cols);
    // Weights that the family computed.
    kernels::WeightId constant(const std::string &name, std::vector<float> values, int64_t count,
                               int64_t rows, int64_t cols);
    // The values of a matrix, to compute weights from.
    std::vector<float> values(const std::string &name, Size rows, Size cols);
    // The file may have this tensor, but the family does not need it.
    void ignore(const std::string &name);
    // An F32 matrix as one vector, row after row.
    kernels::WeightId flat_vector(const std::string &name, Size rows, Size cols);

    // One part per output from the rows of one matrix, tensor + ".weight": the first rows make the first
    // output. The same of tensor + ".bias", which may be absent if it is not required.
    struct Share {
        Size rows;
        kernels::Slot out;
    };
    kernels::Linear split(const std::string &tensor, Size cols, bool bias_required, kernels::Slot in,
                          const std::vector<Share> &shares);

    bool has(const std::string &name) const { return file_->find_tensor(name) != nullptr; }
    // 0 when the file has no such tensor.
    int64_t rows_of(const std::string &name) const;
    int64_t cols_of(const std::string &name) const;

    // The slot of this name and width, made when it is first asked for.
    kernels::Slot slot(const std::string &name, int64_t width);
    // A step of the layer that begin_layer() has named last; of none before that and behind end_layers().
    void add(kernels::Step step);
    void begin_layer(int32_t layer) { layer_ = layer; }
    void end_layers() { layer_ = -1; }

    // Room in the cache for one layer. Layers of one window share a group. Returns an index into
    // cache_layers.
    int32_t cache_layer(kernels::CacheLayer layer, int32_t window);

    // Room for the state of a recurrent step. Returns an index into state_layers.
    int32_t state_layer(int64_t floats);

    // The frequencies that the file's rope.* keys and tensors describe. Returns an index into ropes.
    int32_t rope(kernels::RopeTable::Pairs pairs);
    // The plain frequencies of a base; dimensions: how many are rotated, 0: rope.dimension_count.
    int32_t unscaled_rope(kernels::RopeTable::Pairs pairs, double base, int32_t dimensions = 0);

    // Throws ModelError if the file has weights in its layers that nothing used: it is not what its metadata
    // says.
    kernels::Program take();

  private:
    const gguf::Tensor &tensor(const std::string &name) const;
    const gguf::Tensor &vector_tensor(const std::string &name) const;
    kernels::WeightId weight(const gguf::Tensor &tensor, Size rows, Size cols);
    kernels::WeightId add_rows(const gguf::Tensor &tensor, int64_t first, int64_t rows, int64_t cols,
                               int64_t count = 1);
    void check_shape(const gguf::Tensor &tensor, Size rows, Size cols) const;
    void check_all_used() const;
    int32_t add_rope(kernels::RopeTable table);
    RopeScaling rope_scaling() const;
    std::vector<float> rope_divisors(const RopeScaling &scaling);  // empty when the file has none
    [[noreturn]] void fail(const std::string &tensor, const std::string &problem) const;

    const gguf::File *file_;
    HyperParameters hyper_;
    Metadata metadata_;
    int64_t context_;
    kernels::Program program_;
    int32_t layer_ = -1;
    std::unordered_map<const std::byte *, kernels::WeightId> weight_ids_;
    std::unordered_set<std::string_view> used_;  // names of tensors
    std::vector<int32_t> group_windows_;         // by group of cache layers
};

}  // namespace runnel::model
