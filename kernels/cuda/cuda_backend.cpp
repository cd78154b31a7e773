#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <vector>

#include "kernels/cuda/gpu_program.h"
#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/steps/embed.h"
#include "kernels/cuda/steps/normalize.h"
#include "kernels/cuda/steps/rotate.h"
#include "kernels/cuda/steps/streams.h"
#include "kernels/steps.h"

namespace runnel::kernels::cuda {
namespace {

constexpr int kOldest = 75;  // sm_75: ldmatrix and mma of 8 columns (the Makefile has the same minimum)

bool cancelled(const Batch &batch) {
    return batch.cancel != nullptr && batch.cancel->load(std::memory_order_relaxed);
}

constexpr size_t kMostGraphs = 64;  // graphs kept

// Makes `device` current, because streams and memory belong to the device that is current when they are made.
DeviceProperties use(int device) {
    DeviceProperties found = properties(device);
    if (10 * found.major + found.minor < kOldest)
        throw BackendError(BackendError::Kind::NoKernel,
                           found.name + " has compute capability " + std::to_string(found.major) + "." +
                               std::to_string(found.minor) +
                               ", and the kernels need 7.5 (Turing, 2018) or later: use --device cpu");
    use_device(device);
    return found;
}

}  // namespace

CudaBackend::CudaBackend(int device) : device_(device), properties_(use(device)) {}

// --- load --------------------------------------------------------------------------------------------------

void CudaBackend::load(const Program &program, const CacheConfig &cache, int32_t max_tokens) {
    use_device(device_);
    program_ = program;
    parts_ = program.whole_parts();
    plan_ = plan(program_);
    max_tokens_ = max_tokens;
    graphs_.clear();
    expect_memory(memory_need(program_, plan_, cache, max_tokens), free_memory(device_));
    prepare_kernels(cache);
    experts_ = ExpertRunner(stream_, properties_, program_, plan_, max_tokens);
    heads_ = HeadRunner(program_, plan_, max_tokens);
    logits_ = plan_.logits ? LogitsRunner(program_, *plan_.logits, max_tokens, properties_) : LogitsRunner();
    weights_ = DeviceWeights(program_, plan_, progress_);
    cache_ = KvMemory(program_, cache);
    scans_ = ScanRunner(program_, cache, max_tokens);
    allocate();
    attention_ = AttentionRunner(stream_, program_, cache, max_tokens);
    divided_ = DividedAttention(program_, cache, max_tokens);
    // Divided attention sends whole pages, also where no cell was written yet.
    if (divided_.attends()) cache_.clear(stream_);
    indexer_ = IndexerRunner(program_, cache);
    input_ = BatchInput(program_, cache, max_tokens);
    stream_.wait();
}

void CudaBackend::allocate() {
    activations_ = DeviceMemory(std::max<size_t>(slot_bytes(program_, max_tokens_), 1), "activations");
    slots_.clear();
    float *to = activations_.as<float>();
    for (const SlotInfo &slot : program_.slots) {
        slots_.push_back(to);
        to += stride_of(slot.width) * max_tokens_;
    }
    exchange_.clear();
    for (const Program::Part &part : parts_)
        for (const std::vector<Slot> &slots : {part.in, part.out})
            for (const Slot id : slots) {
                const auto bytes = static_cast<size_t>(stride(id) * max_tokens_) * sizeof(float);
                exchange_.try_emplace(id, bytes);
                // Rows are copied to other devices with their padding, which no kernel writes.
                if (stride(id) > width(id)) stream_.fill(slot(id), 0, bytes);
            }
    const auto quantized = [this](int32_t tokens) {
        const int64_t bytes = activation_bytes(plan_.widest, tokens, plan_.forms);
        return bytes > 0 ? DeviceMemory(static_cast<size_t>(bytes), "activations") : DeviceMemory();
    };
    quantized_ = quantized(max_tokens_);
    second_quantized_ = quantized(kLinearTokens);
    arrivals_ = DeviceMemory(static_cast<size_t>(arrival_counters(plan_)) * sizeof(uint32_t), "arrivals");
    stream_.fill(arrivals_.data(), 0, arrivals_.size());
}

// Loads the kernels that the plan needs (the runners of experts, heads and logits load their own),
// because a launch cannot load its kernel while a graph is recorded. Throws, before weights are uploaded, if the
// device cannot run one of them.
void CudaBackend::prepare_kernels(const CacheConfig &cache) {
    prepare(embed_kernel().handle, 0);
    prepare(quantize_kernel().handle, kQuantizeShared);
    prepare(normalize_kernel().handle, kNormalizeShared);
    prepare(activate_kernel().handle, 0);
    prepare(copy_pieces_kernel().handle, 0);
    prepare(rotate_kernel().handle, kRotateShared);
    prepare(mix_kernel().handle, 0);
    prepare(lerp_kernel().handle, 0);
    prepare(rope_heads_kernel().handle, 0);
    prepare(stream_weights_kernel().handle, kStreamShared);
    prepare(join_attention_kernel().handle, 0);
    for (const Op &op : plan_.ops)
        std::visit(
            Overloaded{
                [&](const LinearOp &matrices) { prepare_linear(properties_, matrices.format, max_tokens_); },
                [&](const AttentionOp &attention) {
                    AttentionRunner::prepare(program_, attention.step, cache);
                },
                [](const Indexer &) { IndexerRunner::prepare(); },
                [](const Embed &) {},
                [](const Norm &) {},
                [](const PrepareOp &) {},
                [](const HeadLinear &) {},
                [](const CopyOp &) {},
                [](const Rotate &) {},
                [](const Mix &) {},
                [](const StreamWeights &) {},
                [](const Lerp &) {},
                [](const Rope &) {},
                [](const JoinAttention &) {},
                [](const ActivateOp &) {},
                [](const ExpertsOp &) {},
                [](const ShortConv &) {},
                [](const SoftPool &) {},
                [](const ScanGate &) {},
                [](const LinearScan &) {},
                [](const SelectiveScan &) {},
            },
            op);
}

// --- execute -----------------------------------------------------------------------------------------------

// Enqueues the part's work. Of the logit rows, only the first kLinearTokens are included: execute() enqueues
// the others. Returns false if the batch is cancelled.
bool CudaBackend::start(const Batch &batch, int32_t candidates) {
    if (cancelled(batch)) return false;
    assert(!batch.tokens.empty() && static_cast<int32_t>(batch.tokens.size()) <= max_tokens_);
    assert(sees_both_ways(program_, batch));
    use_device(device_);
    if (batch.part == 0) {
        if (input_.reserve(batch)) graphs_.clear();
        input_.upload(stream_, batch);
        divided_.upload(stream_, batch);
        scans_.upload(stream_, batch);
        if (plan_.logits) logits_.reserve_masks(batch.masks.size());
    }
    assert(input_.holds(batch));
    tokens_ = static_cast<int32_t>(batch.tokens.size());
    const bool last = static_cast<size_t>(batch.part) + 1 == parts_.size();
    logit_rows_ = last && plan_.logits ? static_cast<int32_t>(batch.logit_rows.size()) : 0;
    shares_ = std::ranges::any_of(batch.sequences, [](const SequenceSpan &s) { return s.shared > 0; });
    if (logit_rows_ == 0) candidates = 0;
    const bool masked = candidates > 0 && !batch.masks.empty();
    if (masked) {
        assert(batch.masks.size() == batch.logit_rows.size());
        logits_.stage_masks(batch.masks);
        logits_.upload_masks(stream_, 0);
    }
    now_ = {batch.part, tokens_, logit_rows_,       candidates,
            shares_,    masked,  gathers_.joined(), attention_.launches(batch.sequences, tokens_)};
    // What divided attention exchanges changes from batch to batch.
    if (tokens_ > kLinearTokens || !launcher_.switches().graphs || attends_divided(now_.part))
        enqueue();
    else
        replay();
    return true;
}

// Whether the part attends to a cache that several devices divide.
bool CudaBackend::attends_divided(int32_t part) const {
    const auto index = static_cast<size_t>(part);
    for (size_t i = index == 0 ? 0 : plan_.part_ends[index - 1]; i < plan_.part_ends[index]; ++i)
        if (const auto *op = std::get_if<AttentionOp>(&plan_.ops[i]))
            if (op->step.attends() && is_divided(program_, op->step)) return true;
    return false;
}

bool CudaBackend::execute(const Batch &batch, std::span<float> logits) {
    if (!start(batch, 0)) return false;
    const auto vocab = static_cast<size_t>(program_.vocab);
    assert(logit_rows_ == 0 || logits.size() == batch.logit_rows.size() * vocab);
    for (int32_t first = 0; first < logit_rows_; first += kLinearTokens) {
        const int32_t count = std::min(logit_rows_ - first, kLinearTokens);
        if (first > 0) enqueue_logits(first, count);
        if (gathers_.joined()) gathers_.wait();
        logits_.fetch(stream_, logits.subspan(static_cast<size_t>(first) * vocab), count);
    }
    if (logit_rows_ == 0 && !gathers_.joined()) stream_.wait();
    return !cancelled(batch);
}

bool CudaBackend::execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
                          std::span<ExpSum> sums) {
    assert(1 <= count && count <= kMaxCandidates && count <= program_.vocab);
    if (!start(batch, count)) return false;
    for (int32_t first = kLinearTokens; first < logit_rows_; first += kLinearTokens) {
        const int32_t some = std::min(logit_rows_ - first, kLinearTokens);
        if (now_.masked) logits_.upload_masks(stream_, first);
        enqueue_logits(first, some);
    }
    gathers_.joined() ? gathers_.wait() : stream_.wait();
    assert(logit_rows_ == 0 || static_cast<int64_t>(candidates.size()) == int64_t{logit_rows_} * count);
    std::copy_n(logits_.candidates(), int64_t{logit_rows_} * count, candidates.begin());
    for (int32_t row = 0; count > 1 && row < logit_rows_; ++row)
        sums[static_cast<size_t>(row)] = logits_.sums()[row];
    return !cancelled(batch);
}

// Computes the row's logits again from the activations, which are kept until the next batch: the
// logits of a row do not depend on other rows.
void CudaBackend::read_logits(int32_t row, std::span<float> logits) {
    use_device(device_);
    now_.candidates = 0;
    enqueue_logits(row, 1);
    logits_.fetch(stream_, logits, 1);
}

void CudaBackend::replay() {
    auto known = graphs_.find(now_);
    if (known == graphs_.end()) {
        if (gathers_.joined()) gathers_.wait();
        // Batches of ever new shapes would need ever more graphs, whose memory the plan does not count.
        if (graphs_.size() >= kMostGraphs) graphs_.clear();
        Capture capture(stream_);
        enqueue();
        known = graphs_.emplace(now_, capture.end()).first;
    }
    stream_.replay(known->second);
}

// Enqueues the current part.
void CudaBackend::enqueue() {
    const auto index = static_cast<size_t>(now_.part);
    const Program::Part &part = parts_[index];
    hand_over(part.in, false);
    const bool looks_ahead = tokens_ <= kStagedTokens && launcher_.switches().prefetch;
    const size_t end = plan_.part_ends[index];
    for (size_t i = index == 0 ? 0 : plan_.part_ends[index - 1]; i < end; ++i) {
        ahead_ = looks_ahead ? look_ahead_.first_of(i + 1, end, logit_rows_ > 0) : LinearParams::Ahead{};
        std::visit([&](const auto &op) { enqueue(op); }, plan_.ops[i]);
    }
    // The next step begins again.
    ahead_ = looks_ahead && parts_.size() == 1 ? look_ahead_.first_of(0, end, false) : LinearParams::Ahead{};
    if (logit_rows_ > 0) enqueue_logits(0, std::min(logit_rows_, kLinearTokens));
    ahead_ = {};
    hand_over(part.out, true);
}

// Copies the batch's rows of the slots to host memory (out) or from it, one copy per slot, unless they stay on devices.
void CudaBackend::hand_over(std::span<const Slot> slots, bool out) {
    if (gathers_.joined()) return;
    for (const Slot id : slots) {
        const size_t bytes = static_cast<size_t>(stride(id) * tokens_) * sizeof(float);
        if (out)
            stream_.copy_to_host(exchange_.at(id).data(), slot(id), bytes);
        else
            stream_.copy_to_device(slot(id), exchange_.at(id).data(), bytes);
    }
}

std::unique_ptr<Backend> make_cuda_backend(int device) {
    return std::make_unique<CudaBackend>(device);
}

}  // namespace runnel::kernels::cuda
