// Renders a chat template: JSON in, text out.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <optional>

#include "engine/commands/commands.h"
#include "engine/commands/json.h"
#include "engine/text/chat_prompt.h"
#include "engine/text/jinja/template.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace jinja = text::jinja;

// Parses "2025-06-01", optionally with a time after a blank or "T".
std::tm parse_date(const std::string &text) {
    int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, length = 0;
    char between = ' ';
    const int fields = std::sscanf(text.c_str(), "%4d-%2d-%2d%n%c%2d:%2d:%2d%n", &year, &month, &day, &length,
                                   &between, &hour, &minute, &second, &length);
    std::tm time{};
    time.tm_year = year - 1900, time.tm_mon = month - 1, time.tm_mday = day;
    time.tm_hour = hour, time.tm_min = minute, time.tm_sec = second;
    std::tm whole = time;
    const bool complete = static_cast<size_t>(length) == text.size() ||
                          (length > 10 && text.substr(static_cast<size_t>(length)) == "Z");
    if ((fields != 3 && fields != 7) || !complete || (between != ' ' && between != 'T') ||
        timegm(&whole) == -1 || whole.tm_mon != time.tm_mon || whole.tm_mday != day ||
        whole.tm_hour != hour || whole.tm_min != minute)
        throw UsageError("--at " + gguf::quoted(text) + ": write 2025-06-01, or 2025-06-01T12:30:00");
    return whole;
}

// Selects the file's template for each row, because the choice may depend on the row's tools.
class Source {
  public:
    Source(const TemplateOptions &options, Io &io) : options_(options) {
        const std::string start = read_start(options.path);
        if (start == "GGUF") {
            file_ = gguf::File::open(options.path);
            templates_ = text::chat_templates(*file_);
            if (templates_.empty())
                throw InputError(gguf::printable(options.path, 4096) + " has no chat template");
            read_tokens();
        } else {
            text_ = read_all(options.path, io.in);
            templates_ = {{"default", text_}};
        }
    }

    const jinja::Template &choose(bool has_tools) {
        const text::NamedTemplate *chosen =
            text::choose_template(templates_, options_.name.value_or(""), has_tools);
        if (!chosen)
            throw UsageError("there is no template " + gguf::quoted(options_.name.value_or("")) + names());
        if (chosen->source.data() != parsed_from_) {
            parsed_ = jinja::Template::parse(chosen->source);
            parsed_from_ = chosen->source.data();
        }
        return *parsed_;
    }
    // Adds the special tokens that the row does not define itself.
    void add_tokens(const Json &row, jinja::Variables &variables) const {
        for (const auto &[name, text] : tokens_)
            if (!row.contains(name)) variables.set_special(name, text);
    }

  private:
    static std::string read_start(const std::string &path) {
        if (path == "-") return {};
        std::FILE *file = std::fopen(path.c_str(), "rb");
        char bytes[4] = {};
        const size_t count = file ? std::fread(bytes, 1, sizeof bytes, file) : 0;
        if (file) std::fclose(file);
        return {bytes, count};
    }
    void read_tokens() {
        const text::Tokenizer tokenizer = text::Tokenizer::load(*file_);
        const auto tokens = text::TemplateTokens::of(tokenizer);
        if (tokenizer.bos()) tokens_.emplace_back("bos_token", tokens.bos);
        if (tokenizer.eos()) tokens_.emplace_back("eos_token", tokens.eos);
    }
    std::string names() const {
        std::string text = "; the file has";
        for (const auto &entry : templates_) text += " " + gguf::printable(entry.name);
        return text;
    }

    const TemplateOptions &options_;
    std::optional<gguf::File> file_;
    std::string text_;
    std::vector<text::NamedTemplate> templates_;
    std::vector<std::pair<std::string, std::string>> tokens_;
    std::optional<jinja::Template> parsed_;
    const char *parsed_from_ = nullptr;
};

std::string render_row(Source &source, const Json &row, const jinja::RenderOptions &how) {
    jinja::Variables variables = jinja::Variables::of(row);
    source.add_tokens(row, variables);
    const auto tools = row.find("tools");
    return source.choose(tools != row.end() && tools->is_array() && !tools->empty())
        .render(variables, how)
        .bytes();
}

Json parse_row(std::string_view text) {
    try {
        Json row = parse_json(text);
        if (!row.is_object()) throw InputError("the template's variables must be a JSON object");
        return row;
    } catch (const JsonError &error) {
        throw InputError(std::string("this is not JSON: ") + error.what());
    }
}

void render_lines(Source &source, const std::string &input, const jinja::RenderOptions &how, Io &io) {
    for (size_t at = 0; at < input.size();) {
        const size_t end = std::min(input.find('\n', at), input.size());
        const std::string_view line = std::string_view(input).substr(at, end - at);
        at = end + 1;
        if (line.find_first_not_of(" \t\r") == line.npos) continue;
        Json result;
        try {
            result = render_row(source, parse_row(line), how);
        } catch (const jinja::TemplateError &error) {
            result = {
                {"error", error.kind == jinja::TemplateError::Kind::Raised ? error.message : error.what()}};
        } catch (const InputError &error) {
            result = {{"error", error.what()}};
        }
        io.out.write(dump(result));
    }
}

}  // namespace

int render_template(const TemplateOptions &options, Io &io) {
    jinja::RenderOptions how;
    if (options.at) how.clock = [now = parse_date(*options.at)] { return now; };
    Source source(options, io);
    try {
        const std::string input = read_all("-", io.in);
        if (options.jsonl)
            render_lines(source, input, how, io);
        else
            io.out.write(render_row(source, parse_row(input), how));
    } catch (const jinja::TemplateError &error) {
        throw InputError(options.path + ": " + error.what());
    }
    return exit_code::kDone;
}

}  // namespace runnel::commands
