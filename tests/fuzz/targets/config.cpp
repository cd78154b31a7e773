// A configuration file; and, line by line, an argument list.
#include "engine/commands/cli/config.h"

#include "engine/commands/arguments.h"
#include "engine/commands/io.h"
#include "tests/fuzz/targets.h"
#include "tests/support/memory_file.h"

namespace runnel::fuzz {

void config(Input input) {
    const testing::MemoryFile file(input);
    const auto has = [](std::string_view command, std::string_view option) {
        return (command.empty() || command == "run" || command == "chat") &&
               (option == "temp" || option == "threads" || option == "system" || option == "model");
    };
    try {
        for (const commands::Setting &setting :
             commands::read_configuration(file.path(), "run", has).settings)
            require(has("run", setting.name), "a setting is an option of the command");
    } catch (const commands::UsageError &) {
    } catch (const commands::InputError &) {
    }
    commands::Arguments arguments;
    for (const char c : text_of(input)) {
        if (arguments.empty() || c == '\n') arguments.emplace_back();
        if (c != '\n') arguments.back() += c;
    }
    try {
        const commands::Words words = commands::split_words(arguments, std::nullopt, std::nullopt, true);
        const commands::Shard shard = commands::parse_shard(words.model);
        require(shard.part >= 1 && shard.part <= shard.parts, "a shard is between 1 and the number of parts");
    } catch (const commands::UsageError &) {
    }
}

}  // namespace runnel::fuzz
