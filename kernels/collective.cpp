#include "kernels/collective.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>

namespace runnel::kernels {
namespace {

bool alike(const Call &a, const Call &b) {
    return a.kind == b.kind && a.root == b.root && a.sizes == b.sizes;
}

// "all_gather of 12 + 0 + 4 bytes"
std::string text(const Call &call) {
    std::string sizes;
    for (const size_t size : call.sizes) sizes += (sizes.empty() ? "" : " + ") + std::to_string(size);
    switch (call.kind) {
        case Call::Kind::AllGather:
            return "all_gather of " + sizes + " bytes";
        case Call::Kind::Exchange:
            return "exchange";
        case Call::Kind::Broadcast:
            return "broadcast of " + sizes + " bytes from rank " + std::to_string(call.root);
        case Call::Kind::Barrier:
            return "barrier";
    }
    return "";
}

// Sizes of the messages to or from one rank, in order.
std::vector<size_t> sizes_with(const std::vector<Call::Message> &messages, int rank) {
    std::vector<size_t> sizes;
    for (const Call::Message &message : messages)
        if (message.rank == rank) sizes.push_back(message.bytes);
    return sizes;
}

// Empty if the messages that `from` sends to `to` are those that `to` expects.
std::string mismatch(std::span<const Call *const> calls, int from, int to) {
    const std::vector<size_t> sent = sizes_with(calls[static_cast<size_t>(from)]->sends, to);
    const std::vector<size_t> expected = sizes_with(calls[static_cast<size_t>(to)]->receives, from);
    const std::string sends = rank_name(from) + " sends ", ranks = rank_name(to) + ", which expects ";
    if (sent.size() != expected.size())
        return sends + std::to_string(sent.size()) + " messages to " + ranks +
               std::to_string(expected.size());
    for (size_t i = 0; i < sent.size(); ++i)
        if (sent[i] != expected[i])
            return sends + std::to_string(sent[i]) + " bytes to " + ranks + std::to_string(expected[i]);
    return "";
}

void append(std::vector<std::byte> &bytes, std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
}

// (memcpy and memmove do not take null pointers, which empty spans have.)
void copy(std::span<const std::byte> from, std::byte *to) {
    if (!from.empty() && from.data() != to) std::memmove(to, from.data(), from.size());
}

}  // namespace

void Call::reset(int size) {
    kind = Kind::Barrier;
    root = 0;
    sizes.clear();
    sends.clear();
    receives.clear();
    to_all.clear();
    to_rank.resize(static_cast<size_t>(size));
    for (auto &bytes : to_rank) bytes.clear();
}

std::string rank_name(int rank) {
    return "rank " + std::to_string(rank);
}

std::string disagreement(std::span<const Call *const> calls) {
    const auto number_alike = [&](size_t rank) {
        return std::ranges::count_if(calls, [&](const Call *call) { return alike(*call, *calls[rank]); });
    };
    size_t usual = 0;
    for (size_t rank = 1; rank < calls.size(); ++rank)
        if (number_alike(rank) > number_alike(usual)) usual = rank;
    for (size_t rank = 0; rank < calls.size(); ++rank)
        if (!alike(*calls[rank], *calls[usual]))
            return rank_name(static_cast<int>(rank)) + " called " + text(*calls[rank]) + ", but " +
                   rank_name(static_cast<int>(usual)) + " called " + text(*calls[usual]);
    if (calls[0]->kind != Call::Kind::Exchange) return "";
    const int size = static_cast<int>(calls.size());
    for (int from = 0; from < size; ++from)
        for (int to = 0; to < size; ++to)
            if (std::string differs = mismatch(calls, from, to); !differs.empty()) return differs;
    return "";
}

void MeetingCommunicator::all_gather(std::span<const std::byte> mine, std::span<const size_t> sizes,
                                     std::span<std::byte> all) {
    if (sizes.size() != static_cast<size_t>(size()))
        refuse("all_gather: " + std::to_string(sizes.size()) + " sizes for " + std::to_string(size()) +
               " ranks");
    const size_t own = sizes[static_cast<size_t>(rank())];
    const size_t total = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
    if (mine.size() != own || all.size() != total)
        refuse("all_gather: buffers of " + std::to_string(mine.size()) + " and " +
               std::to_string(all.size()) + " bytes, expected " + std::to_string(own) + " and " +
               std::to_string(total));
    Call &call = next_call();
    call.kind = Call::Kind::AllGather;
    call.sizes.assign(sizes.begin(), sizes.end());
    append(call.to_all, mine);
    const std::vector<const Call *> calls = meet();
    for (size_t r = 0, at = 0; r < calls.size(); at += sizes[r++])
        copy(static_cast<int>(r) == rank() ? mine : calls[r]->to_all, all.data() + at);
}

void MeetingCommunicator::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
    for (const Send &send : sends) check_rank("exchange", send.to);
    for (const Receive &receive : receives) check_rank("exchange", receive.from);
    Call &call = next_call();
    call.kind = Call::Kind::Exchange;
    for (const Send &send : sends) {
        call.sends.push_back({send.to, send.bytes.size()});
        append(call.to_rank[static_cast<size_t>(send.to)], send.bytes);
    }
    for (const Receive &receive : receives) call.receives.push_back({receive.from, receive.bytes.size()});
    const std::vector<const Call *> calls = meet();
    std::vector<size_t> taken(calls.size());  // of each rank's bytes for this one
    for (const Receive &receive : receives) {
        const auto from = static_cast<size_t>(receive.from);
        const std::span<const std::byte> bytes = calls[from]->to_rank[static_cast<size_t>(rank())];
        copy(bytes.subspan(taken[from], receive.bytes.size()), receive.bytes.data());
        taken[from] += receive.bytes.size();
    }
}

void MeetingCommunicator::broadcast(std::span<std::byte> bytes, int root) {
    check_rank("broadcast", root);
    Call &call = next_call();
    call.kind = Call::Kind::Broadcast;
    call.root = root;
    call.sizes.assign(1, bytes.size());
    if (rank() == root) append(call.to_all, bytes);
    const std::vector<const Call *> calls = meet();
    if (rank() != root) copy(calls[static_cast<size_t>(root)]->to_all, bytes.data());
}

void MeetingCommunicator::barrier() {
    next_call();
    meet();
}

void MeetingCommunicator::check_rank(const char *operation, int other) {
    if (other < 0 || other >= size())
        refuse(std::string(operation) + ": there is no rank " + std::to_string(other));
}

void MeetingCommunicator::refuse(const std::string &why) {
    abort(why);
    next_call();  // throws
    throw BackendError(BackendError::Kind::Failed, rank_name(rank()) + ": " + why);
}

}  // namespace runnel::kernels
