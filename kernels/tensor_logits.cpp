#include "kernels/tensor_logits.h"

#include "kernels/row_selection.h"

namespace runnel::kernels {
namespace {

// Messages from the other ranks to rank 0.
struct Messages {
    std::vector<Communicator::Send> sends;
    std::vector<Communicator::Receive> receives;

    // `all`: what the rank has, on rank `rank`; on rank 0 its place.
    template <class T>
    void add(size_t own_rank, size_t rank, std::vector<T> &all) {
        if (rank == 0 || all.empty()) return;
        if (own_rank == rank) sends.push_back({0, std::as_bytes(std::span(all))});
        if (own_rank == 0)
            receives.push_back({static_cast<int>(rank), std::as_writable_bytes(std::span(all))});
    }
};

}  // namespace

TensorLogits::TensorLogits(Backend &device, Communicator &communicator, const Cut &vocabulary)
    : device_(device),
      communicator_(communicator),
      vocabulary_(vocabulary),
      rank_(static_cast<size_t>(communicator.rank())) {}

int32_t TensorLogits::most_candidates() const {
    if (vocabulary_.empty()) return 0;
    return selects_on_device() ? device_.most_candidates() : kMostSelected;
}

std::span<float> TensorLogits::own_rows(size_t rows) {
    const size_t size = rows > 0 ? rows * tokens(rank_) : 0;
    if (logits_.size() < size) logits_.resize(size);
    return std::span(logits_).first(size);
}

void TensorLogits::give_rows(std::span<const float> own, size_t rows, std::span<float> logits) {
    Messages messages;
    std::vector<std::vector<float>> others(vocabulary_.size());
    if (rank_ > 0 && !own.empty()) messages.sends.push_back({0, std::as_bytes(own)});
    for (size_t r = 1; rank_ == 0 && r < others.size(); ++r) {
        others[r].resize(rows * tokens(r));
        messages.add(rank_, r, others[r]);
    }
    communicator_.exchange(messages.sends, messages.receives);
    const auto vocab = static_cast<size_t>(vocabulary_.back().end);
    for (size_t r = 0; rank_ == 0 && r < others.size(); ++r) {
        const float *from = r == 0 ? own.data() : others[r].data();
        float *to = logits.data() + vocabulary_[r].begin;
        for (size_t row = 0; row < rows; ++row, from += tokens(r), to += vocab)
            std::copy_n(from, tokens(r), to);
    }
}

std::vector<float> TensorLogits::read_row(int32_t row) {
    std::vector<float> own(tokens(rank_));
    if (!own.empty() && selects_on_device())
        device_.read_logits(row, own);
    else
        std::copy_n(logits_.data() + static_cast<size_t>(row) * own.size(), own.size(), own.data());
    return own;
}

Batch TensorLogits::begin(const Batch &batch, size_t rows, int32_t count) {
    rows_ = rows, count_ = static_cast<size_t>(count);
    const size_t ranks = vocabulary_.size();
    candidates_.resize(ranks), sums_.resize(ranks);
    for (size_t r = 0; r < ranks; ++r) {
        const bool holds = (rank_ == 0 || r == rank_) && tokens(r) > 0;
        candidates_[r].resize(holds ? rows * each(r) : 0);
        sums_[r].resize(holds && count > 1 ? rows : 0);
    }
    masks_.clear();
    mask_bits_.resize(std::max(mask_bits_.size(), batch.masks.size()));
    for (size_t row = 0; ranks > 0 && tokens(rank_) > 0 && row < batch.masks.size(); ++row)
        masks_.push_back(part_of_mask(batch.masks[row], vocabulary_[rank_], mask_bits_[row]));
    Batch own = batch;
    own.masks = masks_;
    return own;
}

bool TensorLogits::execute(const Batch &part) {
    const size_t own = rows_ > 0 ? tokens(rank_) : 0, most = own > 0 ? each(rank_) : 0;
    if (own == 0) return device_.execute(part, {});
    std::vector<TopLogit> &candidates = candidates_[rank_];
    std::vector<ExpSum> &sums = sums_[rank_];
    if (selects_on_device()) {
        if (!device_.execute(part, static_cast<int32_t>(most), candidates, sums)) return false;
    } else {
        const std::span<float> logits = own_rows(rows_);
        if (!device_.execute(part, logits)) return false;
        for (size_t row = 0; row < rows_; ++row) {
            const std::span<const float> all = logits.subspan(row * own, own);
            const TokenMask mask = masks_.empty() ? TokenMask() : masks_[row];
            select_candidates(all, mask, std::span(candidates).subspan(row * most, most));
            if (!sums.empty()) sums[row] = sum_of_exp(all, mask);
        }
    }
    for (TopLogit &one : candidates) one.token += static_cast<int32_t>(vocabulary_[rank_].begin);
    return true;
}

void TensorLogits::give_candidates(std::span<TopLogit> candidates, std::span<ExpSum> sums) {
    Messages messages;
    for (size_t r = 1; r < vocabulary_.size(); ++r) {
        messages.add(rank_, r, candidates_[r]);
        messages.add(rank_, r, sums_[r]);
    }
    communicator_.exchange(messages.sends, messages.receives);
    for (size_t row = 0; rank_ == 0 && row < rows_; ++row) join_row(row, candidates, sums);
}

void TensorLogits::join_row(size_t row, std::span<TopLogit> candidates, std::span<ExpSum> sums) {
    std::vector<std::span<const TopLogit>> lists;
    for (size_t r = 0; r < vocabulary_.size(); ++r)
        lists.push_back(std::span<const TopLogit>(candidates_[r]).subspan(row * each(r), each(r)));
    join_candidates(lists, candidates.subspan(row * count_, count_));
    if (count_ == 1) return;
    sums[row] = {};
    for (const std::vector<ExpSum> &of_rank : sums_)
        if (!of_rank.empty()) sums[row].add(of_rank[row]);
}

}  // namespace runnel::kernels
