#include "kernels/tensor_backend.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/partition.h"
#include "kernels/rank_threads.h"
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
                  std::vector<std::string> names, MakeCommunicators communicators)
        : devices_(std::move(devices)),
          shares_(std::move(shares)),
          names_(std::move(names)),
          make_communicators_(std::move(communicators)),
          threads_(devices_.size()) {
        assert(shares_.size() == devices_.size());
        assert(names_.empty() || names_.size() == devices_.size());
    }

    DeviceInfo info() const override {
        DeviceInfo all = joined_info(devices_);
        all.kind += " [" + heads_text() + "]";
        return all;
    }

    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override {
        ranks_.clear();
        tensor_ = cut_program(program, shares_, cache.shares);
        cache_ = cache;
        groups_.clear();
        for (const CacheLayer &layer : program.cache_layers) groups_.push_back(layer.group);
        on_all([&](size_t r) { devices_[r]->load(tensor_.programs[r], share_of(cache, r), max_tokens); });
        connect_ranks();
    }
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
        if (batch.cancel != nullptr && *batch.cancel) return false;
        std::vector<char> done(devices_.size());
        std::vector<std::exception_ptr> errors = run_all(
            [&](size_t r) { done[r] = ranks_[r]->execute(batch, r == 0 ? logits : std::span<float>()); });
        if (std::ranges::any_of(errors, [](const auto &error) { return error != nullptr; })) {
            // The others only report that a rank failed; its own error says why.
            std::vector<std::exception_ptr> own;
            for (const auto &rank : ranks_) own.push_back(rank->error());
            connect_ranks();
            throw_first(own);
            for (const auto &error : errors)
                if (error) std::rethrow_exception(error);
        }
        return std::ranges::all_of(done, [](char one) { return one != 0; });
    }

    SlotRows exchange(Slot slot) override { return devices_.front()->exchange(slot); }

    void copy_blocks(int32_t group, std::span<const BlockCopy> copies) override {
        on_all([&](size_t r) {
            if (block_bytes(r, group) > 0) devices_[r]->copy_blocks(group, copies);
        });
    }
    void read_block(int32_t group, BlockId block, std::span<std::byte> bytes) override {
        if (Backend *holder = only_holder(group, block)) return holder->read_block(group, block, bytes);
        std::vector<Bytes> own = blocks(group);
        on_all([&](size_t r) {
            if (!own[r].empty()) devices_[r]->read_block(group, block, own[r]);
        });
        visit_pieces(group, [&](size_t r, size_t at, size_t whole, size_t size, bool first) {
            if (first)
                std::copy_n(own[r].begin() + static_cast<std::ptrdiff_t>(at), size, bytes.data() + whole);
        });
    }
    void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) override {
        if (Backend *holder = only_holder(group, block)) return holder->write_block(group, block, bytes);
        std::vector<Bytes> own = blocks(group);
        visit_pieces(group, [&](size_t r, size_t at, size_t whole, size_t size, bool) {
            std::copy_n(bytes.data() + whole, size, own[r].begin() + static_cast<std::ptrdiff_t>(at));
        });
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
    using Bytes = std::vector<std::byte>;
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

    // Gives the ranks new communicators.
    void connect_ranks() {
        ranks_.clear();
        communicators_ = make_communicators_(static_cast<int>(devices_.size()));
        for (size_t r = 0; r < devices_.size(); ++r)
            ranks_.push_back(std::make_unique<TensorRank>(*devices_[r], *communicators_[r], tensor_));
    }

    // The K/V heads of each device, "4+4 2+2": once for neighboring layers with the same.
    std::string heads_text() const {
        std::string text, last;
        for (const Cut &cut : tensor_.kv_heads) {
            std::string layer;
            for (const Range &range : cut) layer += (layer.empty() ? "" : "+") + std::to_string(range.size());
            if (layer != last) text += (text.empty() ? "" : " ") + layer;
            last = layer;
        }
        return text;
    }

    // The device that holds a block of a divided group; null: all do.
    Backend *only_holder(int32_t group, BlockId block) const {
        const auto g = static_cast<size_t>(group);
        if (cache_.shares.empty() || cache_.shares[g] == 1) return nullptr;
        return devices_[static_cast<size_t>(block / (cache_.blocks[g] / cache_.shares[g]))].get();
    }
    size_t block_bytes(size_t rank, int32_t group) const {
        return cache_block_bytes(tensor_.programs[rank], group, cache_.k, cache_.v);
    }
    // Room for each rank's bytes of a block.
    std::vector<Bytes> blocks(int32_t group) const {
        std::vector<Bytes> own;
        for (size_t r = 0; r < devices_.size(); ++r) own.emplace_back(block_bytes(r, group));
        return own;
    }
    // Calls f(rank, offset in its block, offset in the whole block, size, whether no lower rank has the same heads) for the
    // ranks of each layer.
    template <typename F>
    void visit_pieces(int32_t group, F &&f) const {
        std::vector<size_t> at(devices_.size());
        size_t whole = 0;
        for (size_t layer = 0; layer < groups_.size(); ++layer) {
            if (groups_[layer] != group) continue;
            const CacheLayer &shape = tensor_.programs.front().cache_layers[layer];
            const size_t head =
                size_t{kBlockTokens} * (cache_row_bytes(key_type(shape, cache_.k), shape.head_dim_k) +
                                        cache_row_bytes(cache_.v, shape.head_dim_v));
            const Cut &cut = tensor_.kv_heads[layer];
            const Cut firsts = without_copies(cut);
            size_t before = whole;  // where the heads of the previous rank begin
            for (size_t r = 0; r < devices_.size(); ++r) {
                if (cut[r].size() == 0) continue;
                const bool first = firsts[r].size() > 0;
                const size_t size = head * static_cast<size_t>(cut[r].size());
                if (first) before = whole, whole += size;
                f(r, at[r], before, size, first);
                at[r] += size;
            }
        }
    }

    std::vector<std::unique_ptr<Backend>> devices_;
    const std::vector<double> shares_;
    const std::vector<std::string> names_;  // by device, or empty
    const MakeCommunicators make_communicators_;
    TensorProgram tensor_;
    CacheConfig cache_;
    std::vector<int32_t> groups_;  // by cache layer
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
                                             MakeCommunicators communicators) {
    return std::make_unique<TensorBackend>(std::move(devices), std::move(shares), std::move(names),
                                           std::move(communicators));
}

}  // namespace runnel::kernels
