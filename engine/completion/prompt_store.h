// Computed prompts on the disk, found by their text: a folder of files that processes share.
//
// A text is divided into chunks of 256 tokens (prompt_chunk.h); texts with the same beginning share their first
// files. The key of a chunk is a hash of the model's identity, a random number of the folder, the version of the
// layout, and all tokens up to the chunk's end. A lookup follows the keys from the first chunk on and compares
// the tokens, so the file of another model or other settings is never found. The head of a file is checked when
// it is opened, a block when it is read; a damaged file is then removed. A file that cannot be opened stays.
//
// A file appears by rename and is never changed. A process that is killed leaves no partial file, and readers
// need no lock. A file is not synced: a power failure may damage it. If the folder exceeds its limit, the least
// recently used files are removed; of one text, the last ones first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/completion/prompt_chunk.h"
#include "engine/decode/executor.h"
#include "gguf/base/checksum.h"

namespace runnel::completion {

class PromptStore {
  public:
    // identity: of everything but the tokens that K and V depend on (decode/prompt_file.h). The executor must outlive
    // it. The folder must exist, belong to the user, and be closed to others; otherwise problem() says so, and
    // nothing is found or saved.
    PromptStore(std::filesystem::path folder, uint64_t most_bytes, base::Checksum::Value identity,
                decode::Executor &executor);

    // Puts the longest stored beginning of `tokens` into the executor's cache, where attach() finds its whole blocks.
    // The result is a sequence of all of it, at least one token shorter than `tokens`; nullopt if the cache already
    // holds as many blocks, or nothing is stored.
    std::optional<decode::SequenceCache> load(std::span<const text::TokenId> tokens);
    // Saves what the cache holds of the beginning of `tokens`, in whole blocks and as far as the limit allows. At least
    // one of the tokens stays out. Nothing is saved after a write failed.
    void save(std::span<const text::TokenId> tokens);
    // As save(), but also saves the tokens behind the last whole block, and leaves none out. Unless they are stored, this
    // computes them again, in a block that it fills up with copies of the last token: the file holds no cell of a token
    // behind `tokens`. Saves whole blocks only if the model has recurrent layers or the cache has no room.
    void save_to_the_token(std::span<const text::TokenId> tokens);

    struct Counts {
        size_t found = 0, saved = 0;  // tokens loaded into the cache, and tokens in files that were written
        size_t damaged = 0, removed = 0;  // files: removed as damaged, and for lack of room
        // Tokens that the store itself took from the cache: they are part of CacheStatistics::reused_tokens.
        int64_t attached = 0;
    };
    const Counts &counts() const { return counts_; }
    // Why nothing can be found or saved, or only not saved; empty if all is well.
    const std::string &problem() const { return problem_.empty() ? write_problem_ : problem_; }
    const std::filesystem::path &folder() const { return folder_; }

  private:
    struct Piece {
        PromptChunk chunk;
        size_t tokens;  // its first ones, which are those that are wanted
    };
    using Siblings = std::multimap<std::string, ChunkId>;  // by the first half of their names

    bool can_save() const { return problem_.empty() && write_problem_.empty(); }
    void open_folder(const base::Checksum::Value &identity);
    Siblings list() const;
    int32_t in_cache(std::span<const text::TokenId> tokens);
    std::vector<Piece> find(std::span<const text::TokenId> tokens);
    std::optional<PromptChunk> open(const ChunkId &id);
    void remove_if_damaged(const PromptChunk &chunk, size_t first, size_t length);
    void remove_damaged(const std::filesystem::path &path);
    bool is_usable(const std::vector<Piece> &pieces, size_t length) const;
    std::optional<decode::SequenceCache> restore(std::vector<Piece> &pieces, size_t length);
    bool is_seen(size_t group, size_t block, size_t length) const;
    bool covers(const PromptChunk &chunk, const decode::SequenceCache &sequence, size_t first) const;
    bool is_beginning(const Siblings &siblings, const ChunkId &id, std::span<const text::TokenId> tokens);
    void remove_beginnings(const Siblings &siblings, const ChunkId &id,
                           std::span<const text::TokenId> tokens);
    void write(const std::filesystem::path &path, const ChunkId &id, const decode::SequenceCache &sequence,
               size_t first, size_t blocks, size_t padding);
    bool compute(decode::SequenceCache &sequence, std::span<const text::TokenId> tokens);
    bool is_stored(std::span<const text::TokenId> tokens);
    void save(const decode::SequenceCache &sequence, size_t padding);
    uint64_t limit(uint64_t used) const;
    void trim();

    std::filesystem::path folder_;
    uint64_t most_bytes_;
    decode::Executor &executor_;
    cache::BlockKey root_{};
    Counts counts_;
    std::string problem_, write_problem_;
};

}  // namespace runnel::completion
