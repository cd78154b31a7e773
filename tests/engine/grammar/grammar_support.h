// Shared by the grammar tests.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "engine/grammar/machine.h"
#include "engine/grammar/source.h"

namespace runnel::testing {

inline bool matches(grammar::Machine &machine, std::string_view text) {
    const grammar::StateId end = machine.advance(machine.start(), text);
    return end != grammar::kDead && machine.accepts(end);
}

inline grammar::Machine machine_of(grammar::Source::Kind kind, std::string text) {
    return grammar::Machine(grammar::compile({.kind = kind, .text = std::move(text)}));
}

// The message of the GrammarError that `make` throws; empty if it throws none.
template <class Make>
std::string grammar_error(Make make) {
    try {
        make();
    } catch (const grammar::GrammarError &error) {
        return error.what();
    }
    return {};
}

}  // namespace runnel::testing
