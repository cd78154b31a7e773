// Chooses a type per tensor for a size: the least damage to the model's predictions that fits.
//
// The damage of a tensor t in type T is estimated as slope(t) * error(t, T). error is the relative squared error of the
// weights, sum q (w - w')^2 / sum q w^2, with q the importance of the columns (1 without an importance matrix); it is
// computed exactly, for large tensors on evenly spaced rows. slope is the KL divergence of the model's predictions per
// error: measured (engine/measure/sensitivity.h), or, up to a factor common to all tensors, a figure per role.
// Estimates are added over the tensors, which holds as long as errors are small (HIGGS, Malinovskii et al. 2025).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/quantize/quantizer.h"
#include "engine/quantize/role.h"

namespace runnel::quantize {

struct TypeOption {
    gguf::Type type;
    uint64_t bytes;    // with padding
    double error = 0;  // set by measure_errors
};

// A tensor whose type is open: neither an option of the user nor a rule for small tensors determines it.
struct OpenTensor {
    const gguf::Tensor *source;
    std::string name;  // in the output
    Role role;
    int64_t layer;  // -1: outside the layers
    std::vector<TypeOption> options;
    double slope = 0;

    const TypeOption *find(gguf::Type type) const;
};

// The types to choose from if the user names none.
std::span<const gguf::Type> default_types();

// The open tensors, each with the types that fit its columns, without those that need a missing importance matrix, and
// with the source's own type. Slopes are the figures per role. Throws QuantizeError.
std::vector<OpenTensor> open_tensors(const gguf::File &source, const QuantizeRequest &request,
                                     std::span<const gguf::Type> types);

// Sets the errors. Removes options in which values overflow. The result does not depend on the number of
// threads. If progress(done, total) returns false, the function stops and returns false.
bool measure_errors(std::vector<OpenTensor> &tensors, const QuantizeRequest &request,
                    const std::function<bool(uint64_t done, uint64_t all)> &progress);

// Tensors whose slope is measured together: those of one role in some adjacent layers.
struct SlopeGroup {
    std::string name;             // "attn_v of layers 0-3"
    std::vector<size_t> tensors;  // indices
};
std::vector<SlopeGroup> slope_groups(std::span<const OpenTensor> tensors);

// The type of about 3 bits with which a slope is measured; nullptr if the tensor has no such option.
const TypeOption *probe_type(const OpenTensor &tensor);

// The next smaller type with a larger error, or the next larger type with a smaller error; nullptr if there is none.
const TypeOption *next_smaller(const OpenTensor &tensor, gguf::Type type);
const TypeOption *next_larger(const OpenTensor &tensor, gguf::Type type);

// What a target counts: the bytes on disk, or those read for one token while decoding.
enum class Cost { Disk, Read };

// The part of a tensor that is read for one token: used/total of routed experts, one row of a token table that is not
// also the output matrix, otherwise all.
double read_share(const gguf::File &source, const gguf::Tensor &tensor);

// One of the first three is given.
struct TypeTarget {
    std::optional<uint64_t> file_bytes;     // of all output files, with metadata. Only with Cost::Disk
    std::optional<double> bits_per_weight;  // of the tensors' data
    std::optional<uint64_t> data_bytes;     // the same in bytes
    Cost cost = Cost::Disk;
};

struct TypeChoice {
    std::map<std::string, gguf::Type, std::less<>> assigned;
    uint32_t file_type;       // general.file_type for the most frequent type
    uint64_t bytes;           // what the target limits: the files, or the tensors' data
    uint64_t smallest, most;  // range of `bytes` that the types allow
    uint64_t asked;
    int64_t elements;  // of all tensors; with Cost::Read, those read for one token
    double damage;     // sum of slope * error
};

// The estimated damage of a choice with these tensors' slopes.
double damage_of(std::span<const OpenTensor> tensors, const TypeChoice &choice);

// The request with the choice, for plan_quantization and quantize.
QuantizeRequest with_choice(QuantizeRequest request, const TypeChoice &choice);

// Throws QuantizeError naming the smallest and the largest size if the target is too small.
TypeChoice choose_for_target(const gguf::File &source, const QuantizeRequest &request,
                             std::span<const OpenTensor> tensors, const TypeTarget &target);

}  // namespace runnel::quantize
