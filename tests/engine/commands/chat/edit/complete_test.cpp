// What Tab completes, and the lines of the history file.
#include "engine/commands/chat/edit/complete.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "engine/commands/chat/history_file.h"
#include "tests/support/temporary.h"

using namespace runnel::commands;
using runnel::testing::TemporaryDirectory;
using Names = std::vector<std::string>;

TEST_CASE("completion: commands, settings and files are completed") {
    const CompletionNames names{{"/save", "/set", "/show", "/system"}, {"temp", "top-k", "top-p"}};
    CHECK(complete("/s", names).candidates == Names{"/save", "/set", "/show", "/system"});
    CHECK(complete("/sh", names).common == "/show");
    CHECK(complete("/set t", names).candidates == Names{"temp", "top-k", "top-p"});
    CHECK(complete("/set to", names).common == "top-");
    CHECK(complete("/set to", names).begin == 5);
    CHECK(complete("/set temp 0", names).candidates.empty());
    CHECK(complete("hello /s", names).candidates.empty());
    CHECK(complete("hello\n/s", names).candidates.empty());
    const TemporaryDirectory directory;
    for (const char *name : {"alpha one.txt", "alpha two.txt", ".hidden", "bad\x1b[31m", "\u00fc"})
        std::ofstream(directory.path() / name) << "x";
    std::filesystem::create_directory(directory.path() / "folder");
    const std::string path = directory.path().string() + "/";
    CHECK(complete("/save " + path, names).candidates ==
          Names{path + "alpha one.txt", path + "alpha two.txt", path + "folder/", path + "\u00fc"});
    CHECK(complete("/save " + path + "al", names).common == path + "alpha ");
    CHECK(complete("/save " + path + "alpha t", names).common == path + "alpha two.txt");
    CHECK(complete("/save " + path + ".", names).candidates == Names{path + ".hidden"});
    CHECK(complete("look at @" + path + "f", names).common == path + "folder/");
    CHECK(complete("look at " + path + "f", names).candidates.empty());
    // After '@', a name with blanks is quoted.
    CHECK(complete("look at @" + path + "f", names).end == "");
    CHECK(complete("look at @" + path + "\u00fc", names).end == " ");
    const Completion alpha = complete("look at @" + path + "a", names);
    CHECK(alpha.common == "\"" + path + "alpha ");
    CHECK(alpha.begin == 9);
    const Completion two = complete("look at @\"" + path + "alpha t", names);
    CHECK(two.common == "\"" + path + "alpha two.txt");
    CHECK(two.begin == 9);
    CHECK(two.end == "\" ");
    CHECK(complete("look at @\"" + path + "fol", names).common == "\"" + path + "folder/");
    CHECK(complete("look at @\"" + path + "alpha two.txt\" a", names).candidates.empty());
    CHECK(complete("/save " + path + "alpha t", names).end == " ");
    CHECK(complete("/save /nowhere/at/all/", names).candidates.empty());
}

TEST_CASE("history lines: entries are in libedit's format, and any bytes are read back") {
    CHECK(history_line("two words\\\n\t") == "two\\040words\\134\\012\\011");
    CHECK(history_entry("two\\040words\\\\\\n\\011") == "two words\\\n\t");
    CHECK(history_entry("\\M-C\\M-<") == "\xc3\xbc");
    CHECK(history_entry("\\^A\\^?\\M^A") == "\x01\x7f\x81");
    for (uint32_t seed = 1; seed <= 100; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        std::string entry;
        for (int i = 0; i < 60; ++i) entry += static_cast<char>(random());
        const std::string line = history_line(entry);
        CHECK(line.find('\n') == std::string::npos);
        CHECK(history_entry(line) == entry);
        history_entry("\\" + entry);
    }
}
