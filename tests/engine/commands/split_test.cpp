// `runnel split` and `runnel merge`, and `quantize --keep-split`, tested by running the program.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "gguf/writer.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> names_in(const fs::path &folder) {
    std::vector<std::string> names;
    for (const auto &entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
}

fs::path model_in(const TemporaryDirectory &directory, const char *type = "F16") {
    ModelShape shape;
    shape.type = type;
    const TemporaryModel model(shape);
    fs::copy_file(model.path, directory / "m.gguf");
    return directory / "m.gguf";
}

void check_same_tensors(const gguf::File &a, const gguf::File &b) {
    REQUIRE(a.tensors().size() == b.tensors().size());
    for (size_t i = 0; i < a.tensors().size(); ++i) {
        const gguf::Tensor &x = a.tensors()[i], &y = b.tensors()[i];
        CAPTURE(x.name);
        CHECK(x.name == y.name);
        CHECK(x.type == y.type);
        CHECK(std::equal(x.shape, x.shape + 4, y.shape));
        REQUIRE(x.bytes == y.bytes);
        CHECK(std::equal(x.data, x.data + x.bytes, y.data));
    }
}

}  // namespace

TEST_CASE("split: the parts hold the model, and merge gives the same file again") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const fs::path model = model_in(directory);
    for (const std::vector<std::string> &limits : {std::vector<std::string>{"--size", "20K"},
                                                   {"--tensors", "3"},
                                                   {"--size", "1K", "--tensors", "2"},
                                                   {"--metadata-apart"},
                                                   {"--metadata-apart", "--tensors", "5"}}) {
        CAPTURE(limits);
        const fs::path folder = directory / "parts";
        fs::create_directory(folder);
        std::vector<std::string> words{"split", model.string(), "-o", (folder / "p").string()};
        words.insert(words.end(), limits.begin(), limits.end());
        const Result split = runnel_with(words);
        CAPTURE(split.err);
        REQUIRE(split.code == 0);
        CHECK(split.out.empty());
        const std::vector<std::string> names = names_in(folder);
        REQUIRE(names.size() > 1);
        CHECK(names.front() == "p" + gguf::part_ending(0, static_cast<int64_t>(names.size())));
        const gguf::File whole = gguf::File::open(model);
        {
            const gguf::File parts = gguf::File::open(folder / names.back());  // any part opens the set
            CHECK(parts.parts() == names.size());
            check_same_tensors(whole, parts);
            if (limits[0] == "--metadata-apart") CHECK(parts.tensors().front().part == 1);
        }
        const Result merged =
            runnel_with({"merge", (folder / names[1]).string(), "-o", (directory / "one.gguf").string()});
        CAPTURE(merged.err);
        REQUIRE(merged.code == 0);
        CHECK(read_bytes(directory / "one.gguf") == read_bytes(model));
        fs::remove_all(folder);
        fs::remove(directory / "one.gguf");
    }
    CHECK(names_in(directory.path()) == std::vector<std::string>{"m.gguf"});
}

TEST_CASE("split: limits are kept for random tensors, and a part of a split set runs") {
    if (absent()) return;
    const TemporaryDirectory directory;
    constexpr uint64_t kSeed = 20261123;
    Random random(kSeed);
    for (int round = 0; round < 20; ++round) {
        CAPTURE(round);
        CAPTURE(kSeed);
        const uint32_t alignment = 32u << random.below(3);
        gguf::Writer writer(alignment);
        writer.add("general.architecture", "llama");
        const auto count = static_cast<int64_t>(1 + random.below(30));
        std::vector<int64_t> sizes;
        for (int64_t i = 0; i < count; ++i) {
            sizes.push_back(static_cast<int64_t>(1 + random.below(500)));
            writer.add_tensor("t" + std::to_string(i), gguf::Type::F32, {sizes.back()});
        }
        const fs::path model = directory / ("random" + std::to_string(round) + ".gguf");
        writer.start(model);
        for (const int64_t size : sizes) {
            std::vector<float> values(static_cast<size_t>(size));
            for (float &value : values) value = static_cast<float>(random.below(1000));
            writer.write(std::as_bytes(std::span(values)));
        }
        writer.finish();
        const uint64_t most = 1024 * (1 + random.below(6));
        const auto tensors = static_cast<int64_t>(1 + random.below(8));
        const Result split =
            runnel_with({"split", model.string(), "--size", std::to_string(most), "--tensors",
                         std::to_string(tensors), "-o", (directory / "r").string()});
        CAPTURE(split.err);
        if (split.code == 2) {
            CHECK(split.err.find("nothing to split") != split.err.npos);
            CHECK(count <= tensors);
            continue;
        }
        REQUIRE(split.code == 0);
        std::vector<fs::path> paths;
        for (const auto &entry : fs::directory_iterator(directory.path()))
            if (entry.path().filename().string().starts_with("r-")) paths.push_back(entry.path());
        {
            const gguf::File parts = gguf::File::open(paths.front());
            check_same_tensors(gguf::File::open(model), parts);
            CHECK(parts.parts() == paths.size());
            // Every part is within the limits, and no part could have taken the first tensor of the next one.
            std::vector<uint64_t> bytes(paths.size()), in(paths.size()), firsts(paths.size());
            for (const gguf::Tensor &tensor : parts.tensors()) {
                const uint64_t padded = (tensor.bytes + alignment - 1) / alignment * alignment;
                if (in[tensor.part]++ == 0) firsts[tensor.part] = padded;
                bytes[tensor.part] += padded;
            }
            for (size_t i = 0; i < paths.size(); ++i) {
                CHECK(in[i] <= static_cast<uint64_t>(tensors));
                CHECK((bytes[i] <= most || in[i] == 1));
                if (i + 1 < paths.size())
                    CHECK((in[i] == static_cast<uint64_t>(tensors) || bytes[i] + firsts[i + 1] > most));
            }
        }
        for (const fs::path &path : paths) fs::remove(path);
    }
    const fs::path model = model_in(directory);
    REQUIRE(runnel_with({"split", model.string(), "--tensors", "4"}).code == 0);
    const auto names = names_in(directory.path());
    const auto part =
        std::ranges::find_if(names, [](const std::string &n) { return n.starts_with("m-00002"); });
    REQUIRE(part != names.end());
    const Result whole = runnel_with({"run", model.string(), "ab", "-n", "8", "--temp", "0"});
    const Result parts = runnel_with({"run", (directory / *part).string(), "ab", "-n", "8", "--temp", "0"});
    CHECK(parts.code == 0);
    CHECK(parts.out == whole.out);
}

TEST_CASE("split: a dry run prints the parts and writes nothing") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const fs::path model = model_in(directory);
    const Result plain = runnel_with({"split", model.string(), "--tensors", "7", "--dry-run"});
    CHECK(plain.code == 0);
    CHECK(plain.out.find("m-00001-of-") != plain.out.npos);
    const Result r = runnel_with({"split", model.string(), "--tensors", "7", "--dry-run", "--json"});
    REQUIRE(r.code == 0);
    uint64_t tensors = 0, bytes = 0;
    const json parsed = json::parse(r.out);
    for (const json &part : parsed["parts"]) {
        tensors += part["tensors"].get<uint64_t>();
        bytes += part["bytes"].get<uint64_t>();
    }
    const gguf::File file = gguf::File::open(model);
    uint64_t expected = 0;
    for (const gguf::Tensor &tensor : file.tensors()) expected += tensor.bytes;
    CHECK(tensors == file.tensors().size());
    CHECK(bytes == expected);
    CHECK(names_in(directory.path()) == std::vector<std::string>{"m.gguf"});
}

TEST_CASE("split, merge: a request that would lose a file or do nothing is refused") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = model_in(directory).string();
    const auto refused = [](const std::vector<std::string> &words, const char *why) {
        CAPTURE(words);
        const Result r = runnel_with(words);
        CHECK(r.code == 2);
        check_message(r);
        CHECK(r.err.find(why) != r.err.npos);
    };
    refused({"split", model}, "--size SIZE or --tensors N");
    refused({"split", model, "--size", "1T"}, "nothing to split");
    refused({"split", model, "--tensors", "0"}, "--tensors");
    refused({"merge", model}, "nothing to merge");
    REQUIRE(runnel_with({"split", model, "--tensors", "9"}).code == 0);
    const std::vector<std::string> names = names_in(directory.path());
    const std::string first = (directory / names.front()).string();
    const auto before = read_bytes(first);
    refused({"split", model, "--tensors", "9"}, "exists already");
    refused({"merge", first}, "exists already");  // m.gguf
    // No option allows overwriting an input.
    refused({"merge", first, "-o", first, "--overwrite"}, "input file");
    const std::string second = (directory / names[1]).string();
    refused({"merge", first, "-o", second, "--overwrite"}, "this run reads that file");
    refused({"split", first, "--tensors", "9", "--overwrite"}, "input file");
    CHECK(read_bytes(first) == before);
    CHECK(names_in(directory.path()) == names);
    // With --overwrite the result replaces another file.
    CHECK(runnel_with({"merge", first, "-o", model, "--overwrite"}).code == 0);
    CHECK(runnel_with({"split", model, "--tensors", "9", "--overwrite"}).code == 0);
    CHECK(read_bytes(first) == before);
    // A part that is missing, and one of another set.
    fs::remove(second);
    CHECK(runnel_with({"merge", first, "-o", (directory / "x").string()}).code == 2);
    fs::copy_file(first, second);
    const Result wrong = runnel_with({"merge", first, "-o", (directory / "x").string()});
    CHECK(wrong.code == 3);
    CHECK_FALSE(fs::exists(directory / "x"));
}

#ifndef __SANITIZE_ADDRESS__  // the sanitizer must be the first library

TEST_CASE("split, merge: a full disk and a failing rename leave nothing behind") {
    if (absent()) return;
    const std::string library = fs::absolute(fs::path(*program_under_test()).parent_path() / "fault.so");
    REQUIRE(fs::exists(library));
    const TemporaryDirectory directory;
    const std::string model = model_in(directory).string();
    fs::create_directory(directory / "parts");
    REQUIRE(runnel_with({"split", model, "--tensors", "9", "-o", (directory / "parts/p").string()}).code ==
            0);
    const std::string first = (directory / "parts" / names_in(directory / "parts").front()).string();
    for (const std::vector<std::string> &words : {std::vector<std::string>{"split", model, "--tensors", "9"},
                                                  {"merge", first, "-o", directory / "one"}})
        for (const char *fault : {"write:1+:ENOSPC", "write:2+:ENOSPC", "fsync:1:EIO", "rename:1:EIO"}) {
            CAPTURE(words[0]);
            CAPTURE(fault);
            Process p = process(words);
            p.environment = {"LD_PRELOAD=" + library, std::string("FAULT=") + fault};
            const Result r = execute(p);
            CAPTURE(r.err);
            const bool failed = words[0] == "split" || std::string(fault) != "write:2+:ENOSPC";
            if (!failed && r.code == 0) {  // the whole file was one write
                fs::remove(directory / "one");
                continue;
            }
            CHECK(r.code == 1);
            check_message(r);
            CHECK(names_in(directory.path()) == std::vector<std::string>{"m.gguf", "parts"});
        }
    // The second part cannot be put in place: the first is removed again.
    Process p = process({"split", model, "--tensors", "9"});
    p.environment = {"LD_PRELOAD=" + library, "FAULT=rename:2:EIO"};
    CHECK(execute(p).code == 1);
    CHECK(names_in(directory.path()) == std::vector<std::string>{"m.gguf", "parts"});
}

#endif

TEST_CASE("quantize: --keep-split writes as many parts, with the tensors of the single file") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = model_in(directory).string();
    REQUIRE(runnel_with({"split", model, "--tensors", "6"}).code == 0);
    const std::vector<std::string> names = names_in(directory.path());
    const std::string first = (directory / names.front()).string();
    const Result one = runnel_with({"quantize", first, (directory / "one.gguf").string(), "Q8_0"});
    CHECK(one.code == 0);
    const Result kept =
        runnel_with({"quantize", first, (directory / "kept.gguf").string(), "Q8_0", "--keep-split"});
    CAPTURE(kept.err);
    REQUIRE(kept.code == 0);
    const auto parts = static_cast<int64_t>(names.size()) - 1;
    const gguf::File a = gguf::File::open(directory / "one.gguf"),
                     b = gguf::File::open((directory / "kept").string() + gguf::part_ending(0, parts)),
                     source = gguf::File::open(first);
    CHECK(a.parts() == 1);
    CHECK(static_cast<int64_t>(b.parts()) == parts);
    CHECK(b.tensors().size() == a.tensors().size());
    for (const gguf::Tensor &tensor : b.tensors()) {
        CAPTURE(tensor.name);
        const gguf::Tensor *same = a.find_tensor(tensor.name);
        REQUIRE(same);
        REQUIRE(same->bytes == tensor.bytes);
        CHECK(std::equal(tensor.data, tensor.data + tensor.bytes, same->data));
        CHECK(tensor.part == source.find_tensor(tensor.name)->part);
    }
    CHECK(runnel_with({"quantize", first, (directory / "kept.gguf").string(), "Q8_0", "--keep-split"}).code ==
          2);
}
