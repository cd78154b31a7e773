// A file of the store of computed prompts. If the first byte says so, its keys and checksums are made right: otherwise the
// code after the checks would hardly be reached.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <vector>

#include "engine/completion/prompt_chunk.h"
#include "tests/fuzz/targets.h"
#include "tests/support/temporary.h"
#include "tests/support/toy_rig.h"

namespace runnel::fuzz {
namespace {

using Sum = base::Checksum::Value;

constexpr size_t kMagicBytes = 8, kBlocksAt = 16, kBeforeAt = 24, kAfterAt = 40, kTokensAt = 56;

Sum sum_of(std::span<const uint8_t> bytes) {
    base::Checksum sum;
    sum.add(std::as_bytes(bytes));
    return sum.value();
}

// Reads and corrects values of the head in their order (prompt_chunk.h).
class Repair {
  public:
    Repair(std::vector<uint8_t> &bytes, const decode::Executor &executor)
        : bytes_(bytes), executor_(executor) {}

    void run() {
        const size_t groups = executor_.cache().groups();
        if (bytes_.size() < kTokensAt) return;
        put(0, "runnelPC", kMagicBytes);
        put_value(kMagicBytes, completion::kChunkVersion);
        put_value(kMagicBytes + sizeof(uint32_t), static_cast<uint32_t>(groups));
        uint32_t blocks = 0;
        std::memcpy(&blocks, bytes_.data() + kBlocksAt, sizeof blocks);
        blocks = 1 + blocks % static_cast<uint32_t>(completion::kChunkBlocks);
        put_value(kBlocksAt, blocks);
        at_ = kTokensAt + blocks * size_t{kernels::kBlockTokens} * sizeof(text::TokenId);
        if (bytes_.size() < at_) return;
        std::vector<text::TokenId> tokens(blocks * size_t{kernels::kBlockTokens});
        std::memcpy(tokens.data(), bytes_.data() + kTokensAt, tokens.size() * sizeof(text::TokenId));
        cache::BlockKey key{};
        std::memcpy(&key, bytes_.data() + kBeforeAt, sizeof key);
        put_value(kAfterAt, completion::key_after(key, tokens));
        std::vector<size_t> parts;
        for (size_t group = 0; group < groups; ++group) {
            next_value(uint64_t{executor_.block_bytes(group)});
            for (uint32_t b = 0; b < blocks; ++b)
                if (at_ + b < bytes_.size() && bytes_[at_ + b] == 1)
                    parts.push_back(executor_.block_bytes(group));
            at_ += blocks;
        }
        const bool has_state = at_ < bytes_.size() && bytes_[at_] != 0;
        next_value(has_state ? uint64_t{executor_.state_bytes()} : uint64_t{0});
        if (has_state && executor_.state_bytes() > 0) parts.push_back(executor_.state_bytes());
        const size_t sums = at_, data = sums + (parts.size() + 1) * sizeof(Sum);
        size_t end = data;
        for (const size_t part : parts) {
            bytes_.resize(std::max(bytes_.size(), end + part));
            next_value(sum_of(std::span(bytes_).subspan(end, part)));
            end += part;
        }
        bytes_.resize(end);
        next_value(sum_of(std::span(bytes_).first(at_)));
    }

  private:
    void put(size_t at, const void *from, size_t size) {
        if (at + size <= bytes_.size()) std::memcpy(bytes_.data() + at, from, size);
    }
    template <class T>
    void put_value(size_t at, const T &value) {
        put(at, &value, sizeof value);
    }
    template <class T>
    void next_value(const T &value) {
        bytes_.resize(std::max(bytes_.size(), at_ + sizeof value));
        put_value(at_, value);
        at_ += sizeof value;
    }

    std::vector<uint8_t> &bytes_;
    const decode::Executor &executor_;
    size_t at_ = 0;
};

// The name that the file's keys demand.
completion::ChunkId id_of(std::span<const uint8_t> bytes) {
    completion::ChunkId id{};
    if (bytes.size() < kTokensAt) return id;
    std::memcpy(&id.before, bytes.data() + kBeforeAt, sizeof id.before);
    std::memcpy(&id.after, bytes.data() + kAfterAt, sizeof id.after);
    return id;
}

// Puts the blocks and the state into the cache, as a run would.
bool restore(const completion::PromptChunk &chunk, decode::Executor &executor) {
    cache::HeldBlocks held(executor.cache().groups());
    for (size_t group = 0; group < held.size(); ++group)
        for (size_t b = 0; b < chunk.blocks(); ++b) held[group].push_back(chunk.block(group, b).bytes > 0);
    const auto read = [&](const completion::PromptChunk::Part &part, std::span<std::byte> bytes) {
        return chunk.read(part, bytes) == completion::PromptChunk::Read::Sound;
    };
    const decode::SavedBlocks saved{[&](size_t group, size_t b, std::span<std::byte> bytes) {
                                        return read(chunk.block(group, b), bytes);
                                    },
                                    [&](std::span<std::byte> bytes) { return read(chunk.state(), bytes); }};
    return executor.restore(chunk.tokens(), held, saved);
}

}  // namespace

void stored_prompt(Input input) {
    Bytes choices(input);
    const uint8_t choice = choices.byte();
    std::vector<uint8_t> bytes(choices.rest().begin(), choices.rest().end());
    testing::ToyRig rig({.context = 320, .batch = 32}, testing::kToyVocab, choice / 4 % 2 == 1);
    const bool is_repaired = choice % 4 != 0;
    if (is_repaired) Repair(bytes, rig.executor).run();
    static const testing::TemporaryDirectory directory;
    const completion::ChunkId id = id_of(bytes);
    const auto path = directory / "chunk.kv";
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char *>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    bool damaged = false;
    const auto chunk = completion::PromptChunk::open(path, id, rig.executor, damaged);
    require(chunk.has_value() != damaged, "a file is sound or damaged");
    const auto named = completion::chunk_of(completion::file_name(id));
    require(named && *named == id, "a file's name gives its keys");
    if (!chunk) return;
    require(chunk->bytes() == bytes.size(), "the size is the file's");
    require(!chunk->tokens().empty() && chunk->blocks() <= completion::kChunkBlocks, "a chunk has blocks");
    if (!restore(*chunk, rig.executor)) return;
    // What was restored can be continued like any other text.
    std::vector<decode::TokenId> tokens(chunk->tokens().begin(), chunk->tokens().end());
    tokens.push_back(1);
    auto sequence = rig.executor.new_sequence();
    const int32_t known = rig.executor.attach(sequence, tokens);
    require(known >= 0 && static_cast<size_t>(known) < tokens.size(), "a token is left to compute");
}

}  // namespace runnel::fuzz
