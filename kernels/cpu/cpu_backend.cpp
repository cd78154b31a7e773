#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/system_memory.h"
#include "kernels/cpu/vector.h"

namespace runnel::kernels::cpu {
namespace {

// Rows per unit of work of a matrix: 16 is the height of a weight tile. Units handed out dynamically are
// large enough to keep a stream of reads going, small enough to even out a busy core.
constexpr int64_t kTileRows = 16;
constexpr int64_t kGrainDecode = 4, kGrainPrefill = 2;  // in tiles
constexpr int32_t kDecodeTokens = 8;                    // up to here a pass is bound by reading weights
constexpr int32_t kRangeTokens = 4;                     // up to here attention may be split by ranges of keys
constexpr int64_t kPrepareBlock = 256;                  // columns: the unit in which activations are packed

// A thread must have this much to read per token to be worth waiting for: on a busy machine a barrier can
// cost a time slice, and a model of a megabyte would crawl.
constexpr size_t kBytesPerThread = size_t{2} << 20;

struct Isa {
    const LinearKernels *linear;
    const VectorKernels *vector;
    const AttentionKernels *attention;
};

Isa choose_isa() {
    const char *wish = std::getenv("RUNNEL_CPU");
    const std::string name = wish ? wish : "";
    const std::array<Isa, 3> all = {{
        {linear_avx512(), vector_avx512(), attention_avx512()},
        {linear_avx2(), vector_avx2(), attention_avx2()},
        {&linear_scalar(), &vector_scalar(), &attention_scalar()},
    }};
    for (const Isa &isa : all)
        if (isa.linear && isa.vector && isa.attention && (name.empty() || name == isa.linear->name))
            return isa;
    throw BackendError(BackendError::Kind::Failed,
                       "RUNNEL_CPU=" + name + ": this CPU does not run it (choose avx512, avx2 or scalar)");
}

// The factor of q at a position.
float temperature(const Attention::Temperature &t, int32_t position) {
    const int64_t steps = (int64_t{position} + t.offset) / t.length;
    return static_cast<float>(1 + static_cast<double>(t.beta) * std::log1p(static_cast<double>(steps)));
}

// What one thread carries through the phases.
struct Worker {
    int thread;
    int32_t rows;      // tokens that steps work on: all of the batch, fewer after SelectPhase
    size_t phase = 0;  // the one at work
};

// Where the product of a matrix goes: out[t] = softcap(scale * (product + bias)) + add[t].
struct Destination {
    float *out;
    int64_t stride;  // of out and add: floats from token to token
    const float *bias = nullptr, *add = nullptr;
    float scale = 1;
    float softcap = 0;  // 0: none
};

class CpuBackend final : public Backend {
  public:
    explicit CpuBackend(int threads) : isa_(choose_isa()), threads_(threads) {}

    DeviceInfo info() const override;
    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override;
    bool execute(const Batch &batch, std::span<float> logits) override;
    void copy_blocks(int32_t group, std::span<const BlockCopy> copies) override;
    void read_block(int32_t group, BlockId block, std::span<std::byte> bytes) override {
        std::ranges::copy(cache_.block(group, block), bytes.begin());
    }
    void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) override {
        std::ranges::copy(bytes, cache_.block(group, block).begin());
    }

  private:
    int thread_count() const;
    void start_pool();
    void reserve_activations();
    void reserve_work_space(const CacheConfig &cache);
    void compute_rotations(const Worker &worker) noexcept;
    void run(const EmbedPhase &phase, Worker &worker) noexcept;
    void run(const PreparePhase &phase, Worker &worker) noexcept;
    void run(const MultiplyPhase &phase, Worker &worker) noexcept;
    void run(const AppendPhase &phase, Worker &worker) noexcept;
    void run(const AttendPhase &phase, Worker &worker) noexcept;
    void run(const HeadsPhase &phase, Worker &worker) noexcept;
    void run(const CopyPhase &phase, Worker &worker) noexcept;
    void run(const ExpertsPhase &phase, Worker &worker) noexcept;
    void run(const SelectPhase &phase, Worker &worker) noexcept;
    void run(const LogitsPhase &phase, Worker &worker) noexcept;

    void prepare(const PreparePhase &phase, int32_t rows, int32_t t0, int32_t t1, int64_t col0,
                 int64_t col1) noexcept;
    void add_position(const Weight &table, size_t t, int thread, float *out) noexcept;
    void normalize(const Norm &norm, int32_t token) noexcept;
    // Cosines and sines of the tokens' positions, per RopeTable: [max_tokens][pairs].
    struct Rotations {
        std::vector<LazyBuffer> cosines, sines;
    };
    void turn(const Attention &step, float *head, int32_t heads, WeightId norm, int32_t token,
              const Rotations &rotations) noexcept;
    void prepare_queries(const Attention &step, int32_t kv_head, int32_t token) noexcept;
    void append_cell(const Attention &step, const KvPages &pages, int32_t cell, int32_t kv_head,
                     int32_t token, float *work) noexcept;
    void rotate_back(const Attention &step, const AttentionTile &tile) noexcept;
    float *sink_row(const Attention &step, int32_t token) const {
        return sink_q_.as<float>() + token * width(step.q);
    }
    // Layers whose values are their keys, or that share those of a layer with other heads, stay as they are.
    bool can_rotate(const Attention &step) const {
        return program_.cache_layers[static_cast<size_t>(step.layer)].head_dim_v > 0;
    }
    void multiply(const Weight &weight, const Destination &to, const Worker &worker, int loop,
                  const Weight *after) noexcept;
    const Weight *weight_after(size_t phase) const noexcept;
    const std::byte *first_bytes(const Weight *w, int thread) const noexcept;
    size_t attention_scratch_of(const Attention &step) const;
    size_t partials_of(const Attention &step, const CacheConfig &cache) const;
    AttentionTile tile(const Attention &step, const SequenceSpan &sequence, int32_t kv_head, int32_t first,
                       int32_t tokens) const noexcept;
    void attend_by_ranges(const Attention &step, const Worker &worker) noexcept;
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
    const int threads_;  // as asked for; <= 0: chosen by thread_count
    std::unique_ptr<Pool> pool_;
    Program program_;
    std::vector<Phase> phases_;
    CacheMemory cache_;
    int32_t max_tokens_ = 0;
    std::vector<LazyBuffer> slots_;
    std::array<LazyBuffer, 3> packed_;     // by ActFormat
    LazyBuffer product_;                   // of a matrix whose result is added to a slot
    LazyBuffer partials_;                  // of attention over ranges: [kv head][range]
    std::vector<LazyBuffer> scratch_;      // per thread: weight tiles, attention
    std::vector<LazyBuffer> packed_head_;  // per thread: one head's piece of all tokens
    ExpertRunner experts_;
    Rotations rotations_, sink_rotations_;  // of positions, and of those that sink cells are seen from
    int32_t sink_position_ = -1;            // the largest of the latter; -1: no layer has sink cells
    LazyBuffer sink_q_;                     // the queries of the layer at hand for sink cells
    CacheType k_type_ = CacheType::F16, v_type_ = CacheType::F16;

    // The batch at hand.
    const Batch *batch_ = nullptr;
    std::span<float> logits_;
    std::array<std::atomic<bool>, 2> stop_{};
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
    phases_ = plan(program_);
    max_tokens_ = max_tokens;
    start_pool();
    cache_ = CacheMemory(program_, cache);
    k_type_ = cache.k;
    v_type_ = cache.v;
    reserve_activations();
    reserve_work_space(cache);
    experts_ = ExpertRunner({.program = &program_,
                             .linear = isa_.linear,
                             .vector = isa_.vector,
                             .pool = pool_.get(),
                             .slots = slots_,
                             .packed = packed_,
                             .scratch = scratch_},
                            max_tokens);
}

void CpuBackend::reserve_activations() {
    const size_t tokens = static_cast<size_t>(max_tokens_);
    slots_.clear();
    for (const SlotInfo &slot : program_.slots)
        slots_.emplace_back(tokens * static_cast<size_t>(slot.width) * sizeof(float), "activations");
    size_t sink_q = 0;
    sink_position_ = -1;
    for (const Step &step : program_.steps)
        if (const auto *a = std::get_if<Attention>(&step); a && a->sink_cells > 0) {
            sink_q = std::max(sink_q, tokens * static_cast<size_t>(width(a->q)) * sizeof(float));
            assert(sink_position_ < 0 || sink_position_ == a->window + a->sink_cells - 1);
            sink_position_ = a->window + a->sink_cells - 1;
        }
    sink_q_ = LazyBuffer(sink_q, "activations");
    rotations_ = {};
    sink_rotations_ = {};
    for (Rotations *rotations : {&rotations_, &sink_rotations_})
        for (const RopeTable &rope : program_.ropes) {
            const size_t bytes = tokens * rope.inv_freq.size() * sizeof(float);
            rotations->cosines.emplace_back(bytes, "rotations");
            rotations->sines.emplace_back(bytes, "rotations");
        }
    size_t product = 0;
    for (const Step &step : program_.steps)
        if (const auto *linear = std::get_if<Linear>(&step))
            for (const Linear::Part &part : linear->parts)
                if (part.add != kNoSlot)
                    product = std::max(
                        product, tokens * static_cast<size_t>(weight(part.weight).rows) * sizeof(float));
    product_ = LazyBuffer(product, "activations");
}

void CpuBackend::reserve_work_space(const CacheConfig &cache) {
    std::array<int64_t, 3> widest{};  // columns, by ActFormat
    for (const Weight &w : program_.weights) {
        int64_t &cols = widest[static_cast<size_t>(act_format(w.type))];
        cols = std::max(cols, w.cols);
    }
    for (size_t f = 0; f < packed_.size(); ++f)
        packed_[f] =
            LazyBuffer(widest[f] ? packed_bytes(static_cast<ActFormat>(f), widest[f], max_tokens_) : 0,
                       "packed activations");

    size_t scratch = isa_.linear->scratch_bytes(*std::max_element(widest.begin(), widest.end())),
           partials = 0;
    for (const Step &step : program_.steps) {
        if (const auto *embed = std::get_if<Embed>(&step))
            if (embed->positions != kNoWeight)
                scratch = std::max(scratch, sizeof(float) * static_cast<size_t>(width(embed->out)));
        if (const auto *attention = std::get_if<Attention>(&step)) {
            scratch = std::max(scratch, sizeof(float) * attention_scratch_of(*attention));
            partials = std::max(partials, sizeof(float) * partials_of(*attention, cache));
        }
    }
    partials_ = LazyBuffer(partials, "attention");
    size_t packed_head = 0;
    for (const Step &step : program_.steps)
        if (const auto *heads = std::get_if<HeadLinear>(&step)) {
            const Weight &w = weight(heads->weight);
            packed_head = std::max(packed_head, packed_bytes(act_format(w.type), w.cols, max_tokens_));
        }
    packed_head_.clear();
    for (int t = 0; t < pool_->threads(); ++t) packed_head_.emplace_back(packed_head, "work space");
    scratch_.clear();
    for (int t = 0; t < pool_->threads(); ++t) scratch_.emplace_back(scratch, "work space");
}

bool CpuBackend::execute(const Batch &batch, std::span<float> logits) {
    assert(!batch.tokens.empty() && static_cast<int32_t>(batch.tokens.size()) <= max_tokens_);
    assert(logits.size() == batch.logit_rows.size() * static_cast<size_t>(program_.vocab));
    batch_ = &batch;
    logits_ = logits;
    bool finished = true;
    pool_->run([&](int thread) noexcept {
        Worker worker{thread, static_cast<int32_t>(batch.tokens.size())};
        compute_rotations(worker);
        // No rows: only logits that nobody asked for would follow.
        for (size_t i = 0; i < phases_.size() && worker.rows > 0; ++i) {
            worker.phase = i;
            std::visit([&](const auto &phase) { run(phase, worker); }, phases_[i]);
            if (cancelled_after_barrier(i, thread)) {
                if (thread == 0) finished = false;
                break;
            }
        }
    });
    return finished;
}

void CpuBackend::copy_blocks(int32_t group, std::span<const BlockCopy> copies) {
    for (const BlockCopy &copy : copies)
        std::ranges::copy(cache_.block(group, copy.from), cache_.block(group, copy.to).begin());
}

// Thread 0 looks at the flag and tells the others; two alternating cells, because it may already write the
// next one while another thread still reads this.
bool CpuBackend::cancelled_after_barrier(size_t phase, int thread) noexcept {
    std::atomic<bool> &stop = stop_[phase & 1];
    if (thread == 0)
        stop.store(batch_->cancel && batch_->cancel->load(std::memory_order_relaxed),
                   std::memory_order_relaxed);
    pool_->barrier();
    return stop.load(std::memory_order_relaxed);
}

void CpuBackend::compute_rotations(const Worker &worker) noexcept {
    const auto compute = [&](Rotations &rotations, size_t r, int32_t t, int32_t position) {
        const RopeTable &rope = program_.ropes[r];
        const size_t at = static_cast<size_t>(t) * rope.inv_freq.size();
        rope_row(rope, position, rotations.cosines[r].as<float>() + at, rotations.sines[r].as<float>() + at);
    };
    for (size_t r = 0; r < program_.ropes.size(); ++r)
        for (int32_t t = worker.thread; t < worker.rows; t += pool_->threads()) {
            const int32_t position = batch_->positions[static_cast<size_t>(t)];
            compute(rotations_, r, t, position);
            if (sink_position_ >= 0) compute(sink_rotations_, r, t, std::min(position, sink_position_));
        }
}

void CpuBackend::run(const EmbedPhase &phase, Worker &worker) noexcept {
    const Weight &table = weight(phase.step.table);
    const size_t row_bytes = gguf::row_bytes(table.type, table.cols);
    pool_->for_ranges(worker.thread, worker.rows, [&](int64_t t0, int64_t t1) {
        for (int64_t t = t0; t < t1; ++t) {
            const size_t token = static_cast<size_t>(batch_->tokens[static_cast<size_t>(t)]);
            float *out = row(phase.step.out, static_cast<int32_t>(t));
            isa_.linear->dequantize(table.type, table.data + token * row_bytes, table.cols, out);
            if (phase.step.scale != 1) isa_.vector->scale(phase.step.scale, out, table.cols, out);
            if (phase.step.positions != kNoWeight)
                add_position(weight(phase.step.positions), static_cast<size_t>(t), worker.thread, out);
        }
    });
}

void CpuBackend::add_position(const Weight &table, size_t t, int thread, float *out) noexcept {
    const int64_t position = std::min<int64_t>(batch_->positions[t], table.rows - 1);
    const size_t offset = static_cast<size_t>(position) * gguf::row_bytes(table.type, table.cols);
    float *learned = scratch_[static_cast<size_t>(thread)].as<float>();
    isa_.linear->dequantize(table.type, table.data + offset, table.cols, learned);
    isa_.vector->add(out, learned, table.cols, out);
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
}

void CpuBackend::prepare(const PreparePhase &phase, int32_t rows, int32_t t0, int32_t t1, int64_t col0,
                         int64_t col1) noexcept {
    for (int32_t t = t0; t < t1; ++t) {
        if (const auto *norm = std::get_if<Norm>(&phase.step)) normalize(*norm, t);
        if (const auto *gate = std::get_if<Gate>(&phase.step))
            isa_.vector->gate(gate->act, row(gate->gate, t) + col0,
                              gate->up == kNoSlot ? nullptr : row(gate->up, t) + col0, col1 - col0,
                              row(gate->out, t) + col0);
        for (ActFormat format : {ActFormat::F32, ActFormat::Q8x32, ActFormat::Q8x256})
            if (phase.formats & format_bit(format))
                isa_.linear->pack(format, row(phase.slot, 0), width(phase.slot), width(phase.slot), rows, t,
                                  t + 1, col0, col1, packed(format));
    }
}

void CpuBackend::run(const PreparePhase &phase, Worker &worker) noexcept {
    const int64_t cols = width(phase.slot);
    // A norm needs its whole row; anything else may be cut into blocks of columns when tokens are few.
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

// The matrix that comes next after a phase, or null: which experts come next is not known before.
const Weight *CpuBackend::weight_after(size_t phase) const noexcept {
    while (++phase < phases_.size()) {
        if (const auto *p = std::get_if<ExpertsPhase>(&phases_[phase]))
            if (p->phase == ExpertRunner::Phase::Route) return nullptr;
        if (const auto *p = std::get_if<MultiplyPhase>(&phases_[phase]))
            if (!p->step.parts.empty()) return &weight(p->step.parts.front().weight);
        if (const auto *p = std::get_if<LogitsPhase>(&phases_[phase])) return &weight(p->step.weight);
    }
    return nullptr;
}

// Where a thread begins to read a matrix when it decodes.
const std::byte *CpuBackend::first_bytes(const Weight *w, int thread) const noexcept {
    if (w == nullptr) return nullptr;
    const int64_t tiles = (w->rows + kTileRows - 1) / kTileRows;
    const int64_t row = pool_->first_unit(thread, tiles, kGrainDecode) * kTileRows;
    return w->data + static_cast<size_t>(row) * gguf::row_bytes(w->type, w->cols);
}

void CpuBackend::multiply(const Weight &w, const Destination &to, const Worker &worker, int loop,
                          const Weight *after) noexcept {
    const int64_t tiles = (w.rows + kTileRows - 1) / kTileRows;
    const size_t row_bytes = gguf::row_bytes(w.type, w.cols);
    const std::byte *x = packed(act_format(w.type));
    // `add` may be `out` itself, so a product that something is added to is formed elsewhere.
    float *product = to.add ? product_.as<float>() : to.out;
    const int64_t product_stride = to.add ? w.rows : to.stride;
    const bool plain = !to.bias && !to.add && to.scale == 1 && to.softcap == 0;
    // next_tile: where this thread goes on, or -1
    const auto body = [&](int64_t tile0, int64_t tile1, int64_t next_tile) {
        const int64_t row0 = tile0 * kTileRows, row1 = std::min(tile1 * kTileRows, w.rows);
        const std::byte *next = next_tile >= 0
                                    ? w.data + static_cast<size_t>(next_tile * kTileRows) * row_bytes
                                    : first_bytes(after, worker.thread);
        isa_.linear->multiply(w.type, w.data, w.cols, row0, row1, x, worker.rows, product, product_stride,
                              scratch_[static_cast<size_t>(worker.thread)].data(), next);
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
    else
        pool_->for_each(
            worker.thread, (tiles + kGrainPrefill - 1) / kGrainPrefill,
            [&](int64_t unit) {
                const int64_t end = std::min((unit + 1) * kGrainPrefill, tiles);
                body(unit * kGrainPrefill, end, end < tiles ? end : -1);
            },
            loop);
}

void CpuBackend::run(const MultiplyPhase &phase, Worker &worker) noexcept {
    int loop = 0;
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

// Norm and rotation of consecutive heads of a token.
void CpuBackend::turn(const Attention &a, float *head, int32_t heads, WeightId norm, int32_t token,
                      const Rotations &rotations) noexcept {
    const auto normalize_heads = [&] {
        for (int32_t h = 0; h < heads && norm != kNoWeight; ++h) {
            float *x = head + h * a.head_dim_k;
            isa_.vector->rms_norm(x, {vector_of(norm), nullptr, nullptr}, a.head_dim_k, a.norm_eps, x);
        }
    };
    if (!a.norm_after_rope) normalize_heads();
    if (a.rope >= 0) {
        const size_t r = static_cast<size_t>(a.rope);
        const RopeTable &rope = program_.ropes[r];
        const size_t pairs = rope.inv_freq.size(), at = static_cast<size_t>(token) * pairs;
        isa_.vector->rope(head + rope.first, heads, a.head_dim_k, rotations.cosines[r].as<float>() + at,
                          rotations.sines[r].as<float>() + at, static_cast<int32_t>(pairs), rope.pairs);
    }
    if (a.norm_after_rope) normalize_heads();
}

// Norms and rotations of the query heads of one K/V head of a token; for sink cells another time.
void CpuBackend::prepare_queries(const Attention &a, int32_t kv_head, int32_t token) noexcept {
    const int32_t group = a.heads / a.kv_heads;
    const int64_t at = int64_t{kv_head} * group * a.head_dim_k, size = int64_t{group} * a.head_dim_k;
    float *q = row(a.q, token) + at;
    const auto prepare = [&](float *x, const Rotations &rotations) {
        turn(a, x, group, a.q_norm, token, rotations);
        if (a.temperature.beta != 0)
            isa_.vector->scale(temperature(a.temperature, batch_->positions[static_cast<size_t>(token)]), x,
                               size, x);
        if (can_rotate(a) && rotates_keys(k_type_)) rotate_heads(x, group, a.head_dim_k);
    };
    if (a.sink_cells > 0) {
        float *sink_q = sink_row(a, token) + at;
        std::copy_n(q, size, sink_q);
        prepare(sink_q, sink_rotations_);
    }
    prepare(q, rotations_);
}

// work: head_dim_v floats
void CpuBackend::append_cell(const Attention &a, const KvPages &pages, int32_t cell, int32_t kv_head,
                             int32_t token, float *work) noexcept {
    float *k = row(a.k, token) + kv_head * a.head_dim_k;
    const float *v = a.v == kNoSlot ? nullptr : row(a.v, token) + kv_head * a.head_dim_v;
    turn(a, k, 1, a.k_norm, token, rotations_);
    if (can_rotate(a) && rotates_keys(k_type_)) rotate_heads(k, 1, a.head_dim_k);
    if (v && can_rotate(a) && rotates_values(v_type_)) {
        std::copy_n(v, a.head_dim_v, work);
        rotate_heads(work, 1, a.head_dim_v);
        v = work;
    }
    isa_.attention->append(pages, cell, 1, k, width(a.k), v, v ? width(a.v) : 0);
}

// A unit is one K/V head of one token with its query heads.
void CpuBackend::run(const AppendPhase &phase, Worker &worker) noexcept {
    const Attention &a = phase.step;
    float *work = scratch_[static_cast<size_t>(worker.thread)].as<float>();
    const size_t table = static_cast<size_t>(program_.cache_layers[static_cast<size_t>(a.layer)].group);
    for (const SequenceSpan &sequence : batch_->sequences) {
        const int64_t units = int64_t{sequence.count} * a.kv_heads;
        const int64_t first = units * worker.thread / pool_->threads(),
                      last = units * (worker.thread + 1) / pool_->threads();
        for (int64_t unit = first; unit < last; ++unit) {
            const int32_t i = static_cast<int32_t>(unit / a.kv_heads),
                          kv_head = static_cast<int32_t>(unit % a.kv_heads);
            const int32_t token = sequence.first + i;
            prepare_queries(a, kv_head, token);
            if (a.k != kNoSlot)
                append_cell(a, cache_.pages(a, kv_head, sequence.tables[table].data()), sequence.past + i,
                            kv_head, token, work);
        }
    }
}

// What was summed are rotated values.
void CpuBackend::rotate_back(const Attention &a, const AttentionTile &tile) noexcept {
    if (!can_rotate(a) || !rotates_values(v_type_)) return;
    for (int32_t t = 0; t < tile.tokens; ++t)
        rotate_heads(tile.out + t * tile.out_stride, tile.heads, a.head_dim_v);
}

AttentionTile CpuBackend::tile(const Attention &a, const SequenceSpan &sequence, int32_t kv_head,
                               int32_t first, int32_t tokens) const noexcept {
    const int32_t group = a.heads / a.kv_heads;
    const size_t table = static_cast<size_t>(program_.cache_layers[static_cast<size_t>(a.layer)].group);
    return {.pages = cache_.pages(a, kv_head, sequence.tables[table].data()),
            .q = row(a.q, sequence.first + first) + kv_head * group * a.head_dim_k,
            .out = row(a.out, sequence.first + first) + kv_head * group * a.head_dim_v,
            .q_stride = width(a.q),
            .out_stride = width(a.out),
            .tokens = tokens,
            .heads = group,
            .first_cell = sequence.past + first,
            .window = a.window,
            .scale = a.scale,
            .chunked = a.window_kind == Attention::Window::Chunked,
            .softcap = a.softcap,
            .sinks = a.sinks == kNoWeight ? nullptr : vector_of(a.sinks) + kv_head * group,
            .sink_cells = a.sink_cells,
            .sink_q = a.sink_cells == 0
                          ? nullptr
                          : sink_row(a, sequence.first + first) + kv_head * group * a.head_dim_k};
}

size_t CpuBackend::attention_scratch_of(const Attention &a) const {
    const int32_t group = a.heads / a.kv_heads;
    return attention_scratch(a.head_dim_k, a.head_dim_v,
                             group * std::max(kRangeTokens, attention_tile_tokens(group)));
}

size_t CpuBackend::partials_of(const Attention &a, const CacheConfig &cache) const {
    const size_t group = static_cast<size_t>(program_.cache_layers[static_cast<size_t>(a.layer)].group);
    const size_t ranges = static_cast<size_t>(cache.blocks[group]) * kBlockTokens / kRangeCells + 3;
    AttentionTile shape{};
    shape.pages.head_dim_k = a.head_dim_k;
    shape.pages.head_dim_v = a.head_dim_v;
    shape.tokens = kRangeTokens;
    shape.heads = a.heads / a.kv_heads;
    return attention_partial(shape) * ranges * static_cast<size_t>(a.kv_heads);
}

// Few tokens, a long context and fewer K/V heads than would keep all threads busy: a unit is one range of
// keys of one head. The ranges are those that attend() forms itself, so the result is the same.
void CpuBackend::attend_by_ranges(const Attention &a, const Worker &worker) noexcept {
    const SequenceSpan &sequence = batch_->sequences[0];
    const int32_t ranges = range_count(tile(a, sequence, 0, 0, sequence.count));
    const auto partial = [&](int32_t kv_head, int32_t range) {
        const AttentionTile t = tile(a, sequence, kv_head, 0, sequence.count);
        return partials_.as<float>() + attention_partial(t) * static_cast<size_t>(kv_head * ranges + range);
    };
    pool_->for_each(worker.thread, int64_t{a.kv_heads} * ranges, [&](int64_t unit) {
        const int32_t kv_head = static_cast<int32_t>(unit / ranges),
                      range = static_cast<int32_t>(unit % ranges);
        isa_.attention->attend_range(tile(a, sequence, kv_head, 0, sequence.count), range,
                                     partial(kv_head, range),
                                     scratch_[static_cast<size_t>(worker.thread)].as<float>());
    });
    pool_->barrier();
    pool_->for_each(worker.thread, a.kv_heads, [&](int64_t kv_head) {
        const int32_t head = static_cast<int32_t>(kv_head);
        const AttentionTile rows = tile(a, sequence, head, 0, sequence.count);
        isa_.attention->join(rows, partial(head, 0), ranges);
        rotate_back(a, rows);
    });
}

void CpuBackend::run(const AttendPhase &phase, Worker &worker) noexcept {
    const Attention &a = phase.step;
    const bool one_short = batch_->sequences.size() == 1 && worker.rows <= kRangeTokens;
    if (one_short && pool_->threads() > 1 && a.kv_heads < 4 * pool_->threads() &&
        range_count(tile(a, batch_->sequences[0], 0, 0, worker.rows)) > 1) {
        attend_by_ranges(a, worker);
        return;
    }
    // Units of all sequences in one numbering; later tokens see more keys, so the largest units come first.
    const int32_t step = attention_tile_tokens(a.heads / a.kv_heads);
    const auto tiles = [&](const SequenceSpan &s) { return (s.count + step - 1) / step; };
    int64_t units = 0;
    for (const SequenceSpan &s : batch_->sequences) units += int64_t{tiles(s)} * a.kv_heads;
    pool_->for_each(worker.thread, units, [&](int64_t unit) {
        size_t s = 0;
        while (unit >= int64_t{tiles(batch_->sequences[s])} * a.kv_heads)
            unit -= int64_t{tiles(batch_->sequences[s++])} * a.kv_heads;
        const SequenceSpan &sequence = batch_->sequences[s];
        const int32_t first = (tiles(sequence) - 1 - static_cast<int32_t>(unit / a.kv_heads)) * step;
        const int32_t kv_head = static_cast<int32_t>(unit % a.kv_heads);
        const AttentionTile rows = tile(a, sequence, kv_head, first, std::min(step, sequence.count - first));
        isa_.attention->attend(rows, scratch_[static_cast<size_t>(worker.thread)].as<float>());
        rotate_back(a, rows);
    });
}

void CpuBackend::run(const LogitsPhase &phase, Worker &worker) noexcept {
    const Logits &step = phase.step;
    const Weight &w = weight(step.weight);
    const Destination to{.out = logits_.data(),
                         .stride = w.rows,
                         .bias = vector_of(step.bias),
                         .scale = step.scale,
                         .softcap = step.softcap};
    multiply(w, to, worker, 0, nullptr);
}

// A unit is a head: its pieces of all tokens are packed and multiplied by one thread.
void CpuBackend::run(const HeadsPhase &phase, Worker &worker) noexcept {
    const HeadLinear &step = phase.step;
    const Weight &w = weight(step.weight);
    const ActFormat format = act_format(w.type);
    const size_t thread = static_cast<size_t>(worker.thread);
    const auto matrix = [&](int64_t head) { return w.data + static_cast<size_t>(head) * w.matrix_bytes(); };
    const auto heads = [&](int64_t first, int64_t last, int64_t next) {
        for (int64_t head = first; head < last; ++head) {
            const std::byte *ahead = head + 1 < last ? matrix(head + 1) : next >= 0 ? matrix(next) : nullptr;
            isa_.linear->pack(format, row(step.in, 0) + step.from.first + head * step.from.stride,
                              width(step.in), w.cols, worker.rows, 0, worker.rows, 0, w.cols,
                              packed_head_[thread].data());
            isa_.linear->multiply(w.type, matrix(head), w.cols, 0, w.rows, packed_head_[thread].data(),
                                  worker.rows, row(step.out, 0) + step.to.first + head * step.to.stride,
                                  width(step.out), scratch_[thread].data(), ahead);
        }
    };
    pool_->for_ranges_ahead(worker.thread, w.count, heads);
}

void CpuBackend::run(const CopyPhase &phase, Worker &worker) noexcept {
    const Copy &step = phase.step;
    pool_->for_ranges(worker.thread, worker.rows, [&](int64_t t0, int64_t t1) {
        for (int64_t t = t0; t < t1; ++t)
            for (int32_t i = 0; i < step.count; ++i)
                std::copy_n(row(step.in, static_cast<int32_t>(t)) + step.from.first + i * step.from.stride,
                            step.width,
                            row(step.out, static_cast<int32_t>(t)) + step.to.first + i * step.to.stride);
    });
}

void CpuBackend::run(const ExpertsPhase &phase, Worker &worker) noexcept {
    experts_.run(phase.step, phase.phase, worker.thread, worker.rows,
                 first_bytes(weight_after(worker.phase), worker.thread));
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

std::unique_ptr<Backend> make_cpu_backend(int threads) {
    return std::make_unique<CpuBackend>(threads);
}

std::string instruction_set() {
    return choose_isa().linear->name;
}

}  // namespace runnel::kernels::cpu
