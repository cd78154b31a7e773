#include "kernels/tensor_backend.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/block_pieces.h"
#include "kernels/device_gathers.h"
#include "kernels/partition.h"
#include "kernels/rank_threads.h"
#include "kernels/row_selection.h"
#include "kernels/tensor_program.h"
#include "kernels/tensor_rank.h"

namespace runnel::kernels {
namespace {

// Adds up what the devices report while they load.
struct Progress {
    Progress(LoadProgress callback, size_t ranks) : report(std::move(callback)), done(ranks), all(ranks) {}

    bool of(size_t rank, size_t now, size_t whole) {
        const std::lock_guard lock(mutex);
        done[rank] = now, all[rank] = whole;
        return report(std::accumulate(done.begin(), done.end(), size_t{0}),
                      std::accumulate(all.begin(), all.end(), size_t{0}));
    }

    std::mutex mutex;
    const LoadProgress report;
    std::vector<size_t> done, all;  // bytes, by rank
};

class TensorBackend final : public Backend {
  public:
    TensorBackend(std::vector<std::unique_ptr<Backend>> devices, std::vector<double> shares,
                  std::vector<std::string> names, MakeCommunicators communicators, MatrixCut matrices)
        : devices_(std::move(devices)),
          shares_(std::move(shares)),
          names_(std::move(names)),
          make_communicators_(std::move(communicators)),
          matrices_(matrices),
          threads_(devices_.size()) {
        assert(shares_.size() == devices_.size());
        assert(names_.empty() || names_.size() == devices_.size());
    }
    ~TensorBackend() override { part_devices(); }

    DeviceInfo info() const override {
        DeviceInfo all = joined_info(devices_);
        all.kind += pieces_.layout();
        return all;
    }

    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override {
        part_devices();
        tensor_ = cut_program(program, shares_, cache.shares, matrices_);
        pieces_ = BlockPieces(tensor_, cache);
        on_all([&](size_t r) { devices_[r]->load(tensor_.programs[r], share_of(cache, r), max_tokens); });
        connect_ranks();
    }
    std::string gather_note() const override { return gather_note_; }
    void on_load(LoadProgress progress) override {
        if (!progress) {
            for (const auto &device : devices_) device->on_load({});
            return;
        }
        const auto sum = std::make_shared<Progress>(std::move(progress), devices_.size());
        for (size_t r = 0; r < devices_.size(); ++r)
            devices_[r]->on_load([sum, r](size_t done, size_t all) { return sum->of(r, done, all); });
    }
    int64_t launches() const override {
        int64_t all = 0;
        for (const auto &device : devices_) all += device->launches();
        return all;
    }

    bool execute(const Batch &batch, std::span<float> logits) override {
        return on_ranks(
            batch, [&](size_t r) { return ranks_[r]->execute(batch, r == 0 ? logits : std::span<float>()); });
    }
    int32_t most_candidates() const override { return most_candidates_; }
    bool execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
                 std::span<ExpSum> sums) override {
        return on_ranks(batch, [&](size_t r) {
            if (r == 0) return ranks_[r]->execute(batch, count, candidates, sums);
            return ranks_[r]->execute(batch, count, {}, {});
        });
    }
    void read_logits(int32_t row, std::span<float> logits) override {
        on_ranks([&](size_t r) { ranks_[r]->read_logits(row, r == 0 ? logits : std::span<float>()); });
    }

    SlotRows exchange(Slot slot) override { return devices_.front()->exchange(slot); }

    void copy_blocks(int32_t group, std::span<const BlockCopy> copies) override {
        on_all([&](size_t r) {
            if (pieces_.holds_any(r, group, copies)) devices_[r]->copy_blocks(group, copies);
        });
    }
    void read_block(int32_t group, BlockId block, std::span<std::byte> bytes) override {
        std::vector<Bytes> own = pieces_.room(group, block);
        on_all([&](size_t r) {
            if (!own[r].empty()) devices_[r]->read_block(group, block, own[r]);
        });
        pieces_.join(group, block, own, bytes);
    }
    void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) override {
        std::vector<Bytes> own = pieces_.room(group, block);
        pieces_.cut(group, block, bytes, own);
        on_all([&](size_t r) {
            if (!own[r].empty()) devices_[r]->write_block(group, block, own[r]);
        });
    }

    void read_state(StateId slot, std::span<std::byte> bytes) override {
        devices_.front()->read_state(slot, bytes);
    }
    void write_state(StateId slot, std::span<const std::byte> bytes) override {
        on_all([&](size_t r) { devices_[r]->write_state(slot, bytes); });
    }

  private:
    using Bytes = BlockPieces::Bytes;
    using Errors = std::vector<std::exception_ptr>;

    // Calls f(rank) on the threads of all ranks and returns what each throws.
    template <typename F>
    Errors run_all(F &&f) {
        Errors errors(devices_.size());
        threads_.run([&](size_t r) {
            try {
                f(r);
            } catch (...) {
                errors[r] = std::current_exception();
            }
        });
        return errors;
    }
    template <typename F>
    void on_all(F &&f) {
        throw_first(run_all(f));
    }

    // Calls f(rank) on the threads of all ranks, which are connected anew after an error.
    template <typename F>
    void on_ranks(F &&f) {
        const Errors errors = run_all(f);
        if (std::ranges::all_of(errors, [](const auto &error) { return error == nullptr; })) return;
        // The others only report that a rank failed; its own error says why.
        Errors own;
        for (const auto &rank : ranks_) own.push_back(rank->error());
        part_devices();  // the next batch connects them again, which may take seconds
        throw_first(own);
        for (const auto &error : errors)
            if (error) std::rethrow_exception(error);
    }
    // Runs a batch: execute(rank) returns false if it was cancelled.
    template <typename F>
    bool on_ranks(const Batch &batch, F &&execute) {
        if (batch.cancel != nullptr && *batch.cancel) return false;
        if (ranks_.empty()) connect_ranks();
        std::vector<char> done(devices_.size());
        on_ranks([&](size_t r) { done[r] = execute(r); });
        return std::ranges::all_of(done, [](char one) { return one != 0; });
    }

    // Throws the error of the lowest rank that has one, with the name of its device.
    void throw_first(const Errors &errors) const {
        for (size_t r = 0; r < errors.size(); ++r) {
            if (!errors[r]) continue;
            try {
                std::rethrow_exception(errors[r]);
            } catch (const BackendError &error) {
                if (names_.empty()) throw;
                throw BackendError(error.kind, names_[r] + ": " + error.what());
            }
        }
    }

    void part_devices() noexcept {
        ranks_.clear();
        for (const auto &device : devices_)
            if (DeviceGathers *const gathers = device->gathers()) gathers->leave();
    }

    // Lets the devices gather among themselves if they can. Returns whether they do.
    bool join_devices() {
        gather_note_.clear();
        std::vector<DeviceGathers *> all;
        for (const auto &device : devices_) all.push_back(device->gathers());
        if (all.size() == 1 || std::ranges::count(all, nullptr) > 0) return false;
        try {
            gather_note_ = "gathers by " + all.front()->join(all);
            return true;
        } catch (const BackendError &why) {
            gather_note_ = "gathers through host memory (" + std::string(why.what()) + ")";
            return false;
        }
    }

    // Gives the ranks new communicators.
    void connect_ranks() {
        part_devices();
        const bool joined = join_devices();
        communicators_ = make_communicators_(static_cast<int>(devices_.size()));
        for (size_t r = 0; r < devices_.size(); ++r)
            ranks_.push_back(std::make_unique<TensorRank>(*devices_[r], *communicators_[r], tensor_,
                                                          joined ? devices_[r]->gathers() : nullptr));
        most_candidates_ = kMostSelected;
        for (const auto &rank : ranks_)
            most_candidates_ = std::min(most_candidates_, rank->most_candidates());
    }

    std::vector<std::unique_ptr<Backend>> devices_;
    const std::vector<double> shares_;
    const std::vector<std::string> names_;  // by device, or empty
    const MakeCommunicators make_communicators_;
    const MatrixCut matrices_;
    TensorProgram tensor_;
    BlockPieces pieces_;
    std::string gather_note_;
    int32_t most_candidates_ = 0;
    std::vector<std::unique_ptr<Communicator>> communicators_;
    std::vector<std::unique_ptr<TensorRank>> ranks_;
    RankThreads threads_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> communicate_in_process(int size) {
    // A rank that fails says so. The others may wait as long as a part of a large batch takes.
    return make_local_communicators(size, std::chrono::hours(24));
}

std::unique_ptr<Backend> make_tensor_backend(std::vector<std::unique_ptr<Backend>> devices,
                                             std::vector<double> shares, std::vector<std::string> names,
                                             MakeCommunicators communicators, MatrixCut matrices) {
    return std::make_unique<TensorBackend>(std::move(devices), std::move(shares), std::move(names),
                                           std::move(communicators), matrices);
}

}  // namespace runnel::kernels
