// The inputs of matrices whose channels can be scaled without changing what a model computes (AWQ; Lin et al. 2023,
// arXiv:2306.00978): W x = (W diag(s)) (diag(1/s) x), where the step that makes x divides its channels by s.
//
// The channels are made by a norm (its weight and bias are divided), or by the rows of a matrix (and its bias). Between
// these rows and the input may lie attention, through its values, and activations that are linear in `up`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/program.h"

namespace runnel::kernels {

// Rows of a matrix (first: of all matrices of the weight, counted through), or values of a vector: channel i is made by
// row or value first + i.
struct ChannelMaker {
    WeightId weight;
    int64_t first;
    bool is_matrix;
};

struct ScalableInput {
    // Steps with matrices that read the input, and these matrices. Their columns are multiplied by the scales.
    std::vector<size_t> readers;
    std::vector<WeightId> matrices;
    int32_t expert = -1;              // the input of this matrix of each weight only; -1: of all
    std::vector<int32_t> channel_of;  // by column of the matrices: heads that share values share channels
    int64_t channels = 0;
    size_t maker_step = 0;
    std::vector<ChannelMaker> makers;
    bool is_squared =
        false;             // the makers' values are squared on the way: divide them by the root of the scale
    std::string obstacle;  // empty: the input can be scaled; otherwise why not ("it is also read by ...")
};

// All inputs of matrices, in the order of the steps. Whether other steps read the weights involved, too, is left to the
// caller: a file's tensor may appear as several weights.
std::vector<ScalableInput> scalable_inputs(const Program &program);

}  // namespace runnel::kernels
