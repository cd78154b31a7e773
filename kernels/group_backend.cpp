#include "kernels/group_backend.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/block_pieces.h"
#include "kernels/steps.h"
#include "kernels/tensor_program.h"
#include "kernels/tensor_rank.h"
#include "kernels/wire.h"

namespace runnel::kernels {
namespace {

using Bytes = std::vector<std::byte>;

// What the leader tells the followers to do.
enum class Command : int32_t {
    Load,
    Execute,
    ReadLogits,
    CopyBlocks,
    ReadBlock,
    WriteBlock,
    WriteState,
    End
};

WireWriter begin(Command command) {
    WireWriter message;
    message.put(command);
    return message;
}

// The leader's message to all, on every rank: first its size, then its bytes.
Bytes tell(Communicator &communicator, Bytes message) {
    uint64_t size = message.size();
    communicator.broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
    message.resize(size);
    communicator.broadcast(message, 0);
    return message;
}

// Equal for programs with the same shapes, steps, parts and weight sizes: enough to notice another file or other options.
uint64_t fingerprint(const Program &program) {
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    const auto add = [&](uint64_t value) {
        for (int i = 0; i < 8; ++i) hash = (hash ^ ((value >> (8 * i)) & 255)) * 1099511628211u;
    };
    for (const Weight &weight : program.weights) {
        add(static_cast<uint64_t>(weight.type)), add(static_cast<uint64_t>(weight.rows));
        add(static_cast<uint64_t>(weight.cols)), add(static_cast<uint64_t>(weight.count));
        for (const char c : weight.name) add(static_cast<unsigned char>(c));
    }
    for (const SlotInfo &slot : program.slots) add(static_cast<uint64_t>(slot.width));
    for (const CacheLayer &layer : program.cache_layers)
        add(static_cast<uint64_t>(layer.group)), add(static_cast<uint64_t>(layer.kv_heads)),
            add(static_cast<uint64_t>(layer.head_dim_k));
    for (const Step &step : program.steps) add(step.index());
    for (const Program::Part &part : program.parts) {
        add(part.end);
        for (const Slot slot : part.in) add(static_cast<uint64_t>(slot));
        for (const Slot slot : part.out) add(static_cast<uint64_t>(slot));
    }
    add(static_cast<uint64_t>(program.vocab));
    return hash;
}

// A batch, and the memory that its spans refer to on a follower.
struct ReceivedBatch {
    std::vector<int32_t> tokens, positions, logit_rows;
    std::vector<SequenceSpan> sequences;
    std::vector<std::vector<BlockId>> tables;
    std::vector<std::vector<uint64_t>> mask_bits;
    std::vector<TokenMask> masks;
    Batch batch;
};

void put(WireWriter &to, const Batch &batch) {
    to.list(batch.tokens), to.list(batch.positions), to.list(batch.logit_rows);
    to.put(batch.part);
    to.put(batch.sequences.size());
    for (const SequenceSpan &span : batch.sequences) {
        to.put(span.first), to.put(span.count), to.put(span.past);
        to.put(span.shared), to.put(span.shared_from), to.put(span.both_ways), to.put(span.state);
        to.list(std::span<const StateWrite>(span.state_writes));
        to.put(span.tables.size());
        for (const auto &table : span.tables) to.list(table);
    }
    to.put(batch.masks.size());
    for (const TokenMask mask : batch.masks) to.list(mask);
}

void get(WireReader &from, ReceivedBatch &into) {
    into.tokens = from.list<int32_t>(), into.positions = from.list<int32_t>();
    into.logit_rows = from.list<int32_t>();
    into.batch = {};
    into.batch.part = from.get<int32_t>();
    into.sequences.assign(from.get<size_t>(), {});
    into.tables.clear();
    std::vector<size_t> table_counts;
    for (SequenceSpan &span : into.sequences) {
        span.first = from.get<int32_t>(), span.count = from.get<int32_t>(), span.past = from.get<int32_t>();
        span.shared = from.get<int32_t>(), span.shared_from = from.get<int32_t>();
        span.both_ways = from.get<bool>();
        span.state = from.get<StateId>();
        span.state_writes = from.list<StateWrite>();
        table_counts.push_back(from.get<size_t>());
        for (size_t i = 0; i < table_counts.back(); ++i) into.tables.push_back(from.list<BlockId>());
    }
    size_t table = 0;
    for (size_t s = 0; s < into.sequences.size(); ++s)
        for (size_t i = 0; i < table_counts[s]; ++i) into.sequences[s].tables.push_back(into.tables[table++]);
    into.batch.tokens = into.tokens, into.batch.positions = into.positions;
    into.mask_bits.resize(from.get<size_t>());
    into.masks.clear();
    for (std::vector<uint64_t> &bits : into.mask_bits) {
        from.list(bits);
        into.masks.push_back(bits);
    }
    into.batch.logit_rows = into.logit_rows, into.batch.sequences = into.sequences;
    into.batch.masks = into.masks;
}

// What leader and followers do alike: one rank's part of the program on its device.
class Member {
  public:
    Member(Backend &device, Communicator &communicator, std::span<const double> shares)
        : device_(device), communicator_(communicator), shares_(shares.begin(), shares.end()) {
        assert(shares_.size() == static_cast<size_t>(communicator.size()));
    }

    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) {
        rank_.reset();
        tensor_ = cut_program(program, shares_, cache.shares);
        pieces_ = BlockPieces(tensor_, cache);
        on_device([&] { device_.load(tensor_.programs[rank()], share_of(cache, rank()), max_tokens); });
        rank_.emplace(device_, communicator_, tensor_);
        communicator_.barrier();  // throws if a rank has failed to load
    }
    std::string layout() const { return pieces_.layout(); }
    bool execute(const Batch &batch, std::span<float> logits) { return rank_->execute(batch, logits); }
    bool execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates, std::span<ExpSum> sums) {
        return rank_->execute(batch, count, candidates, sums);
    }
    int32_t most_candidates() const { return rank_ ? rank_->most_candidates() : 0; }
    void read_logits(int32_t row, std::span<float> logits) { rank_->read_logits(row, logits); }
    std::exception_ptr error() const { return rank_ ? rank_->error() : nullptr; }
    void copy_blocks(int32_t group, std::span<const BlockCopy> copies) {
        if (pieces_.holds_any(rank(), group, copies)) on_device([&] { device_.copy_blocks(group, copies); });
    }
    // whole: on the leader, all bytes of the block.
    void read_block(int32_t group, BlockId block, std::span<std::byte> whole) {
        std::vector<Bytes> pieces;
        on_device([&] {
            pieces = pieces_.room(group, block);
            Bytes &own = pieces[rank()];
            if (!own.empty()) device_.read_block(group, block, own);
        });
        std::vector<Communicator::Send> sends;
        std::vector<Communicator::Receive> receives;
        if (rank() > 0 && !pieces[rank()].empty()) sends.push_back({0, pieces[rank()]});
        for (size_t r = 1; r < pieces.size() && rank() == 0; ++r)
            if (!pieces[r].empty()) receives.push_back({static_cast<int>(r), pieces[r]});
        communicator_.exchange(sends, receives);
        if (rank() == 0) pieces_.join(group, block, pieces, whole);
    }
    void write_block(int32_t group, BlockId block, std::span<const std::byte> whole) {
        on_device([&] {
            std::vector<Bytes> pieces = pieces_.room(group, block);
            pieces_.cut(group, block, whole, pieces);
            if (!pieces[rank()].empty()) device_.write_block(group, block, pieces[rank()]);
        });
    }
    void write_state(StateId slot, std::span<const std::byte> bytes) {
        on_device([&] { device_.write_state(slot, bytes); });
    }

    // Calls f; if it throws, all ranks fail.
    template <typename F>
    void on_device(F &&f) {
        try {
            f();
        } catch (const std::exception &error) {
            communicator_.abort(error.what());
            throw;
        }
    }

  private:
    size_t rank() const { return static_cast<size_t>(communicator_.rank()); }

    Backend &device_;
    Communicator &communicator_;
    const std::vector<double> shares_;
    TensorProgram tensor_;
    BlockPieces pieces_;
    std::optional<TensorRank> rank_;
};

class LeadingBackend final : public Backend {
  public:
    LeadingBackend(std::unique_ptr<Backend> device, Communicator &communicator,
                   std::span<const double> shares)
        : device_(std::move(device)), communicator_(communicator), member_(*device_, communicator, shares) {
        assert(communicator.rank() == 0);
    }
    ~LeadingBackend() override {
        try {
            tell(communicator_, begin(Command::End).bytes());
        } catch (const std::exception &) {
            // The ranks have failed: the followers have ended, or never will because of this message.
        }
    }

    DeviceInfo info() const override {
        DeviceInfo info = device_->info();
        info.name = std::to_string(communicator_.size()) + " processes, this one on " + info.name;
        info.kind += member_.layout();
        return info;
    }
    void on_load(LoadProgress progress) override { device_->on_load(std::move(progress)); }
    int64_t launches() const override { return device_->launches(); }

    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override {
        WireWriter message = begin(Command::Load);
        message.put(fingerprint(program));
        message.list(std::span<const int32_t>(cache.blocks));
        message.list(std::span<const int32_t>(cache.shares));
        message.put(cache.k), message.put(cache.v), message.put(cache.context), message.put(cache.states);
        message.put(max_tokens);
        tell(communicator_, message.bytes());
        member_.load(program, cache, max_tokens);
    }

    bool execute(const Batch &batch, std::span<float> logits) override {
        return tell_to_execute(batch, 0) && with_own_error([&] { return member_.execute(batch, logits); });
    }
    int32_t most_candidates() const override { return member_.most_candidates(); }
    bool execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
                 std::span<ExpSum> sums) override {
        return tell_to_execute(batch, count) &&
               with_own_error([&] { return member_.execute(batch, count, candidates, sums); });
    }
    void read_logits(int32_t row, std::span<float> logits) override {
        WireWriter message = begin(Command::ReadLogits);
        message.put(row);
        tell(communicator_, message.bytes());
        with_own_error([&] { member_.read_logits(row, logits); });
    }
    SlotRows exchange(Slot slot) override { return device_->exchange(slot); }

    void copy_blocks(int32_t group, std::span<const BlockCopy> copies) override {
        WireWriter message = begin(Command::CopyBlocks);
        message.put(group);
        message.list(copies);
        tell(communicator_, message.bytes());
        member_.copy_blocks(group, copies);
    }
    void read_block(int32_t group, BlockId block, std::span<std::byte> bytes) override {
        WireWriter message = begin(Command::ReadBlock);
        message.put(group), message.put(block);
        tell(communicator_, message.bytes());
        member_.read_block(group, block, bytes);
    }
    void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) override {
        WireWriter message = begin(Command::WriteBlock);
        message.put(group), message.put(block);
        message.list(bytes);
        tell(communicator_, message.bytes());
        member_.write_block(group, block, bytes);
    }

    void read_state(StateId slot, std::span<std::byte> bytes) override { device_->read_state(slot, bytes); }
    void write_state(StateId slot, std::span<const std::byte> bytes) override {
        WireWriter message = begin(Command::WriteState);
        message.put(slot);
        message.list(bytes);
        tell(communicator_, message.bytes());
        member_.write_state(slot, bytes);
    }

  private:
    // candidates: 0: whole rows. Returns false if the batch is cancelled already.
    bool tell_to_execute(const Batch &batch, int32_t candidates) {
        if (batch.cancel != nullptr && *batch.cancel) return false;
        WireWriter message = begin(Command::Execute);
        message.put(candidates);
        put(message, batch);
        tell(communicator_, message.bytes());
        return true;
    }
    // Calls f; of an error of this rank's device, throws what the device said.
    template <typename F>
    std::invoke_result_t<F> with_own_error(F &&f) {
        try {
            return f();
        } catch (const BackendError &) {
            if (const std::exception_ptr own = member_.error()) std::rethrow_exception(own);
            throw;
        }
    }

    std::unique_ptr<Backend> device_;
    Communicator &communicator_;
    Member member_;
};

}  // namespace

std::unique_ptr<Backend> make_leading_backend(std::unique_ptr<Backend> device, Communicator &communicator,
                                              std::span<const double> shares) {
    return std::make_unique<LeadingBackend>(std::move(device), communicator, shares);
}

void follow(Backend &device, Communicator &communicator, const Program &program,
            std::span<const double> shares) {
    assert(communicator.rank() > 0);
    Member member(device, communicator, shares);
    ReceivedBatch received;
    for (;;) {
        const Bytes message = tell(communicator, {});
        WireReader reader(message);
        switch (reader.get<Command>()) {
            case Command::Load: {
                if (reader.get<uint64_t>() != fingerprint(program)) {
                    const char *why =
                        "this process has opened another model, or has other options, than rank 0";
                    communicator.abort(why);
                    throw BackendError(BackendError::Kind::Failed, why);
                }
                CacheConfig cache{.blocks = reader.list<int32_t>()};
                cache.shares = reader.list<int32_t>();
                cache.k = reader.get<CacheType>(), cache.v = reader.get<CacheType>();
                cache.context = reader.get<int32_t>(), cache.states = reader.get<int32_t>();
                member.load(program, cache, reader.get<int32_t>());
                break;
            }
            case Command::Execute: {
                const auto candidates = reader.get<int32_t>();
                get(reader, received);
                if (candidates > 0)
                    member.execute(received.batch, candidates, {}, {});
                else
                    member.execute(received.batch, {});
                break;
            }
            case Command::ReadLogits:
                member.read_logits(reader.get<int32_t>(), {});
                break;
            case Command::CopyBlocks: {
                const auto group = reader.get<int32_t>();
                member.copy_blocks(group, reader.list<BlockCopy>());
                break;
            }
            case Command::ReadBlock: {
                const auto group = reader.get<int32_t>();
                member.read_block(group, reader.get<BlockId>(), {});
                break;
            }
            case Command::WriteBlock: {
                const auto group = reader.get<int32_t>();
                const auto block = reader.get<BlockId>();
                member.write_block(group, block, reader.list<std::byte>());
                break;
            }
            case Command::WriteState: {
                const auto slot = reader.get<StateId>();
                member.write_state(slot, reader.list<std::byte>());
                break;
            }
            case Command::End:
                return;
        }
    }
}

}  // namespace runnel::kernels
