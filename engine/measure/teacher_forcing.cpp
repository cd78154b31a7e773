#include "engine/measure/teacher_forcing.h"

#include <algorithm>
#include <cmath>

#include "kernels/forwarding_backend.h"

namespace runnel::measure {
namespace {

using text::TokenId;

constexpr float kFarAbove = 1e4f;

class ForcedBackend final : public kernels::ForwardingBackend {
  public:
    ForcedBackend(std::unique_ptr<kernels::Backend> device, std::shared_ptr<const TeacherForcing> text)
        : ForwardingBackend(std::move(device)), text_(std::move(text)) {}

    void load(const kernels::Program &program, const kernels::CacheConfig &cache,
              int32_t max_tokens) override {
        vocab_ = static_cast<size_t>(program.vocab);
        ForwardingBackend::load(program, cache, max_tokens);
    }
    bool execute(const kernels::Batch &batch, std::span<float> logits) override {
        if (!ForwardingBackend::execute(batch, logits)) return false;
        find_forced(batch);
        for (size_t row = 0; row < forced_.size(); ++row) force(row, logits.subspan(row * vocab_, vocab_));
        return true;
    }
    bool execute(const kernels::Batch &batch, int32_t count, std::span<kernels::TopLogit> candidates,
                 std::span<kernels::ExpSum> sums) override {
        if (!ForwardingBackend::execute(batch, count, candidates, sums)) return false;
        find_forced(batch);
        const auto each = static_cast<size_t>(count);
        for (size_t row = 0; row < forced_.size(); ++row)
            if (force(row, candidates.subspan(row * each, each)) && count > 1)
                sums[row] = {}, sums[row].add(kFarAbove);
        return true;
    }
    void read_logits(int32_t row, std::span<float> logits) override {
        ForwardingBackend::read_logits(row, logits);
        force(static_cast<size_t>(row), logits);
    }

  private:
    void find_forced(const kernels::Batch &batch) {
        forced_.clear();
        for (const int32_t row : batch.logit_rows) {
            const auto next = static_cast<size_t>(batch.positions[static_cast<size_t>(row)]) + 1;
            const bool within = next < text_->tokens.size();
            const TokenId id = within ? text_->tokens[next] : text::kNoToken;
            forced_.push_back(id >= 0 && static_cast<size_t>(id) < vocab_ ? id : text::kNoToken);
        }
    }
    void force(size_t row, std::span<float> logits) const {
        if (const TokenId id = forced_[row]; id != text::kNoToken)
            logits[static_cast<size_t>(id)] = kFarAbove;
    }
    // Moves the forced token to the front of the candidates; if it is not among them, it replaces the last.
    // False without a forced token or if the row is not finite.
    bool force(size_t row, std::span<kernels::TopLogit> largest) const {
        const TokenId id = forced_[row];
        if (id == text::kNoToken || !std::isfinite(largest.front().logit)) return false;
        auto place = std::ranges::find(largest, id, &kernels::TopLogit::token);
        if (place == largest.end()) --place;
        *place = {id, kFarAbove};
        std::rotate(largest.begin(), place, place + 1);
        return true;
    }

    std::shared_ptr<const TeacherForcing> text_;
    size_t vocab_ = 0;
    std::vector<TokenId> forced_;  // of each row of the last batch; kNoToken: none
};

}  // namespace

std::unique_ptr<kernels::Backend> forced(std::unique_ptr<kernels::Backend> device,
                                         std::shared_ptr<const TeacherForcing> text) {
    return std::make_unique<ForcedBackend>(std::move(device), std::move(text));
}

}  // namespace runnel::measure
