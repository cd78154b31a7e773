#include "kernels/cuda/nccl/messages.h"

#include <cassert>

namespace runnel::kernels::cuda {
namespace {

size_t bytes_of(std::span<const Messages::Message> messages) {
    size_t bytes = 0;
    for (const auto &message : messages) bytes += message.bytes;
    return bytes;
}

void grow(PinnedMemory &memory, size_t bytes) {
    if (memory.size() < bytes) memory = PinnedMemory(bytes);
}

}  // namespace

void Messages::exchange(std::span<const Message> sends, std::span<const Message> receives) {
    if (gathers_.joined()) return gathers_.exchange(sends, receives);
    assert(ranks_ != nullptr);
    stream_.wait();  // the previous messages have left the host's memory
    grow(sent_, bytes_of(sends));
    grow(received_, bytes_of(receives));
    std::vector<Communicator::Send> out;
    std::byte *at = sent_.data();
    for (const Message &message : sends) {
        stream_.copy_to_host(at, message.data, message.bytes);
        out.push_back({message.rank, {at, message.bytes}});
        at += message.bytes;
    }
    stream_.wait();
    std::vector<Communicator::Receive> in;
    at = received_.data();
    for (const Message &message : receives) {
        in.push_back({message.rank, {at, message.bytes}});
        at += message.bytes;
    }
    ranks_->exchange(out, in);
    for (size_t i = 0; i < receives.size(); ++i)
        stream_.copy_to_device(receives[i].data, in[i].bytes.data(), receives[i].bytes);
}

}  // namespace runnel::kernels::cuda
