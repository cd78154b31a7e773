// Checks texts against a grammar, and shows what a grammar allows next.
#include <memory>
#include <string>

#include "engine/commands/chat/line_editor.h"
#include "engine/commands/cli/command.h"
#include "engine/commands/constraint_flags.h"
#include "engine/commands/json.h"
#include "engine/commands/sandbox/sandbox_option.h"
#include "engine/grammar/machine.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

// Reads one JSON string per line and writes one verdict per line as soon as possible.
void check_lines(grammar::Machine &machine, Io &io) {
    constexpr size_t kPiece = 1 << 16;
    const auto lines = make_plain_lines(io.in);
    std::string line, verdicts;
    size_t number = 0;
    while (lines->read("", line) == LineSource::Event::Line) {
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        Json value;
        try {
            value = parse_json(line);
        } catch (const JsonError &) {
        }
        if (!value.is_string()) {
            io.out.write(verdicts);
            throw InputError("line " + std::to_string(number) + " is not a JSON string");
        }
        const auto &text = value.get_ref<const std::string &>();
        size_t read = 0;
        const grammar::StateId end = machine.advance(machine.start(), text, &read);
        if (end != grammar::kDead && machine.accepts(end))
            verdicts += "{\"accepted\": true}\n";
        else
            verdicts += "{\"accepted\": false, \"at\": " + std::to_string(read) + "}\n";
        if (verdicts.size() < kPiece && (lines->has_line() || input_ready(io.in, 0))) continue;
        io.out.write(verdicts);
        verdicts.clear();
    }
    io.out.write(verdicts);
}

// Bytes as a list of characters and ranges: "a-z", "0x80-0xbf".
std::string list_of(const std::vector<uint8_t> &bytes) {
    const auto name = [](uint8_t byte) {
        if (byte > 0x20 && byte < 0x7f) return std::string(1, static_cast<char>(byte));
        constexpr char kDigits[] = "0123456789abcdef";
        return std::string("0x") + kDigits[byte >> 4] + kDigits[byte & 15];
    };
    std::string list;
    for (size_t i = 0; i < bytes.size();) {
        size_t end = i;
        while (end + 1 < bytes.size() && bytes[end + 1] == bytes[end] + 1) ++end;
        if (!list.empty()) list += ' ';
        list += name(bytes[i]);
        if (end > i) list += (end > i + 1 ? "-" : " ") + name(bytes[end]);
        i = end + 1;
    }
    return list;
}

void show(grammar::Machine &machine, const std::string &prefix, Io &io) {
    size_t read = 0;
    grammar::StateId state = machine.advance(machine.start(), prefix, &read);
    if (state == grammar::kDead)
        throw InputError("the grammar does not allow the text: it stops at byte " + std::to_string(read) +
                         ": " + gguf::printable(std::string_view(prefix).substr(read), 20));
    std::string lines = machine.accepts(state) ? "end: yes\n" : "end: no\n";
    constexpr size_t kMostForced = 1000;
    std::string forced;
    for (int byte; forced.size() < kMostForced && (byte = machine.forced_byte(state)) >= 0;) {
        forced += static_cast<char>(byte);
        state = machine.step(state, static_cast<uint8_t>(byte));
    }
    if (!forced.empty()) lines += "forced: " + gguf::printable(forced, kMostForced) + "\n";
    const std::vector<uint8_t> bytes = machine.next_bytes(state);
    if (!bytes.empty()) lines += "next: " + list_of(bytes) + "\n";
    for (const uint32_t set : machine.next_token_sets(state)) {
        const grammar::Program::TokenSet &tokens = machine.program().token_sets[set];
        lines += tokens.negated ? "any token except:" : "token:";
        for (const int32_t token : tokens.tokens) lines += " " + std::to_string(token);
        lines += "\n";
    }
    io.out.write(lines);
}

int check_or_show(const GrammarOptions &options, Io &io) {
    const std::optional<grammar::Source> source = constraint_of(options.constraint, io);
    if (!source)
        throw UsageError(
            "no grammar given: use --grammar, --json-schema, --regex, --choice or --format json");
    if (options.check == options.show.has_value())
        throw UsageError("give either --check (reads texts from standard input) or --show TEXT");
    std::vector<std::string> notes;
    try {
        grammar::Machine machine(grammar::compile(*source, nullptr, &notes));
        for (const std::string &note : notes) io.note(note);
        if (options.check)
            check_lines(machine, io);
        else
            show(machine, *options.show, io);
    } catch (const grammar::GrammarError &error) {
        throw InputError(error.what());
    } catch (const grammar::GrammarLimit &error) {
        throw InputError(error.what());
    }
    return exit_code::kDone;
}

}  // namespace

Command grammar_command() {
    Command command{.name = "grammar",
                    .usage = "",
                    .summary = "check texts against a grammar or schema, show what it allows",
                    .description =
                        "Checks texts against a grammar, JSON schema, regular expression or choices, and "
                        "shows what may follow.",
                    .examples = {"grammar --json-schema schema.json --check < texts.jsonl",
                                 "grammar --grammar 'root ::= \"yes\" | \"no\"' --show y",
                                 "grammar --regex '[0-9]{4}' --show 19"},
                    .model = Command::Model::None};
    auto o = std::make_shared<GrammarOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    add_constraint_options(table, o->constraint);
    table.in_group(Group::Output);
    table.flag("--check", o->check,
               "a JSON string per line in; {\"accepted\": true}, or false and the byte, per line out");
    table.text("--show", o->show, "show what may follow this text");
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &, Io &io) {
        confine({{o->constraint.grammar.value_or(""), o->constraint.schema.value_or("")}, {}}, "cpu");
        return check_or_show(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
