#include "kernels/tensor_rank.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

namespace runnel::kernels {
namespace {

// Rank 0 appends to the piece that it sends whether the batch is cancelled.
using CancelWord = uint32_t;

// Between two points where ranks whose devices gather agree whether to go on.
constexpr size_t kStagesAhead = 16;

// Copies `width` floats of each of `rows` rows between places with different strides.
void copy_rows(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t width,
               size_t rows) {
    for (size_t row = 0; row < rows; ++row, from += from_stride, to += to_stride)
        std::copy_n(from, width, to);
}

// The slots that the rank gets from gathers.
std::set<Slot> received(const Program &program, bool first) {
    std::set<Slot> slots;
    const auto add = [&](const std::vector<Slot> &some) {
        for (const Slot slot : some)
            if (program.slots[static_cast<size_t>(slot)].width > 0) slots.insert(slot);
    };
    for (const Program::Part &part : program.parts) {
        add(part.in);
        if (first) add(part.out);  // what the caller reads from rank 0
    }
    return slots;
}

}  // namespace

class TensorRank::Link final : public Communicator {
  public:
    explicit Link(Communicator &ranks) : ranks_(ranks) {}
    int rank() const override { return ranks_.rank(); }
    int size() const override { return ranks_.size(); }
    void all_gather(std::span<const std::byte> mine, std::span<const size_t> sizes,
                    std::span<std::byte> all) override {
        watch([&] { ranks_.all_gather(mine, sizes, all); });
    }
    void exchange(std::span<const Send> sends, std::span<const Receive> receives) override {
        watch([&] { ranks_.exchange(sends, receives); });
    }
    void broadcast(std::span<std::byte> bytes, int root) override {
        watch([&] { ranks_.broadcast(bytes, root); });
    }
    void barrier() override {
        watch([&] { ranks_.barrier(); });
    }
    void abort(const std::string &why) noexcept override { ranks_.abort(why); }

    bool has_failed() const { return failed_; }

  private:
    template <typename F>
    void watch(F &&f) {
        failed_ = true;
        f();
        failed_ = false;
    }

    Communicator &ranks_;
    bool failed_ = false;
};

TensorRank::~TensorRank() = default;

TensorRank::TensorRank(Backend &device, Communicator &communicator, const TensorProgram &tensor,
                       DeviceGathers *gathers)
    : device_(device),
      communicator_(communicator),
      tensor_(tensor),
      rank_(static_cast<size_t>(communicator.rank())),
      link_(std::make_unique<Link>(communicator)),
      gathers_(gathers),
      logits_(device, communicator, tensor.vocabulary) {
    device_.connect(*link_);
    for (const Program &program : tensor.programs) received_.push_back(received(program, received_.empty()));
}

// Calls f and keeps what it throws, unless another rank is the cause.
template <typename F>
auto TensorRank::on_device(F &&f) {
    try {
        return f();
    } catch (...) {
        if (!link_->has_failed() && !(gathers_ && gathers_->aborted())) error_ = std::current_exception();
        throw;
    }
}

// Calls f; if it throws, all ranks fail.
template <typename F>
auto TensorRank::or_fail_all(F &&f) {
    error_ = nullptr;
    try {
        return f();
    } catch (const std::exception &error) {
        // The other ranks must not wait for this one.
        if (gathers_) gathers_->abort();
        communicator_.abort(error.what());
        throw;
    }
}

bool TensorRank::execute(const Batch &batch, std::span<float> logits) {
    return or_fail_all([&] { return run(batch, logits); });
}

bool TensorRank::execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
                         std::span<ExpSum> sums) {
    return or_fail_all([&] { return select(batch, count, candidates, sums); });
}

int32_t TensorRank::most_candidates() const {
    return alone() ? device_.most_candidates() : logits_.most_candidates();
}

void TensorRank::read_logits(int32_t row, std::span<float> logits) {
    or_fail_all([&] {
        if (alone()) return device_.read_logits(row, logits);
        const std::vector<float> own = on_device([&] { return logits_.read_row(row); });
        logits_.give_rows(own, 1, logits);
    });
}

// The batch's rows of logits, if its part computes them.
size_t TensorRank::logit_rows(const Batch &batch) const {
    const bool last = static_cast<size_t>(batch.part) + 1 == tensor_.part_ends.size();
    return last && !tensor_.vocabulary.empty() ? batch.logit_rows.size() : 0;
}

bool TensorRank::run(const Batch &batch, std::span<float> logits) {
    const size_t rows = logit_rows(batch);
    const std::span<float> own = on_device([&] { return alone() ? logits : logits_.own_rows(rows); });
    if (!run_stages(batch, [&](const Batch &last) { return device_.execute(last, own); })) return false;
    if (rows > 0 && !alone()) logits_.give_rows(own, rows, logits);
    return true;
}

bool TensorRank::select(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
                        std::span<ExpSum> sums) {
    if (alone())
        return run_stages(batch,
                          [&](const Batch &last) { return device_.execute(last, count, candidates, sums); });
    const size_t rows = logit_rows(batch);
    const Batch own = on_device([&] { return logits_.begin(batch, rows, count); });
    if (!run_stages(own, [&](const Batch &last) { return logits_.execute(last); })) return false;
    if (rows > 0) logits_.give_candidates(candidates, sums);
    return true;
}

// execute_last(part) runs the last part of the rank's program.
template <typename Last>
bool TensorRank::run_stages(const Batch &batch, Last &&execute_last) {
    Batch own = batch;
    if (!alone()) own.cancel = nullptr;
    const size_t parts = tensor_.programs[rank_].parts.size();
    const auto part = static_cast<size_t>(batch.part);
    const size_t tokens = batch.tokens.size(), first = part == 0 ? 0 : tensor_.part_ends[part - 1];
    const auto cancelled = [&] { return !alone() && batch.cancel && *batch.cancel; };
    // What crosses the border of the whole program does so in rank 0's host memory.
    const auto cross = [&](const std::vector<Slot> &slots, auto copy) {
        if (!gathers_ || rank_ > 0) return;
        on_device([&] {
            for (const Slot slot : slots)
                if (width(slot) > 0) (gathers_->*copy)(slot, static_cast<int32_t>(tokens));
        });
    };
    cross(tensor_.outer_parts[part].in, &DeviceGathers::copy_in);
    for (size_t s = first; s < tensor_.part_ends[part]; ++s) {
        const TensorProgram::Stage &stage = tensor_.stages[s];
        if (gathers_ && (s - first) % kStagesAhead == 0 && !go_on(cancelled())) return false;
        for (const Gather &one : stage.gathers)
            if (gathers_)
                enqueue(one, tokens);
            else if (!gather(one, tokens, cancelled()))
                return false;
        own.part = stage.parts[rank_];
        if (own.part < 0) continue;
        const bool last = static_cast<size_t>(own.part) + 1 == parts;
        if (!on_device([&] { return last ? execute_last(own) : device_.execute(own, {}); })) return false;
    }
    cross(tensor_.outer_parts[part].out, &DeviceGathers::copy_out);
    if (gathers_) on_device([&] { gathers_->wait(); });
    return true;
}

// The same answer on all ranks: false if rank 0 says that the batch is cancelled. The device is then idle.
bool TensorRank::go_on(bool cancelled) {
    on_device([&] { gathers_->wait_for_earlier(); });
    CancelWord agreed = cancelled;
    communicator_.broadcast(std::as_writable_bytes(std::span(&agreed, 1)), 0);
    if (agreed != 0) on_device([&] { gathers_->wait(); });
    return agreed == 0;
}

void TensorRank::enqueue(const Gather &gather, size_t tokens) {
    std::vector<char> receivers;
    for (const std::set<Slot> &slots : received_) receivers.push_back(slots.contains(gather.to));
    on_device([&] { gathers_->gather(gather, static_cast<int32_t>(tokens), receivers); });
}

// Returns false if rank 0 says that the batch is cancelled.
bool TensorRank::gather(const Gather &gather, size_t tokens, bool cancelled) {
    std::vector<size_t> sizes;
    for (const Range &piece : gather.pieces)
        sizes.push_back(static_cast<size_t>(piece.size()) * tokens * sizeof(float));
    sizes.front() += sizeof(CancelWord);
    std::span<std::byte> all, mine;
    on_device([&] {
        const size_t size = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
        if (pieces_.size() < size) pieces_.resize(size);
        all = std::span(pieces_).first(size);
        const auto before = sizes.begin() + static_cast<std::ptrdiff_t>(rank_);
        mine = all.subspan(std::accumulate(sizes.begin(), before, size_t{0}), sizes[rank_]);
        const int64_t own = gather.pieces[rank_].size(), slice = own / gather.slices;
        if (own == 0) return;
        const SlotRows from = device_.exchange(gather.from);
        for (int64_t i = 0; i < gather.slices; ++i) {
            const int64_t at = (i * width(gather.from) + gather.first[rank_]) / gather.slices;
            copy_rows(from.data + at, from.stride, reinterpret_cast<float *>(mine.data()) + i * slice, own,
                      slice, tokens);
        }
    });
    CancelWord agreed = cancelled;  // as rank 0 says
    std::byte *const word = all.data() + sizes.front() - sizeof agreed;
    if (rank_ == 0) std::memcpy(word, &agreed, sizeof agreed);
    communicator_.all_gather(mine, sizes, all);
    std::memcpy(&agreed, word, sizeof agreed);
    if (agreed != 0) return false;
    if (!received_[rank_].contains(gather.to)) return true;
    on_device([&] {
        const SlotRows to = device_.exchange(gather.to);
        const std::byte *from = all.data();
        for (size_t r = 0; r < sizes.size(); from += sizes[r++]) {
            const Range piece = gather.pieces[r];
            const int64_t slice = piece.size() / gather.slices;
            for (int64_t i = 0; i < gather.slices; ++i) {
                const int64_t at = (i * width(gather.to) + piece.begin) / gather.slices;
                copy_rows(reinterpret_cast<const float *>(from) + i * slice, piece.size(), to.data + at,
                          to.stride, slice, tokens);
            }
        }
    });
    return true;
}

}  // namespace runnel::kernels
