// Communicators that count the bytes that all ranks together receive from others.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/communicator.h"
#include "kernels/tensor_backend.h"

namespace runnel::tests {

class CountingCommunicator final : public kernels::Communicator {
  public:
    CountingCommunicator(std::unique_ptr<kernels::Communicator> of, std::atomic<size_t> &bytes,
                         std::chrono::milliseconds delay)
        : of_(std::move(of)), bytes_(bytes), delay_(delay) {}
    int rank() const override { return of_->rank(); }
    int size() const override { return of_->size(); }
    void all_gather(std::span<const std::byte> mine, std::span<const size_t> sizes,
                    std::span<std::byte> all) override {
        of_->all_gather(mine, sizes, all);
        bytes_ += all.size() - mine.size();
    }
    void exchange(std::span<const Send> sends, std::span<const Receive> receives) override {
        std::this_thread::sleep_for(delay_);
        of_->exchange(sends, receives);
        for (const Receive &receive : receives) bytes_ += receive.bytes.size();
    }
    void broadcast(std::span<std::byte> bytes, int root) override { of_->broadcast(bytes, root); }
    void barrier() override { of_->barrier(); }
    void abort(const std::string &why) noexcept override { of_->abort(why); }

  private:
    std::unique_ptr<kernels::Communicator> of_;
    std::atomic<size_t> &bytes_;
    const std::chrono::milliseconds delay_;
};

// For make_tensor_backend(). delay: how long every exchange of messages takes at least, as in a slow network.
inline std::vector<std::unique_ptr<kernels::Communicator>> counting_communicators(
    int size, std::atomic<size_t> &bytes, std::chrono::milliseconds delay = {}) {
    auto all = kernels::communicate_in_process(size);
    for (auto &one : all) one = std::make_unique<CountingCommunicator>(std::move(one), bytes, delay);
    return all;
}

}  // namespace runnel::tests
