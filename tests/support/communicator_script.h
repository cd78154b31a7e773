// A random sequence of operations of a communicator, checked against what each must give: the contract that every
// transport is held against.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/communicator.h"

namespace runnel::testing {

// All ranks draw the same sequence; the sleeps differ.
class CommunicatorScript {
  public:
    CommunicatorScript(kernels::Communicator &communicator, uint32_t seed)
        : communicator_(communicator), plan_(seed), sleeps_(seed * 31 + static_cast<uint32_t>(rank())) {}

    // False if received bytes are wrong.
    bool run(int operations) {
        for (int i = 0; i < operations; ++i) {
            if (sleeps_() % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(sleeps_() % 300));
            const bool right = one();
            if (!right) return false;
        }
        return true;
    }

  private:
    using Bytes = std::vector<std::byte>;

    // The bytes that a rank sends in an operation.
    static Bytes payload(uint32_t seed, int rank, size_t size) {
        Bytes bytes(size);
        uint32_t state = seed * 2654435761u + static_cast<uint32_t>(rank);
        for (std::byte &byte : bytes)
            byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
        return bytes;
    }

    static size_t random_size(std::mt19937 &random) {
        switch (random() % 4) {
            case 0:
                return 0;
            case 1:
                return 1 + random() % 8;
            case 2:
                return random() % 300;
            default:
                return random() % 20 == 0 ? random() % 20000 : 64;
        }
    }

    int rank() const { return communicator_.rank(); }
    int size() const { return communicator_.size(); }

    bool one() {
        const auto seed = static_cast<uint32_t>(plan_());
        switch (plan_() % 5) {
            case 0:
                return broadcast(seed);
            case 1:
                return exchange(seed);
            case 2:
                communicator_.barrier();
                return true;
            default:
                return all_gather(seed);
        }
    }

    bool all_gather(uint32_t seed) {
        std::vector<size_t> sizes(static_cast<size_t>(size()));
        for (size_t &bytes : sizes) bytes = random_size(plan_);
        const bool in_place = plan_() % 2 == 0;
        Bytes expected, mine = payload(seed, rank(), sizes[static_cast<size_t>(rank())]);
        size_t own_place = 0;
        for (int r = 0; r < size(); ++r) {
            if (r == rank()) own_place = expected.size();
            const Bytes piece = payload(seed, r, sizes[static_cast<size_t>(r)]);
            expected.insert(expected.end(), piece.begin(), piece.end());
        }
        Bytes all(expected.size());
        const std::span place = std::span(all).subspan(own_place, mine.size());
        std::ranges::copy(mine, place.begin());
        communicator_.all_gather(in_place ? place : std::span(mine), sizes, all);
        return all == expected;
    }

    bool broadcast(uint32_t seed) {
        const int root = static_cast<int>(plan_() % static_cast<uint32_t>(size()));
        const Bytes expected = payload(seed, root, random_size(plan_));
        Bytes bytes = rank() == root ? expected : Bytes(expected.size());
        communicator_.broadcast(bytes, root);
        return bytes == expected;
    }

    // Any number of messages from any rank to any other, or to itself. Each rank lists what it receives in an order of
    // its own; only messages from the same rank keep theirs.
    bool exchange(uint32_t seed) {
        struct Message {
            int from, to;
            Bytes bytes;
        };
        std::vector<Message> messages;
        for (uint32_t i = 0, count = static_cast<uint32_t>(plan_() % 9); i < count; ++i) {
            const int from = static_cast<int>(plan_() % static_cast<uint32_t>(size()));
            const int to = static_cast<int>(plan_() % static_cast<uint32_t>(size()));
            messages.push_back({from, to, payload(seed + i, from, random_size(plan_))});
        }
        const auto rotation = static_cast<int>(sleeps_() % static_cast<uint32_t>(size()));
        std::vector<kernels::Communicator::Send> sends;
        for (const Message &message : messages)
            if (message.from == rank()) sends.push_back({message.to, message.bytes});
        std::vector<std::pair<const Message *, Bytes>> received;
        for (int i = 0; i < size(); ++i)
            for (const Message &message : messages)
                if (message.to == rank() && message.from == (i + rotation) % size())
                    received.emplace_back(&message, Bytes(message.bytes.size()));
        std::vector<kernels::Communicator::Receive> receives;
        for (auto &[message, bytes] : received) receives.push_back({message->from, bytes});
        communicator_.exchange(sends, receives);
        for (const auto &[message, bytes] : received)
            if (message->bytes != bytes) return false;
        return true;
    }

    kernels::Communicator &communicator_;
    std::mt19937 plan_, sleeps_;
};

}  // namespace runnel::testing
