// GBNF, JSON Schema and regular expressions, each followed by NUL and a text. From every state of an accepted
// grammar an end can be reached, and forgetting cached steps changes no result.
#include <algorithm>

#include "engine/grammar/machine.h"
#include "engine/grammar/source.h"
#include "tests/fuzz/targets.h"

namespace runnel::fuzz {
namespace {

using namespace runnel::grammar;

constexpr MachineLimits kSmall{
    .states = 20'000, .stacks = 20'000, .ways = 2'000, .steps = 20'000, .depth = 200};

// Follows the text; from every place in it, also follows a few other bytes that the machine allows.
void follow(Machine &machine, std::string_view text) {
    constexpr size_t kMostBytes = 64, kFurther = 4;
    StateId state = machine.start();
    for (const char byte : text.substr(0, kMostBytes)) {
        StateId walk = state;
        for (size_t i = 0; i < kFurther; ++i) {
            const std::vector<uint8_t> bytes = machine.next_bytes(walk);
            require(machine.accepts(walk) || !bytes.empty() || machine.program().has_tokens(),
                    "every state can be finished");
            const int forced = machine.forced_byte(walk);
            require(forced < 0 || (bytes.size() == 1 && bytes[0] == forced), "a forced byte is alone");
            if (bytes.empty()) break;
            walk = machine.step(walk, bytes[static_cast<uint8_t>(byte) % bytes.size()]);
        }
        const StateId next = machine.step(state, static_cast<uint8_t>(byte));
        machine.forget_steps();
        require(machine.step(state, static_cast<uint8_t>(byte)) == next, "forget_steps() changes no step");
        if (next == kDead) return;
        state = next;
    }
}

void run(Source::Kind kind, Input input) {
    const std::string_view all = text_of(input);
    const size_t end = std::min(all.find('\0'), all.size());
    const std::string_view text = all.substr(std::min(end + 1, all.size()));
    try {
        Machine machine(compile({.kind = kind, .text = std::string(all.substr(0, end))}), kSmall);
        follow(machine, text);
    } catch (const GrammarError &error) {
        require(*error.what() != '\0' && std::string_view(error.what()).find('\n') == std::string_view::npos,
                "a refusal is one line");
    } catch (const GrammarLimit &) {
    }
}

}  // namespace

void grammar(Input input) {
    run(Source::Kind::Gbnf, input);
}
void schema(Input input) {
    run(Source::Kind::Schema, input);
}
void regex(Input input) {
    run(Source::Kind::Regex, input);
}

}  // namespace runnel::fuzz
