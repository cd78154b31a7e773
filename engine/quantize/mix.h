// Which type each tensor of a model gets: llama.cpp's mixes, as tables.
//
// A mix ("Q4_K_M") has a base type and exceptions by the tensor's role, by the depth of its layer and by
// the model's shape. The rules are those of llama-quantize; their results for whole models are checked
// against it in tests/engine/quantize/mix_test.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/block.h"

namespace runnel::quantize {

// A request that cannot be met; what() is one line.
class QuantizeError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

struct Mix {
    std::string_view name;  // "Q4_K_M"
    uint32_t file_type;     // general.file_type
    gguf::Type base;
};

// The mix with this llama.cpp name, in any case ("q4_k" is "Q4_K_M"). Null for an unknown name.
const Mix *find_mix(std::string_view name);
std::span<const Mix> mixes();

struct TensorShape {
    std::string_view name;
    gguf::Type type;   // in the source
    int64_t shape[4];  // fastest first; dimensions beyond the rank are 1
    bool operator==(const TensorShape &) const = default;
};

// What the rules need to know besides the tensors.
struct ModelShape {
    std::string architecture;
    int64_t layers = 0;  // block_count
    int64_t heads = 0, kv_heads = 0, experts = 0;
};

struct MixOptions {
    bool pure = false;                         // the base type everywhere
    bool has_importance = false;               // of the columns: an importance matrix, or AWQ's
    bool leave_output = false;                 // output.weight stays as it is
    std::optional<gguf::Type> output = {};     // of output.weight
    std::optional<gguf::Type> embedding = {};  // of token_embd.weight
    std::vector<std::pair<std::regex, gguf::Type>> overrides = {};  // the first match wins
};

struct Choice {
    size_t tensor;  // index into the tensors
    gguf::Type type;
    std::string note = {};  // why the type differs from the mix's: "1000 columns: not a multiple of 256"
};

// A choice per tensor, in the order in which tensors are written: by layer, then by name.
std::vector<Choice> choose_types(const Mix &mix, const ModelShape &model,
                                 std::span<const TensorShape> tensors, const MixOptions &options);

// Whether the mixes ever change the tensor: weights with two dimensions or more that are not norms, routers or
// other small tables.
bool is_quantizable(const TensorShape &tensor);

// llama.cpp writes these only with an importance matrix.
bool needs_importance(gguf::Type type, const Mix &mix);

}  // namespace runnel::quantize
