#include "kernels/backend.h"

#include <algorithm>

#include "kernels/steps.h"

namespace runnel::kernels {
namespace {

[[noreturn]] void not_offered(const char *what) {
    throw BackendError(BackendError::Kind::Failed, std::string("this device does not ") + what);
}

}  // namespace

bool Backend::execute(const Batch &, int32_t, std::span<TopLogit>, std::span<ExpSum>) {
    not_offered("select candidates");
}

void Backend::read_logits(int32_t, std::span<float>) {
    not_offered("return full rows of logits");
}

void Backend::connect(Communicator &) {}

CacheConfig share_of(const CacheConfig &cache, size_t rank) {
    CacheConfig own = cache;
    own.first.assign(cache.blocks.size(), 0);
    for (size_t group = 0; group < cache.shares.size(); ++group) {
        if (cache.shares[group] == 1) continue;
        own.blocks[group] /= cache.shares[group];
        own.first[group] = static_cast<BlockId>(rank) * own.blocks[group];
    }
    return own;
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

bool sees_both_ways(const Program &program) {
    return program.state_layers.empty() && std::ranges::all_of(program.steps, [](const Step &step) {
               if (std::holds_alternative<Indexer>(step)) return false;
               const auto *a = std::get_if<Attention>(&step);
               return a == nullptr || (a->window_kind == Attention::Window::Sliding && a->sink_cells == 0 &&
                                       a->slopes == kNoWeight && a->chosen == kNoSlot);
           });
}

bool sees_both_ways(const Program &program, const Batch &batch) {
    const auto both_ways = [](const SequenceSpan &s) { return s.both_ways; };
    const auto shares = [](const SequenceSpan &s) { return s.both_ways && s.shared > 0; };
    return std::ranges::none_of(batch.sequences, both_ways) ||
           (std::ranges::none_of(batch.sequences, shares) && sees_both_ways(program));
}

void Backend::write_state(StateId, std::span<const std::byte>) {
    not_offered("store recurrent states");
}

}  // namespace runnel::kernels
