#include "engine/commands/cli/config.h"

#include <doctest/doctest.h>

#include "engine/commands/io.h"
#include "tests/support/temporary.h"

using namespace runnel::commands;
using runnel::testing::TemporaryDirectory;

TEST_CASE("configuration: the command's own settings override common ones, unknown ones are refused") {
    const TemporaryDirectory directory;
    const auto path = (directory / "c.toml").string();
    const auto has = [](std::string_view command, std::string_view name) {
        const bool run = name == "temp" || name == "raw", bench = name == "n-gen";
        return command.empty() ? run || bench : (command == "run" && run) || (command == "bench" && bench);
    };
    const auto read = [&](std::string_view text) {
        runnel::testing::write_file(path, std::as_bytes(std::span(text)));
        std::string line;
        for (const Setting &setting : read_configuration(path, "run", has).settings)
            line += setting.name + "=" + setting.value + " ";
        return line;
    };
    CHECK(read("# mine\n[run]\ntemp = 0.5\nraw=true\n[bench]\nn-gen=5\n") == "temp=0.5 raw=true ");
    CHECK(read("temp=1\nn-gen=3\n[run]\ntemp=2\n") == "temp=1 temp=2 ");
    CHECK_THROWS_WITH_AS(read("tmep=1\n"), doctest::Contains("tmep"), UsageError);
    CHECK_THROWS_AS(read("[run]\nn-gen=1\n"), UsageError);
    CHECK_THROWS_WITH_AS(read("[rnu]\ntemp=1\n"), doctest::Contains("[rnu]"), UsageError);
    CHECK_THROWS_AS(read("[bench]\ntemp=1\n"), UsageError);
    CHECK_THROWS_AS(read_configuration("/nowhere", "run", has), UsageError);
}

TEST_CASE("configuration: paths of short names are relative to the file") {
    const TemporaryDirectory directory;
    const auto path = (directory / "c.toml").string();
    const std::string_view text = "[models]\nq8 = \"sub/m.gguf\"\nabs = \"/models/a.gguf\"\n";
    runnel::testing::write_file(path, std::as_bytes(std::span(text)));
    const Configuration read =
        read_configuration(path, "run", [](std::string_view, std::string_view) { return false; });
    CHECK(read.models.at("q8") == (directory / "sub/m.gguf").string());
    CHECK(read.models.at("abs") == "/models/a.gguf");
    CHECK(read.settings.empty());
}
