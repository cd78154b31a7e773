// Converts text to token ids and back.
#include <charconv>
#include <limits>
#include <optional>

#include "engine/commands/chat/line_editor.h"
#include "engine/commands/commands.h"
#include "engine/commands/json.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using text::TokenId;
using text::Tokenizer;

std::string list_of(const std::vector<TokenId> &ids) {
    std::string line = "[";
    for (size_t i = 0; i < ids.size(); ++i) line += (i ? ", " : "") + std::to_string(ids[i]);
    return line + "]\n";
}

std::string table_of(const std::vector<TokenId> &ids, const Tokenizer &tokenizer) {
    std::string lines;
    for (const TokenId id : ids)
        lines += std::to_string(id) + "\t" + gguf::printable(tokenizer.piece(id), 4096) + "\n";
    return lines;
}

// Parses ids separated by any blanks, commas and brackets.
std::vector<TokenId> parse_ids(std::string_view text, const Tokenizer &tokenizer) {
    std::vector<TokenId> ids;
    const char *at = text.data(), *const end = at + text.size();
    while (at != end) {
        if (std::string_view(" \t\r\n,[]").find(*at) != std::string_view::npos) {
            ++at;
            continue;
        }
        TokenId id = 0;
        const auto [next, error] = std::from_chars(at, end, id);
        if (error != std::errc() || id < 0 || id >= tokenizer.size())
            throw InputError("not an id of this vocabulary of " + std::to_string(tokenizer.size()) + ": '" +
                             gguf::printable(std::string_view(at, end).substr(0, 20)) + "'");
        ids.push_back(id);
        at = next;
    }
    return ids;
}

// Writes the pending answers before it throws for a line that is not a string.
Json parse_line(const std::string &line, size_t number, const std::string &answers, Io &io) {
    std::string why;
    try {
        Json value = parse_json(line);
        if (value.is_string()) return value;
    } catch (const JsonError &error) {
        why = std::string(": ") + error.what();
    }
    io.out.write(answers);
    throw InputError("line " + std::to_string(number) + " is not a JSON string" + why);
}

// One JSON string per input line, one array of ids per output line. Answers are written before waiting for
// more input. Blank lines are skipped.
void tokenize_lines(int in, const std::string &before, const Tokenizer &tokenizer,
                    const text::EncodeOptions &how, Io &io) {
    constexpr size_t kPiece = 1 << 16;
    size_t number = 0;
    const auto lines = make_plain_lines(in, before);
    std::string line, answers;
    while (lines->read("", line) == LineSource::Event::Line) {
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const Json value = parse_line(line, number, answers, io);
        answers += list_of(tokenizer.encode(value.get_ref<const std::string &>(), how));
        if (answers.size() < kPiece && (lines->has_line() || input_ready(in, 0))) continue;
        io.out.write(answers);
        answers.clear();
    }
    io.out.write(answers);
}

}  // namespace

int tokenize(const TokenizeOptions &options, Io &io) {
    const gguf::File file = gguf::File::open(options.path);
    const Tokenizer tokenizer =
        Tokenizer::load(file, options.llama_compatible ? text::Conventions::Llama : text::Conventions::Model);
    if (!tokenizer.note().empty()) io.note(tokenizer.note());
    const text::EncodeOptions how{.add_special = !options.no_bos, .parse_special = options.special};
    if (options.text && options.file) throw UsageError("give the text as an argument or with -f, not both");
    if (options.jsonl) {
        std::optional<InputFile> lines;
        if (!options.text) lines.emplace(options.file.value_or("-"), io.in);
        const int descriptor = lines ? lines->descriptor() : -1;
        tokenize_lines(descriptor, options.text.value_or(""), tokenizer, how, io);
        return exit_code::kDone;
    }
    const std::string input = options.text ? *options.text : read_all(options.file.value_or("-"), io.in);
    if (options.decode) {
        const std::string text = tokenizer.decode(parse_ids(input, tokenizer), options.special);
        io.out.write(io.out.is_terminal() ? text::printable_for_terminal(text) + "\n" : text);
    } else {
        const std::vector<TokenId> ids = tokenizer.encode(input, how);
        io.out.write(options.ids ? list_of(ids) : table_of(ids, tokenizer));
    }
    return exit_code::kDone;
}

}  // namespace runnel::commands
