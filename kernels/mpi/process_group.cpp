#include "kernels/process_group.h"

#include <optional>

#include "kernels/mpi/mpi_communicator.h"

namespace runnel::kernels {
namespace {

// The followers wait for the leader's next batch, which in a chat takes as long as the user. Processes that die end the
// job at once, whatever the deadline (mpirun).
constexpr std::chrono::hours kDeadline{24 * 365};

constexpr std::chrono::seconds kPatience{30};

struct Group {
    explicit Group(const OnSilence &on_silence)
        : communicator(session.communicator(kDeadline, on_silence, kPatience)) {}
    MpiSession session;
    std::unique_ptr<Communicator> communicator;
};
std::optional<Group> group;

}  // namespace

Communicator &process_group(const OnSilence &on_silence) {
    if (!group) group.emplace(on_silence);
    return *group->communicator;
}

void leave_process_group() noexcept {
    if (!group) return;
    group->communicator.reset();
    group.reset();
}

}  // namespace runnel::kernels
