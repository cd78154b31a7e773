// A cache block that several ranks hold together (tensor_program.h): its bytes are those of its layers, and within a layer those
// of the ranks, or, in a divided group, those of the one rank that holds the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor_program.h"

namespace runnel::kernels {

class BlockPieces {
  public:
    using Bytes = std::vector<std::byte>;

    BlockPieces() = default;
    // `tensor` must outlive it. cache: of the whole program.
    BlockPieces(const TensorProgram &tensor, const CacheConfig &cache) : tensor_(&tensor), cache_(cache) {}

    // The K/V heads of each rank, " [4+4 2+2]", once for neighboring layers with the same: only blocks of the same layout can be
    // exchanged. Empty: a block is as one device would hold it, since all layers are divided by cells.
    std::string layout() const;

    // Bytes that the rank's device holds of a block; 0: nothing.
    size_t bytes(size_t rank, int32_t group, BlockId block) const;
    bool holds_any(size_t rank, int32_t group, std::span<const BlockCopy> copies) const;
    // Room for a block, by rank.
    std::vector<Bytes> room(int32_t group, BlockId block) const;

    // The whole block of the ranks' pieces, and the other way round.
    void join(int32_t group, BlockId block, std::span<const Bytes> pieces, std::span<std::byte> whole) const;
    void cut(int32_t group, BlockId block, std::span<const std::byte> whole, std::span<Bytes> pieces) const;

  private:
    bool is_divided(int32_t group) const;
    size_t holder(int32_t group, BlockId block) const;  // of a divided group
    template <typename F>
    void visit(int32_t group, F &&f) const;

    const TensorProgram *tensor_ = nullptr;
    CacheConfig cache_;
};

}  // namespace runnel::kernels
