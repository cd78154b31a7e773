#include "engine/decode/logit_rows.h"

#include <cassert>
#include <cfloat>
#include <cmath>

#include "engine/decode/error.h"
#include "engine/decode/logit_scan.h"

namespace runnel::decode {
namespace {

// Divides `all` into `rows` equal parts and returns `count` of them, from part `first` on.
template <class T>
std::span<T> shares(std::span<T> all, size_t rows, size_t first, size_t count) {
    const size_t each = all.size() / rows;
    return all.subspan(first * each, count * each);
}

}  // namespace

void expect_finite(std::span<const float> logits) {
    bool finite = true;
    size_t i = 0;
    for (; i + kScanBlock <= logits.size(); i += kScanBlock) finite &= block_is_finite(logits.data() + i);
    for (const float l : logits.subspan(i)) finite &= std::abs(l) <= FLT_MAX;
    if (!finite)
        throw DecodeError(DecodeError::Kind::Failed,
                          "the model computed numbers that are not finite (NaN or infinity): the file's "
                          "weights are damaged or overflow");
}

std::span<const float> LogitRow::whole_or_read(std::vector<float> &memory) const {
    if (!whole_.empty()) return whole_;
    memory.resize(static_cast<size_t>(executor_->vocab()));
    executor_->read_logits(number_, memory);
    return memory;
}

LogitRows::LogitRows(Executor &executor, size_t count, const StepOutput &output)
    : executor_(&executor), count_(count), largest_(output.candidates), sums_(output.sums) {
    if (largest_.empty()) logits_ = output.logits;
    if (!output.masked.empty()) masked_ = &output.masked;
    assert(logits_.empty() || logits_.size() == count * static_cast<size_t>(executor.vocab()));
    assert(count == 0 || largest_.size() % count == 0);
}

LogitRow LogitRows::operator[](size_t row) const {
    assert(row < count_);
    return {*executor_,
            static_cast<int32_t>(first_ + row),
            shares(logits_, count_, row, 1),
            shares(largest_, count_, row, 1),
            sums_.empty() ? 0 : sums_[row],
            masked_ && (*masked_)[first_ + row]};
}

LogitRows LogitRows::part(size_t first, size_t count) const {
    assert(first + count <= count_);
    LogitRows some;
    if (count == 0) return some;
    some.executor_ = executor_;
    some.first_ = first_ + first;
    some.count_ = count;
    some.logits_ = shares(logits_, count_, first, count);
    some.largest_ = shares(largest_, count_, first, count);
    some.sums_ = shares(sums_, count_, first, count);
    some.masked_ = masked_;
    return some;
}

}  // namespace runnel::decode
