// Power failures: records the writes of commands (FAULT_LOG of tests/fault/fault.c) and recreates, for every prefix of
// the record, files that the disk may then hold. An output is complete, the old or the new one; a batch resumes to the
// same bytes.
//
// The disk keeps all changes of a file up to its last sync, and a prefix of the later ones, whose end may be partial
// and have zeros where nothing arrived; of a folder's names it keeps the changes up to its last sync and a prefix of
// the later ones. RUNNEL_POWER=N tries N disks per prefix instead of 2.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;

#ifndef __SANITIZE_ADDRESS__  // the sanitizer must be the first library

namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;  // contents by path

struct Change {
    std::string kind, path, bytes;
    size_t number = 0;
};

std::vector<Change> parse_log(const std::string &log, const std::string &folder) {
    std::vector<Change> changes;
    for (size_t at = 0; at < log.size();) {
        const size_t end = log.find('\n', at), a = log.find('\t', at), b = log.find('\t', a + 1),
                     c = log.find('\t', b + 1);
        REQUIRE(c < end);
        const size_t size = std::stoull(log.substr(c + 1));
        Change change{log.substr(at, a - at), log.substr(a + 1, b - a - 1), log.substr(end + 1, size),
                      std::stoull(log.substr(b + 1))};
        if (change.path.starts_with(folder)) changes.push_back(std::move(change));
        at = end + 1 + size + 1;
    }
    return changes;
}

// What happened to one file or to the names of one folder.
struct History {
    std::vector<Change> changes;
    size_t durable = 0;
    void add(const Change &change) {
        if (change.kind == "sync")
            durable = changes.size();
        else
            changes.push_back(change);
    }
    // The number of changes that a disk may have kept.
    size_t kept(Random &random) const { return durable + random.below(changes.size() - durable + 1); }
};

void write_at(std::string &text, size_t at, std::string_view bytes) {
    if (text.size() < at + bytes.size()) text.resize(at + bytes.size());
    text.replace(at, bytes.size(), bytes);
}

std::string content_of(const History &file, std::string text, Random &random) {
    const size_t kept = file.kept(random);
    for (size_t i = 0; i < std::min(kept + 1, file.changes.size()); ++i) {
        const Change &change = file.changes[i];
        if (change.kind == "truncate") {
            if (i < kept) text.resize(change.number);
        } else if (i < kept) {
            write_at(text, change.number, change.bytes);
        } else if (random.below(2)) {  // the change in progress
            std::string part = change.bytes.substr(0, random.below(change.bytes.size() + 1));
            const size_t zeros = random.below(part.size() + 1);
            if (random.below(3) == 0) std::fill_n(part.begin(), zeros, '\0');
            write_at(text, change.number, part);
        }
    }
    return text;
}

// A disk after the first `count` changes to a folder that held `before`.
Files disk_after(const std::vector<Change> &changes, size_t count, const Files &before, Random &random) {
    std::vector<History> files;
    std::vector<std::string> first;     // content of each file when the recording began
    std::map<std::string, size_t> now;  // the file of each name
    History names;
    std::vector<size_t> of_create;  // the file of each change to names
    const auto file_at = [&](const std::string &path) {
        if (const auto found = now.find(path); found != now.end()) return found->second;
        files.emplace_back();
        first.emplace_back();
        return now[path] = files.size() - 1;
    };
    std::map<std::string, size_t> at_first;
    for (const auto &[path, text] : before) {
        at_first[path] = file_at(path);
        first.back() = text;
    }
    for (size_t i = 0; i < count; ++i) {
        const Change &change = changes[i];
        if (change.kind == "create" && now.contains(change.path)) continue;
        if (change.kind == "create" || change.kind == "rename" || change.kind == "unlink") {
            const size_t file = file_at(change.path);
            names.add(change);
            of_create.push_back(file);
            if (change.kind != "create") now.erase(change.path);
            if (change.kind == "rename") now[change.bytes] = file;
        } else if (now.contains(change.path)) {
            files[now[change.path]].add(change);
        } else {  // of a folder
            REQUIRE(change.kind == "sync");
            names.add(change);
        }
    }
    std::map<std::string, size_t> there = at_first;
    const size_t kept = names.kept(random);
    for (size_t i = 0; i < kept; ++i) {
        const Change &change = names.changes[i];
        if (change.kind != "create") there.erase(change.path);
        if (change.kind == "create") there[change.path] = of_create[i];
        if (change.kind == "rename") there[change.bytes] = of_create[i];
    }
    Files disk;
    for (const auto &[path, file] : there) disk[path] = content_of(files[file], first[file], random);
    return disk;
}

std::vector<Change> record(const std::vector<std::string> &arguments, const std::string &input,
                           const fs::path &folder) {
    const TemporaryDirectory log;
    Process p = process(arguments);
    p.input = input;
    p.environment = {
        "RUNNEL_NO_HISTORY=1",
        "LD_PRELOAD=" + fs::absolute(fs::path(*program_under_test()).parent_path() / "fault.so").string(),
        "FAULT_LOG=" + (log / "log").string()};
    const Result r = execute(p);
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    return parse_log(read_file(log / "log"), folder.string());
}

uint64_t disks() {
    const char *wish = std::getenv("RUNNEL_POWER");
    return wish && *wish ? std::stoull(wish) : 2;
}

}  // namespace

TEST_CASE("power failure: a saved file is the old or the new one, complete") {
    REQUIRE(program_under_test());
    const std::string model = demo_model();
    struct Save {
        const char *name;
        std::vector<std::string> arguments;
        std::string input = {};
    };
    const TemporaryDirectory directory;
    const std::string out = directory / "out", text = directory / "text";
    std::ofstream(text) << read_file(held_out_text()).substr(0, 1500);
    const std::vector<Save> saves = {
        {"stats", {"run", model, "Once", "-n", "2", "--stats-file", out, "--overwrite"}},
        {"cache", {"run", model, "-f", text, "--raw", "-n", "1", "--prompt-cache", out, "--overwrite"}},
        {"chat", {"chat", model, "-n", "2", "--overwrite"}, "Hello\n/save " + out + "\n"},
        {"logits",
         {"perplexity", model, "-f", text, "-c", "32", "--chunks", "1", "--save-logits", out, "--overwrite"}},
    };
    for (const Save &save : saves)
        for (const bool replaces : {false, true}) {
            CAPTURE(save.name);
            CAPTURE(replaces);
            fs::remove(out);
            const std::string old = "the old one";
            if (replaces) std::ofstream(out) << old;
            const auto changes = record(save.arguments, save.input, directory.path());
            const std::string made = read_file(out);
            CHECK(made.size() > old.size());
            CHECK(changes.size() >= 4);  // a name, bytes, a sync, the final name
            const Files before = replaces ? Files{{out, old}} : Files{};
            for (size_t count = 0; count <= changes.size(); ++count)
                for (uint64_t seed = 0; seed < 20 * disks(); ++seed) {
                    CAPTURE(count);
                    CAPTURE(seed);
                    Random random(seed * 1000 + count);
                    const Files disk = disk_after(changes, count, before, random);
                    const auto found = disk.find(out);
                    if (count == changes.size()) REQUIRE(found != disk.end());
                    if (replaces) REQUIRE(found != disk.end());
                    if (found == disk.end()) continue;
                    const bool whole = found->second == made || (replaces && found->second == old);
                    CHECK(whole);
                    if (count == changes.size()) CHECK(found->second == made);
                }
        }
}

TEST_CASE("power failure: a resumed batch has the bytes of an undisturbed one") {
    REQUIRE(program_under_test());
    const TemporaryDirectory directory, aside;
    const fs::path out = directory / "out", manifest = directory / "out.resume", in = aside / "in";
    std::ofstream(in)
        << "{\"prompt\": \"One\", \"max_tokens\": 4}\n{\"prompt\": \"Two\", \"max_tokens\": 2}\n"
           "{\"prompt\": \"\", \"max_tokens\": 3}\n{\"prompt\": \"Four\", \"max_tokens\": 0}\n";
    std::vector<std::string> arguments = {"batch", demo_model(), "-t", "1", "-s", "3", "-i", in, "-o", out};
    Process whole = process(arguments);
    const Result first = execute(whole);
    REQUIRE(first.code == 5);  // an empty prompt
    const std::string expected = read_file(out);
    fs::remove(out);
    fs::remove(manifest);

    const TemporaryDirectory log;
    Process p = process(arguments);
    p.environment = {
        "LD_PRELOAD=" + fs::absolute(fs::path(*program_under_test()).parent_path() / "fault.so").string(),
        "FAULT_LOG=" + (log / "log").string()};
    REQUIRE(execute(p).code == 5);
    CHECK(read_file(out) == expected);
    const auto changes = parse_log(read_file(log / "log"), directory.path().string());
    CHECK(changes.size() >= 2 * 4 + 4);
    // Hard links keep the inodes alive: the manifest identifies the output by its inode.
    fs::create_hard_link(out, aside / "out");
    fs::create_hard_link(manifest, aside / "manifest");
    arguments.emplace_back("--resume");
    for (size_t count = 0; count <= changes.size(); ++count)
        for (uint64_t seed = 0; seed < disks(); ++seed) {
            CAPTURE(count);
            CAPTURE(seed);
            Random random(seed * 1000 + count);
            const Files disk = disk_after(changes, count, {}, random);
            for (const auto &[path, link] :
                 {std::pair(out, aside / "out"), std::pair(manifest, aside / "manifest")}) {
                fs::remove(path);
                const auto found = disk.find(path.string());
                if (found == disk.end()) continue;
                fs::create_hard_link(link, path);
                std::ofstream(path, std::ios::binary | std::ios::trunc) << found->second;
            }
            const Result r = execute(process(arguments));
            CAPTURE(r.err);
            CHECK(r.code == 5);
            CHECK(read_file(out) == expected);
        }
}

#endif
