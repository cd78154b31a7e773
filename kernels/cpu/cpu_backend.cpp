#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>

#include "kernels/cpu/attention_runner.h"
#include "kernels/cpu/divided_attention.h"
#include "kernels/cpu/embed_runner.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/indexer_runner.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_lookup.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/phase_clock.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/row_runner.h"
#include "kernels/cpu/scan_runner.h"
#include "kernels/cpu/system_memory.h"
#include "kernels/cpu/vector.h"
#include "kernels/cpu/weight_memory.h"
#include "kernels/steps.h"

namespace runnel::kernels::cpu {
namespace {

// Unit of work of a matrix product, in tiles of 16 rows (the height of a weight tile). Units handed out
// dynamically are large enough for a steady stream of reads and small enough to balance the load.
constexpr int64_t kTileRows = 16;
constexpr int64_t kGrainDecode = 4;  // in tiles
// With many tokens a unit has between kMinGrain and kMaxGrain tiles: as many as leave each thread kUnitsPerThread units.
constexpr int64_t kMinGrain = 2, kMaxGrain = 8, kUnitsPerThread = 4;
// Up to this many tokens a pass is bound by reading weights, so each thread reads one long range and
// prefetches its continuation. (If threads took single units instead, a pass of 12 tokens would take a fifth
// longer: each thread would prefetch bytes that another one reads.)
constexpr int32_t kDecodeTokens = 64;
constexpr int64_t kPrepareBlock = 256;  // columns: the unit in which activations are packed

// A thread must read at least this much per token to be worth its barriers: on a busy machine a barrier can
// cost a time slice, which would make a model of one megabyte very slow.
constexpr size_t kBytesPerThread = size_t{2} << 20;

struct Isa {
    const LinearKernels *linear;
    const VectorKernels *vector;
    const AttentionKernels *attention;
    const ScanKernels *scan;
};

// Throws unless the CPU has the instruction set `name`. An empty name means the best one.
Isa choose_isa(const std::string &name, const std::string &wish) {
    const std::array<Isa, 4> all = {{
        {linear_amx(), vector_avx512(), attention_avx512(), &kScanAvx512},
        {linear_avx512(), vector_avx512(), attention_avx512(), &kScanAvx512},
        {linear_avx2(), vector_avx2(), attention_avx2(), &kScanAvx2},
        {&linear_scalar(), &vector_scalar(), &attention_scalar(), &kScanScalar},
    }};
    for (const Isa &isa : all)
        if (isa.linear && isa.vector && isa.attention && (name.empty() || name == isa.linear->name))
            return isa;
    throw BackendError(BackendError::Kind::Failed,
                       wish + ": not supported by this CPU (choose amx, avx512, avx2 or scalar)");
}

Isa isa_of_environment() {
    const char *wish = std::getenv("RUNNEL_CPU");
    const std::string name = wish ? wish : "";
    return choose_isa(name, "RUNNEL_CPU=" + name);
}

// The state that one thread carries through the phases.
struct Worker {
    int thread;
    int32_t rows;         // tokens that steps work on: all of the batch, fewer after SelectPhase
    size_t phase = 0;     // index of the current phase
    bool summed = false;  // the thread's scratch memory has the sums of the phase's input (linear_lookup.h)
};

// The destination of a matrix product: out[t] = softcap(scale * (product + bias)) + add[t].
struct Destination {
    float *out;
    int64_t stride;  // number of floats between tokens, in out and in add
    const float *bias = nullptr, *add = nullptr;
    float scale = 1;
    float softcap = 0;  // 0: none
};

class CpuBackend final : public Backend {
  public:
    CpuBackend(int threads, const Isa &isa, std::shared_ptr<WeightMemory> weights)
        : isa_(isa), threads_(threads), weights_(std::move(weights)) {}

    DeviceInfo info() const override;
    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override;
    void on_load(LoadProgress progress) override { progress_ = std::move(progress); }
    void connect(Communicator &ranks) override { divided_.connect(ranks); }
    bool execute(const Batch &batch, std::span<float> logits) override;
    SlotRows exchange(Slot slot) override { return {row(slot, 0), width(slot)}; }
    void copy_blocks(int32_t group, std::span<const BlockCopy> copies) override;
    void read_block(int32_t group, BlockId block, std::span<std::byte> bytes) override {
        std::ranges::copy(cache_.block(group, block), bytes.begin());
    }
    void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) override {
        std::ranges::copy(bytes, cache_.block(group, block).begin());
    }
    std::span<std::byte> block_memory(int32_t group, BlockId block) override {
        return cache_.block(group, block);
    }
    std::shared_ptr<const CachePools> cache_pools() const override { return cache_.pools(); }
    void read_state(StateId slot, std::span<std::byte> bytes) override {
        std::ranges::copy(states_.bytes(slot), bytes.begin());
    }
    void write_state(StateId slot, std::span<const std::byte> bytes) override {
        std::ranges::copy(bytes, states_.bytes(slot).begin());
    }

  private:
    int thread_count() const;
    void start_pool();
    void take_weights(const CacheConfig &cache);
    void reserve_activations();
    // Bytes that the largest steps need in addition to their slots; the runners reserve their own.
    struct WorkSpace {
        size_t product = 0, scratch = 0, packed_head = 0;
    };
    WorkSpace work_space() const;
    void reserve_work_space();
    void run(const EmbedPhase &phase, Worker &worker) noexcept {
        embeddings_.run(phase.step, *batch_, worker.rows, worker.thread);
    }
    void run(const HashedEmbedPhase &phase, Worker &worker) noexcept {
        embeddings_.run(phase.step, worker.rows, worker.thread);
    }
    void run(const PreparePhase &phase, Worker &worker) noexcept;
    void run(const MultiplyPhase &phase, Worker &worker) noexcept;
    void run(const AppendPhase &phase, Worker &worker) noexcept {
        attention_.append(phase.step, *batch_, worker.thread);
    }
    void run(const AttendPhase &phase, Worker &worker) noexcept {
        if (program_.cache_layers[static_cast<size_t>(phase.step.cache)].divided)
            divided_.attend(attention_, phase.step, *batch_, worker.thread);
        else
            attention_.attend(phase.step, *batch_, worker.thread);
    }
    void run(const IndexPhase &phase, Worker &worker) noexcept {
        indexer_.run(phase.step, *batch_, worker.thread);
    }
    void run(const HeadsPhase &phase, Worker &worker) noexcept;
    void run(const CopyPhase &phase, Worker &worker) noexcept {
        rows_.run(phase.step, worker.rows, worker.thread);
    }
    void run(const RotatePhase &phase, Worker &worker) noexcept {
        rows_.run(phase.step, worker.rows, worker.thread);
    }
    void run(const MixPhase &phase, Worker &worker) noexcept {
        rows_.run(phase.step, worker.rows, worker.thread);
    }
    void run(const StreamsPhase &phase, Worker &worker) noexcept {
        rows_.run(phase.step, worker.rows, worker.thread);
    }
    void run(const LerpPhase &phase, Worker &worker) noexcept {
        rows_.run(phase.step, worker.rows, worker.thread);
    }
    void run(const JoinPhase &phase, Worker &worker) noexcept {
        rows_.run(phase.step, worker.rows, worker.thread);
    }
    void run(const RopePhase &phase, Worker &worker) noexcept {
        attention_.run(phase.step, *batch_, worker.thread);
    }
    void run(const ExpertsPhase &phase, Worker &worker) noexcept;
    void run(const ScanPhase &phase, Worker &worker) noexcept {
        std::visit([&](const auto &step) { scans_.run(step, *batch_, worker.thread); }, phase.step);
    }
    void run(const SelectPhase &phase, Worker &worker) noexcept;
    void run(const LogitsPhase &phase, Worker &worker) noexcept;

    void prepare(const PreparePhase &phase, int32_t rows, int32_t t0, int32_t t1, int64_t col0,
                 int64_t col1) noexcept;
    void normalize(const Norm &norm, int32_t token) noexcept;
    void multiply(const Weight &weight, const Destination &to, Worker &worker, int loop,
                  const Weight *after) noexcept;
    const Weight *weight_after(size_t phase) const noexcept;
    const std::byte *tile_bytes(const Weight &w, int64_t tile, int32_t tokens) const noexcept;
    const std::byte *first_bytes(const Weight *w, const Worker &worker) const noexcept;
    const std::byte *tiles_for(const Weight &w, int32_t tokens) const noexcept;
    bool cancelled_after_barrier(size_t phase, int thread) noexcept;

    const Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }
    const float *vector_of(WeightId id) const {
        return id == kNoWeight ? nullptr : reinterpret_cast<const float *>(weight(id).data);
    }
    int64_t width(Slot slot) const { return program_.slots[static_cast<size_t>(slot)].width; }
    float *row(Slot slot, int32_t token) const {
        return slots_[static_cast<size_t>(slot)].as<float>() + token * width(slot);
    }
    std::byte *packed(ActFormat format) const { return packed_[static_cast<size_t>(format)].data(); }

    const Isa isa_;
    const int threads_;                            // as requested; <= 0: thread_count chooses
    const std::shared_ptr<WeightMemory> weights_;  // null: weights stay where they are
    LoadProgress progress_;
    std::unique_ptr<Pool> pool_;
    Program program_;
    std::vector<std::vector<Phase>> parts_;  // of the program
    CacheMemory cache_;
    StateMemory states_;
    int32_t max_tokens_ = 0;
    std::vector<LazyBuffer> slots_;
    std::vector<const std::byte *> tiles_;  // by weight; null: none (WeightMemory::tiles())
    std::array<LazyBuffer, 3> packed_;      // by ActFormat
    LazyBuffer product_;                    // a product before it is added to a slot
    std::vector<LazyBuffer> scratch_;       // per thread: weight tiles, sums to look up, attention
    std::vector<LazyBuffer> packed_head_;   // per thread: one head's slice of all tokens
    AttentionRunner attention_;
    DividedAttention divided_;
    IndexerRunner indexer_;
    ExpertRunner experts_;
    ScanRunner scans_;
    RowRunner rows_;
    EmbedRunner embeddings_;

    // The current batch.
    const Batch *batch_ = nullptr;
    std::span<const Phase> phases_;
    std::span<float> logits_;
    std::array<std::atomic<bool>, 2> stop_{};
    PhaseClock clock_;
};

int CpuBackend::thread_count() const {
    if (threads_ > 0) return threads_;
    if (program_.steps.empty()) return physical_cores();
    const size_t worth = program_.weight_bytes_per_token() / kBytesPerThread;
    return static_cast<int>(std::clamp<size_t>(worth, 1, static_cast<size_t>(physical_cores())));
}

void CpuBackend::start_pool() {
    const int threads = thread_count();
    if (pool_ && pool_->threads() == threads) return;
    try {
        pool_ = std::make_unique<Pool>(threads);
    } catch (const std::system_error &error) {
        throw BackendError(BackendError::Kind::Failed, "cannot start " + std::to_string(threads) +
                                                           " threads (" + error.code().message() +
                                                           "): choose fewer with -t");
    }
}

DeviceInfo CpuBackend::info() const {
    const SystemMemory memory = system_memory();
    const int threads = thread_count();
    return {std::string("CPU, ") + std::to_string(threads) + (threads == 1 ? " thread, " : " threads, ") +
                isa_.linear->name,
            "cpu", memory.total, memory.available};
}

void CpuBackend::load(const Program &program, const CacheConfig &cache, int32_t max_tokens) {
    program_ = program;
    parts_ = plan(program_);
    max_tokens_ = max_tokens;
    start_pool();
    take_weights(cache);
    cache_ = CacheMemory(program_, cache);
    states_ = StateMemory(program_, cache);
    reserve_activations();
    reserve_work_space();
    const AttentionRunner::Surroundings surroundings{.program = &program_,
                                                     .kernels = isa_.attention,
                                                     .vector = isa_.vector,
                                                     .pool = pool_.get(),
                                                     .cache = &cache_,
                                                     .slots = slots_,
                                                     .scratch = scratch_};
    attention_ = AttentionRunner(surroundings, cache, max_tokens);
    divided_ = DividedAttention(surroundings);
    indexer_ = IndexerRunner({.program = &program_,
                              .kernels = isa_.attention,
                              .pool = pool_.get(),
                              .cache = &cache_,
                              .slots = slots_,
                              .scratch = scratch_},
                             cache);
    experts_ = ExpertRunner({.program = &program_,
                             .linear = isa_.linear,
                             .vector = isa_.vector,
                             .pool = pool_.get(),
                             .slots = slots_,
                             .packed = packed_,
                             .scratch = scratch_},
                            max_tokens);
    scans_ = ScanRunner({.program = &program_,
                         .kernels = isa_.scan,
                         .pool = pool_.get(),
                         .states = &states_,
                         .slots = slots_});
    rows_ = RowRunner({.program = &program_, .kernels = isa_.vector, .pool = pool_.get(), .slots = slots_});
    embeddings_ = EmbedRunner({.program = &program_,
                               .linear = isa_.linear,
                               .vector = isa_.vector,
                               .pool = pool_.get(),
                               .slots = slots_,
                               .scratch = scratch_});
}

void CpuBackend::take_weights(const CacheConfig &cache) {
    tiles_.assign(program_.weights.size(), nullptr);
    if (!weights_) return;
    weights_->take(program_, *pool_, progress_);
    if (isa_.linear->lookup == nullptr) return;
    const size_t free = system_memory().available, of_cache = block_bytes(program_, cache);
    try {
        weights_->rearrange(program_, *isa_.linear->lookup, free > of_cache ? (free - of_cache) / 3 : 0,
                            *pool_, progress_);
    } catch (const BackendError &error) {
        if (error.kind != BackendError::Kind::OutOfMemory) throw;  // without them it only takes longer
    }
    std::ranges::transform(program_.weights, tiles_.begin(),
                           [&](const Weight &weight) { return weights_->tiles(weight); });
}

void CpuBackend::reserve_activations() {
    const size_t tokens = static_cast<size_t>(max_tokens_);
    slots_.clear();
    for (const SlotInfo &slot : program_.slots)
        slots_.emplace_back(tokens * static_cast<size_t>(slot.width) * sizeof(float), "activations");
    product_ = LazyBuffer(work_space().product, "activations");
}

CpuBackend::WorkSpace CpuBackend::work_space() const {
    WorkSpace need;
    const auto floats = [](int64_t count) { return static_cast<size_t>(count) * sizeof(float); };
    const auto enlarge = [](size_t &bytes, size_t more) { bytes = std::max(bytes, more); };
    for (const Step &step : program_.steps)
        std::visit(
            Overloaded{
                [&](const Embed &s) { enlarge(need.scratch, EmbedRunner::scratch_bytes(program_, s)); },
                [](const HashedEmbed &) {},
                [&](const Linear &s) {
                    for (const Linear::Part &part : s.parts)
                        if (part.add != kNoSlot)
                            enlarge(need.product, floats(max_tokens_ * weight(part.weight).rows));
                },
                [&](const HeadLinear &s) {
                    const Weight &w = weight(s.weight);
                    enlarge(need.packed_head, packed_bytes(act_format(w.type), w.cols, max_tokens_));
                },
                [&](const Attention &s) { enlarge(need.scratch, AttentionRunner::scratch_bytes(s)); },
                [&](const Indexer &s) { enlarge(need.scratch, IndexerRunner::scratch_bytes(s)); },
                [](const Norm &) {},
                [](const Copy &) {},
                [](const Rotate &) {},
                [](const Mix &) {},
                [](const StreamWeights &) {},
                [](const Lerp &) {},
                [](const Rope &) {},
                [](const JoinAttention &) {},
                [](const Activation &) {},
                [](const Experts &) {},
                [](const ShortConv &) {},
                [](const SoftPool &) {},
                [](const ScanGate &) {},
                [](const LinearScan &) {},
                [](const SelectiveScan &) {},
                [](const Logits &) {},
            },
            step);
    return need;
}

void CpuBackend::reserve_work_space() {
    std::array<int64_t, 3> widest{};  // columns, by ActFormat
    for (const Weight &w : program_.weights) {
        int64_t &cols = widest[static_cast<size_t>(act_format(w.type))];
        cols = std::max(cols, w.cols);
    }
    for (size_t f = 0; f < packed_.size(); ++f)
        packed_[f] =
            LazyBuffer(widest[f] ? packed_bytes(static_cast<ActFormat>(f), widest[f], max_tokens_) : 0,
                       "packed activations");

    const WorkSpace need = work_space();
    const int64_t most_columns = *std::max_element(widest.begin(), widest.end());
    size_t scratch = std::max(isa_.linear->scratch_bytes(most_columns), need.scratch);
    for (const Weight &w : program_.weights)
        if (tiles_for(w, 1))
            scratch = std::max(scratch, lookup_sums_bytes(w.cols, std::min(kMostLookupTokens, max_tokens_)));
    packed_head_.clear();
    for (int t = 0; t < pool_->threads(); ++t) packed_head_.emplace_back(need.packed_head, "work space");
    scratch_.clear();
    for (int t = 0; t < pool_->threads(); ++t) scratch_.emplace_back(scratch, "work space");
}

bool CpuBackend::execute(const Batch &batch, std::span<float> logits) {
    assert(!batch.tokens.empty() && static_cast<int32_t>(batch.tokens.size()) <= max_tokens_);
    assert(logits.empty() || logits.size() == batch.logit_rows.size() * static_cast<size_t>(program_.vocab));
    assert(sees_both_ways(program_, batch));
    batch_ = &batch;
    logits_ = logits;
    phases_ = parts_[static_cast<size_t>(batch.part)];
    clock_.begin(phases_.size(), pool_->threads());
    bool finished = true;
    pool_->run([&](int thread) noexcept {
        Worker worker{thread, static_cast<int32_t>(batch.tokens.size())};
        attention_.rotations(batch, thread);
        // AppendPhase reads the rotations. If another phase comes before it, that phase's barrier is enough.
        if (!phases_.empty() && std::holds_alternative<AppendPhase>(phases_.front())) pool_->barrier();
        // SelectPhase leaves no rows if no logits are requested: the remaining phases have no work.
        for (size_t i = 0; i < phases_.size() && worker.rows > 0; ++i) {
            worker.phase = i;
            clock_.start(i, thread);
            std::visit([&](const auto &phase) { run(phase, worker); }, phases_[i]);
            clock_.arrive(i, thread);
            if (cancelled_after_barrier(i, thread)) {
                if (thread == 0) finished = false;
                break;
            }
            clock_.finish(i, thread);
        }
    });
    clock_.report(phases_);
    divided_.check();
    return finished;
}

void CpuBackend::copy_blocks(int32_t group, std::span<const BlockCopy> copies) {
    for (const BlockCopy &copy : copies)
        if (cache_.holds(group, copy.to))
            std::ranges::copy(cache_.block(group, copy.from), cache_.block(group, copy.to).begin());
}

// Thread 0 reads the flag and publishes it to the others. Two alternating cells, because thread 0 may write
// the next one while another thread still reads this one.
bool CpuBackend::cancelled_after_barrier(size_t phase, int thread) noexcept {
    std::atomic<bool> &stop = stop_[phase & 1];
    if (thread == 0)
        stop.store((batch_->cancel && batch_->cancel->load(std::memory_order_relaxed)) || divided_.failed(),
                   std::memory_order_relaxed);
    pool_->barrier();
    return stop.load(std::memory_order_relaxed);
}

void CpuBackend::normalize(const Norm &norm, int32_t token) noexcept {
    const int64_t n = width(norm.in) / norm.parts;
    const bool shared = norm.weight == kNoWeight || weight(norm.weight).cols == n;
    const auto kernel = norm.kind == Norm::Kind::Rms ? isa_.vector->rms_norm : isa_.vector->layer_norm;
    const float *w = vector_of(norm.weight), *bias = vector_of(norm.bias);
    const float *add = norm.add == kNoSlot ? nullptr : row(norm.add, token);
    for (int32_t part = 0; part < norm.parts; ++part) {
        const int64_t at = part * n, of_weight = shared ? 0 : at;
        kernel(row(norm.in, token) + at,
               {w ? w + of_weight : nullptr, bias ? bias + of_weight : nullptr, add ? add + at : nullptr}, n,
               norm.eps, row(norm.out, token) + at);
    }
    float *out = row(norm.out, token);
    if (norm.scale != 1) isa_.vector->scale(norm.scale, out, width(norm.out), out);
}

void CpuBackend::prepare(const PreparePhase &phase, int32_t rows, int32_t t0, int32_t t1, int64_t col0,
                         int64_t col1) noexcept {
    for (int32_t t = t0; t < t1; ++t) {
        std::visit(Overloaded{
                       [](std::monostate) {},
                       [&](const Norm &norm) { normalize(norm, t); },
                       [&](const Activation &gate) {
                           isa_.vector->gate(gate.act, gate.parameters, row(gate.gate, t) + col0,
                                             gate.up == kNoSlot ? nullptr : row(gate.up, t) + col0,
                                             col1 - col0, row(gate.out, t) + col0);
                       },
                   },
                   phase.step);
        for (ActFormat format : {ActFormat::F32, ActFormat::Q8x32, ActFormat::Q8x256})
            if (phase.formats & format_bit(format))
                isa_.linear->pack(format, row(phase.slot, 0), width(phase.slot), width(phase.slot), rows, t,
                                  t + 1, col0, col1, packed(format));
    }
}

void CpuBackend::run(const PreparePhase &phase, Worker &worker) noexcept {
    const int64_t cols = width(phase.slot);
    // A norm needs its whole row; anything else can be cut into blocks of columns when there are few tokens.
    if (std::holds_alternative<Norm>(phase.step) || worker.rows >= 4 * pool_->threads()) {
        pool_->for_ranges(worker.thread, worker.rows, [&](int64_t t0, int64_t t1) {
            prepare(phase, worker.rows, static_cast<int32_t>(t0), static_cast<int32_t>(t1), 0, cols);
        });
        return;
    }
    const int64_t blocks = (cols + kPrepareBlock - 1) / kPrepareBlock;
    const int64_t first = blocks * worker.thread / pool_->threads(),
                  last = blocks * (worker.thread + 1) / pool_->threads();
    if (first < last)
        prepare(phase, worker.rows, 0, worker.rows, first * kPrepareBlock,
                std::min(last * kPrepareBlock, cols));
}

// The next matrix after a phase, or null if it depends on the routing of experts.
const Weight *CpuBackend::weight_after(size_t phase) const noexcept {
    bool known = true;
    const Weight *next = nullptr;
    while (known && next == nullptr && ++phase < phases_.size())
        std::visit(Overloaded{
                       [&](const MultiplyPhase &p) {
                           if (!p.step.parts.empty()) next = &weight(p.step.parts.front().weight);
                       },
                       [&](const LogitsPhase &p) { next = &weight(p.step.weight); },
                       [&](const ExpertsPhase &p) { known = p.phase != ExpertRunner::Phase::Route; },
                       [](const EmbedPhase &) {},
                       [](const HashedEmbedPhase &) {},
                       [](const PreparePhase &) {},
                       [](const AppendPhase &) {},
                       [](const AttendPhase &) {},
                       [](const IndexPhase &) {},
                       [](const HeadsPhase &) {},
                       [](const CopyPhase &) {},
                       [](const RotatePhase &) {},
                       [](const MixPhase &) {},
                       [](const LerpPhase &) {},
                       [](const StreamsPhase &) {},
                       [](const RopePhase &) {},
                       [](const JoinPhase &) {},
                       [](const ScanPhase &) {},
                       [](const SelectPhase &) {},
                   },
                   phases_[phase]);
    return next;
}

// The matrix in tiles, if so many tokens are multiplied with it in that order; else null.
const std::byte *CpuBackend::tiles_for(const Weight &w, int32_t tokens) const noexcept {
    const std::byte *tiles = tiles_[static_cast<size_t>(&w - program_.weights.data())];
    return tiles && tokens <= isa_.linear->lookup->most_tokens(w.type) ? tiles : nullptr;
}

// Where the bytes of 16 rows begin that so many tokens are multiplied with.
const std::byte *CpuBackend::tile_bytes(const Weight &w, int64_t tile, int32_t tokens) const noexcept {
    if (const std::byte *tiles = tiles_for(w, tokens)) return tiles + tile * lookup_stride(w.type, w.cols);
    return w.data + static_cast<size_t>(tile * kTileRows) * gguf::row_bytes(w.type, w.cols);
}

// The bytes at which a thread starts reading a matrix in decode.
const std::byte *CpuBackend::first_bytes(const Weight *w, const Worker &worker) const noexcept {
    if (w == nullptr) return nullptr;
    const int64_t tiles = (w->rows + kTileRows - 1) / kTileRows;
    return tile_bytes(*w, pool_->first_unit(worker.thread, tiles, kGrainDecode), worker.rows);
}

void CpuBackend::multiply(const Weight &w, const Destination &to, Worker &worker, int loop,
                          const Weight *after) noexcept {
    const int64_t tiles = (w.rows + kTileRows - 1) / kTileRows;
    const std::byte *x = packed(act_format(w.type)), *looked_up = tiles_for(w, worker.rows);
    std::byte *scratch = scratch_[static_cast<size_t>(worker.thread)].data();
    if (looked_up && !worker.summed) isa_.linear->lookup->sum(x, w.cols, worker.rows, scratch);
    worker.summed = looked_up != nullptr;
    // `add` may be `out` itself, so a product with `add` goes to a buffer first.
    float *product = to.add ? product_.as<float>() : to.out;
    const int64_t product_stride = to.add ? w.rows : to.stride;
    const bool plain = !to.bias && !to.add && to.scale == 1 && to.softcap == 0;
    // next_tile: the tile this thread multiplies next, or -1
    const auto body = [&](int64_t tile0, int64_t tile1, int64_t next_tile) {
        const int64_t row0 = tile0 * kTileRows, row1 = std::min(tile1 * kTileRows, w.rows);
        const std::byte *next =
            next_tile >= 0 ? tile_bytes(w, next_tile, worker.rows) : first_bytes(after, worker);
        if (looked_up)
            isa_.linear->lookup->multiply(w.type, looked_up, w.cols, row0, row1, scratch, worker.rows,
                                          product, product_stride, next);
        else
            isa_.linear->multiply(w.type, w.data, w.cols, row0, row1, x, worker.rows, product, product_stride,
                                  scratch, next);
        const int64_t n = row1 - row0;
        for (int32_t t = 0; t < worker.rows && !plain; ++t) {
            float *y = product + t * product_stride + row0;
            const int64_t at = t * to.stride + row0;
            if (to.bias) isa_.vector->add(y, to.bias + row0, n, y);
            if (to.scale != 1) isa_.vector->scale(to.scale, y, n, y);
            if (to.softcap != 0) isa_.vector->softcap(to.softcap, y, n, y);
            if (to.add) isa_.vector->add(y, to.add + at, n, to.out + at);
        }
    };
    const bool decode = worker.rows <= kDecodeTokens;
    if (decode)
        pool_->for_ranges_ahead(worker.thread, tiles, body, kGrainDecode, loop);
    else {
        const int64_t grain = std::clamp(tiles / (kUnitsPerThread * pool_->threads()), kMinGrain, kMaxGrain);
        pool_->for_each(
            worker.thread, (tiles + grain - 1) / grain,
            [&](int64_t unit) {
                const int64_t end = std::min((unit + 1) * grain, tiles);
                body(unit * grain, end, end < tiles ? end : -1);
            },
            loop);
    }
}

void CpuBackend::run(const MultiplyPhase &phase, Worker &worker) noexcept {
    int loop = 0;
    worker.summed = false;
    const auto &parts = phase.step.parts;
    for (const Linear::Part &part : parts) {
        const size_t i = static_cast<size_t>(loop);
        const Weight *after =
            i + 1 < parts.size() ? &weight(parts[i + 1].weight) : weight_after(worker.phase);
        const Destination to{.out = row(part.out, 0),
                             .stride = width(part.out),
                             .bias = vector_of(part.bias),
                             .add = part.add == kNoSlot ? nullptr : row(part.add, 0),
                             .scale = part.scale};
        multiply(weight(part.weight), to, worker, loop++, after);
    }
}

void CpuBackend::run(const LogitsPhase &phase, Worker &worker) noexcept {
    const Logits &step = phase.step;
    const Weight &w = weight(step.weight);
    const Destination to{.out = logits_.data(),
                         .stride = w.rows,
                         .bias = vector_of(step.bias),
                         .scale = step.scale,
                         .softcap = step.softcap};
    worker.summed = false;
    multiply(w, to, worker, 0, nullptr);
}

// A unit is a head: one thread packs the head's slices of all tokens and multiplies them.
void CpuBackend::run(const HeadsPhase &phase, Worker &worker) noexcept {
    const HeadLinear &step = phase.step;
    const Weight &w = weight(step.weight);
    const ActFormat format = act_format(w.type);
    const size_t thread = static_cast<size_t>(worker.thread);
    const auto heads = [&](int64_t first, int64_t last, int64_t next) {
        for (int64_t head = first; head < last; ++head) {
            const std::byte *ahead = head + 1 < last ? w.matrix(head + 1)
                                     : next >= 0     ? w.matrix(next)
                                                     : nullptr;
            isa_.linear->pack(format, row(step.in, 0) + step.from.first + head * step.from.stride,
                              width(step.in), w.cols, worker.rows, 0, worker.rows, 0, w.cols,
                              packed_head_[thread].data());
            isa_.linear->multiply(w.type, w.matrix(head), w.cols, 0, w.rows, packed_head_[thread].data(),
                                  worker.rows, row(step.out, 0) + step.to.first + head * step.to.stride,
                                  width(step.out), scratch_[thread].data(), ahead);
        }
    };
    pool_->for_ranges_ahead(worker.thread, w.count, heads);
}

void CpuBackend::run(const ExpertsPhase &phase, Worker &worker) noexcept {
    experts_.run(phase.step, phase.phase, worker.thread, worker.rows,
                 first_bytes(weight_after(worker.phase), worker));
}

void CpuBackend::run(const SelectPhase &phase, Worker &worker) noexcept {
    const int32_t kept = static_cast<int32_t>(batch_->logit_rows.size());
    if (kept < worker.rows)
        for (size_t i = static_cast<size_t>(worker.thread); i < phase.slots.size();
             i += static_cast<size_t>(pool_->threads()))
            for (int32_t r = 0; r < kept; ++r) {
                const int32_t from = batch_->logit_rows[static_cast<size_t>(r)];
                const size_t bytes = static_cast<size_t>(width(phase.slots[i])) * sizeof(float);
                if (from != r) std::memcpy(row(phase.slots[i], r), row(phase.slots[i], from), bytes);
            }
    worker.rows = kept;
}

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads, const std::string &instructions,
                                          std::shared_ptr<WeightMemory> weights) {
    const Isa isa = instructions.empty() ? isa_of_environment() : choose_isa(instructions, instructions);
    return std::make_unique<CpuBackend>(threads, isa, std::move(weights));
}

std::string instruction_set() {
    return isa_of_environment().linear->name;
}

}  // namespace runnel::kernels::cpu
