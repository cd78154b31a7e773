#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/cuda/attention/attention_runner.h"
#include "kernels/cuda/attention/kv_memory.h"
#include "kernels/cuda/experts/expert_runner.h"
#include "kernels/cuda/indexer/indexer_runner.h"
#include "kernels/cuda/linear/head_runner.h"
#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/look_ahead.h"
#include "kernels/cuda/nccl/gathers.h"
#include "kernels/cuda/nccl/messages.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/runtime/batch_input.h"
#include "kernels/cuda/runtime/devices.h"
#include "kernels/cuda/runtime/launcher.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/scan/scan_runner.h"
#include "kernels/cuda/select/logits_runner.h"
#include "kernels/cuda/steps/embed.h"
#include "kernels/cuda/steps/normalize.h"
#include "kernels/cuda/steps/rotate.h"
#include "kernels/cuda/steps/streams.h"
#include "kernels/cuda/upload/weights.h"
#include "kernels/steps.h"

namespace runnel::kernels::cuda {
namespace {

constexpr int kOldest = 75;  // sm_75: ldmatrix and mma of 8 columns (the Makefile has the same minimum)

bool cancelled(const Batch &batch) {
    return batch.cancel != nullptr && batch.cancel->load(std::memory_order_relaxed);
}

constexpr size_t kMostGraphs = 64;  // graphs kept

// Batch parts with equal keys have the same launches: only the content of device memory differs.
struct GraphKey {
    int32_t part, tokens, logit_rows, candidates;
    bool shares, masked;
    bool gathers;  // between device memories: no copies of slots to host memory
    AttentionLaunches attention;
    auto operator<=>(const GraphKey &) const = default;
};

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

class CudaBackend final : public Backend {
  public:
    explicit CudaBackend(int device) : device_(device), properties_(use(device)) {}

    DeviceInfo info() const override {
        DeviceInfo info = find_devices().found.at(static_cast<size_t>(device_));
        info.memory_free = free_memory(device_);
        return info;
    }
    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override;
    void on_load(LoadProgress progress) override { progress_ = std::move(progress); }
    bool execute(const Batch &batch, std::span<float> logits) override;
    int32_t most_candidates() const override { return plan_.logits ? kMaxCandidates : 0; }
    bool execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
                 std::span<ExpSum> sums) override;
    void read_logits(int32_t row, std::span<float> logits) override;
    int64_t launches() const override { return stream_.launched(); }
    ExpertTraffic expert_traffic() override {
        use_device(device_);
        return experts_.traffic(stream_);
    }
    void connect(Communicator &ranks) override { messages_.connect(ranks); }
    SlotRows exchange(Slot slot) override { return {exchange_.at(slot).as<float>(), stride(slot)}; }
    DeviceGathers *gathers() override { return &gathers_; }
    bool can_copy_from(const Backend &writer) const override {
        const auto *gpu = dynamic_cast<const CudaBackend *>(&writer);
        return gpu != nullptr && launcher_.switches().peer && can_copy_directly(device_, gpu->device_);
    }
    void copy_slot(Slot id, const Backend &writer, int32_t tokens) override {
        const auto &gpu = dynamic_cast<const CudaBackend &>(writer);
        use_device(device_);
        stream_.copy_from_device(slot(id), device_, gpu.slot(id), gpu.device_,
                                 static_cast<size_t>(stride(id) * tokens) * sizeof(float));
    }
    void wait_for_copies() override {
        use_device(device_);
        stream_.wait();
    }
    void copy_blocks(int32_t group, std::span<const BlockCopy> copies) override {
        use_device(device_);
        cache_.copy(stream_, group, copies);
    }
    void read_block(int32_t group, BlockId block, std::span<std::byte> bytes) override {
        use_device(device_);
        cache_.read(stream_, group, block, bytes);
    }
    void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) override {
        use_device(device_);
        cache_.write(stream_, group, block, bytes);
    }
    std::shared_ptr<const CachePools> cache_pools() const override { return cache_.pools(); }
    void read_state(StateId slot, std::span<std::byte> bytes) override {
        use_device(device_);
        scans_.read(stream_, slot, bytes);
    }
    void write_state(StateId slot, std::span<const std::byte> bytes) override {
        use_device(device_);
        scans_.write(stream_, slot, bytes);
    }

  private:
    void allocate();
    void prepare_kernels(const CacheConfig &cache);

    bool start(const Batch &batch, int32_t candidates);
    bool attends_divided(int32_t part) const;
    void replay();
    void enqueue();
    void hand_over(std::span<const Slot> slots, bool out);
    void enqueue(const Embed &op);
    void embed(WeightId id, const int32_t *rows, float scale, Slot out, bool add);
    void enqueue(const Norm &op);
    void enqueue(const PrepareOp &op);
    void enqueue(const LinearOp &op);
    void enqueue(const HeadLinear &op);
    void enqueue(const CopyOp &op);
    void enqueue(const Rotate &op);
    void enqueue(const Mix &op);
    void enqueue(const StreamWeights &op);
    void enqueue(const Lerp &op);
    void enqueue(const Rope &op) { attention_.enqueue(launcher_, op, attention_operands()); }
    void enqueue(const JoinAttention &op);
    AttentionRunner::Operands attention_operands() {
        return {weights_, cache_, input_, slots_, tokens_, shares_, now_.attention, divided_, messages_};
    }
    void enqueue(const AttentionOp &op);
    void enqueue(const Indexer &op) { indexer_.enqueue(launcher_, op, attention_, attention_operands()); }
    void enqueue(const ActivateOp &op);
    void enqueue_logits(int32_t first, int32_t count);
    void enqueue(const ExpertsOp &op);
    template <class Scan>  // a recurrent step
    void enqueue(const Scan &step) {
        scans_.enqueue(launcher_, step, {weights_, slots_, tokens_});
    }

    template <class Params>
    void run(const Kernel<Params> &kernel, int64_t blocks, SharedBytes shared,
             const std::type_identity_t<Params> &params) {
        launcher_.run(kernel, blocks, shared, params);
    }
    template <class Params>
    void launch_exact(const Kernel<Params> &kernel, int64_t blocks, SharedBytes shared,
                      const std::type_identity_t<Params> &params) {
        launcher_.run_exactly(kernel, blocks, shared, params);
    }

    const Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }
    int64_t width(Slot slot) const { return program_.slots[static_cast<size_t>(slot)].width; }
    int64_t stride(Slot slot) const { return stride_of(width(slot)); }
    float *slot(Slot slot) const { return slots_[static_cast<size_t>(slot)]; }
    // Large batches are always quantized by a kernel of their own and use one buffer.
    Activations quantized(int64_t cols, int buffer) const {
        const bool second = buffer == 1 && tokens_ <= kLinearTokens;
        return place_activations((second ? second_quantized_ : quantized_).data(), cols,
                                 second ? kLinearTokens : max_tokens_, plan_.forms_at(cols));
    }
    QuantizeParams quantize_params(const PrepareOp &op) const;
    LinearParams matrices_of(const LinearOp &op) const;
    bool prepared_later(const PrepareOp &op) const;

    const int device_;
    const DeviceProperties properties_;
    Program program_;
    Plan plan_;
    std::vector<Program::Part> parts_;
    int32_t max_tokens_ = 0;
    LoadProgress progress_;
    DeviceWeights weights_;
    KvMemory cache_;
    DeviceMemory activations_, quantized_, second_quantized_;
    DeviceMemory arrivals_;                  // LinearParams::arrivals
    std::vector<float *> slots_;             // in activations_
    std::map<Slot, PinnedMemory> exchange_;  // for the slots that cross devices
    BatchInput input_;
    AttentionRunner attention_;
    DividedAttention divided_;
    IndexerRunner indexer_;
    ExpertRunner experts_;
    HeadRunner heads_;
    ScanRunner scans_;
    LogitsRunner logits_;
    std::map<GraphKey, Graph> graphs_;
    GraphKey now_{};                       // of the current part
    int32_t tokens_ = 0, logit_rows_ = 0;  // of the current batch
    LinearParams::Ahead ahead_;            // of the operation that is being enqueued
    bool shares_ = false;                  // some sequence of the batch has shared cells
    Stream stream_;                        // destroyed before all memory
    Launcher launcher_{stream_, properties_};
    LookAhead look_ahead_{program_, plan_, weights_, properties_};
    NcclGathers gathers_{{device_, program_, max_tokens_, slots_, exchange_, stream_, launcher_}};
    Messages messages_{gathers_, stream_};
};

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

void CudaBackend::enqueue(const Embed &op) {
    embed(op.table, input_.tokens(), op.scale, op.out, false);
    if (op.positions != kNoWeight) embed(op.positions, input_.positions(), 1, op.out, true);
}

// Copies rows of a table into a slot, or adds them to it.
void CudaBackend::embed(WeightId id, const int32_t *rows, float scale, Slot out, bool add) {
    const Weight &table = weight(id);
    launch_exact(embed_kernel(), tokens_, 0,
                 {weights_.tiles(id), tile_format(table.type), static_cast<int32_t>(table.cols), scale, rows,
                  slot(out), stride(out), static_cast<int32_t>(table.rows - 1), add});
}

void CudaBackend::enqueue(const Norm &op) {
    const bool adds = op.add != kNoSlot;
    const bool own = op.weight != kNoWeight && weight(op.weight).cols == width(op.out);
    launch_exact(normalize_kernel(), int64_t{tokens_} * op.parts, kNormalizeShared,
                 {slot(op.in), weights_.floats(op.weight), weights_.floats(op.bias),
                  adds ? slot(op.add) : nullptr, slot(op.out), stride(op.in), adds ? stride(op.add) : 0,
                  stride(op.out), static_cast<int32_t>(width(op.out) / op.parts), op.parts, own, op.eps,
                  op.kind == Norm::Kind::Layer, op.scale});
}

QuantizeParams CudaBackend::quantize_params(const PrepareOp &op) const {
    const bool normed = op.norm != kNoWeight;
    Activations out = quantized(width(op.slot), op.buffer);
    if (!plan_.prepared.integers) out.codes = nullptr;
    if (!plan_.prepared.halves) out.halves = nullptr;
    return {slot(op.in),
            weights_.floats(op.norm),
            normed ? slot(op.slot) : nullptr,
            op.eps,
            static_cast<int32_t>(width(op.slot)),
            stride(op.slot),
            out};
}

// Whether the launches that read the result of `op` prepare it themselves, each of their blocks all of it: if the launch before
// them did, one block would work, and all others would wait for it. More than kSmallGroupTokens rows would take every block longer
// than a launch of their own takes.
bool CudaBackend::prepared_later(const PrepareOp &op) const {
    if (op.routes) return tokens_ == 1;
    return tokens_ <= kSmallGroupTokens && !op.readers.empty() &&
           std::ranges::all_of(op.readers, [&](TileFormat format) {
               return stages(launcher_, format, width(op.slot), tokens_);
           });
}

void CudaBackend::enqueue(const PrepareOp &op) {
    if (prepared_later(op)) return;
    launch_exact(quantize_kernel(), tokens_, kQuantizeShared, quantize_params(op));
}

LinearParams CudaBackend::matrices_of(const LinearOp &op) const {
    LinearParams params = linear_params(width(op.in));
    params.x = quantized(width(op.in), op.buffer);
    params.x_f32 = slot(op.in);
    params.x_stride = stride(op.in);
    params.gate = op.gate;
    for (const Linear::Part &part : op.parts) {
        LinearMatrix &m = params.matrix[params.matrices++];
        m.tiles = weights_.tiles(part.weight);
        m.bias = weights_.floats(part.bias);
        m.rows = static_cast<int32_t>(weight(part.weight).rows);
        m.scale = part.scale;
        if (part.add != kNoSlot) m.add = slot(part.add), m.add_stride = stride(part.add);
        if (part.out != kNoSlot) m.out = slot(part.out), m.out_stride = stride(part.out);
    }
    params.tokens = tokens_;
    return params;
}

void CudaBackend::enqueue(const LinearOp &op) {
    LinearParams params = matrices_of(op);
    params.ahead = ahead_;
    if (op.prepare_input && prepared_later(*op.prepare_input))
        params.prepare_input = quantize_params(*op.prepare_input);
    bool prepares = op.prepare && tokens_ <= kPreparedTokens && !prepared_later(*op.prepare);
    if (prepares) {
        params.prepare = quantize_params(*op.prepare);
        params.arrivals = arrivals_.as<uint32_t>();
        // A row that is quantized as a whole is the work of one thread block. For more than one such row, a separate
        // launch is faster.
        prepares =
            !needs_whole_rows(params.prepare) || prepares_rows(launcher_, op.format, width(op.in), tokens_);
        if (!prepares) params.prepare = {};
    }
    launch_linear(launcher_, params, op.format);
    if (op.prepare && !prepares) enqueue(*op.prepare);
}

void CudaBackend::enqueue(const ExpertsOp &op) {
    const auto memory = [&](Slot at) {
        return at == kNoSlot ? SlotMemory{} : SlotMemory{slot(at), stride(at)};
    };
    const Experts &step = op.step;
    experts_.enqueue(
        launcher_, op, weights_,
        {memory(step.in), memory(step.logits), memory(step.add), memory(step.out), memory(step.chosen),
         op.in.empty() ? Activations{} : quantized(op.in_width, op.buffer),
         op.router ? matrices_of(*op.router) : LinearParams{},
         op.prepare && !prepared_later(*op.prepare) ? quantize_params(*op.prepare) : QuantizeParams{},
         op.prepare_input && prepared_later(*op.prepare_input) ? quantize_params(*op.prepare_input)
                                                               : QuantizeParams{},
         tokens_, ahead_});
}

void CudaBackend::enqueue(const HeadLinear &op) {
    heads_.enqueue(
        launcher_, op, weight(op.weight),
        {{slot(op.in), stride(op.in)}, {slot(op.out), stride(op.out)}, weights_.tiles(op.weight), tokens_});
}

void CudaBackend::enqueue(const CopyOp &op) {
    CopyParams params{};
    params.tokens = tokens_;
    for (const Copy &c : op.copies)
        params.copy[params.copies++] = {slot(c.in) + c.from.first,
                                        slot(c.out) + c.to.first,
                                        stride(c.in),
                                        stride(c.out),
                                        c.from.stride,
                                        c.to.stride,
                                        c.count,
                                        static_cast<int32_t>(c.width)};
    run(copy_pieces_kernel(), copy_pieces_blocks(params), 0, params);
}

void CudaBackend::enqueue(const Rotate &op) {
    const RotateParams params{slot(op.in),   slot(op.out),   weights_.floats(op.signs),
                              stride(op.in), stride(op.out), static_cast<int32_t>(width(op.in)),
                              tokens_,       op.block,       op.signs_last};
    run(rotate_kernel(), rotate_blocks(params), kRotateShared, params);
}

void CudaBackend::enqueue(const Mix &op) {
    MixParams params{};
    const auto place = [&](const std::vector<Slot> &slots, MixParams::Slice *to) {
        int32_t count = 0;
        for (const Slot id : slots)
            for (int64_t at = 0; at < width(id); at += op.width) to[count++] = {slot(id) + at, stride(id)};
        return count;
    };
    params.inputs = place(op.in, params.in);
    params.outputs = place(op.out, params.out);
    if (op.coefficients != kNoSlot) {
        params.coefficients = slot(op.coefficients);
        params.coefficients_stride = stride(op.coefficients);
    }
    params.scale = op.scale;
    params.width = static_cast<int32_t>(op.width);
    params.tokens = tokens_;
    run(mix_kernel(), (int64_t{tokens_} * params.outputs * op.width + 255) / 256, 0, params);
}

void CudaBackend::enqueue(const Lerp &op) {
    LerpParams params{};
    if (op.from != kNoSlot) params.from = slot(op.from), params.from_stride = stride(op.from);
    if (op.to != kNoSlot) params.to = slot(op.to), params.to_stride = stride(op.to);
    if (op.coefficients != kNoSlot)
        params.coefficients = slot(op.coefficients), params.coefficients_stride = stride(op.coefficients);
    params.weight = weights_.floats(op.weight);
    for (const Slot out : op.out) params.output[params.outputs++] = {slot(out), stride(out)};
    params.width = static_cast<int32_t>(width(op.in()));
    params.tokens = tokens_;
    run(lerp_kernel(), (int64_t{tokens_} * params.width + 255) / 256, 0, params);
}

void CudaBackend::enqueue(const StreamWeights &op) {
    const bool mixes = op.mix != kNoSlot;
    run(stream_weights_kernel(), (tokens_ + kStreamWarps - 1) / kStreamWarps, kStreamShared,
        {slot(op.in), weights_.floats(op.scales), weights_.floats(op.bias), slot(op.read),
         mixes ? slot(op.mix) : nullptr, stride(op.in), stride(op.read), mixes ? stride(op.mix) : 0,
         static_cast<int32_t>(width(op.read)), op.iterations, tokens_, op.eps});
}

void CudaBackend::enqueue(const JoinAttention &op) {
    JoinParams params{};
    for (const auto &[in, sums] : op.parts)
        params.part[params.parts++] = {slot(in), slot(sums), stride(in), stride(sums)};
    params.out = slot(op.out), params.out_stride = stride(op.out);
    params.heads = op.heads, params.dim = static_cast<int32_t>(width(op.out) / op.heads);
    params.tokens = tokens_;
    run(join_attention_kernel(), (tokens_ * width(op.out) + 255) / 256, 0, params);
}

void CudaBackend::enqueue(const ActivateOp &op) {
    const Activation &g = op.step;
    const bool has_up = g.up != kNoSlot;
    const ActivateParams params{slot(g.gate),
                                has_up ? slot(g.up) : nullptr,
                                slot(g.out),
                                stride(g.gate),
                                has_up ? stride(g.up) : 0,
                                stride(g.out),
                                static_cast<int32_t>(width(g.out)),
                                tokens_,
                                op.activation,
                                g.parameters.positive,
                                g.parameters.negative,
                                g.parameters.beta,
                                g.parameters.eps};
    run(activate_kernel(), tokens_ * ((width(g.out) + 255) / 256), 0, params);
}

void CudaBackend::enqueue(const AttentionOp &op) {
    QuantizeParams quantize{};
    if (op.prepare) quantize = quantize_params(*op.prepare);
    const bool quantized =
        attention_.enqueue(launcher_, op.step, op.prepare ? &quantize : nullptr, attention_operands());
    if (op.prepare && !quantized) enqueue(*op.prepare);
}

// The batch's logit rows [first, first + count), at most kLinearTokens of them, and their top-k if requested.
void CudaBackend::enqueue_logits(int32_t first, int32_t count) {
    const Logits &step = *plan_.logits;
    logits_.enqueue(
        launcher_, weights_,
        {slot(step.in), stride(step.in), input_.logit_rows(), quantized(width(step.in), 0), ahead_}, first,
        count);
    if (now_.candidates > 0)
        logits_.enqueue_candidates(launcher_, first, count, now_.candidates, now_.masked);
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device) {
    return std::make_unique<CudaBackend>(device);
}

}  // namespace runnel::kernels::cuda
