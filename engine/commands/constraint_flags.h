// The options that constrain an answer.
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

// Adds --grammar, --json-schema, --regex, --choice, --format and the options for reading schemas.
void add_constraint_options(OptionTable &table, ConstraintFlags &flags);

// Whether a constraint is given. Throws UsageError for two of them.
bool check_constraint(const ConstraintFlags &flags);
// --whitespace and --any-order.
grammar::SchemaOptions json_style(const ConstraintFlags &flags);
// nullopt if no constraint is given. Throws UsageError for two of them and for files that cannot be read.
std::optional<grammar::Source> constraint_of(const ConstraintFlags &flags, Io &io);

struct GrammarOptions {
    ConstraintFlags constraint;
    bool check = false;
    std::optional<std::string> show;  // show what may follow this text
};

}  // namespace runnel::commands
