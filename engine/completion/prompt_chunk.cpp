#include "engine/completion/prompt_chunk.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <utility>

#include "engine/decode/byte_reader.h"
#include "gguf/file.h"
#include "gguf/output_file.h"

namespace runnel::completion {
namespace {

using Bytes = std::span<const std::byte>;
using Sum = base::Checksum::Value;
using cache::BlockKey;
using cache::kBlockTokens;

constexpr char kMagic[8] = {'r', 'u', 'n', 'n', 'e', 'l', 'P', 'C'};
constexpr uint32_t kVersion = 1;

struct Header {
    char magic[8];
    uint32_t version, groups, blocks, zero;
    BlockKey before, after;
};
static_assert(sizeof(Header) == 56);

constexpr size_t kDigits = 16;
constexpr std::string_view kEnding = ".kv";
constexpr size_t kNameLength = 4 * kDigits + 1 + kEnding.size();  // BEFORE-AFTER.kv

Sum sum_of(Bytes bytes) {
    base::Checksum sum;
    sum.add(bytes);
    return sum.value();
}

bool is_number(std::string_view digits, uint64_t &value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    return error == std::errc() && end == digits.data() + digits.size();
}

// The head of a file: everything before the blocks, and its sum at the end.
class Head {
  public:
    void add(Bytes bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
    template <typename T>
    void value(const T &value) {
        add(std::as_bytes(std::span(&value, 1)));
    }
    std::vector<std::byte> finished() {
        value(sum_of(bytes_));
        return std::move(bytes_);
    }

  private:
    std::vector<std::byte> bytes_;
};

}  // namespace

std::string file_name(const ChunkId &id) {
    char name[kNameLength + 1];
    const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    std::snprintf(name, sizeof name, "%016llx%016llx-%016llx%016llx.kv", number(id.before.low),
                  number(id.before.high), number(id.after.low), number(id.after.high));
    return name;
}

std::optional<ChunkId> chunk_of(std::string_view name) {
    ChunkId id;
    if (name.size() != kNameLength || name[2 * kDigits] != '-' || !name.ends_with(kEnding)) return {};
    const std::string_view after = name.substr(2 * kDigits + 1);
    const bool numbers = is_number(name.substr(0, kDigits), id.before.low) &&
                         is_number(name.substr(kDigits, kDigits), id.before.high) &&
                         is_number(after.substr(0, kDigits), id.after.low) &&
                         is_number(after.substr(kDigits, kDigits), id.after.high);
    return numbers ? std::optional(id) : std::nullopt;
}

bool PromptChunk::Part::is_sound() const {
    return sum_of(bytes) == sum;
}

std::optional<PromptChunk> PromptChunk::open(const std::filesystem::path &path, const ChunkId &id,
                                             const decode::Executor &executor, bool &exists) try {
    PromptChunk chunk;
    chunk.path_ = path;
    chunk.id_ = id;
    exists = true;
    chunk.mapping_ = gguf::Mapping(path);
    return chunk.read(executor) ? std::optional(std::move(chunk)) : std::nullopt;
} catch (const gguf::FileError &) {
    std::error_code error;
    exists = std::filesystem::exists(std::filesystem::symlink_status(path, error));
    return std::nullopt;
}

bool PromptChunk::read(const decode::Executor &executor) {
    const Bytes all = mapping_.bytes();
    decode::ByteReader reader(all);
    const auto header = reader.value<Header>();
    if (reader.failed() || std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 ||
        header.version != kVersion || header.groups != executor.cache().groups() || header.blocks == 0 ||
        header.blocks > kChunkBlocks || ChunkId{header.before, header.after} != id_)
        return false;
    const size_t blocks = header.blocks;
    tokens_.resize(blocks * size_t{kBlockTokens});
    const Bytes tokens = reader.take(tokens_.size() * sizeof(text::TokenId));
    std::copy(tokens.begin(), tokens.end(), std::as_writable_bytes(std::span(tokens_)).begin());
    std::vector<std::vector<bool>> held(header.groups);
    for (size_t group = 0; group < held.size(); ++group) {
        if (reader.value<uint64_t>() != executor.block_bytes(group)) return false;
        for (const std::byte flag : reader.take(blocks)) held[group].push_back(flag == std::byte{1});
    }
    const auto state_bytes = reader.value<uint64_t>();
    if (reader.failed() || (state_bytes != 0 && state_bytes != executor.state_bytes())) return false;
    const auto part = [&](bool is_held) { return Part{{}, is_held ? reader.value<Sum>() : Sum{}}; };
    for (const std::vector<bool> &group : held) {
        parts_.emplace_back();
        for (const bool is_held : group) parts_.back().push_back(part(is_held));
    }
    state_ = part(state_bytes > 0);
    const Bytes head = all.first(all.size() - reader.left());
    if (reader.value<Sum>() != sum_of(head) || reader.failed()) return false;
    for (size_t group = 0; group < held.size(); ++group)
        for (size_t b = 0; b < blocks; ++b)
            if (held[group][b]) parts_[group][b].bytes = reader.take(executor.block_bytes(group));
    state_.bytes = reader.take(state_bytes);
    return reader.at_end();
}

kernels::StateId state_after(const decode::SequenceCache &sequence, size_t blocks) {
    const auto length = static_cast<int32_t>(blocks) * kBlockTokens;
    const decode::SequenceCache::Checkpoint found = sequence.checkpoint(length);
    return found.position == length ? found.slot : kernels::kNoState;
}

void write_chunk(const std::filesystem::path &path, const ChunkId &id, decode::Executor &executor,
                 const decode::SequenceCache &sequence, size_t first, size_t blocks) {
    const size_t groups = executor.cache().groups();
    Header header{{},        kVersion, static_cast<uint32_t>(groups), static_cast<uint32_t>(blocks), 0,
                  id.before, id.after};
    std::copy(std::begin(kMagic), std::end(kMagic), header.magic);
    Head head;
    head.value(header);
    head.add(std::as_bytes(
        std::span(sequence.tokens()).subspan(first * size_t{kBlockTokens}, blocks * size_t{kBlockTokens})));
    std::vector<std::byte> data;
    std::vector<Sum> sums;
    for (size_t group = 0; group < groups; ++group) {
        const size_t bytes = executor.block_bytes(group);
        head.value(uint64_t{bytes});
        for (const cache::BlockId block : sequence.table(group).subspan(first, blocks)) {
            head.value(static_cast<uint8_t>(block != cache::kNoBlock));
            if (block == cache::kNoBlock) continue;
            data.resize(data.size() + bytes);
            executor.read_block(group, block, std::span(data).last(bytes));
            sums.push_back(sum_of(std::span(data).last(bytes)));
        }
    }
    const kernels::StateId state = state_after(sequence, first + blocks);
    const size_t state_bytes = state == kernels::kNoState ? 0 : executor.state_bytes();
    head.value(uint64_t{state_bytes});
    if (state_bytes > 0) {
        data.resize(data.size() + state_bytes);
        executor.read_state(state, std::span(data).last(state_bytes));
        sums.push_back(sum_of(std::span(data).last(state_bytes)));
    }
    for (const Sum &sum : sums) head.value(sum);
    gguf::OutputFile file(path, {.overwrite = true, .is_private = true, .is_synced = false});
    file.write(head.finished());
    file.write(data);
    file.commit();
}

}  // namespace runnel::completion
