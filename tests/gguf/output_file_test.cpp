// Output files appear complete or not at all, and never replace a file that must be kept.
#include "gguf/output_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/support/temporary.h"

using namespace runnel;
using gguf::OutputFile;
using gguf::OutputOptions;
using gguf::OutputRefused;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

void put(const fs::path &path, std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
}

std::string get(const fs::path &path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

void save(const fs::path &path, std::string_view text, const OutputOptions &options = {}) {
    OutputFile file(path, options);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
}

// The reason of the refusal; nullopt if there was none.
std::optional<OutputRefused::Why> refusal(const fs::path &path, const OutputOptions &options = {}) {
    std::optional<OutputRefused::Why> early;
    try {
        check_output(path, options);
    } catch (const OutputRefused &error) {
        early = error.why;
    }
    try {
        save(path, "new", options);
    } catch (const OutputRefused &error) {
        CHECK(early == error.why);
        return error.why;
    }
    CHECK(!early);
    return std::nullopt;
}

unsigned mode_of(const fs::path &path) {
    struct stat status {};
    REQUIRE(stat(path.c_str(), &status) == 0);
    return status.st_mode & 07777;
}

size_t entries(const fs::path &folder) {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("output file: replaces only empty files, own files, or on request") {
    const TemporaryDirectory folder;
    const fs::path path = folder / "file";
    CHECK(!refusal(path));
    CHECK(get(path) == "new");
    CHECK(!refusal(path));  // made by this process
    const fs::path other = folder / "other";
    put(other, "precious");
    CHECK(refusal(other) == OutputRefused::Why::Exists);
    CHECK(refusal(other, {.own = "prefix"}) == OutputRefused::Why::Exists);
    CHECK(refusal(other, {.own = "precious, and longer"}) == OutputRefused::Why::Exists);
    CHECK(get(other) == "precious");
    CHECK(!refusal(other, {.own = "prec"}));
    put(folder / "third", "precious");
    CHECK(!refusal(folder / "third", {.overwrite = true}));
    CHECK(get(folder / "third") == "new");
    put(folder / "empty", "");
    CHECK(!refusal(folder / "empty"));
    CHECK_THROWS_AS(save(folder.path(), "x"), gguf::WriteError);
    CHECK_THROWS_AS(save(folder / "none" / "x", "x"), gguf::WriteError);
    CHECK(entries(folder.path()) == 4);  // no temporary file is left
}

TEST_CASE("output file: a file that the process reads is never written, under any name or through any link") {
    const TemporaryDirectory folder;
    const fs::path model = folder / "m-00001-of-00003.gguf", part = folder / "m-00002-of-00003.gguf";
    put(model, "weights"), put(part, "weights");
    gguf::note_model(part);  // part 3 is missing
    fs::create_symlink("m-00001-of-00003.gguf", folder / "link");
    fs::create_symlink("link", folder / "link-to-link");
    fs::create_hard_link(model, folder / "hard");
    for (const char *name :
         {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "link", "link-to-link", "hard"})
        for (const bool overwrite : {false, true}) {
            CAPTURE(name);
            CHECK(refusal(folder / name, {.overwrite = overwrite}) == OutputRefused::Why::IsRead);
        }
    CHECK(get(model) == "weights");
    // Also if the file is read after the output was opened.
    put(folder / "late", "");
    OutputFile file(folder / "late");
    gguf::note_read(folder / "late");
    CHECK_THROWS_AS(file.commit(), OutputRefused);
    // And another file that appears meanwhile is not replaced.
    OutputFile slow(folder / "slow");
    put(folder / "slow", "somebody else's");
    CHECK_THROWS_AS(slow.commit(), OutputRefused);
    CHECK(get(folder / "slow") == "somebody else's");
}

TEST_CASE("output file: a link that someone planted under a name for temporary files is not followed") {
    const TemporaryDirectory folder;
    put(folder / "precious", "precious");
    const std::string process = std::to_string(getpid());
    for (const std::string &name : std::vector<std::string>{"file.partial-" + process, "file.partial",
                                                            ".file.partial", ".file." + process + ".partial"})
        fs::create_symlink("precious", folder / name);
    for (const char *text : {"one", "two"}) {
        save(folder / "file", text);
        CHECK(get(folder / "file") == text);
        CHECK(!fs::is_symlink(folder / "file"));
        CHECK(get(folder / "precious") == "precious");
        CHECK(entries(folder.path()) == 6);
    }
}

TEST_CASE("output file: modes and links stay") {
    const TemporaryDirectory folder;
    const mode_t before = umask(022);
    save(folder / "plain", "x");
    save(folder / "secret", "x", {.is_private = true});
    CHECK(mode_of(folder / "plain") == 0644);
    CHECK(mode_of(folder / "secret") == 0600);
    chmod((folder / "plain").c_str(), 0640), chmod((folder / "secret").c_str(), 0400);
    save(folder / "plain", "y", {.is_private = true});
    save(folder / "secret", "y");
    CHECK(mode_of(folder / "plain") == 0640);
    CHECK(mode_of(folder / "secret") == 0400);
    fs::create_symlink("plain", folder / "link");
    fs::create_symlink("not there yet", folder / "dangling");
    save(folder / "link", "z"), save(folder / "dangling", "z");
    CHECK(fs::is_symlink(folder / "link"));
    CHECK(fs::is_symlink(folder / "dangling"));
    CHECK(get(folder / "plain") == "z");
    CHECK(get(folder / "not there yet") == "z");
    umask(before);
}

TEST_CASE("output file: files of killed processes are removed, those of running ones kept") {
    const TemporaryDirectory folder;
    const pid_t child = fork();
    if (child == 0) {
        OutputFile file(folder / "big");
        const std::string text(3 << 20, 'x');
        file.write(std::as_bytes(std::span(text)));
        kill(getpid(), SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    CHECK(!fs::exists(folder / "big"));
    CHECK(entries(folder.path()) == 1);
    put(folder / ".big.notes.partial", "not ours");
    put(folder / ".bigger.0123456789abcdef.partial", "of another");
    {
        OutputFile living(folder / "big");
        CHECK(entries(folder.path()) == 3);
        save(folder / "big", "done");
        CHECK(entries(folder.path()) == 4);
    }
    CHECK(entries(folder.path()) == 3);
    CHECK(get(folder / "big") == "done");
}

// Exceeding the file size limit raises a signal that ends a program unless it is ignored.
TEST_CASE("output file: pieces of any sizes arrive in their order") {
    const uint32_t seed = std::random_device{}();
    CAPTURE(seed);
    std::mt19937 random(seed);
    const TemporaryDirectory folder;
    const auto size_below = [&](uint32_t most) { return static_cast<size_t>(random() % most); };
    for (int round = 0; round < 2; ++round) {
        const fs::path path = folder / std::to_string(round);
        OutputFile file(path);
        std::string all;
        while (all.size() < (8u << 20)) {
            std::string piece(size_below(3) > 0 ? size_below(100000) : size_below(5u << 20), '\0');
            for (size_t i = 0; i < piece.size(); i += 1 + size_below(512))
                piece[i] = static_cast<char>(random());
            file.write(std::as_bytes(std::span(piece)));
            all += piece;
        }
        file.commit();
        CHECK((get(path) == all));
    }
}

TEST_CASE("output file: a full disk leaves the old file, and nothing else") {
    const TemporaryDirectory folder;
    put(folder / "old", "old");
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{100'000, 100'000};
        setrlimit(RLIMIT_FSIZE, &limit);
        int code = 1;
        try {
            save(folder / "old", std::string(200'000, 'x'), {.overwrite = true});
        } catch (const gguf::WriteError &error) {
            code = std::string_view(error.what()).find("File too large") != std::string_view::npos ? 0 : 2;
        }
        _exit(code);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(get(folder / "old") == "old");
    CHECK(entries(folder.path()) == 1);
    CHECK_THROWS_AS(save("/dev/full", "x"), gguf::WriteError);
    save("/dev/null", "x");
}
