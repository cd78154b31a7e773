#include "kernels/block_pieces.h"

#include <algorithm>

namespace runnel::kernels {

bool BlockPieces::is_divided(int32_t group) const {
    return !cache_.shares.empty() && cache_.shares[static_cast<size_t>(group)] > 1;
}

std::string BlockPieces::layout() const {
    std::string text, last;
    if (tensor_ == nullptr) return text;
    for (size_t i = 0; i < tensor_->kv_heads.size(); ++i) {
        if (is_divided(tensor_->programs.front().cache_layers[i].group)) continue;
        std::string layer;
        for (const Range &range : tensor_->kv_heads[i])
            layer += (layer.empty() ? "" : "+") + std::to_string(range.size());
        if (layer != last) text += (text.empty() ? " [" : " ") + layer;
        last = layer;
    }
    return text.empty() ? text : text + "]";
}

size_t BlockPieces::holder(int32_t group, BlockId block) const {
    const auto g = static_cast<size_t>(group);
    return static_cast<size_t>(block / (cache_.blocks[g] / cache_.shares[g]));
}

size_t BlockPieces::bytes(size_t rank, int32_t group, BlockId block) const {
    if (is_divided(group) && holder(group, block) != rank) return 0;
    return cache_block_bytes(tensor_->programs[rank], group, cache_.k, cache_.v);
}

bool BlockPieces::holds_any(size_t rank, int32_t group, std::span<const BlockCopy> copies) const {
    return std::ranges::any_of(copies,
                               [&](const BlockCopy &copy) { return bytes(rank, group, copy.to) > 0; });
}

std::vector<BlockPieces::Bytes> BlockPieces::room(int32_t group, BlockId block) const {
    std::vector<Bytes> pieces;
    for (size_t rank = 0; rank < tensor_->programs.size(); ++rank)
        pieces.emplace_back(bytes(rank, group, block));
    return pieces;
}

// Calls f(rank, offset in its block, offset in the whole block, size, whether no lower rank has the same heads) for the ranks of
// each layer.
template <typename F>
void BlockPieces::visit(int32_t group, F &&f) const {
    const size_t ranks = tensor_->programs.size();
    const std::vector<CacheLayer> &layers = tensor_->programs.front().cache_layers;
    std::vector<size_t> at(ranks);
    size_t whole = 0;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
        const CacheLayer &shape = layers[layer];
        if (shape.group != group) continue;
        const size_t head =
            size_t{kBlockTokens} * (cache_row_bytes(key_type(shape, cache_.k), shape.head_dim_k) +
                                    cache_row_bytes(cache_.v, shape.head_dim_v));
        const Cut &cut = tensor_->kv_heads[layer];
        const Cut firsts = without_copies(cut);
        size_t before = whole;  // where the heads of the previous rank begin
        for (size_t r = 0; r < ranks; ++r) {
            if (cut[r].size() == 0) continue;
            const bool first = firsts[r].size() > 0;
            const size_t size = head * static_cast<size_t>(cut[r].size());
            if (first) before = whole, whole += size;
            f(r, at[r], before, size, first);
            at[r] += size;
        }
    }
}

void BlockPieces::join(int32_t group, BlockId block, std::span<const Bytes> pieces,
                       std::span<std::byte> whole) const {
    if (is_divided(group)) {
        std::ranges::copy(pieces[holder(group, block)], whole.begin());
        return;
    }
    visit(group, [&](size_t r, size_t at, size_t in_whole, size_t size, bool first) {
        if (first)
            std::copy_n(pieces[r].begin() + static_cast<std::ptrdiff_t>(at), size, whole.data() + in_whole);
    });
}

void BlockPieces::cut(int32_t group, BlockId block, std::span<const std::byte> whole,
                      std::span<Bytes> pieces) const {
    if (is_divided(group)) {
        std::ranges::copy(whole, pieces[holder(group, block)].begin());
        return;
    }
    visit(group, [&](size_t r, size_t at, size_t in_whole, size_t size, bool) {
        std::copy_n(whole.data() + in_whole, size, pieces[r].begin() + static_cast<std::ptrdiff_t>(at));
    });
}

}  // namespace runnel::kernels
