// A prefilled prompt in a file: the K and V of its full blocks, for the next run that begins with the same
// text.
//
// The file is trusted as little as any other: it is used only if its checksum is right, its size is what its
// header says, and its identity is that of the current model and settings. Its blocks are then added to the
// cache as if they had been computed, and PagedCache::attach compares tokens as always.
//
// Layout, little-endian: magic "runnelKV", u32 version, u32 groups, identity (16 bytes), u64 tokens (a
// multiple of kBlockTokens); the tokens, i32 each; per group u64 bytes of a block and a byte per block, 1
// if it is held (windows leave gaps); u64 bytes of the state of recurrent layers after the tokens; the held
// blocks' bytes, group by group; the state; a checksum of everything before it (16 bytes).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/decode/executor.h"
#include "gguf/base/checksum.h"
#include "gguf/file.h"
#include "gguf/output_file.h"

namespace runnel::decode {

// A checksum of a model's size, metadata and tensor table, and of the first and last 4 KiB of each tensor. Files
// that differ only inside tensors (edited by hand) have the same identity.
base::Checksum::Value file_identity(const gguf::File &file);

// A checksum of all that K and V depend on besides the tokens: file_identity(), the device's kind, the types of the
// cache, the layers' windows and the rotations.
base::Checksum::Value prompt_identity(const gguf::File &file, const kernels::Program &program,
                                      const std::string &device_kind, CacheTypes types);

struct PromptFileResult {
    enum class State {
        Loaded,    // blocks of `tokens` are in the cache now
        Absent,    // there is no such file, or an empty one
        Rejected,  // damaged, or of another model (see `why`): write a new one
        Foreign,   // not a prompt file at all: leave it alone
        NoRoom,    // valid, but larger than the cache
    };
    State state;
    std::vector<TokenId> tokens;
    std::string why;
};
// Throws gguf::FileError when the file cannot be read.
PromptFileResult load_prompt_file(const std::filesystem::path &path, base::Checksum::Value identity,
                                  Executor &executor);

// Writes the full blocks of the first `tokens` cells. The file gets its name when it is complete. Throws
// gguf::WriteError.
void save_prompt_file(const std::filesystem::path &path, base::Checksum::Value identity, Executor &executor,
                      const SequenceCache &sequence, size_t tokens, bool overwrite = false);
// How a prompt file may be written: privately, over another prompt file, or over anything with `overwrite`.
gguf::OutputOptions prompt_file_output(bool overwrite);

}  // namespace runnel::decode
