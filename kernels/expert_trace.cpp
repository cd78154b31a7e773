#include "kernels/expert_trace.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "kernels/cpu/route.h"
#include "kernels/cpu/vector.h"
#include "kernels/forwarding_backend.h"
#include "kernels/steps.h"

namespace runnel::kernels {
namespace {

// A program's mixture, and what its choice depends on besides the router's logits.
struct Mixture {
    Experts step;
    std::vector<float> selection_bias;  // or empty
};

class TracingBackend final : public ForwardingBackend {
  public:
    TracingBackend(std::unique_ptr<Backend> backend, std::shared_ptr<ExpertTrace> trace)
        : ForwardingBackend(std::move(backend)), trace_(std::move(trace)) {}

    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override {
        assert(program.parts.empty());
        Program parts = program;
        trace_->mixtures.clear();
        mixtures_.clear();
        for (size_t i = 0; i < program.steps.size(); ++i)
            if (const auto *step = std::get_if<Experts>(&program.steps[i])) {
                add(program, *step);
                std::vector<Slot> out = {step->logits};
                if (step->chosen != kNoSlot) out.push_back(step->chosen);
                parts.parts.push_back({i, {}, std::move(out)});
            }
        parts.parts.push_back({program.steps.size(), {}, {}});
        ForwardingBackend::load(parts, cache, max_tokens);
    }

    bool execute(const Batch &batch, std::span<float> logits) override {
        return compute(batch) && ForwardingBackend::execute(last_part(batch), logits);
    }
    bool execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
                 std::span<ExpSum> sums) override {
        return compute(batch) && ForwardingBackend::execute(last_part(batch), count, candidates, sums);
    }

  private:
    Batch last_part(Batch batch) const {
        batch.part = static_cast<int32_t>(mixtures_.size());
        return batch;
    }

    void add(const Program &program, const Experts &step) {
        size_t bytes = 0;
        for (const WeightId id :
             {step.gate, step.up, step.down, step.gate_bias, step.up_bias, step.down_bias})
            if (id != kNoWeight) bytes += program.weights[static_cast<size_t>(id)].matrix_bytes();
        const auto experts = static_cast<int32_t>(expert_count(program, step));
        trace_->mixtures.push_back({step.layer, experts, step.routing.used, bytes, {}});
        Mixture &mixture = mixtures_.emplace_back(Mixture{step, {}});
        if (const WeightId id = step.routing.selection_bias; id != kNoWeight) {
            const Weight &bias = program.weights[static_cast<size_t>(id)];
            mixture.selection_bias.resize(static_cast<size_t>(experts));
            std::memcpy(mixture.selection_bias.data(), bias.data, bias.bytes());
        }
        scratch_.resize(std::max(scratch_.size(), cpu::route_scratch(experts)));
    }

    // Computes all parts but the last, and notes the choice at the end of each.
    bool compute(Batch batch) {
        for (size_t i = 0; i < mixtures_.size(); ++i) {
            batch.part = static_cast<int32_t>(i);
            if (!ForwardingBackend::execute(batch, {})) return false;
            note(i, batch.tokens.size());
        }
        return true;
    }

    void note(size_t index, size_t tokens) {
        const Mixture &mixture = mixtures_[index];
        TracedMixture &traced = trace_->mixtures[index];
        const auto used = static_cast<size_t>(traced.used);
        const SlotRows logits = exchange(mixture.step.logits);
        const bool is_given = mixture.step.chosen != kNoSlot;
        const SlotRows given = is_given ? exchange(mixture.step.chosen) : SlotRows{};
        const size_t first = traced.chosen.size();
        traced.chosen.resize(first + tokens * used);
        weights_.resize(used);
        for (size_t t = 0; t < tokens; ++t) {
            const auto row = static_cast<int64_t>(t);
            cpu::route(mixture.step.routing,
                       {logits.data + row * logits.stride, static_cast<size_t>(traced.experts)},
                       mixture.selection_bias.empty() ? nullptr : mixture.selection_bias.data(),
                       cpu::vector_scalar(), scratch_.data(), traced.chosen.data() + first + t * used,
                       weights_.data(), is_given ? given.data + row * given.stride : nullptr);
        }
    }

    std::shared_ptr<ExpertTrace> trace_;
    std::vector<Mixture> mixtures_;
    std::vector<float> scratch_, weights_;
};

}  // namespace

size_t ExpertTrace::tokens() const {
    return mixtures.empty() ? 0 : mixtures.front().chosen.size() / static_cast<size_t>(mixtures.front().used);
}

int32_t ExpertTrace::most_experts() const {
    return mixtures.empty() ? 0 : std::ranges::max(mixtures, {}, &TracedMixture::experts).experts;
}

int32_t ExpertTrace::most_used() const {
    return mixtures.empty() ? 0 : std::ranges::max(mixtures, {}, &TracedMixture::used).used;
}

size_t ExpertTrace::all_bytes() const {
    size_t bytes = 0;
    for (const TracedMixture &mixture : mixtures)
        bytes += mixture.expert_bytes * static_cast<size_t>(mixture.experts);
    return bytes;
}

std::unique_ptr<Backend> trace_experts(std::unique_ptr<Backend> backend, std::shared_ptr<ExpertTrace> trace) {
    return std::make_unique<TracingBackend>(std::move(backend), std::move(trace));
}

}  // namespace runnel::kernels
