// The tensors of a model with random weights: names, sizes, and what their values are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/block.h"
#include "tests/support/model_maker.h"

namespace runnel::testing {

struct PlannedTensor {
    std::string name;
    std::vector<int64_t> shape;         // fastest first
    gguf::Type type = gguf::Type::F32;  // the format that the values are rounded to
    float mean = 0, sigma = 0;          // of the normal distribution
    std::vector<float> values;          // instead of random ones, over and over
};

// Those of the shape's family, in the order of the file. The shape has no defaults left to fill in.
std::vector<PlannedTensor> plan_tensors(const ModelShape &shape);

}  // namespace runnel::testing
