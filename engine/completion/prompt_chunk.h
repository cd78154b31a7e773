// A file of the prompt store (prompt_store.h): K and V of up to kChunkBlocks consecutive blocks of a text.
//
// Layout, little-endian: magic "runnelPC", u32 version, u32 groups, u32 blocks, u32 padding (how many of the last
// tokens only fill the last block up), the keys before and after (16 bytes each); the tokens, i32 each; per group
// u64 bytes of a block and a byte per block, 1 if it is held (windows leave gaps); u64 bytes of the state of
// recurrent layers after the tokens, or 0; a checksum of every held block and of the state; a checksum of
// everything before it; the held blocks, group by group; the state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/prefix_index.h"
#include "engine/decode/executor.h"
#include "gguf/base/checksum.h"

namespace runnel::completion {

inline constexpr size_t kChunkBlocks = 8;
inline constexpr uint32_t kChunkVersion = 1;  // of the layout

// Keys of the text before a chunk and of that with the chunk (cache/prefix_index.h); both make its file's name.
struct ChunkId {
    cache::BlockKey before, after;
    bool operator==(const ChunkId &) const = default;
};
std::string file_name(const ChunkId &id);
std::optional<ChunkId> chunk_of(std::string_view file_name);

// A file of which the head is sound. It is not kept open; its blocks and its state are read on demand.
class PromptChunk {
  public:
    // nullopt for a file that cannot be opened, is damaged or does not fit the executor; `damaged` if it was opened
    // and is not what its name says.
    static std::optional<PromptChunk> open(const std::filesystem::path &path, const ChunkId &id,
                                           const decode::Executor &executor, bool &damaged);

    const std::filesystem::path &path() const { return path_; }
    const ChunkId &id() const { return id_; }
    std::span<const text::TokenId> tokens() const { return tokens_; }
    // Without those that only fill the last block up.
    std::span<const text::TokenId> text() const { return tokens().first(tokens_.size() - padding_); }
    size_t blocks() const { return tokens_.size() / size_t{kernels::kBlockTokens}; }
    uint64_t bytes() const { return size_; }

    struct Part {  // a block or the state; no bytes: not in the file
        uint64_t offset = 0, bytes = 0;
        base::Checksum::Value sum{};
    };
    const Part &block(size_t group, size_t block) const { return parts_[group][block]; }
    const Part &state() const { return state_; }

    enum class Read {
        Sound,
        Damaged,
        Gone,  // it cannot be opened any more, or is another file now
    };
    Read read(const Part &part, std::span<std::byte> bytes) const;  // into part.bytes bytes

  private:
    bool read_head(int fd, const decode::Executor &executor);

    std::filesystem::path path_;
    ChunkId id_;
    uint64_t device_ = 0, inode_ = 0, size_ = 0;
    std::vector<text::TokenId> tokens_;
    size_t padding_ = 0;
    std::vector<std::vector<Part>> parts_;  // [group][block]
    Part state_;
};

// The key of a text: of whole blocks behind a text with the key `before`.
cache::BlockKey key_after(cache::BlockKey before, std::span<const text::TokenId> tokens);
// The size of the file that write_chunk() would write.
uint64_t chunk_bytes(const decode::Executor &executor, const decode::SequenceCache &sequence, size_t first,
                     size_t blocks);
// Writes `blocks` blocks of a sequence from block `first` on, and the state behind them if the cache has it. `padding`:
// how many of their last tokens only fill the last block up. Throws gguf::WriteError.
void write_chunk(const std::filesystem::path &path, const ChunkId &id, decode::Executor &executor,
                 const decode::SequenceCache &sequence, size_t first, size_t blocks, size_t padding = 0);
// The slot of the state after so many blocks; kNoState if there is none.
kernels::StateId state_after(const decode::SequenceCache &sequence, size_t blocks);

}  // namespace runnel::completion
