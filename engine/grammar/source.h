// Compiles a user's grammar, schema or pattern to a Program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/gbnf.h"
#include "engine/grammar/program.h"
#include "engine/grammar/schema.h"

namespace runnel::grammar {

struct Source {
    enum class Kind { Gbnf, Schema, Regex, Choices, AnyJson, AnyObject };
    Kind kind = Kind::AnyJson;
    std::string text = {};  // of a grammar, schema or regular expression (the whole text matches)
    std::vector<std::string> choices = {};
    SchemaOptions options = {};

    bool operator==(const Source &) const = default;
};

// Throws GrammarError. `notes`, if not null: the ignored parts of a schema. `behind_text`: the result may
// begin with up to four newlines.
Program compile(const Source &source, const Tokenize &tokenize = nullptr,
                std::vector<std::string> *notes = nullptr, bool behind_text = false);

}  // namespace runnel::grammar
