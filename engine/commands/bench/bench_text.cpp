// `bench --text`: measures the speed of the tokenizer, and the time to load the vocabulary and to render the
// chat template of a long conversation.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "engine/commands/commands.h"
#include "engine/commands/json.h"
#include "engine/text/chat_prompt.h"
#include "engine/text/utf8.h"
#include "gguf/base/timer.h"

namespace runnel::commands {
namespace {

using text::TokenId;
using text::Tokenizer;

constexpr size_t kTextBytes = 1'000'000;
constexpr int kTurns = 20;

// The time of the fastest of several runs: other work on the machine only adds time.
template <class Work>
double best_seconds(int repetitions, Work work) {
    double best = 0;
    for (int i = 0; i < repetitions; ++i) {
        const auto start = base::Clock::now();
        work();
        const double seconds = base::seconds_since(start);
        best = i == 0 ? seconds : std::min(best, seconds);
    }
    return best;
}

bool is_word(std::string_view bytes) {
    return bytes.size() > 2 && bytes[0] == ' ' && std::all_of(bytes.begin() + 1, bytes.end(), [](char c) {
               return (c >= 'a' && c <= 'z') || static_cast<unsigned char>(c) >= 0x80;
           });
}

// Writes random text that resembles natural text, from the words of any vocabulary: word frequency falls with
// rank (Zipf's law). Sometimes two words are joined, so that some words have no token of their own.
class Writer {
  public:
    explicit Writer(const Tokenizer &tokenizer) {
        for (TokenId id = 0; id < tokenizer.size(); ++id)
            if (std::string bytes = tokenizer.decode(id); is_word(bytes) && text::is_valid_utf8(bytes))
                words_.push_back(bytes.substr(1));
        if (words_.empty()) words_ = {"word"};
    }

    std::string prose() {
        std::string text;
        while (text.size() < kTextBytes) {
            text += text.empty() ? "" : " ";
            text += word();
            if (random_() % 20 == 0) text += word();
            const auto end = random_() % 60;
            if (end < 6) text += end == 0 ? ".\n\n" : end < 4 ? "." : ",";
        }
        text.resize(kTextBytes);
        return text;
    }
    std::string without_blanks() {
        std::string text;
        while (text.size() < kTextBytes) text += word();
        text.resize(kTextBytes);
        return text;
    }
    std::string code() {
        static constexpr const char *kShapes[] = {
            "if (% == %) {\n",         "    % = %(%, 0x1f);\n",
            "    return %[%];\n}\n\n", "int %(const char *%, int %) {\n",
            "        // % % %\n",      "    %->% += 12.5 * %;\n"};
        std::string text;
        while (text.size() < kTextBytes)
            for (const char *at = kShapes[random_() % std::size(kShapes)]; *at; ++at)
                text += *at == '%' ? word() : std::string(1, *at);
        text.resize(kTextBytes);
        return text;
    }

  private:
    const std::string &word() {
        // Rank n with a probability of about 1 / n.
        const double uniform = std::generate_canonical<double, 32>(random_);
        const double rank = std::pow(static_cast<double>(words_.size()), uniform) - 1;
        return words_[static_cast<size_t>(rank)];
    }
    std::vector<std::string> words_;
    std::mt19937 random_{1};  // fixed seed: always the same text
};

struct Row {
    std::string name;
    size_t bytes, tokens;
    double seconds;
    double rate() const { return static_cast<double>(bytes) / seconds; }
};

Row measure(const Tokenizer &tokenizer, const std::string &name, const std::string &text, int repetitions) {
    Row row{name, text.size(), 0, 0};
    row.seconds = best_seconds(repetitions, [&] { row.tokens = tokenizer.encode(text).size(); });
    return row;
}

// Seconds to render a conversation of kTurns messages; nothing for a file without a template.
std::optional<double> render_seconds(const gguf::File &file, const Tokenizer &tokenizer, int repetitions,
                                     Io &io) {
    const text::ChatPrompt prompt(file, tokenizer);
    if (!prompt.has_template()) return std::nullopt;
    if (!prompt.note().empty()) io.note(prompt.note());
    std::vector<text::Message> messages;
    for (int i = 0; i < kTurns; ++i)
        messages.push_back(
            {i % 2 == 0 ? "user" : "assistant",
             "This is message " + std::to_string(i + 1) + " of a long conversation about nothing much."});
    try {
        return best_seconds(std::max(repetitions, 20), [&] { prompt.render(messages); });
    } catch (const text::jinja::TemplateError &error) {
        io.note(std::string("the chat template cannot be rendered: ") + error.what());
        return std::nullopt;
    }
}

std::string table(const std::vector<Row> &rows, double load, std::optional<double> render, TokenId size) {
    char line[160];
    std::string text = "text                   MB/s   tokens/s   bytes/token\n";
    for (const Row &row : rows) {
        std::snprintf(line, sizeof line, "%-18s %8.2f %9.2fM %13.2f\n", row.name.c_str(), row.rate() / 1e6,
                      static_cast<double>(row.tokens) / row.seconds / 1e6,
                      static_cast<double>(row.bytes) / static_cast<double>(std::max<size_t>(row.tokens, 1)));
        text += line;
    }
    std::snprintf(line, sizeof line, "\nvocabulary of %d tokens: loaded in %.1f ms\n", size, load * 1e3);
    text += line;
    if (render) {
        std::snprintf(line, sizeof line, "chat template, %d messages: %.3f ms\n", kTurns, *render * 1e3);
        text += line;
    }
    return text;
}

Json json_of(const std::vector<Row> &rows, double load, std::optional<double> render, TokenId size) {
    Json list = Json::array();
    for (const Row &row : rows)
        list.push_back({{"text", row.name},
                        {"bytes", row.bytes},
                        {"tokens", row.tokens},
                        {"seconds", row.seconds},
                        {"bytes_per_second", row.rate()}});
    return {{"texts", std::move(list)},
            {"vocabulary", size},
            {"load_ms", load * 1e3},
            {"render_ms", render ? Json(*render * 1e3) : Json()}};
}

}  // namespace

int bench_text(const BenchOptions &options, Io &io) {
    const gguf::File file = gguf::File::open(options.model.path);
    const Tokenizer tokenizer = Tokenizer::load(file);
    if (!tokenizer.note().empty()) io.note(tokenizer.note());
    const double load = best_seconds(options.repetitions, [&] { Tokenizer::load(file); });
    Writer writer(tokenizer);
    std::vector<Row> rows;
    if (options.file)
        rows.push_back(measure(tokenizer, "file", read_all(*options.file, io.in), options.repetitions));
    rows.push_back(measure(tokenizer, "prose", writer.prose(), options.repetitions));
    rows.push_back(measure(tokenizer, "without blanks", writer.without_blanks(), options.repetitions));
    rows.push_back(measure(tokenizer, "one letter", std::string(kTextBytes, 'a'), options.repetitions));
    rows.push_back(measure(tokenizer, "code", writer.code(), options.repetitions));
    const auto render = render_seconds(file, tokenizer, options.repetitions, io);
    io.out.write(options.json() ? dump(json_of(rows, load, render, tokenizer.size()), 2)
                                : table(rows, load, render, tokenizer.size()));
    return exit_code::kDone;
}

}  // namespace runnel::commands
