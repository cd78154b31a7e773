// The rules of the code base, as tests, so that a plain `make test` finds a wrong include.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/skip.h"
#include "tests/support/temporary.h"

TEST_CASE("house: includes run one way") {
    if (!std::filesystem::exists("scripts/check-includes")) {
        FAIL("tests run from the root of the sources");
        return;
    }
    CHECK(std::system("scripts/check-includes >&2") == 0);
}

// nlohmann's own parser is neither linear nor bounded.
TEST_CASE("house: JSON is parsed in one place") {
    namespace fs = std::filesystem;
    if (!fs::exists("scripts/check-includes")) {
        MESSAGE("not run from the root of the sources: skipped");
        return;
    }
    const std::regex parses(R"((json::(parse|accept|from_\w+)|sax_parse)\s*\()", std::regex::icase);
    size_t files = 0;
    for (const char *room : {"gguf", "kernels", "engine", "main.cpp"}) {
        std::vector<fs::path> paths{room};
        if (fs::is_directory(room))
            for (const auto &entry : fs::recursive_directory_iterator(room)) paths.push_back(entry.path());
        for (const fs::path &path : paths) {
            if (!fs::is_regular_file(path) || path == "engine/text/json.cpp") continue;
            std::ifstream in(path, std::ios::binary);
            const std::string text{std::istreambuf_iterator<char>(in), {}};
            CAPTURE(path.string());
            CHECK(!std::regex_search(text, parses));
            ++files;
        }
    }
    CHECK(files > 100);
}

TEST_CASE("house: the include check lets every folder use those below it, and none above") {
    const runnel::testing::TemporaryDirectory root;
    namespace fs = std::filesystem;
    fs::create_directory(root / "scripts");
    fs::copy_file("scripts/check-includes", root / "scripts/check-includes");
    const auto allows = [&](const std::string &file, const std::string &target) {
        for (const char *top : {"gguf", "kernels", "engine"}) fs::remove_all(root / top);
        std::ofstream(root / "main.cpp") << "// nothing\n";
        for (const char *top : {"gguf", "kernels", "engine"}) fs::create_directory(root / top);
        fs::create_directories((root / file).parent_path());
        std::ofstream(root / file) << "#include \"" << target << "\"\n";
        const std::string script = runnel::testing::shell_word(root / "scripts/check-includes");
        return std::system((script + " > /dev/null").c_str()) == 0;
    };
    for (const char *file :
         {"gguf/base/a.h", "gguf/a.h", "kernels/cuda/a.cu", "engine/text/a.cpp", "main.cpp"})
        CHECK(allows(file, "gguf/base/timer.h"));
    CHECK(allows("kernels/a.h", "gguf/block.h"));
    CHECK(allows("kernels/reference/a.cpp", "gguf/quantize.h"));
    CHECK(allows("engine/decode/a.cpp", "kernels/device.h"));
    CHECK(!allows("gguf/base/a.h", "gguf/block.h"));
    CHECK(!allows("gguf/a.h", "kernels/program.h"));
    CHECK(!allows("kernels/cpu/a.cpp", "gguf/quantize.h"));
    CHECK(!allows("engine/decode/a.cpp", "engine/commands/io.h"));
    CHECK(!allows("engine/decode/a.cpp", "kernels/cuda/cuda_backend.h"));
    CHECK(allows("engine/measure/a.cpp", "engine/completion/queue.h"));
    CHECK(!allows("engine/completion/a.cpp", "engine/measure/median.h"));
    CHECK(allows("engine/commands/run/a.cpp", "engine/decode/engine.h"));
    for (const char *header : {"executor", "scheduler", "sequence", "sampler", "speculation/speculator"})
        CHECK(!allows("engine/commands/run/a.cpp", "engine/decode/" + std::string(header) + ".h"));
}

TEST_CASE("house: the commands that generate hold flags and presentation only: under 200 lines each") {
    for (const char *file : {"run/run.cpp", "chat/chat.cpp", "chat/chat_loop.cpp", "chat/chat_model.cpp",
                             "batch/batch.cpp", "batch/batch_run.cpp"}) {
        CAPTURE(file);
        std::ifstream in(std::string("engine/commands/") + file);
        REQUIRE(in);
        CHECK(std::count(std::istreambuf_iterator<char>(in), {}, '\n') < 200);
    }
}

// With a compiler that only notes its arguments.
TEST_CASE("house: another CUDA_ARCHS compiles the kernels again, and stays with the build folder") {
    const runnel::testing::TemporaryDirectory directory;
    const std::string build = (directory / "build").string(), nvcc = (directory / "nvcc").string();
    if (build.find_first_of(" $#:'\"\\") != std::string::npos)
        return runnel::testing::skip("make takes no such folder: " + build);
    std::ofstream(nvcc)
        << "#!/bin/sh\n"
           "case $1 in\n"
           "--version) echo 'Build 1';;\n"
           "--list-gpu-code) printf '%s\\n' sm_60 sm_80 sm_90 sm_120 sm_121;;\n"
           "*) echo \"$*\" >\"$0.log\"; for a; do [ \"$last\" != -o ] || : >\"$a\"; last=$a; done;;\n"
           "esac\n";
    std::filesystem::permissions(nvcc, std::filesystem::perms::owner_all);
    // The compiler's architectures, "80 90"; empty if nothing was compiled.
    const auto compiled = [&](const std::string &more) {
        std::filesystem::remove(nvcc + ".log");
        const std::string object = build + "/obj/kernels/cuda/runtime/architectures.cuda.o";
        REQUIRE(std::system(("env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u CUDA_ARCHS make -s BUILD=" + build +
                             " NVCC=" + nvcc + " " + more + " " + object + " >/dev/null 2>&1")
                                .c_str()) == 0);
        std::ifstream in(nvcc + ".log");
        const std::string line{std::istreambuf_iterator<char>(in), {}};
        const std::regex code("code=sm_([0-9]+)");
        std::string found;
        for (std::sregex_iterator at(line.begin(), line.end(), code), end; at != end; ++at)
            found += (found.empty() ? "" : " ") + (*at)[1].str();
        return found;
    };
    CHECK(compiled("CUDA_ARCHS='80 90'") == "80 90");
    CHECK(compiled("CUDA_ARCHS='80 90'").empty());
    CHECK(compiled("").empty());
    CHECK(compiled("CUDA_ARCHS=120") == "120");
    CHECK(compiled("").empty());
    // A release has what the compiler knows. (-o: `dist` itself is not made.)
    CHECK(compiled("-o dist -o " + build + "/runnel-dist dist").find("80 90 120") == 0);
}

#if defined(__x86_64__) && defined(__GLIBC__) && \
    !defined(__SANITIZE_ADDRESS__)  // no such program with sanitizers
// scripts/old_glibc.cpp replaces newer functions of glibc. The exit statuses show that exceptions are still caught.
TEST_CASE(
    "house: what is installed under a strict umask can be read by others, and its removal leaves nothing") {
    namespace fs = std::filesystem;
    const std::optional<std::string> program = runnel::testing::program_under_test();
    REQUIRE(program);
    const runnel::testing::TemporaryDirectory directory;
    const std::string prefix = (directory / "a prefix").string();
    const std::string word = runnel::testing::shell_word(prefix);
    REQUIRE(std::system(("umask 077; scripts/install " + runnel::testing::shell_word(*program) + " " + word +
                         " >/dev/null")
                            .c_str()) == 0);
    size_t files = 0;
    for (const auto &entry : fs::recursive_directory_iterator(prefix)) {
        CAPTURE(entry.path());
        const fs::perms wanted = entry.is_directory() || entry.path().parent_path().filename() == "bin"
                                     ? fs::perms{0755}
                                     : fs::perms{0644};
        CHECK((entry.status().permissions() & wanted) == wanted);
        files += entry.is_regular_file();
    }
    CHECK(files >= 8);
    REQUIRE(std::system(("scripts/install --remove " + word).c_str()) == 0);
    CHECK(!fs::exists(prefix + "/bin"));
    CHECK(!fs::exists(prefix + "/share"));
}

TEST_CASE("house: removal leaves what others put beside it; a relative prefix is refused") {
    namespace fs = std::filesystem;
    const std::optional<std::string> program = runnel::testing::program_under_test();
    REQUIRE(program);
    const runnel::testing::TemporaryDirectory directory;
    const fs::path root = fs::absolute(directory.path());
    const auto scripted = [&](const std::string &arguments, const std::string &destination = "") {
        return WEXITSTATUS(
            std::system(("DESTDIR=" + runnel::testing::shell_word((root / destination).string()) +
                         " scripts/install " + arguments + " >/dev/null 2>&1")
                            .c_str()));
    };
    const std::string word = runnel::testing::shell_word(*program);
    CHECK(scripted(word + " here") == 2);
    CHECK(scripted("--remove '~/.local'") == 2);
    CHECK(!fs::exists("here"));
    // A file of others in its folder, one that a link of its name leads to, and the system's empty folders.
    const fs::path doc = root / "usr/local/share/doc/runnel", man = root / "usr/local/share/man/man1";
    fs::create_directories(doc);
    fs::create_directories(man);
    std::ofstream(doc / "notes") << "kept";
    std::ofstream(root / "other.1") << "kept";
    fs::create_symlink(root / "other.1", man / "runnel.1");
    REQUIRE(scripted(word + " /usr/local") == 0);
    CHECK(fs::is_regular_file(fs::symlink_status(man / "runnel.1")));
    CHECK(fs::file_size(root / "other.1") == 4);
    REQUIRE(scripted("--remove /usr/local") == 0);
    std::string left;
    for (const auto &entry : fs::recursive_directory_iterator(root))
        if (!entry.is_directory()) left += entry.path().filename().string() + ' ';
    CHECK((left == "notes other.1 " || left == "other.1 notes "));
    CHECK(fs::is_directory(root / "usr/local/bin"));
}

// With a program that does nothing, because runnel takes seconds to compress.
TEST_CASE("house: make dist gives the same bytes under any umask, and root owns all files") {
    const runnel::testing::TemporaryDirectory directory;
    const std::string program = (std::filesystem::absolute(directory.path()) / "program").string();
    REQUIRE(
        std::system(("echo 'void _exit(int); void _start(void) { _exit(0); }' | cc -nostartfiles -x c -o " +
                     runnel::testing::shell_word(program) + " -")
                        .c_str()) == 0);
    const auto packed = [&](const std::string &folder, const std::string &mask) {
        const std::string build = (std::filesystem::absolute(directory.path()) / folder).string();
        std::filesystem::create_directory(build);
        const std::string word = runnel::testing::shell_word(build);
        return std::system(("ln -s " + runnel::testing::shell_word(program) + " " + word +
                            "/runnel-dist && chmod g+s " + word + " && umask " + mask + " && scripts/dist " +
                            word + " 'v1/a;b' >/dev/null")
                               .c_str()) == 0;
    };
    REQUIRE(packed("first one", "077"));
    REQUIRE(packed("second", "002"));
    const std::string in = "cd " + runnel::testing::shell_word(directory.path().string()) + " && ";
    CHECK(std::system((in + "rm */runnel-dist && diff -r 'first one' second").c_str()) == 0);
    // Owner 0, no bit for a set user or group, nothing that others may write, one folder at the top.
    CHECK(std::system((in +
                       "tar --numeric-owner -tvzf second/runnel-v1.a.b-linux-*.tar.gz | grep -vE "
                       "'^[d-]rw[x-]r-[x-]r-[x-] 0/0 .* runnel-v1\\.a\\.b-linux-[^/]*/' >&2; test $? -eq 1")
                          .c_str()) == 0);
    CHECK(std::system((in + "tar -tzf second/*.tar.gz | grep -qE 'licences/pcre2$'").c_str()) == 0);
}

TEST_CASE("house: the program of make dist needs no newer glibc than 2.31, and runs as the other does") {
    const std::optional<std::string> path = runnel::testing::program_under_test();
    REQUIRE(path);
    const std::string program = std::filesystem::path(*path).parent_path() / "runnel-dist";
    if (!std::filesystem::exists(program)) {
        FAIL("no program to test: make ", program);
        return;
    }
    const std::string word = runnel::testing::shell_word(program);
    CHECK(std::system(("scripts/check-glibc " + word + " 2.31 >&2").c_str()) == 0);
    const auto status = [&](const std::string &arguments) {
        return WEXITSTATUS(std::system(("RUNNEL_CONFIG= " + word + " " + arguments).c_str()));
    };
    CHECK(status("run tests/models/demo-q8_0.gguf Once --raw -n 4 -q -t 3 >/dev/null") == 0);
    CHECK(status("run LICENSE hi 2>/dev/null") == 3);
    const std::string rows = "printf '%s\\n' '{\"prompt\":\"Once\"}' '{bad' | RUNNEL_CONFIG= " + word;
    CHECK(WEXITSTATUS(std::system(
              (rows + " batch tests/models/demo-q8_0.gguf -n 4 >/dev/null 2>/dev/null").c_str())) == 5);
}
#endif
