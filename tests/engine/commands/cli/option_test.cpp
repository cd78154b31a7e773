#include "engine/commands/cli/option.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "engine/commands/cli/command.h"
#include "engine/commands/cli/foreign.h"
#include "engine/commands/cli/help.h"
#include "engine/commands/cli/nearest.h"
#include "tests/support/data.h"
#include "tests/support/random.h"

using namespace runnel::commands;
using runnel::decode::SamplingOptions;

TEST_CASE("options: numbers have a range, and whole ones may end with k, m or g") {
    const NumberRange tokens = whole_numbers(-1, 1 << 20), share{0, 1, false, false},
                      above{0, 9, false, true};
    const std::pair<const char *, double> good[] = {
        {"4k", 4096}, {"1K", 1024}, {"1m", 1 << 20}, {"-1", -1}, {"12", 12}};
    for (const auto &[text, value] : good) CHECK(tokens.parse(text) == value);
    for (const char *text :
         {"", "k", "4kk", "2m", "1g", "1.5", "0x10", " 4", "4 ", "+4", "nan", "-2", "99999999999999999999"}) {
        CAPTURE(text);
        CHECK_FALSE(tokens.parse(text));
    }
    CHECK(share.parse("0.5") == 0.5);
    CHECK(share.parse("1e-3") == 1e-3);
    for (const char *text : {"1.01", "-0.1", "nan", "inf", "1k", "", "half"}) CHECK_FALSE(share.parse(text));
    CHECK_FALSE(above.parse("0"));
    CHECK(tokens.words() == "a whole number from -1 to 1048576");
    CHECK(share.words() == "a number from 0 to 1");
    CHECK(above.words() == "a number above 0, at most 9");
    CHECK(whole_numbers(-1).words() == "a whole number from -1 on");
}

TEST_CASE("options: sizes of memory are parsed") {
    const int64_t most = int64_t{1} << 50;
    CHECK(byte_size("4096", most) == 4096);
    for (const char *text : {"4G", "4g", "4GB", "4 GiB", "4096M", "4194304K"})
        CHECK(byte_size(text, most) == int64_t{4} << 30);
    CHECK(byte_size("1.5k", most) == 1536);
    for (const char *text : {"", "G", "-1", "4X", "4GG", "4iB", "nan", "inf", "2000000G"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(byte_size(text, most), ValueError);
    }
}

TEST_CASE("options: words, flags and lists are parsed") {
    OptionTable table;
    int color = 0;
    bool flag = false;
    std::vector<std::string> list;
    const Option &word = table.choice("--color", color, {{"auto", 0}, {"on", 1}}, "colors");
    const Option &onoff = table.flag("-f,--flag", flag, "a flag");
    table.list("--stop,-r", list, "stops");
    CHECK(word.fallback == "auto");
    word.set("on");
    CHECK(color == 1);
    CHECK_THROWS_WITH_AS(word.set("1"), "auto or on", ValueError);
    onoff.set("yes");
    CHECK(flag);
    onoff.set("false");
    CHECK_FALSE(flag);
    CHECK_THROWS_AS(onoff.set("maybe"), ValueError);
    CHECK(table.find("-r")->name() == "stop");
    CHECK(table.find("-r")->variable() == "RUNNEL_STOP");
    CHECK(table.find("--colour") == nullptr);
}

TEST_CASE("options: every command's table is consistent") {
    for (const CommandEntry &entry : command_entries()) {
        Common common;
        const Command command = with_common_options(entry.make(), common);
        CAPTURE(entry.name);
        CHECK(command.name == entry.name);
        std::set<std::string> names, variables;
        for (const Option &option : command.options.options()) {
            CAPTURE(option.names.front());
            CHECK_FALSE(option.help.empty());
            CHECK(option.help.back() != '.');
            CHECK(variables.insert(option.variable()).second);
            CHECK(option.choices.size() != 1);
            CHECK(option.is_repeatable == static_cast<bool>(option.clear));
            for (const std::string &name : option.names) {
                CHECK(names.insert(name).second);
                CHECK(name.starts_with('-'));
            }
        }
        // The default in the help is a value that the option accepts.
        for (const Option &option : command.options.options())
            if (!option.fallback.empty()) CHECK_NOTHROW(option.set(option.fallback));
    }
}

TEST_CASE("options: help has 80 columns, every option, and the groups in order") {
    for (const CommandEntry &entry : command_entries()) {
        Common common;
        const Command command = with_common_options(entry.make(), common);
        CAPTURE(entry.name);
        const std::string brief = help(command, false), whole = help(command, true);
        for (const std::string &text : {brief, whole, overview()}) {
            size_t column = 0;
            for (const char c : text) {
                column = c == '\n' ? 0 : column + 1;
                REQUIRE(column <= 80);
            }
        }
        for (const Option &option : command.options.options()) {
            CAPTURE(option.names.front());
            CHECK((brief.find("--" + std::string(option.name())) != std::string::npos || option.is_rare));
            for (const std::string &name : option.names) CHECK(whole.find(name) != std::string::npos);
        }
        size_t last = 0;
        for (const Group group : kGroups) {
            const size_t at = whole.find("\n\n" + std::string(title(group)) + "\n");
            if (at == std::string::npos) continue;
            CHECK(at > last);
            last = at;
        }
        CHECK(overview().find("  runnel " + std::string(command.name) + " ") != std::string::npos);
        CHECK(command.examples.size() >= 2);
    }
}

TEST_CASE("options: one table of sampling settings holds every default, and its ranges") {
    const SamplingOptions defaults;
    std::set<std::string_view> keys;
    for (const auto &setting : runnel::decode::sampling_settings()) {
        CAPTURE(setting.name);
        CHECK(setting.range.contains(setting.get(defaults)));
        CHECK(keys.insert(setting.key).second);
        CHECK(runnel::decode::find_setting(setting.name) == &setting);
        CHECK(runnel::decode::find_setting_of_key(setting.key) == &setting);
        SamplingOptions changed;
        setting.set(changed, setting.range.high);
        CHECK(setting.get(changed) == setting.range.high);
        CHECK_FALSE(setting.range.contains(std::numeric_limits<double>::quiet_NaN()));
        CHECK_FALSE(setting.range.contains(setting.range.high + 1));
    }
    CHECK(runnel::decode::find_setting_of_key("") == nullptr);
    CHECK(runnel::decode::find_setting("") == nullptr);
}

TEST_CASE("suggestions: the nearest word by edit distance is suggested, unless it is far away") {
    CHECK(edit_distance("", "abc") == 3);
    CHECK(edit_distance("hlep", "help") == 1);
    CHECK(edit_distance("tmp", "temp") == 1);
    CHECK(edit_distance("kitten", "sitting") == 3);
    const std::vector<std::string> words = {"temp", "top-p", "top-k", "threads"};
    CHECK(nearest("tmp", words) == "temp");
    CHECK(nearest("theads", words) == "threads");
    CHECK(nearest("top-q", words) == "top-p");
    CHECK_FALSE(nearest("xyz", words));
    CHECK_FALSE(nearest("", words));
    CHECK(suggestion("tmp", words) == "; did you mean temp?");
    CHECK(suggestion("xyzzy", words).empty());
    // The distance is symmetric, zero only for equal words, and at most the length of the longer word.
    runnel::testing::Random random(20);
    for (int i = 0; i < 300; ++i) {
        std::string a, b;
        for (int n = static_cast<int>(random.below(9)); n > 0; --n)
            a += static_cast<char>('a' + random.below(3));
        for (int n = static_cast<int>(random.below(9)); n > 0; --n)
            b += static_cast<char>('a' + random.below(3));
        CAPTURE(a);
        CAPTURE(b);
        const size_t distance = edit_distance(a, b);
        CHECK(distance == edit_distance(b, a));
        CHECK((distance == 0) == (a == b));
        CHECK(distance <= std::max(a.size(), b.size()));
    }
}

TEST_CASE("commands: the program of make demo has, or names as left out, every command") {
    CHECK(left_out_commands().empty());
    const std::string demo = runnel::testing::read_file("engine/commands/cli/command_entries_demo.cpp");
    REQUIRE(demo != "");
    for (const CommandEntry &entry : command_entries()) {
        const std::string quoted = '"' + std::string(entry.name) + '"';
        CAPTURE(quoted);
        const size_t at = demo.find(quoted);
        CHECK(at != std::string::npos);
        CHECK(demo.find(quoted, at + 1) == std::string::npos);
    }
}
