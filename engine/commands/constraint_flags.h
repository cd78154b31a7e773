// What constrains an answer, as options.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/commands/cli/option.h"
#include "engine/commands/io.h"
#include "engine/grammar/source.h"

namespace runnel::commands {

struct ConstraintFlags {
    std::optional<std::string> grammar, schema, regex;
    std::vector<std::string> choices;
    bool json = false;  // --format json
    grammar::Whitespace whitespace = grammar::Whitespace::Bounded;
    bool any_order = false;
    bool close = false;  // an answer that -n cuts gets the shortest valid ending
};

// --grammar, --json-schema, --regex, --choice, --format and how schemas are read.
void add_constraint_options(OptionTable &table, ConstraintFlags &flags);

// nullopt: none was given. Throws UsageError for two of them and for files that cannot be read.
std::optional<grammar::Source> constraint_of(const ConstraintFlags &flags, Io &io);

struct GrammarOptions {
    ConstraintFlags constraint;
    bool check = false;
    std::optional<std::string> show;  // what may follow this text
};

}  // namespace runnel::commands
