#include "engine/commands/arguments.h"

#include <doctest/doctest.h>

#include "engine/commands/io.h"
#include "tests/support/temporary.h"

using namespace runnel::commands;
using runnel::testing::TemporaryDirectory;

TEST_CASE("arguments: llama.cpp's one-dash spellings") {
    CHECK(with_long_spellings({"run", "-ngl", "99", "-sys=x", "-n", "-1", "--", "-ub"}) ==
          Arguments{"run", "--gpu-layers", "99", "--system=x", "-n", "-1", "--", "-ub"});
}

TEST_CASE("arguments: --config is taken out") {
    Arguments arguments = {"m", "--config", "a", "--config=b", "--", "--config"};
    CHECK(take_config(arguments) == "b");
    CHECK(arguments == Arguments{"m", "--", "--config"});
    Arguments open = {"--config"};
    CHECK_THROWS_AS(take_config(open), UsageError);
}

TEST_CASE("arguments: a configuration file, common settings before the command's own") {
    const TemporaryDirectory directory;
    const auto path = (directory / "c.toml").string();
    const auto has = [](const std::string &command, const std::string &name) {
        const bool run = name == "temp" || name == "raw", bench = name == "n-gen";
        return command.empty() ? run || bench : (command == "run" && run) || (command == "bench" && bench);
    };
    const auto read = [&](std::string_view text) {
        runnel::testing::write_file(path, std::as_bytes(std::span(text)));
        return config_arguments(path, "run", has);
    };
    CHECK(read("# mine\n[run]\ntemp = 0.5\nraw=true\n[bench]\nn-gen=5\n") ==
          Arguments{"--temp=0.5", "--raw=true"});
    CHECK(read("temp=1\nn-gen=3\n[run]\ntemp=2\n") == Arguments{"--temp=1", "--temp=2"});
    CHECK_THROWS_WITH_AS(read("tmep=1\n"), doctest::Contains("tmep"), UsageError);
    CHECK_THROWS_AS(read("[run]\nn-gen=1\n"), UsageError);
    CHECK_THROWS_WITH_AS(read("[rnu]\ntemp=1\n"), doctest::Contains("[rnu]"), UsageError);
    CHECK_THROWS_AS(read("[bench]\ntemp=1\n"), UsageError);
    CHECK_THROWS_AS(config_arguments("/nowhere", "run", has), UsageError);
}

TEST_CASE("arguments: model and text") {
    using Option = std::optional<std::string>;
    Words w = split_words({"m.gguf", "text"}, {}, {}, true);
    CHECK(w.model == "m.gguf");
    CHECK(w.text == "text");
    w = split_words({"text"}, Option("m.gguf"), {}, true);
    CHECK(w.model == "m.gguf");
    CHECK(w.text == "text");
    w = split_words({"text"}, {}, Option("default.gguf"), true);
    CHECK(w.model == "default.gguf");
    CHECK(w.text == "text");
    w = split_words({"other.gguf"}, {}, Option("default.gguf"), true);
    CHECK(w.model == "other.gguf");
    CHECK_FALSE(w.text);
    w = split_words({"other"}, {}, Option("default.gguf"), false);
    CHECK(w.model == "other");
    CHECK_THROWS_AS(split_words({}, {}, {}, true), UsageError);
    CHECK_THROWS_AS(split_words({"a", "b", "c"}, {}, {}, true), UsageError);
    CHECK_THROWS_AS(split_words({"a", "b"}, {}, {}, false), UsageError);
}
