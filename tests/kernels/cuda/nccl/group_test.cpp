#include "kernels/cuda/nccl/group.h"

#include <doctest/doctest.h>

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tests/simt/nccl.h"
#include "tests/simt/simt.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::kernels::cuda;

namespace {

constexpr size_t kFloats = 1000;  // of a message

// A rank of a group, with the memory of what it sends and of what it receives, by rank.
struct GroupRank {
    GroupRank(int number, size_t ranks) : device(number) {
        use_device(device);
        stream.emplace();
        event.emplace();
        out = DeviceMemory(kFloats * sizeof(float), "sent");
        in = DeviceMemory(ranks * kFloats * sizeof(float), "received");
    }
    // Enqueues the value to send.
    void fill(int byte) {
        use_device(device);
        stream->fill(out.data(), byte, out.size());
    }
    int device;
    DeviceMemory out, in;
    std::optional<Event> event;
    std::optional<Stream> stream;
};

}  // namespace

// On a machine with GPUs (scripts/gpu-check) this is NCCL itself, with as many of them as there are.
TEST_CASE(
    "nccl group: every rank gets every rank's messages, in the order of the streams; aborted ones end") {
    const simt::WithNccl emulated;
    simt::settings().devices = 2;
    std::vector<int> devices(find_devices().found.size());
    std::iota(devices.begin(), devices.end(), 0);
    std::optional<nccl::Library> library;
    try {
        library = nccl::load(nccl::installed());
    } catch (const kernels::BackendError &absent) {
        testing::skip(absent.what());
        return;
    }
    for (const bool ends_early : {false, true}) {
        nccl::Group group(*library, devices);
        std::vector<GroupRank> ranks;
        for (const int device : devices) ranks.emplace_back(device, devices.size());
        for (const int round : {0, 1}) {
            std::vector<nccl::Group::Exchange> exchanges;
            for (size_t r = 0; r < ranks.size(); ++r) {
                ranks[r].fill(static_cast<int>(2 * r) + round + 1);
                exchanges.push_back({r, {}, {}, ranks[r].stream->native()});
                for (size_t other = 0; other < ranks.size(); ++other) {
                    exchanges[r].sends.push_back({other, ranks[r].out.as<float>(), kFloats});
                    exchanges[r].receives.push_back(
                        {other, ranks[r].in.as<float>() + other * kFloats, kFloats});
                }
            }
            // Rank 0 alone, which then waits for the others if there are any.
            if (ends_early && round == 1) exchanges.resize(1);
            group.exchange(exchanges);
        }
        if (ends_early) {
            for (size_t r = 0; r < ranks.size(); ++r) group.abort(r);
            for (GroupRank &rank : ranks) {
                use_device(rank.device);
                rank.stream->wait();  // does return
                rank.stream->record(*rank.event);
                CHECK_THROWS_AS(group.wait(0, *rank.event), kernels::BackendError);
            }
            continue;
        }
        for (size_t r = 0; r < ranks.size(); ++r) {
            PinnedMemory got(ranks[r].in.size());
            use_device(ranks[r].device);
            ranks[r].stream->copy_to_host(got.data(), ranks[r].in.data(), got.size());
            ranks[r].stream->record(*ranks[r].event);
            group.wait(r, *ranks[r].event);
            for (size_t i = 0; i < got.size(); ++i)
                REQUIRE(got.data()[i] == static_cast<std::byte>(2 * (i / (kFloats * sizeof(float))) + 2));
        }
    }
    use_device(0);
    simt::settings() = {};
}
