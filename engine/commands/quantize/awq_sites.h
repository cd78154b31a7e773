// The inputs of matrices that AWQ can scale, in terms of a file's tensors.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/quantize/quantizer.h"
#include "kernels/scalable_inputs.h"

namespace runnel::commands {

// An input that can be scaled.
struct AwqSite {
    // A tensor that is multiplied with it.
    struct Reader {
        const gguf::Tensor *tensor;
        int64_t matrix;  // the one that is, unless all are
        bool is_whole;

        int64_t matrices() const {
            return is_whole ? tensor->elements() / (tensor->shape[0] * tensor->shape[1]) : 1;
        }
        int64_t rows() const { return matrices() * tensor->shape[1]; }
    };
    // What makes channel i: row, or value, first + i of the tensor.
    struct Maker {
        const gguf::Tensor *tensor;
        int64_t first;
        bool is_matrix;
    };

    kernels::ScalableInput input;
    std::vector<Reader> readers;
    std::vector<Maker> makers;

    int64_t columns() const { return readers.front().tensor->shape[0]; }
};

// Inputs that are not scaled for one reason.
struct NotScaled {
    std::string reason;
    std::vector<std::string> matrices;  // of each input, the first tensor that reads it
};

struct AwqSites {
    std::vector<AwqSite> scalable;  // in the order of the program
    std::vector<NotScaled> not_scaled;
};

// Only inputs of matrices that the plan quantizes count. The sites point into `source`, whose program this is.
AwqSites find_awq_sites(const gguf::File &source, const kernels::Program &program,
                        const quantize::QuantizePlan &plan);
// Multiplies the columns of the readers by the scales, [channels], and divides the makers by them.
void fold_scales(const AwqSite &site, std::span<const float> scales, quantize::TensorScalesByName &tensors);

// One line for each reason.
std::vector<std::string> awq_notes(const AwqSites &sites);
nlohmann::ordered_json awq_json(const AwqSites &sites);

}  // namespace runnel::commands
