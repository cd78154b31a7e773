#include "engine/completion/prompt_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <mutex>
#include <system_error>
#include <thread>
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
using TokenSpan = std::span<const TokenId>;

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

size_t common_tokens(TokenSpan a, TokenSpan b) {
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

// Marks the files of a text as just used, the first as the newest: they are of use without the others.
void touch(std::span<const fs::path> files) {
    timespec time{};
    clock_gettime(CLOCK_REALTIME, &time);
    constexpr long kNanoseconds = 1000000000, kStep = 1000000;  // coarser than the times of file systems
    for (const fs::path &file : files) {
        const timespec times[2] = {time, time};
        utimensat(AT_FDCWD, file.c_str(), times, AT_SYMLINK_NOFOLLOW);
        time.tv_nsec -= kStep;
        if (time.tv_nsec < 0) time.tv_nsec += kNanoseconds, --time.tv_sec;
    }
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
    if (file.fd < 0) {
        problem_ = name + ": " + reason();
        return;
    }
    std::array<uint64_t, 2> number{};
    const auto size = static_cast<ssize_t>(sizeof number);
    const auto is_known = [&] { return pread(file.fd, number.data(), sizeof number, 0) == size; };
    if (!is_known()) {
        constexpr int kTries = 20;  // another process makes the number, or cleans up
        int tries = 1;
        while (flock(file.fd, LOCK_EX | LOCK_NB) != 0) {
            if (tries++ == kTries) {
                problem_ = name + " is locked by another process";
                return;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        if (!is_known()) {
            number = {base::random_seed(), base::random_seed()};
            if (pwrite(file.fd, number.data(), sizeof number, 0) != size) problem_ = name + ": " + reason();
        }
    }
    base::Checksum sum;
    sum.add_value(number);
    sum.add_value(identity);
    sum.add_value(kChunkVersion);
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
    bool damaged = false;
    const fs::path path = folder_ / file_name(id);
    auto chunk = PromptChunk::open(path, id, executor_, damaged);
    if (damaged) remove_damaged(path);
    return chunk;
}

// The files that hold the longest beginning of the tokens.
std::vector<PromptStore::Piece> PromptStore::find(TokenSpan tokens) {
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
                pieces[b / kChunkBlocks].chunk.block(group, b % kChunkBlocks).bytes == 0)
                return false;
    if (executor_.state_bytes() == 0) return true;
    const PromptChunk &last = pieces[(length - 1) / kChunk].chunk;
    return last.state().bytes > 0 && last.tokens().size() == (length - 1) % kChunk + 1;
}

// Reads the blocks that a sequence of so many tokens needs; `first`: the number of the first within the text.
void PromptStore::remove_if_damaged(const PromptChunk &chunk, size_t first, size_t length) {
    std::vector<std::byte> bytes;
    const auto is_damaged = [&](const PromptChunk::Part &part) {
        bytes.resize(part.bytes);
        return part.bytes > 0 && chunk.read(part, bytes) == PromptChunk::Read::Damaged;
    };
    bool damaged = is_damaged(chunk.state());
    for (size_t group = 0; group < executor_.cache().groups(); ++group)
        for (size_t b = 0; b < chunk.blocks() && !damaged; ++b)
            damaged = is_seen(group, first + b, length) && is_damaged(chunk.block(group, b));
    if (damaged) remove_damaged(chunk.path());
}

// The sequence of the first `length` tokens. Its last block may have other tokens behind them. If a file cannot be read,
// it and all behind it are removed from `pieces`; all damaged files go from the disk as well, so that save() makes them anew.
std::optional<decode::SequenceCache> PromptStore::restore(std::vector<Piece> &pieces, size_t length) {
    const size_t blocks = blocks_of(length), groups = executor_.cache().groups();
    std::vector<TokenId> tokens;
    for (const Piece &piece : pieces)
        tokens.insert(tokens.end(), piece.chunk.tokens().begin(), piece.chunk.tokens().end());
    tokens.resize(blocks * kBlock);
    cache::HeldBlocks held(groups);
    for (size_t group = 0; group < groups; ++group)
        for (size_t b = 0; b < blocks; ++b) held[group].push_back(is_seen(group, b, length));
    size_t good = pieces.size();
    std::mutex mutex;  // of what follows a failure
    const auto read = [&](size_t piece, const PromptChunk::Part &part, std::span<std::byte> bytes) {
        const PromptChunk::Read result = pieces[piece].chunk.read(part, bytes);
        if (result == PromptChunk::Read::Sound) return true;
        const std::scoped_lock lock(mutex);
        if (result == PromptChunk::Read::Damaged) remove_damaged(pieces[piece].chunk.path());
        good = std::min(good, piece);
        return false;
    };
    const decode::SavedBlocks saved{[&](size_t group, size_t b, std::span<std::byte> bytes) {
                                        const size_t piece = b / kChunkBlocks;
                                        return read(piece, pieces[piece].chunk.block(group, b % kChunkBlocks),
                                                    bytes);
                                    },
                                    [&](std::span<std::byte> bytes) {
                                        const size_t piece = (length - 1) / kChunk;
                                        return read(piece, pieces[piece].chunk.state(), bytes);
                                    }};
    const bool is_restored = executor_.restore(tokens, held, saved);
    for (size_t i = good + 1; i < pieces.size(); ++i)
        remove_if_damaged(pieces[i].chunk, i * kChunkBlocks, length);
    pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(good), pieces.end());
    if (!is_restored) return std::nullopt;
    tokens.push_back(0);  // attach() leaves one token out
    decode::SequenceCache sequence = executor_.new_sequence();
    counts_.attached += executor_.attach(sequence, tokens);
    const auto wanted = static_cast<int32_t>(length);
    if (sequence.length() < wanted) return std::nullopt;
    sequence.truncate(sequence.truncatable(wanted));
    return sequence;
}

// How many of the tokens the cache holds.
int32_t PromptStore::in_cache(TokenSpan tokens) {
    decode::SequenceCache cached = executor_.new_sequence();
    const int32_t known = executor_.attach(cached, tokens);
    counts_.attached += known;
    return known;
}

std::optional<decode::SequenceCache> PromptStore::load(TokenSpan tokens) {
    if (!problem_.empty() || tokens.size() <= kBlock) return std::nullopt;
    const auto known = static_cast<size_t>(in_cache(tokens));
    std::vector<Piece> pieces = find(tokens.first(tokens.size() - 1));
    while (!pieces.empty()) {
        size_t length = (pieces.size() - 1) * kChunk + pieces.back().tokens;
        while (length > 0 && !is_usable(pieces, length)) length = (length - 1) / kBlock * kBlock;
        if (length / kBlock * kBlock <= known) break;
        const size_t known_pieces = pieces.size();
        auto sequence = restore(pieces, length);
        if (!sequence && pieces.size() < known_pieces) continue;
        if (!sequence) break;
        counts_.found = static_cast<size_t>(sequence->length());
        std::vector<fs::path> files;
        for (const Piece &piece : pieces) files.push_back(piece.chunk.path());
        touch(files);
        return sequence;
    }
    return std::nullopt;
}

// Whether the file has everything of these blocks that the sequence holds.
bool PromptStore::covers(const PromptChunk &chunk, const decode::SequenceCache &sequence,
                         size_t first) const {
    for (size_t group = 0; group < executor_.cache().groups(); ++group)
        for (size_t b = 0; b < chunk.blocks(); ++b)
            if (sequence.table(group)[first + b] != cache::kNoBlock && chunk.block(group, b).bytes == 0)
                return false;
    return chunk.state().bytes > 0 || state_after(sequence, first + chunk.blocks()) == kernels::kNoState;
}

// Whether another file begins with the whole chunk.
bool PromptStore::is_beginning(const Siblings &siblings, const ChunkId &id, TokenSpan tokens) {
    const auto [begin, end] = siblings.equal_range(key_before(id));
    size_t tried = 0;
    for (auto one = begin; one != end && tried < kMostSiblings; ++one, ++tried)
        if (const auto chunk = open(one->second); chunk && chunk->text().size() > tokens.size() &&
                                                  common_tokens(chunk->text(), tokens) == tokens.size())
            return true;
    return false;
}

// Removes the files of which this chunk is the continuation. With windows or states, they serve other texts.
void PromptStore::remove_beginnings(const Siblings &siblings, const ChunkId &id, TokenSpan tokens) {
    const auto [begin, end] = siblings.equal_range(key_before(id));
    size_t tried = 0;
    for (auto one = begin; one != end && tried < kMostSiblings; ++one, ++tried) {
        if (one->second == id) continue;
        const auto chunk = open(one->second);
        if (chunk && chunk->text().size() < tokens.size() &&
            common_tokens(chunk->text(), tokens) == chunk->text().size())
            unlink(chunk->path().c_str());
    }
}

// Writes a file that another process may write or clean up at the same time.
void PromptStore::write(const fs::path &path, const ChunkId &id, const decode::SequenceCache &sequence,
                        size_t first, size_t blocks, size_t padding) {
    try {
        write_chunk(path, id, executor_, sequence, first, blocks, padding);
    } catch (const gguf::WriteError &) {
        std::error_code error;
        if (fs::exists(path, error)) return;
        write_chunk(path, id, executor_, sequence, first, blocks, padding);
    }
}

// Computes the tokens behind those of the sequence. False if the cache has no room; the sequence is then as before.
bool PromptStore::compute(decode::SequenceCache &sequence, TokenSpan tokens) {
    const int32_t before = sequence.length();
    std::vector<float> logits;
    while (static_cast<size_t>(sequence.length()) < tokens.size()) {
        const TokenSpan rest = tokens.subspan(static_cast<size_t>(sequence.length()));
        const size_t count = std::min(rest.size(), static_cast<size_t>(executor_.batch_size()));
        if (!executor_.add({.cache = &sequence, .tokens = rest.first(count), .logit_rows = 0})) {
            sequence.truncate(before);
            return false;
        }
        executor_.run(logits);
    }
    return true;
}

// Whether the files hold all the tokens.
bool PromptStore::is_stored(TokenSpan tokens) {
    const std::vector<Piece> pieces = find(tokens);
    size_t found = 0;
    for (const Piece &piece : pieces) found += piece.tokens;
    return found == tokens.size() && is_usable(pieces, found);
}

void PromptStore::save(TokenSpan tokens) {
    if (!can_save() || tokens.size() <= kBlock) return;
    decode::SequenceCache sequence = executor_.new_sequence();
    counts_.attached += executor_.attach(sequence, tokens);
    save(sequence, 0);
}

void PromptStore::save_to_the_token(TokenSpan tokens) {
    if (!can_save() || tokens.size() < kBlock) return;
    const size_t filled = blocks_of(tokens.size()) * kBlock;
    std::vector<TokenId> text(tokens.begin(), tokens.end());
    text.resize(filled, text.back());
    text.push_back(text.back());  // attach() leaves one token out
    decode::SequenceCache sequence = executor_.new_sequence();
    counts_.attached += executor_.attach(sequence, text);
    text.pop_back();
    const auto held = static_cast<size_t>(sequence.length());
    const bool is_whole = held == filled || (held + kBlock == filled && executor_.state_bytes() == 0 &&
                                             filled <= static_cast<size_t>(executor_.context()) &&
                                             !is_stored(tokens) && compute(sequence, text));
    save(sequence, is_whole ? filled - tokens.size() : 0);
}

// Saves a sequence of whole blocks.
void PromptStore::save(const decode::SequenceCache &sequence, size_t padding) {
    const TokenSpan held = TokenSpan(sequence.tokens());
    const Siblings siblings = list();
    bool has_gaps = executor_.state_bytes() > 0;
    for (size_t group = 0; group < executor_.cache().groups(); ++group)
        has_gaps |= !is_seen(group, 0, size_t{1} << 25);
    const uint64_t most = limit(0);
    uint64_t bytes = 0;  // of the text's files
    std::vector<fs::path> files;
    BlockKey key = root_;
    try {
        for (size_t at = 0; at < held.size(); at += kChunk) {
            const TokenSpan part = held.subspan(at, std::min(kChunk, held.size() - at));
            const size_t filled = at + part.size() == held.size() ? padding : 0;
            const TokenSpan text = part.first(part.size() - filled);
            const ChunkId id{key, key_after(key, part)};
            const fs::path path = folder_ / file_name(id);
            key = id.after;
            if (!has_gaps && text.size() < kChunk && is_beginning(siblings, id, text)) break;
            const size_t first = at / kBlock, blocks = part.size() / kBlock;
            auto stored = open(id);
            if (stored && !covers(*stored, sequence, first)) stored.reset();
            bytes += stored ? stored->bytes() : chunk_bytes(executor_, sequence, first, blocks);
            if (bytes > most) break;
            if (!stored) {
                write(path, id, sequence, first, blocks, filled);
                counts_.saved += text.size();
                if (!has_gaps) remove_beginnings(siblings, id, text);
            }
            files.push_back(path);
        }
    } catch (const gguf::WriteError &error) {
        write_problem_ = error.what();
    }
    touch(files);
    trim();
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
