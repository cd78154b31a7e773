// The interface of the family files: checked access to tensors, and a Program built step by step.
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

// An expected tensor dimension, and the keys it comes from, for the error message.
struct Size {
    int64_t value;
    std::string_view keys;
};

// Slots of the same name in all families: the residual stream, and the state after the last norm; in draft blocks, the
// hidden state of the previous token.
inline constexpr const char *kResidual = "residual", *kHidden = "normed",
                            *kHiddenBefore = "hidden state before";

// As in model.h; the keys that it reads are recorded in `metadata`.
HyperParameters read_hyper_parameters(const gguf::File &file, const Metadata &metadata);

class Builder {
  public:
    // context: the context length in use, which some RoPE factors depend on; 0: the model's own.
    Builder(const gguf::File &file, const Metadata &metadata, const HyperParameters &hyper, int64_t context);

    const HyperParameters &hyper() const { return hyper_; }
    const Metadata &metadata() const { return metadata_; }
    // The context length that the user chose; 0: none.
    int64_t chosen_context() const { return asked_ ? context_ : 0; }
    // The program is right for up to `tokens` tokens only: shortens the model's own context. Precondition:
    // chosen_context() <= tokens.
    void limit_context(int64_t tokens);
    kernels::Program &program() { return program_; }
    // Whether the program is that of a draft block of the file (draft_block.h) instead of the model's, and the
    // block's layer.
    bool draft_block() const { return draft_layer_ >= 0; }
    int32_t draft_layer() const { return draft_layer_; }
    void use_draft_layer(int32_t layer) { draft_layer_ = layer; }

    // The named tensor as a weight of exactly this shape; repeated calls return the same weight. Throws
    // ModelError if it is missing, has another shape, or a type that this build cannot read.
    kernels::WeightId matrix(const std::string &name, Size rows, Size cols);
    kernels::WeightId vector(const std::string &name, Size size);  // F32
    // kNoWeight when the file has no such tensor.
    kernels::WeightId optional_vector(const std::string &name, Size size);
    // As optional_vector(), for factors of matrices: refuses what is not a positive number.
    kernels::WeightId optional_factors(const std::string &name, Size size);
    // A stack of `count` matrices, along the tensor's third dimension or (older files) concatenated by rows.
    kernels::WeightId matrices(const std::string &name, Size count, Size rows, Size cols);
    // Adds a weight that the family computed.
    kernels::WeightId constant(const std::string &name, std::vector<float> values, int64_t count,
                               int64_t rows, int64_t cols);
    // The values of a matrix, for computing weights from them.
    std::vector<float> values(const std::string &name, Size rows, Size cols);
    // The rows of an I32 table, each of different numbers below `end`, which are put in ascending order. Throws ModelError if
    // a row has others.
    std::vector<float> number_sets(const std::string &name, Size rows, Size cols, int64_t end);
    // Marks a tensor that the file may have but the family does not need.
    void ignore(const std::string &name);
    // The rows of an F32 matrix as `count` vectors.
    kernels::WeightId vectors(const std::string &name, Size count, Size size);
    // An F32 matrix as one vector, row by row.
    kernels::WeightId flat_vector(const std::string &name, Size rows, Size cols);

    // Splits the rows of one matrix, tensor + ".weight", into one part per output, in order; the same for
    // tensor + ".bias", which may be absent if it is not required.
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

    // The slot of this name and width, created at the first call.
    kernels::Slot slot(const std::string &name, int64_t width);
    // Adds a step to the layer of the last begin_layer(), or to none before the first and after end_layers().
    void add(kernels::Step step);
    void begin_layer(int32_t layer) { layer_ = layer; }
    void end_layers() { layer_ = -1; }

    // Adds a cache layer; layers with the same window share a group. Returns an index into
    // cache_layers.
    int32_t cache_layer(kernels::CacheLayer layer, int32_t window);

    // Adds the state of a recurrent step. Returns an index into state_layers.
    int32_t state_layer(int64_t floats);

    // Whether the file assigns the rotated pairs to several position axes (M-RoPE: time, height, width). A
    // text token has the same position on every axis.
    bool has_position_axes() const;

    // The frequencies given by the file's rope.* keys and tensors. dimensions: how many are rotated, 0:
    // rope.dimension_count; fewer use the first of the file's divisors. Returns an index into ropes.
    int32_t rope(kernels::RopeTable::Pairs pairs, double base_factor = 1, int32_t dimensions = 0);
    // Frequencies of a base without scaling; dimensions as above.
    int32_t unscaled_rope(kernels::RopeTable::Pairs pairs, double base, int32_t dimensions = 0);

    // Throws ModelError if the file has weights in its layers that no step of the model uses: it
    // then contradicts its metadata.
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
    bool asked_;  // whether the user chose context_
    int64_t context_;
    int32_t draft_layer_ = -1;
    kernels::Program program_;
    int32_t layer_ = -1;
    std::unordered_map<const std::byte *, kernels::WeightId> weight_ids_;
    std::unordered_set<std::string_view> used_;  // names of tensors
    std::vector<int32_t> group_windows_;         // per group of cache layers
};

}  // namespace runnel::model
