// A large batch in parts that devices compute one after the other, so that the devices of a split program (split_program.h) can
// work at the same time, each on another part (GPipe: Huang et al. 2019). A token's result does not depend on how a prompt is cut
// into batches, so the bits are those of the whole batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels {

class Microbatches {
  public:
    // Parts of almost the same size, each of at least `least` tokens: as many as possible, one if the batch has fewer than twice
    // that, or branches, or tokens that see later ones. With recurrent states it is cut only where the batch stores them, and
    // between sequences. The parts refer to the batch's memory.
    Microbatches(const Batch &batch, int32_t least);
    Microbatches(const Microbatches &) = delete;
    Microbatches &operator=(const Microbatches &) = delete;

    size_t size() const { return parts_.size(); }
    const Batch &operator[](size_t i) const { return parts_[i].batch; }
    // The rows of logits that the parts before this one have.
    size_t rows_before(size_t i) const { return parts_[i].rows_before; }
    bool rows_in_last_only() const { return parts_.back().rows_before == 0; }

  private:
    struct Part {
        Batch batch;
        size_t rows_before;
        std::vector<SequenceSpan> sequences;
        std::vector<int32_t> logit_rows;
    };
    static std::vector<int32_t> ends(const Batch &batch, int32_t least);
    Part part(const Batch &batch, int32_t begin, int32_t end) const;

    std::vector<Part> parts_;
};

}  // namespace runnel::kernels
