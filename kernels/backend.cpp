#include "kernels/backend.h"

namespace runnel::kernels {
namespace {

[[noreturn]] void not_offered(const char *what) {
    throw BackendError(BackendError::Kind::Failed, std::string("this device does not ") + what);
}

}  // namespace

bool Backend::execute(const Batch &, int32_t, std::span<TopLogit>, std::span<float>) {
    not_offered("select candidates");
}

void Backend::read_logits(int32_t, std::span<float>) {
    not_offered("return full rows of logits");
}

SlotRows Backend::exchange(Slot) {
    not_offered("exchange activations");
}

void Backend::copy_slot(Slot, const Backend &, int32_t) {
    not_offered("copy activations from another device");
}

void Backend::read_state(StateId, std::span<std::byte>) {
    not_offered("store recurrent states");
}

void Backend::write_state(StateId, std::span<const std::byte>) {
    not_offered("store recurrent states");
}

}  // namespace runnel::kernels
