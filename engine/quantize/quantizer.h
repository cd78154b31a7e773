// Writes a model with other tensor types: reads tensor by tensor, writes a GGUF file that appears when complete.
//
// The order of tensors, the metadata and the bytes of every block are those of llama-quantize (x86-64), so that
// the files are the same; tests/engine/quantize/quantizer_test.cpp holds hashes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/quantize/importance.h"
#include "engine/quantize/mix.h"
#include "engine/quantize/tensor_scales.h"
#include "gguf/file.h"

namespace runnel::quantize {

inline constexpr uint32_t kTensorAlignment = 32;  // bytes, of the tensors' data in the output

enum class Method {
    Standard,  // llama.cpp's searches, in its bytes, with or without importance
    Absmax,    // scales from the largest values, no search; ignores importance. IQ1 to IQ3 are refused
    Search,    // our own, with a smaller squared error; ignores importance. Not for IQ1 to IQ3: Standard then
    Imatrix,   // Standard; the caller checks that there is importance
    Awq,       // Standard of scaled tensors (channel_scales.h)
    Gptq,      // Standard for all tensors that are not `prepared` (gptq.h)
};

// A metadata value given by the user. Written as llama-quantize does: integers as u32, numbers as f32; integers that no
// u32 holds as i64.
using Override = std::variant<int64_t, double, bool, std::string>;

struct QuantizeRequest {
    const Mix *mix = nullptr;
    MixOptions types = {};
    Method method = Method::Standard;
    bool allow_requantize = false;           // from a quantized source: errors add up
    std::set<int64_t> pruned = {};           // layers to omit; later ones move up
    const Importance *importance = nullptr;  // or none
    std::string importance_file = {};        // its name, recorded in the metadata
    // Metadata that replaces the source's values; new keys are added at the end.
    std::vector<std::pair<std::string, Override>> overrides = {};
    // By the tensor's name in the output: types that replace those of the mix (type_search.h).
    std::map<std::string, gguf::Type, std::less<>> assigned = {};
    // Applied to all tensors that have an entry, before they are encoded. Or none.
    const TensorScalesByName *scales = nullptr;
    // By the tensor's name in the source: all rows in the planned type already.
    std::map<std::string, std::span<const std::byte>, std::less<>> prepared = {};
    bool keep_split = false;  // the output has the parts of the source
    int threads = 1;
    // Called between pieces of work with bytes read so far. False: stop.
    std::function<bool(uint64_t done)> progress = {};
};

struct PlannedTensor {
    const gguf::Tensor *source;
    std::string name;  // in the output, where pruning changes layer numbers
    gguf::Type type;
    uint64_t bytes;
    std::string note;
};

struct QuantizePlan {
    std::vector<PlannedTensor> tensors;          // in the order they are written
    uint64_t bytes_before = 0, bytes_after = 0;  // of tensor data
    int64_t elements = 0;
};

// Plans what quantize() writes. Throws QuantizeError for types that runnel does not write, for a quantized
// source without allow_requantize, for importance that does not fit, for layers that do not exist, and for overrides of
// another kind than the source's value.
QuantizePlan plan_quantization(const gguf::File &source, const QuantizeRequest &request);

// The number of files that quantize() writes: 1, or the source's with keep_split.
size_t output_parts(const gguf::File &source, const QuantizeRequest &request);

// The exact size of the files that quantize() writes, with metadata and padding.
uint64_t output_bytes(const gguf::File &source, const QuantizePlan &plan, const QuantizeRequest &request);

// Writes `plan` to `path`, which for several parts is the beginning of their names (model_parts.h). Memory is bounded by
// some 64 MiB, whatever the model's size. Returns false when
// progress() asked to stop: then nothing is left behind. Throws gguf::WriteError, and QuantizeError for values
// that are not finite or do not fit the type.
bool quantize(const gguf::File &source, const QuantizePlan &plan, const QuantizeRequest &request,
              const std::filesystem::path &path);

}  // namespace runnel::quantize
