#include "engine/decode/prompt_file.h"

#include <algorithm>
#include <cstring>

#include "engine/decode/byte_reader.h"
#include "gguf/mapping.h"
#include "kernels/steps.h"

namespace runnel::decode {
namespace {

using cache::kBlockTokens;
using Bytes = std::span<const std::byte>;
using State = PromptFileResult::State;

constexpr char kMagic[8] = {'r', 'u', 'n', 'n', 'e', 'l', 'K', 'V'};
constexpr uint32_t kVersion = 4;

struct Header {
    char magic[8];
    uint32_t version, groups;
    base::Checksum::Value identity;
    uint64_t tokens;
};
static_assert(sizeof(Header) == 40);

// Tokens and blocks of a valid file; the blocks point into the mapping.
struct Content {
    std::vector<TokenId> tokens;
    cache::HeldBlocks held;
    std::vector<std::vector<Bytes>> blocks;  // [group][block], empty where it is not held
    Bytes state;
};

// False when the sizes do not agree with the executor's.
bool read_content(ByteReader &reader, const Header &header, const Executor &executor, Content &content) {
    if (header.groups != executor.cache().groups() || header.tokens > static_cast<uint64_t>(kMostContext) ||
        header.tokens % kBlockTokens != 0)
        return false;
    const Bytes tokens = reader.take(header.tokens * sizeof(TokenId));
    if (reader.failed()) return false;
    content.tokens.resize(static_cast<size_t>(header.tokens));
    std::copy(tokens.begin(), tokens.end(), std::as_writable_bytes(std::span(content.tokens)).begin());
    std::vector<uint64_t> sizes;
    for (uint32_t group = 0; group < header.groups; ++group) {
        sizes.push_back(reader.value<uint64_t>());
        if (sizes.back() != executor.block_bytes(group)) return false;
        const Bytes flags = reader.take(header.tokens / kBlockTokens);
        content.held.emplace_back();
        for (const std::byte flag : flags) content.held.back().push_back(flag == std::byte{1});
    }
    const auto state_bytes = reader.value<uint64_t>();
    if (state_bytes != (header.tokens > 0 ? executor.state_bytes() : 0)) return false;
    for (uint32_t group = 0; group < header.groups; ++group) {
        content.blocks.emplace_back();
        for (const bool held : content.held[group])
            content.blocks.back().push_back(held ? reader.take(sizes[group]) : Bytes());
    }
    content.state = reader.take(state_bytes);
    return reader.at_end();
}

PromptFileResult rejected(const std::string &why) {
    return {State::Rejected, {}, why};
}

class Writer {
  public:
    Writer(const std::filesystem::path &path, bool overwrite) : file_(path, prompt_file_output(overwrite)) {}
    void write(Bytes bytes) {
        sum_.add(bytes);
        file_.write(bytes);
    }
    template <typename T>
    void value(const T &value) {
        write(std::as_bytes(std::span(&value, 1)));
    }
    void commit() {
        const base::Checksum::Value sum = sum_.value();
        file_.write(std::as_bytes(std::span(&sum, 1)));
        file_.commit();
    }

  private:
    gguf::OutputFile file_;
    base::Checksum sum_;
};

void add_tensors(const gguf::File &file, base::Checksum &sum) {
    constexpr uint64_t kSample = 4096;
    uint64_t header = UINT64_MAX;  // bytes in front of the first tensor of the first part
    const std::byte *begin = nullptr;
    for (const gguf::Tensor &tensor : file.tensors()) {
        const uint64_t size = std::min(tensor.bytes, kSample);
        sum.add({tensor.data, static_cast<size_t>(size)});
        sum.add({tensor.data + (tensor.bytes - size), static_cast<size_t>(size)});
        if (tensor.part != 0 || tensor.offset >= header) continue;
        header = tensor.offset;
        begin = tensor.data - tensor.offset;
    }
    if (begin) sum.add({begin, static_cast<size_t>(header)});
}

}  // namespace

base::Checksum::Value file_identity(const gguf::File &file) {
    base::Checksum sum;
    sum.add_value(file.file_bytes());
    add_tensors(file, sum);
    return sum.value();
}

base::Checksum::Value prompt_identity(const gguf::File &file, const kernels::Program &program,
                                      const std::string &device_kind, CacheTypes types) {
    base::Checksum sum;
    sum.add_value(file.file_bytes());
    add_tensors(file, sum);
    sum.add(std::as_bytes(std::span(device_kind)));
    sum.add_value(types.k);
    sum.add_value(types.v);
    sum.add_value(kernels::rotates_keys(types.k));
    sum.add_value(kernels::rotates_values(types.v));
    for (const kernels::RopeTable &rope : program.ropes) {  // LongRoPE's depend on the context
        sum.add(std::as_bytes(std::span(rope.inv_freq)));
        sum.add_value(rope.magnitude);
    }
    for (const kernels::Step &step : program.steps)
        kernels::visit_caches(step, [&](const kernels::CacheUse &use) {
            sum.add_value(use.window);
            sum.add_value(use.sink_cells);
        });
    return sum.value();
}

PromptFileResult load_prompt_file(const std::filesystem::path &path, base::Checksum::Value identity,
                                  Executor &executor) {
    if (std::error_code error; !std::filesystem::exists(path, error)) return {State::Absent, {}, {}};
    const gguf::Mapping mapping(path);
    const Bytes all = mapping.bytes();
    if (all.empty()) return {State::Absent, {}, {}};
    ByteReader reader(all);
    const auto header = reader.value<Header>();
    if (all.size() < sizeof kMagic || std::memcmp(all.data(), kMagic, sizeof kMagic) != 0)
        return {State::Foreign, {}, "it is not a prompt cache"};
    if (reader.failed() || all.size() < sizeof(Header) + sizeof(base::Checksum::Value))
        return rejected("it is cut short");
    if (header.version != kVersion) return rejected("it was written by another version");
    const Bytes body = all.first(all.size() - sizeof(base::Checksum::Value));
    if (header.identity != identity) return rejected("it was made with another model or other settings");
    ByteReader rest(body.subspan(sizeof(Header)));
    Content content;
    if (!read_content(rest, header, executor, content)) return rejected("it is damaged");
    base::Checksum sum;
    sum.add(body);
    base::Checksum::Value expected;
    std::memcpy(&expected, all.data() + body.size(), sizeof expected);
    if (sum.value() != expected) return rejected("it is damaged");
    const auto copy = [](Bytes from, std::span<std::byte> to) {
        if (from.size() != to.size()) return false;
        std::ranges::copy(from, to.begin());
        return true;
    };
    const SavedBlocks saved{[&](size_t group, size_t block, std::span<std::byte> bytes) {
                                return copy(content.blocks[group][block], bytes);
                            },
                            [&](std::span<std::byte> bytes) { return copy(content.state, bytes); }};
    if (!executor.restore(content.tokens, content.held, saved))
        return {State::NoRoom, {}, "it is larger than the cache, or lacks a part"};
    return {State::Loaded, std::move(content.tokens), {}};
}

gguf::OutputOptions prompt_file_output(bool overwrite) {
    return {.overwrite = overwrite, .is_private = true, .own = {kMagic, sizeof kMagic}};
}

void save_prompt_file(const std::filesystem::path &path, base::Checksum::Value identity, Executor &executor,
                      const SequenceCache &sequence, size_t tokens, bool overwrite) {
    const auto most = static_cast<int32_t>(std::min(tokens, static_cast<size_t>(sequence.length())));
    const cache::Checkpoint end = sequence.checkpoint(most);
    const size_t blocks = static_cast<size_t>(end.position) / size_t{kBlockTokens};
    const auto groups = static_cast<uint32_t>(executor.cache().groups());
    Header header{{}, kVersion, groups, identity, blocks * size_t{kBlockTokens}};
    std::copy(std::begin(kMagic), std::end(kMagic), header.magic);
    Writer writer(path, overwrite);
    writer.value(header);
    writer.write(std::as_bytes(std::span(sequence.tokens()).first(static_cast<size_t>(header.tokens))));
    for (uint32_t group = 0; group < groups; ++group) {
        writer.value(uint64_t{executor.block_bytes(group)});
        for (const cache::BlockId block : sequence.table(group).first(blocks))
            writer.value(static_cast<uint8_t>(block != cache::kNoBlock));
    }
    writer.value(uint64_t{end.slot == kernels::kNoState ? 0 : executor.state_bytes()});
    std::vector<std::byte> bytes;
    for (uint32_t group = 0; group < groups; ++group) {
        bytes.resize(executor.block_bytes(group));
        for (const cache::BlockId block : sequence.table(group).first(blocks)) {
            if (block == cache::kNoBlock) continue;
            executor.read_block(group, block, bytes);
            writer.write(bytes);
        }
    }
    if (end.slot != kernels::kNoState) {
        bytes.resize(executor.state_bytes());
        executor.read_state(end.slot, bytes);
        writer.write(bytes);
    }
    writer.commit();
}

}  // namespace runnel::decode
