#include "kernels/cuda/nccl/gathers.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstddef>
#include <set>
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/cuda/runtime/switches.h"
#include "kernels/cuda/steps/elementwise.h"

namespace runnel::kernels::cuda {
namespace {

// What NCCL takes of each device: not measured.
constexpr size_t kNcclReserve = size_t{512} << 20;

// The floats that each rank sends in the test of the links, and how long that may take.
constexpr size_t kTestFloats = 1024;
constexpr std::chrono::seconds kTestTime{30};

[[noreturn]] void refuse(const std::string &why) {
    throw BackendError(BackendError::Kind::Failed, why);
}

// Every slot that is gathered is one that a part takes or gives.
size_t largest_gather(const Program &program, int32_t max_tokens) {
    int64_t widest = 0;
    for (const Program::Part &part : program.parts)
        for (const std::vector<Slot> *slots : {&part.in, &part.out})
            for (const Slot slot : *slots)
                widest = std::max(widest, program.slots[static_cast<size_t>(slot)].width);
    return static_cast<size_t>(widest * max_tokens);
}

}  // namespace

size_t NcclGathers::memory(const Program &program, int32_t max_tokens) {
    return kNcclReserve + largest_gather(program, max_tokens) * sizeof(float);
}

size_t gather_memory(const Program &program, int32_t max_tokens) {
    if (!switches().nccl) return 0;
    try {
        nccl::load(nccl::installed());
    } catch (const BackendError &) {
        return 0;
    }
    return NcclGathers::memory(program, max_tokens);
}

// --- connecting --------------------------------------------------------------------------------------------

std::string NcclGathers::join(std::span<DeviceGathers *const> ranks) {
    std::vector<NcclGathers *> all;
    std::vector<int> devices;
    for (DeviceGathers *const rank : ranks) {
        all.push_back(dynamic_cast<NcclGathers *>(rank));
        if (all.back() == nullptr) refuse("not all devices are NVIDIA GPUs");
        devices.push_back(all.back()->device_.number);
    }
    if (!device_.launcher.switches().nccl) refuse(std::string(kSwitchesVariable) + " disables NCCL");
    if (std::set(devices.begin(), devices.end()).size() < devices.size())
        refuse("NCCL needs a GPU for each rank");
    const auto group = std::make_shared<nccl::Group>(nccl::load(nccl::installed()), devices);
    try {
        for (size_t r = 0; r < all.size(); ++r) all[r]->connect(group, r);
        check_links(all);
    } catch (...) {
        for (size_t r = 0; r < all.size(); ++r) group->abort(r);
        for (NcclGathers *const rank : all) rank->leave();
        throw;
    }
    use_device(device_.number);
    return group->name();
}

void NcclGathers::connect(std::shared_ptr<nccl::Group> group, size_t rank) {
    leave();
    use_device(device_.number);
    const size_t floats =
        std::max(largest_gather(device_.program, device_.max_tokens), group->size() * kTestFloats);
    pieces_ = DeviceMemory(floats * sizeof(float), "gathers");
    earlier_.emplace();
    last_.emplace();
    group_ = std::move(group);
    rank_ = rank;
}

void NcclGathers::leave() noexcept {
    if (!joined()) return;
    if (group_->aborted()) group_->abort(rank_);  // otherwise the stream might not end
    try {
        use_device(device_.number);
        device_.stream.wait();
    } catch (const std::exception &) {  // the device is lost
    }
    group_.reset();
    pieces_ = {};
    earlier_.reset();
    last_.reset();
}

// All ranks send to all others: some machines have links that stall or deliver damaged bytes. It also sets up each
// connection and loads NCCL's kernels, which would otherwise happen within the first batch, where one rank's host
// would wait for another's.
void NcclGathers::check_links(std::span<NcclGathers *const> ranks) {
    const auto value = [](size_t rank) { return static_cast<int>(rank % 255 + 1); };
    std::vector<nccl::Group::Exchange> exchanges;
    for (NcclGathers *const one : ranks) {
        use_device(one->device_.number);
        one->device_.stream.fill(one->pieces_.data(), 0, ranks.size() * kTestFloats * sizeof(float));
        const auto piece = [&](size_t r) { return one->pieces_.as<float>() + r * kTestFloats; };
        one->device_.stream.fill(piece(one->rank_), value(one->rank_), kTestFloats * sizeof(float));
        nccl::Group::Exchange exchange{one->rank_, {}, {}, one->device_.stream.native()};
        for (size_t r = 0; r < ranks.size(); ++r) {
            if (r == one->rank_) continue;
            exchange.sends.push_back({r, piece(one->rank_), kTestFloats});
            exchange.receives.push_back({r, piece(r), kTestFloats});
        }
        exchanges.push_back(std::move(exchange));
    }
    ranks.front()->group_->exchange(exchanges);
    std::vector<PinnedMemory> received;
    for (NcclGathers *const one : ranks) {
        use_device(one->device_.number);
        received.emplace_back(ranks.size() * kTestFloats * sizeof(float));
        one->device_.stream.copy_to_host(received.back().data(), one->pieces_.data(), received.back().size());
        one->device_.stream.record(*one->last_);
    }
    const auto end = std::chrono::steady_clock::now() + kTestTime;
    for (bool done = false; !done;) {
        done = true;
        for (NcclGathers *const one : ranks) {
            use_device(one->device_.number);
            done = one->last_->wait(std::chrono::milliseconds(1)) && done;
        }
        if (!done && std::chrono::steady_clock::now() > end)
            refuse(ranks.front()->group_->name() + ": the GPUs do not reach each other within " +
                   std::to_string(kTestTime.count()) + " s");
    }
    for (const PinnedMemory &bytes : received)
        for (size_t i = 0; i < bytes.size(); ++i)
            if (bytes.data()[i] != static_cast<std::byte>(value(i / (kTestFloats * sizeof(float)))))
                refuse(ranks.front()->group_->name() + ": a copy between two GPUs arrived damaged");
}

// --- gathers -----------------------------------------------------------------------------------------------

void NcclGathers::gather(const Gather &gather, int32_t tokens, std::span<const char> receivers) {
    use_device(device_.number);
    const bool receives = receivers[rank_] != 0;
    nccl::Group::Exchange exchange{rank_, {}, {}, device_.stream.native()};
    float *own = pieces_.as<float>(), *next = own;
    for (size_t r = 0; r < receivers.size() && receives; ++r) {
        const auto count = static_cast<size_t>(gather.pieces[r].size() * tokens);
        if (r == rank_) own = next;
        if (r != rank_ && count > 0) exchange.receives.push_back({r, next, count});
        next += count;
    }
    const int64_t values = gather.pieces[rank_].size();
    assert((std::max(next, own + values * tokens) - pieces_.as<float>()) * sizeof(float) <= pieces_.size());
    for (size_t r = 0; r < receivers.size() && values > 0; ++r)
        if (r != rank_ && receivers[r] != 0)
            exchange.sends.push_back({r, own, static_cast<size_t>(values * tokens)});
    if (values > 0) pack(gather, tokens, own);
    if (!exchange.sends.empty() || !exchange.receives.empty()) group_->exchange({&exchange, 1});
    if (receives) unpack(gather, tokens);
}

void NcclGathers::exchange(std::span<const Message> sends, std::span<const Message> receives) {
    use_device(device_.number);
    nccl::Group::Exchange exchange{rank_, {}, {}, device_.stream.native()};
    const auto add = [](std::vector<nccl::Group::Message> &to, std::span<const Message> messages) {
        for (const Message &m : messages)
            if (m.bytes > 0)
                to.push_back({static_cast<size_t>(m.rank), reinterpret_cast<float *>(m.data),
                              m.bytes / sizeof(float)});
    };
    add(exchange.sends, sends);
    add(exchange.receives, receives);
    if (!exchange.sends.empty() || !exchange.receives.empty()) group_->exchange({&exchange, 1});
}

void NcclGathers::pack(const Gather &gather, int32_t tokens, float *piece) {
    const int64_t values = gather.pieces[rank_].size(), slice = values / gather.slices;
    CopyParams params{};
    params.copies = 1, params.tokens = tokens;
    params.copy[0] = {slot(gather.from) + gather.first[rank_] / gather.slices,
                      piece,
                      stride_of(width(gather.from)),
                      values,
                      width(gather.from) / gather.slices,
                      slice,
                      gather.slices,
                      static_cast<int32_t>(slice)};
    device_.launcher.run(copy_pieces_kernel(), copy_pieces_blocks(params), 0, params);
}

void NcclGathers::unpack(const Gather &gather, int32_t tokens) {
    CopyParams params{};
    params.tokens = tokens;
    const auto launch = [&] {
        if (params.copies == 0) return;
        device_.launcher.run(copy_pieces_kernel(), copy_pieces_blocks(params), 0, params);
        params.copies = 0;
    };
    const float *piece = pieces_.as<float>();
    for (const Range &range : gather.pieces) {
        if (range.size() == 0) continue;
        const int64_t slice = range.size() / gather.slices;
        params.copy[params.copies++] = {piece,         slot(gather.to) + range.begin / gather.slices,
                                        range.size(),  stride_of(width(gather.to)),
                                        slice,         width(gather.to) / gather.slices,
                                        gather.slices, static_cast<int32_t>(slice)};
        piece += range.size() * tokens;
        if (params.copies == kCopies) launch();
    }
    launch();
}

size_t NcclGathers::bytes(Slot slot, int32_t tokens) const {
    return static_cast<size_t>(stride_of(width(slot)) * tokens) * sizeof(float);
}

void NcclGathers::copy_in(Slot id, int32_t tokens) {
    use_device(device_.number);
    device_.stream.copy_to_device(slot(id), device_.exchanged.at(id).data(), bytes(id, tokens));
}

void NcclGathers::copy_out(Slot id, int32_t tokens) {
    use_device(device_.number);
    device_.stream.copy_to_host(device_.exchanged.at(id).data(), slot(id), bytes(id, tokens));
}

// --- waiting -----------------------------------------------------------------------------------------------

void NcclGathers::wait_for_earlier() {
    use_device(device_.number);
    group_->wait(rank_, *earlier_);
    device_.stream.record(*earlier_);
}

void NcclGathers::wait() {
    use_device(device_.number);
    device_.stream.record(*last_);
    group_->wait(rank_, *last_);
}

void NcclGathers::abort() noexcept {
    if (joined()) group_->abort(rank_);
}

}  // namespace runnel::kernels::cuda
