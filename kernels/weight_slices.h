// Weights that are ranges of others: the rows, columns, matrices or values that one rank of a tensor split has
// (tensor_program.h).
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "kernels/program.h"
#include "kernels/row_cut.h"

namespace runnel::kernels {

// Appends slices to a list of weights, each once. A slice points into the bytes of the weight that it is cut from. Slices
// of kNoWeight are kNoWeight.
class WeightSlices {
  public:
    // weights: must outlive this.
    explicit WeightSlices(std::vector<Weight> &weights) : weights_(weights) {}

    // Rows of every matrix of the weight.
    WeightId rows(WeightId id, Range range) { return slice(id, range, Kind::Rows); }
    WeightId matrices(WeightId id, Range range) { return slice(id, range, Kind::Matrices); }
    // Of a matrix that is cut into so many equal ranges of columns, the ranges [begin, end), a matrix each.
    WeightId columns(WeightId id, Range range, int64_t ranges);
    // Values of an F32 vector, or of each of several.
    WeightId values(WeightId id, Range range) { return slice(id, range, Kind::Values); }

  private:
    enum class Kind { Rows, Columns, Matrices, Values };

    WeightId slice(WeightId id, Range range, Kind kind);

    std::vector<Weight> &weights_;
    std::map<std::tuple<WeightId, Range, Kind>, WeightId> known_;
};

}  // namespace runnel::kernels
