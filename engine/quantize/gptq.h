// GPTQ (Frantar et al. 2022, arXiv:2210.17323): rounds the columns of a matrix one by one and lets the later columns
// make up for the error of the earlier ones, so that the matrix's outputs change least on calibration inputs.
//
// Columns are taken in the order of the file. Where a block begins, its scales are searched for the weights as they are
// then, with the errors so far; the block's columns are rounded to that block's levels.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/quantize/hessian.h"
#include "gguf/block.h"

namespace runnel::quantize {

// Reads row `row` of the matrix as floats into values[columns].
using ReadRow = std::function<void(int64_t row, std::span<float> values)>;

// Writes rows * row_bytes(type, columns) bytes to `blocks`. `feedback`: of all bands of the columns, in order. The bytes
// do not depend on the number of threads. Precondition: gguf::has_grid(type); the bands consist of whole blocks. Throws
// QuantizeError, beginning with `name`, for a row with values that the type cannot hold.
void gptq(gguf::Type type, int64_t rows, std::span<const Feedback> feedback, const ReadRow &read, int threads,
          const std::string &name, std::byte *blocks);

}  // namespace runnel::quantize
