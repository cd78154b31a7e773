#include "engine/commands/batch/batch_join.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <span>

#include "engine/commands/arguments.h"
#include "engine/commands/batch/batch_manifest.h"
#include "engine/commands/batch/batch_output.h"
#include "engine/commands/batch/shard_source.h"
#include "engine/decode/stop_request.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"
#include "gguf/read_files.h"

namespace runnel::commands {
namespace {

constexpr std::string_view kShardSetting = "--shard";

// The output of one shard.
struct Part {
    std::string path, name;
    Descriptor file;
    BatchManifest manifest;
    BatchSettings settings;  // without the shard
    Shard shard;
    uint64_t rows;  // lines that agree with their records
    int64_t failed;
    bool complete;
};

// The place of a row.
struct Place {
    int64_t line;
    const Part *part;
    const ManifestRow *row;
};

Descriptor open_part(const std::string &path) {
    const std::string name = gguf::printable(path, 4096);
    Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC), true);
    struct stat status {};
    if (file.get() < 0 || fstat(file.get(), &status) != 0)
        throw UsageError("cannot open " + name + ": no such file, or not readable");
    if (!S_ISREG(status.st_mode)) throw UsageError(name + " is not a regular file");
    if (flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        throw UsageError(name + " is being written by another process");
    gguf::note_read(file.get());
    return file;
}

Shard shard_of(const std::string &text, const std::string &manifest) {
    try {
        return parse_shard(text);
    } catch (const UsageError &) {
        throw InputError(manifest + " is damaged: its --shard is " + gguf::quoted(text));
    }
}

std::unique_ptr<Part> read_part(const std::string &path, bool force) {
    Descriptor file = open_part(path);
    const std::string name = gguf::printable(path, 4096), beside = gguf::printable(manifest_of(path), 4096);
    BatchManifest manifest(manifest_of(path));
    gguf::note_read(manifest_of(path));
    if (!manifest.exists())
        throw UsageError(beside + " is missing or empty: --join needs this record of batch next to " + name);
    if (manifest.is_mixed() && !force)
        throw InputError(name +
                         " was continued with --resume --force: its rows may have other settings; "
                         "--join --force joins it anyway");
    BatchSettings settings = *manifest.settings();
    Shard shard{1, 1};
    std::erase_if(settings, [&](const auto &setting) {
        if (setting.first != kShardSetting) return false;
        shard = shard_of(setting.second, beside);
        return true;
    });
    const WrittenRows rows = WrittenRows::recover(file.get(), name, manifest, false);
    const auto count = static_cast<uint64_t>(rows.count());
    const auto &end = manifest.end();
    const bool complete = end && count == end->rows && manifest.rows().size() == count;
    if (end && (manifest.rows().size() != end->rows || (complete && size_of(file.get()) != rows.bytes())))
        throw InputError(name + " or " + beside + " is damaged: the complete run wrote " +
                         std::to_string(end->rows) + " rows");
    return std::make_unique<Part>(Part{path, name, std::move(file), std::move(manifest), std::move(settings),
                                       shard, count, rows.failed(), complete});
}

// Throws unless both answer the same input in the same way.
void expect_same(const Part &a, const Part &b, bool force) {
    if (a.shard.parts != b.shard.parts)
        throw InputError(a.name + " is one of " + std::to_string(a.shard.parts) + " shards, " + b.name +
                         " one of " + std::to_string(b.shard.parts));
    if (a.shard.part == b.shard.part)
        throw InputError(a.name + " and " + b.name + " are both shard " + std::to_string(a.shard.part) + "/" +
                         std::to_string(a.shard.parts));
    std::string what = differences(a.settings, b.settings);
    const auto &first = a.manifest.end(), &second = b.manifest.end();
    if (first && second) {
        if (first->input != second->input || first->lines != second->lines || first->bytes != second->bytes)
            throw InputError(a.name + " and " + b.name + " are answers to different inputs (" +
                             std::to_string(first->lines) + " and " + std::to_string(second->lines) +
                             " lines)");
        if (what.empty() && first->version != second->version)
            what = "the version was " + gguf::printable(first->version, 60) + " and is " +
                   gguf::printable(second->version, 60);
    }
    if (!what.empty() && !force)
        throw InputError(a.name + " and " + b.name + " have different settings: " + what +
                         "; --join --force joins them anyway");
}

// All rows in the order of the input. Throws InputError for rows that belong to another shard or are there twice.
std::vector<Place> places_of(const std::vector<std::unique_ptr<Part>> &parts) {
    std::vector<Place> places;
    for (const auto &part : parts)
        for (size_t i = 0; i < part->rows; ++i) {
            const ManifestRow &row = part->manifest.rows()[i];
            const auto &end = part->manifest.end();
            if (row.line < 1 || (row.line - 1) % part->shard.parts != part->shard.part - 1 ||
                (end && static_cast<uint64_t>(row.line) > end->lines))
                throw InputError(part->name + " has line " + std::to_string(row.line) +
                                 " of the input, which is not in shard " + std::to_string(part->shard.part) +
                                 "/" + std::to_string(part->shard.parts));
            places.push_back({row.line, part.get(), &row});
        }
    std::sort(places.begin(), places.end(), [](const Place &a, const Place &b) { return a.line < b.line; });
    const auto twice = std::adjacent_find(places.begin(), places.end(),
                                          [](const Place &a, const Place &b) { return a.line == b.line; });
    if (twice != places.end())
        throw InputError(twice->part->name + " has the answer to line " + std::to_string(twice->line) +
                         " twice");
    return places;
}

// The name of another shard's output, if `known` has its own shard in its name.
std::optional<std::string> sibling(const Part &known, const Shard &shard) {
    const std::string own = shard_name(known.shard);
    const size_t at = known.path.rfind(own);
    if (at == known.path.npos) return std::nullopt;
    return known.path.substr(0, at) + shard_name(shard) + known.path.substr(at + own.size());
}

// Writes a command for every shard that is missing or incomplete, then throws, if there are any.
void expect_complete(const std::vector<std::unique_ptr<Part>> &parts, Io &io) {
    constexpr int64_t kListed = 100;
    const int64_t total = parts[0]->shard.parts;
    std::set<int64_t> complete;
    for (const auto &part : parts)
        if (part->complete) complete.insert(part->shard.part);
    const int64_t missing = total - static_cast<int64_t>(complete.size());
    if (missing == 0) return;
    std::string seed;
    for (const auto &[name, value] : parts[0]->settings)
        if (name == "--seed") seed = " --seed " + gguf::printable(value, 40);
    int64_t listed = 0;
    for (int64_t i = 1; i <= total && listed < kListed; ++i) {
        if (complete.count(i)) continue;
        ++listed;
        const auto part =
            std::find_if(parts.begin(), parts.end(), [&](const auto &p) { return p->shard.part == i; });
        const Shard shard{i, total};
        const std::string file = part != parts.end()
                                     ? (*part)->path
                                     : sibling(*parts[0], shard).value_or("OUT." + shard_name(shard));
        const std::string state = part != parts.end()
                                      ? "is not complete (" + std::to_string((*part)->rows) + " rows)"
                                      : "is missing";
        const std::string text = std::to_string(i) + "/" + std::to_string(total);
        io.err.try_write("runnel: shard " + text + " " + state + ": runnel batch MODEL -i INPUT --shard " +
                         text + seed + " -o " + gguf::printable(file, 4096) + " --resume\n");
    }
    throw InputError(std::to_string(missing) + " of " + std::to_string(total) +
                     " shards are missing or not complete" +
                     (missing > listed ? " (" + std::to_string(listed) + " are listed)" : "") +
                     ": run these commands with the options of the other shards, then join again");
}

std::string read_line(const Place &place) {
    std::string line(place.row->bytes, '\0');
    size_t done = 0;
    while (done < line.size()) {
        const ssize_t got = pread(place.part->file.get(), line.data() + done, line.size() - done,
                                  static_cast<off_t>(place.row->at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += static_cast<size_t>(got);
    }
    if (done < line.size() || content_hash(line) != place.row->answer)
        throw InputError(place.part->name + " has changed while it was read");
    return line;
}

}  // namespace

int join_batch(const JoinOptions &options, Io &io) {
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    if (options.shards.empty()) throw UsageError("--join: name the outputs of the shards");
    const gguf::OutputOptions how{.overwrite = io.overwrite};
    if (options.output) gguf::check_output(*options.output, how);
    std::vector<std::unique_ptr<Part>> parts;
    for (const std::string &path : options.shards) {
        parts.push_back(read_part(path, options.force));
        if (stop.requested()) throw Interrupted();
    }
    std::sort(parts.begin(), parts.end(),
              [](const auto &a, const auto &b) { return a->shard.part < b->shard.part; });
    const Part *complete = nullptr;  // the last one: only these know their input
    for (size_t i = 0; i < parts.size(); ++i) {
        if (i > 0) expect_same(*parts[i - 1], *parts[i], options.force);
        if (!parts[i]->manifest.end()) continue;
        if (complete) expect_same(*complete, *parts[i], options.force);
        complete = parts[i].get();
    }
    const std::vector<Place> places = places_of(parts);
    expect_complete(parts, io);

    std::optional<gguf::OutputFile> file;
    if (options.output) file.emplace(*options.output, how);
    int64_t failed = 0;
    for (const auto &part : parts) failed += part->failed;
    for (const Place &place : places) {
        if (stop.requested()) throw Interrupted();
        const std::string line = read_line(place);
        if (file)
            file->write(std::as_bytes(std::span(line)));
        else
            io.out.write(line);
    }
    if (file) file->commit();
    io.note("joined " + std::to_string(places.size()) + " rows of " + std::to_string(parts.size()) +
            (parts.size() == 1 ? " shard" : " shards") +
            (failed > 0 ? ", " + std::to_string(failed) + " with errors" : ""));
    return exit_code::kDone;
}

}  // namespace runnel::commands
