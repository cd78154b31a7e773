#include "engine/completion/prompt_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <future>
#include <system_error>
#include <tuple>
#include <utility>

#include "gguf/base/random_seed.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::completion {
namespace {

namespace fs = std::filesystem;
using cache::BlockKey;
using cache::kBlockTokens;
using text::TokenId;
using Tokens = std::span<const TokenId>;

constexpr const char *kLockName = "lock";  // also holds the folder's random number
constexpr size_t kBlock = size_t{kBlockTokens};
constexpr size_t kChunk = kChunkBlocks * kBlock;
constexpr size_t kMostSiblings = 256;  // that are opened to compare their tokens
constexpr uint64_t kPartOfDisk = 4;    // the folder takes at most this part of what is free without it

struct Descriptor {
    int fd;
    explicit Descriptor(int opened) : fd(opened) {}
    ~Descriptor() {
        if (fd >= 0) close(fd);
    }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
};

int open_lock(const fs::path &folder) {
    return open((folder / kLockName).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
}

std::string reason() {
    return std::generic_category().message(errno);
}

BlockKey key_after(BlockKey key, Tokens tokens) {
    for (size_t at = 0; at < tokens.size(); at += kBlock) key = next_key(key, tokens.subspan(at, kBlock));
    return key;
}

size_t common_tokens(Tokens a, Tokens b) {
    const size_t most = std::min(a.size(), b.size());
    const auto end = a.begin() + static_cast<std::ptrdiff_t>(most);
    return static_cast<size_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

size_t blocks_of(size_t tokens) {
    return (tokens + kBlock - 1) / kBlock;
}

std::string key_before(const ChunkId &id) {
    const std::string name = file_name(id);
    return name.substr(0, name.find('-'));
}

// Marks a file as just used; of a text, the first files as the newest.
void touch(const fs::path &path, size_t place) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    constexpr long kNanoseconds = 1000000000, kStep = 1000;
    now.tv_nsec -= static_cast<long>(std::min<size_t>(place, 100000)) * kStep;
    if (now.tv_nsec < 0) now.tv_nsec += kNanoseconds, --now.tv_sec;
    const timespec times[2] = {now, now};
    utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

struct Stored {
    timespec used;
    fs::path path;
    uint64_t bytes;
};

// The files of the folder, the least recently used first. Removes temporary files of processes that were killed.
std::vector<Stored> stored_files(const fs::path &folder) {
    std::vector<Stored> files;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        const fs::path &path = entry->path();
        const std::string name = path.filename().native();
        struct stat status {};
        if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
        if (name.starts_with('.') && name.ends_with(".partial")) {
            const Descriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
            if (file.fd >= 0 && flock(file.fd, LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
        } else if (chunk_of(name)) {
            files.push_back({status.st_mtim, path, static_cast<uint64_t>(status.st_size)});
        }
    }
    std::sort(files.begin(), files.end(), [](const Stored &a, const Stored &b) {
        return std::tuple(a.used.tv_sec, a.used.tv_nsec, a.path) <
               std::tuple(b.used.tv_sec, b.used.tv_nsec, b.path);
    });
    return files;
}

}  // namespace

PromptStore::PromptStore(fs::path folder, uint64_t most_bytes, base::Checksum::Value identity,
                         decode::Executor &executor)
    : folder_(std::move(folder)), most_bytes_(most_bytes), executor_(executor) {
    open_folder(identity);
}

void PromptStore::open_folder(const base::Checksum::Value &identity) {
    const std::string name = gguf::printable(folder_.native(), 4096);
    struct stat status {};
    if (lstat(folder_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
        problem_ = name + " is not a folder";
        return;
    }
    if (status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
        problem_ = name + " is open to other users: chmod 700 closes it";
        return;
    }
    const Descriptor file(open_lock(folder_));
    std::array<uint64_t, 2> number{};
    const auto size = static_cast<ssize_t>(sizeof number);
    if (file.fd < 0 || flock(file.fd, LOCK_EX) != 0) {
        problem_ = name + ": " + reason();
        return;
    }
    if (pread(file.fd, number.data(), sizeof number, 0) != size) {
        number = {base::random_seed(), base::random_seed()};
        if (pwrite(file.fd, number.data(), sizeof number, 0) != size) problem_ = name + ": " + reason();
    }
    base::Checksum sum;
    sum.add_value(number);
    sum.add_value(identity);
    root_ = {sum.value()[0], sum.value()[1]};
}

PromptStore::Siblings PromptStore::list() const {
    Siblings found;
    std::error_code error;
    for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error))
        if (const auto id = chunk_of(entry->path().filename().native())) found.emplace(key_before(*id), *id);
    return found;
}

void PromptStore::remove_damaged(const fs::path &path) {
    if (unlink(path.c_str()) == 0) ++counts_.damaged;
}

std::optional<PromptChunk> PromptStore::open(const ChunkId &id) {
    bool exists = false;
    const fs::path path = folder_ / file_name(id);
    auto chunk = PromptChunk::open(path, id, executor_, exists);
    if (!chunk && exists) remove_damaged(path);
    return chunk;
}

// The files that hold the longest beginning of the tokens.
std::vector<PromptStore::Piece> PromptStore::find(Tokens tokens) {
    std::vector<Piece> pieces;
    const Siblings siblings = list();
    BlockKey key = root_;
    while (!tokens.empty()) {
        std::optional<Piece> best;
        const auto try_file = [&](const ChunkId &id) {
            auto chunk = open(id);
            if (!chunk) return;
            const size_t common = common_tokens(chunk->tokens(), tokens);
            if (common > (best ? best->tokens : 0)) best = Piece{std::move(*chunk), common};
        };
        const auto [begin, end] = siblings.equal_range(key_before({key, {}}));
        if (tokens.size() >= kChunk) {
            const ChunkId whole{key, key_after(key, tokens.first(kChunk))};
            const bool is_there =
                std::any_of(begin, end, [&](const auto &one) { return one.second == whole; });
            if (is_there) try_file(whole);
        }
        size_t tried = 0;
        for (auto one = begin; one != end && (!best || best->tokens < kChunk); ++one)
            if (++tried <= kMostSiblings) try_file(one->second);
        if (!best) break;
        pieces.push_back(std::move(*best));
        if (pieces.back().tokens < kChunk) break;
        key = key_after(key, tokens.first(kChunk));
        tokens = tokens.subspan(kChunk);
    }
    return pieces;
}

bool PromptStore::is_seen(size_t group, size_t block, size_t length) const {
    return executor_.cache().is_seen(group, static_cast<int32_t>(block), static_cast<int32_t>(length));
}

// Whether a sequence can go on after so many tokens: all that it attends to is there, and the state.
bool PromptStore::is_usable(const std::vector<Piece> &pieces, size_t length) const {
    for (size_t group = 0; group < executor_.cache().groups(); ++group)
        for (size_t b = 0; b < blocks_of(length); ++b)
            if (is_seen(group, b, length) &&
                pieces[b / kChunkBlocks].chunk.block(group, b % kChunkBlocks).bytes.empty())
                return false;
    if (executor_.state_bytes() == 0) return true;
    const PromptChunk &last = pieces[(length - 1) / kChunk].chunk;
    return !last.state().bytes.empty() && last.tokens().size() == (length - 1) % kChunk + 1;
}

// Whether those parts of a chunk are sound that a sequence of so many tokens needs; `first`: its first block's number.
bool PromptStore::is_sound(const PromptChunk &chunk, size_t first, size_t length) const {
    const size_t blocks = std::min(chunk.blocks(), blocks_of(length) - first);
    for (size_t group = 0; group < executor_.cache().groups(); ++group)
        for (size_t b = 0; b < blocks; ++b)
            if (is_seen(group, first + b, length) && !chunk.block(group, b).is_sound()) return false;
    return chunk.state().bytes.empty() || chunk.state().is_sound();
}

// Removes damaged files, and from `pieces` the first of them and all behind it. False if there are none.
bool PromptStore::remove_damaged(std::vector<Piece> &pieces, size_t length) {
    const size_t count = (length - 1) / kChunk + 1;
    std::vector<char> sound(count);
    const auto check = [&](size_t begin, size_t step) {
        for (size_t i = begin; i < count; i += step)
            sound[i] = is_sound(pieces[i].chunk, i * kChunkBlocks, length);
    };
    constexpr size_t kThreads = 2;  // one can read 2 GB/s from a mapped file
    std::future<void> other;
    try {
        other = std::async(std::launch::async, check, size_t{1}, kThreads);
    } catch (const std::system_error &) {
        other = std::async(std::launch::deferred, check, size_t{1}, kThreads);
    }
    check(0, kThreads);
    other.get();
    const auto first = std::find(sound.begin(), sound.end(), 0);
    if (first == sound.end()) return false;
    for (size_t i = 0; i < count; ++i)
        if (!sound[i]) remove_damaged(pieces[i].chunk.path());
    pieces.erase(pieces.begin() + (first - sound.begin()), pieces.end());
    return true;
}

// The sequence of the first `length` tokens. Its last block may have other tokens behind them.
std::optional<decode::SequenceCache> PromptStore::restore(const std::vector<Piece> &pieces, size_t length) {
    const size_t blocks = blocks_of(length);
    std::vector<TokenId> tokens;
    for (const Piece &piece : pieces)
        tokens.insert(tokens.end(), piece.chunk.tokens().begin(), piece.chunk.tokens().end());
    tokens.resize(blocks * kBlock);
    cache::HeldBlocks held(executor_.cache().groups());
    std::vector<std::span<const std::byte>> bytes;
    for (size_t group = 0; group < held.size(); ++group)
        for (size_t b = 0; b < blocks; ++b) {
            held[group].push_back(is_seen(group, b, length));
            if (held[group].back())
                bytes.push_back(pieces[b / kChunkBlocks].chunk.block(group, b % kChunkBlocks).bytes);
        }
    const auto state = executor_.state_bytes() > 0 ? pieces[(length - 1) / kChunk].chunk.state().bytes
                                                   : std::span<const std::byte>();
    if (!executor_.restore(tokens, held, bytes, state)) return std::nullopt;
    tokens.push_back(0);  // attach() leaves one token out
    decode::SequenceCache sequence = executor_.new_sequence();
    counts_.attached += executor_.attach(sequence, tokens);
    const auto wanted = static_cast<int32_t>(length);
    if (sequence.length() < wanted) return std::nullopt;
    sequence.truncate(sequence.truncatable(wanted));
    return sequence;
}

// How many of the tokens the cache holds.
int32_t PromptStore::in_cache(Tokens tokens) {
    decode::SequenceCache cached = executor_.new_sequence();
    const int32_t known = executor_.attach(cached, tokens);
    counts_.attached += known;
    return known;
}

std::optional<decode::SequenceCache> PromptStore::load(Tokens tokens) {
    if (!problem_.empty() || tokens.size() <= kBlock) return std::nullopt;
    const auto known = static_cast<size_t>(in_cache(tokens));
    std::vector<Piece> pieces = find(tokens.first(tokens.size() - 1));
    while (!pieces.empty()) {
        size_t length = (pieces.size() - 1) * kChunk + pieces.back().tokens;
        while (length > 0 && !is_usable(pieces, length)) length = (length - 1) / kBlock * kBlock;
        if (length / kBlock * kBlock <= known) break;
        if (remove_damaged(pieces, length)) continue;
        auto sequence = restore(pieces, length);
        if (!sequence) break;
        counts_.found = static_cast<size_t>(sequence->length());
        for (size_t i = 0; i < pieces.size(); ++i) touch(pieces[i].chunk.path(), i);
        return sequence;
    }
    return std::nullopt;
}

// Whether the file has everything of these blocks that the sequence holds.
bool PromptStore::covers(const PromptChunk &chunk, const decode::SequenceCache &sequence,
                         size_t first) const {
    for (size_t group = 0; group < executor_.cache().groups(); ++group)
        for (size_t b = 0; b < chunk.blocks(); ++b)
            if (sequence.table(group)[first + b] != cache::kNoBlock && chunk.block(group, b).bytes.empty())
                return false;
    return !chunk.state().bytes.empty() || state_after(sequence, first + chunk.blocks()) == kernels::kNoState;
}

// Whether another file begins with the whole chunk.
bool PromptStore::is_beginning(const Siblings &siblings, const ChunkId &id, Tokens tokens) {
    const auto [begin, end] = siblings.equal_range(key_before(id));
    size_t tried = 0;
    for (auto one = begin; one != end && tried < kMostSiblings; ++one, ++tried)
        if (const auto chunk = open(one->second); chunk && chunk->tokens().size() > tokens.size() &&
                                                  common_tokens(chunk->tokens(), tokens) == tokens.size())
            return true;
    return false;
}

// Removes the files of which this chunk is the continuation. With windows or states, they serve other texts.
void PromptStore::remove_beginnings(const Siblings &siblings, const ChunkId &id, Tokens tokens) {
    const auto [begin, end] = siblings.equal_range(key_before(id));
    size_t tried = 0;
    for (auto one = begin; one != end && tried < kMostSiblings; ++one, ++tried) {
        if (one->second == id) continue;
        const auto chunk = open(one->second);
        if (chunk && chunk->blocks() < tokens.size() / kBlock &&
            common_tokens(chunk->tokens(), tokens) == chunk->tokens().size())
            unlink(chunk->path().c_str());
    }
}

void PromptStore::save(Tokens tokens) {
    if (!problem_.empty() || tokens.size() <= kBlock) return;
    decode::SequenceCache sequence = executor_.new_sequence();
    counts_.attached += executor_.attach(sequence, tokens);
    const Tokens held = Tokens(sequence.tokens());
    const Siblings siblings = list();
    bool has_gaps = executor_.state_bytes() > 0;
    for (size_t group = 0; group < executor_.cache().groups(); ++group)
        has_gaps |= !is_seen(group, 0, size_t{1} << 25);
    const uint64_t most = limit(0);
    uint64_t bytes = 0;  // of the text's files
    size_t saved = 0, place = 0;
    BlockKey key = root_;
    try {
        for (size_t at = 0; at < held.size() && bytes < most; at += kChunk, ++place) {
            const Tokens part = held.subspan(at, std::min(kChunk, held.size() - at));
            const ChunkId id{key, key_after(key, part)};
            const fs::path path = folder_ / file_name(id);
            key = id.after;
            if (!has_gaps && part.size() < kChunk && is_beginning(siblings, id, part)) break;
            auto stored = open(id);
            if (!stored || !covers(*stored, sequence, at / kBlock)) {
                stored.reset();
                write_chunk(path, id, executor_, sequence, at / kBlock, part.size() / kBlock);
                saved += part.size();
                if (!has_gaps) remove_beginnings(siblings, id, part);
            }
            touch(path, place);
            std::error_code error;
            const uintmax_t size = fs::file_size(path, error);
            bytes += error ? 0 : size;
        }
    } catch (const gguf::WriteError &error) {
        problem_ = error.what();
    }
    counts_.saved += saved;
    if (saved > 0) trim();
}

// The bytes that the folder may have; `used`: what it has.
uint64_t PromptStore::limit(uint64_t used) const {
    struct statvfs disk {};
    if (statvfs(folder_.c_str(), &disk) != 0) return most_bytes_;
    const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
    return std::min(most_bytes_, (free + used) / kPartOfDisk);
}

void PromptStore::trim() {
    const Descriptor lock(open_lock(folder_));
    if (lock.fd < 0 || flock(lock.fd, LOCK_EX | LOCK_NB) != 0) return;  // another process does it
    uint64_t used = 0;
    const std::vector<Stored> files = stored_files(folder_);
    for (const Stored &file : files) used += file.bytes;
    const uint64_t most = limit(used);
    for (const Stored &file : files) {
        if (used <= most) break;
        if (unlink(file.path.c_str()) != 0) continue;
        used -= file.bytes;
        ++counts_.removed;
    }
}

}  // namespace runnel::completion
