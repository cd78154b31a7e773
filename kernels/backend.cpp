#include "kernels/backend.h"

namespace runnel::kernels {
namespace {

[[noreturn]] void not_offered(const char *what) {
    throw BackendError(BackendError::Kind::Failed, std::string("this device does not ") + what);
}

}  // namespace

bool Backend::execute(const Batch &, int32_t, std::span<TopLogit>, std::span<float>) {
    not_offered("select tokens");
}

void Backend::read_logits(int32_t, std::span<float>) {
    not_offered("keep logits");
}

SlotRows Backend::exchange(Slot) {
    not_offered("hand over activations");
}

void Backend::read_state(StateId, std::span<std::byte>) {
    not_offered("keep states");
}

void Backend::write_state(StateId, std::span<const std::byte>) {
    not_offered("keep states");
}

}  // namespace runnel::kernels
