#include "engine/completion/prompt_chunk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <utility>

#include "engine/decode/byte_reader.h"
#include "gguf/output_file.h"

namespace runnel::completion {
namespace {

using Bytes = std::span<const std::byte>;
using Sum = base::Checksum::Value;
using cache::BlockKey;
using cache::kBlockTokens;

constexpr char kMagic[8] = {'r', 'u', 'n', 'n', 'e', 'l', 'P', 'C'};

struct Header {
    char magic[8];
    uint32_t version, groups, blocks, padding;
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

// A regular file; fd < 0 if it cannot be opened.
struct OpenFile {
    int fd;
    struct stat status {};
    explicit OpenFile(const std::filesystem::path &path)
        : fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) {
        if (fd >= 0 && (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))) close(std::exchange(fd, -1));
    }
    ~OpenFile() {
        if (fd >= 0) close(fd);
    }
    OpenFile(const OpenFile &) = delete;
    OpenFile &operator=(const OpenFile &) = delete;
};

// False for an error of the disk and a file that is too short.
bool read_at(int fd, uint64_t offset, std::span<std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t count = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        bytes = bytes.subspan(static_cast<size_t>(count));
        offset += static_cast<uint64_t>(count);
    }
    return true;
}

constexpr uint64_t head_bytes(uint64_t groups, uint64_t blocks, uint64_t parts) {
    return sizeof(Header) + blocks * kBlockTokens * sizeof(text::TokenId) +
           groups * (sizeof(uint64_t) + blocks) + sizeof(uint64_t) + (parts + 1) * sizeof(Sum);
}

constexpr uint64_t most_of_head(uint64_t groups) {
    return head_bytes(groups, kChunkBlocks, groups * kChunkBlocks + 1);
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

BlockKey key_after(BlockKey key, std::span<const text::TokenId> tokens) {
    constexpr size_t kBlock = kBlockTokens;
    for (size_t at = 0; at < tokens.size(); at += kBlock) key = next_key(key, tokens.subspan(at, kBlock));
    return key;
}

// Files are read, not mapped: a disk error in a mapped file would end the process.
std::optional<PromptChunk> PromptChunk::open(const std::filesystem::path &path, const ChunkId &id,
                                             const decode::Executor &executor, bool &damaged) {
    damaged = false;
    const OpenFile file(path);
    if (file.fd < 0) return std::nullopt;
    PromptChunk chunk;
    chunk.path_ = path;
    chunk.id_ = id;
    chunk.device_ = file.status.st_dev;
    chunk.inode_ = file.status.st_ino;
    chunk.size_ = static_cast<uint64_t>(file.status.st_size);
    damaged = !chunk.read_head(file.fd, executor);
    return damaged ? std::nullopt : std::optional(std::move(chunk));
}

bool PromptChunk::read_head(int fd, const decode::Executor &executor) {
    const size_t groups = executor.cache().groups();
    std::vector<std::byte> bytes(std::min(size_, most_of_head(groups)));
    if (!read_at(fd, 0, bytes)) return false;
    decode::ByteReader reader(bytes);
    const auto header = reader.value<Header>();
    if (reader.failed() || std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 ||
        header.version != kChunkVersion || header.groups != groups || header.blocks == 0 ||
        header.blocks > kChunkBlocks || header.padding >= kBlockTokens ||
        ChunkId{header.before, header.after} != id_)
        return false;
    const size_t blocks = header.blocks;
    padding_ = header.padding;
    tokens_.resize(blocks * size_t{kBlockTokens});
    const Bytes tokens = reader.take(tokens_.size() * sizeof(text::TokenId));
    std::copy(tokens.begin(), tokens.end(), std::as_writable_bytes(std::span(tokens_)).begin());
    std::vector<std::vector<bool>> held(groups);
    for (size_t group = 0; group < groups; ++group) {
        if (reader.value<uint64_t>() != executor.block_bytes(group)) return false;
        for (const std::byte flag : reader.take(blocks)) held[group].push_back(flag == std::byte{1});
    }
    const auto state_bytes = reader.value<uint64_t>();
    if (reader.failed() || (state_bytes != 0 && state_bytes != executor.state_bytes())) return false;
    const auto part = [&](uint64_t size) { return Part{0, size, size > 0 ? reader.value<Sum>() : Sum{}}; };
    for (size_t group = 0; group < groups; ++group) {
        parts_.emplace_back();
        for (const bool is_held : held[group])
            parts_.back().push_back(part(is_held ? executor.block_bytes(group) : 0));
    }
    state_ = part(state_bytes);
    const Bytes head = Bytes(bytes).first(bytes.size() - reader.left());
    if (reader.value<Sum>() != sum_of(head) || reader.failed()) return false;
    uint64_t offset = bytes.size() - reader.left();
    const auto place = [&](Part &one) { one.offset = std::exchange(offset, offset + one.bytes); };
    for (std::vector<Part> &group : parts_) std::for_each(group.begin(), group.end(), place);
    place(state_);
    return offset == size_ && key_after(header.before, tokens_) == header.after;
}

PromptChunk::Read PromptChunk::read(const Part &part, std::span<std::byte> bytes) const {
    const OpenFile file(path_);
    if (file.fd < 0 || file.status.st_dev != device_ || file.status.st_ino != inode_) return Read::Gone;
    const bool is_sound =
        part.bytes == bytes.size() && read_at(file.fd, part.offset, bytes) && sum_of(bytes) == part.sum;
    return is_sound ? Read::Sound : Read::Damaged;
}

kernels::StateId state_after(const decode::SequenceCache &sequence, size_t blocks) {
    const auto length = static_cast<int32_t>(blocks) * kBlockTokens;
    const cache::Checkpoint found = sequence.checkpoint(length);
    return found.position == length ? found.slot : kernels::kNoState;
}

uint64_t chunk_bytes(const decode::Executor &executor, const decode::SequenceCache &sequence, size_t first,
                     size_t blocks) {
    const size_t groups = executor.cache().groups();
    uint64_t bytes = 0, parts = 0;
    for (size_t group = 0; group < groups; ++group)
        for (const cache::BlockId block : sequence.table(group).subspan(first, blocks)) {
            if (block == cache::kNoBlock) continue;
            bytes += executor.block_bytes(group);
            ++parts;
        }
    if (state_after(sequence, first + blocks) != kernels::kNoState) {
        bytes += executor.state_bytes();
        ++parts;
    }
    return bytes + head_bytes(groups, blocks, parts);
}

void write_chunk(const std::filesystem::path &path, const ChunkId &id, decode::Executor &executor,
                 const decode::SequenceCache &sequence, size_t first, size_t blocks, size_t padding) {
    const size_t groups = executor.cache().groups();
    Header header{.magic = {},
                  .version = kChunkVersion,
                  .groups = static_cast<uint32_t>(groups),
                  .blocks = static_cast<uint32_t>(blocks),
                  .padding = static_cast<uint32_t>(padding),
                  .before = id.before,
                  .after = id.after};
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
