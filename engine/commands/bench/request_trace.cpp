#include "engine/commands/bench/request_trace.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <optional>
#include <span>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "gguf/base/checksum.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

constexpr int64_t kMostTokens = 1 << 24;  // of a prompt or an answer
constexpr double kMostSeconds = 1e9;      // of an arrival, since the epoch of the trace
constexpr int64_t kTokensOfHash = 512;    // in Mooncake's traces
constexpr size_t kMostRequests = 4'000'000;

// A line that cannot be used; what() is the reason.
struct BadLine : std::runtime_error {
    using std::runtime_error::runtime_error;
};

std::string_view trimmed(std::string_view text) {
    const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    return text;
}

std::optional<double> number(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
        return std::nullopt;
    return value;
}

int64_t tokens(double value, const char *what) {
    if (!(value >= 0 && value <= static_cast<double>(kMostTokens)) || value != std::floor(value))
        throw BadLine(std::string(what) + " must be a whole number from 0 to " + std::to_string(kMostTokens));
    return static_cast<int64_t>(value);
}

double seconds(double value) {
    if (!(std::abs(value) <= 10 * kMostSeconds)) throw BadLine("the arrival is out of range");
    return value;
}

// "2023-11-16 18:15:46.6805900", also with "T" between date and time, as seconds; or a number.
std::optional<double> time_of(std::string_view text) {
    if (const auto value = number(text)) return value;
    const auto part = [&](size_t at, size_t size) -> std::optional<unsigned> {
        unsigned value = 0;
        if (text.size() < at + size) return std::nullopt;
        const char *const begin = text.data() + at;
        const auto [end, error] = std::from_chars(begin, begin + size, value);
        if (error != std::errc() || end != begin + size) return std::nullopt;
        return value;
    };
    const auto year = part(0, 4), month = part(5, 2), day = part(8, 2), hour = part(11, 2),
               minute = part(14, 2);
    if (!year || !month || !day || !hour || !minute || text.size() < 18) return std::nullopt;
    if (text[4] != '-' || text[7] != '-' || (text[10] != ' ' && text[10] != 'T') || text[13] != ':' ||
        text[16] != ':')
        return std::nullopt;
    const auto second = number(text.substr(17));
    const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(*year)),
                                           std::chrono::month(*month), std::chrono::day(*day)};
    if (!date.ok() || *hour > 23 || *minute > 59 || !second || *second < 0 || *second >= 61)
        return std::nullopt;
    const auto days = std::chrono::sys_days(date).time_since_epoch().count();
    return static_cast<double>(days) * 86400 + *hour * 3600 + *minute * 60 + *second;
}

// Ids of the full pages of a prompt: each is a hash of all tokens up to its end.
std::vector<uint64_t> beginning_of(std::span<const int32_t> prompt, int32_t page) {
    std::vector<uint64_t> ids;
    base::Checksum sum;
    for (size_t at = 0; at + static_cast<size_t>(page) <= prompt.size(); at += static_cast<size_t>(page)) {
        sum.add(std::as_bytes(prompt.subspan(at, static_cast<size_t>(page))));
        ids.push_back(sum.value()[0]);
    }
    return ids;
}

class CsvColumns {
  public:
    explicit CsvColumns(std::string_view header) {
        constexpr std::string_view kNames[kFields][4] = {
            {"timestamp", "arrival", "arrived_at", "time"},
            {"contexttokens", "prompt_tokens", "num_prefill_tokens", "input_length"},
            {"generatedtokens", "completion_tokens", "num_decode_tokens", "output_length"},
            {"max_tokens", "", "", ""}};
        size_t column = 0;
        each_cell(header, [&](std::string_view cell) {
            std::string name(cell);
            for (char &c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
            for (size_t field = 0; field < kFields; ++field)
                if (!name.empty() && std::ranges::find(kNames[field], name) != std::end(kNames[field])) {
                    if (at_[field]) throw BadLine("two columns are named \"" + name + "\" or mean the same");
                    at_[field] = column;
                }
            ++column;
        });
        if (!at_[1] || !at_[2])
            throw BadLine(
                "the header has no columns for the tokens of prompt and answer, such as ContextTokens and "
                "GeneratedTokens");
    }
    bool has_arrivals() const { return at_[0].has_value(); }

    TracedRequest request(std::string_view line) const {
        std::array<std::string_view, kFields> cells;
        size_t column = 0;
        each_cell(line, [&](std::string_view cell) {
            for (size_t field = 0; field < kFields; ++field)
                if (at_[field] == column) cells[field] = cell;
            ++column;
        });
        const auto value = [&](size_t field, const char *what) {
            const auto found = number(cells[field]);
            if (!found) throw BadLine(std::string(what) + " is not a number");
            return tokens(*found, what);
        };
        TracedRequest request;
        if (at_[0]) {
            const auto found = time_of(cells[0]);
            if (!found)
                throw BadLine("the arrival is neither a number nor a date such as 2023-11-16 18:15:46.68");
            request.arrival = *found;
        }
        request.prompt = value(1, "the prompt's tokens");
        request.answer = value(2, "the answer's tokens");
        if (at_[3] && !cells[3].empty()) request.most = value(3, "max_tokens");
        return request;
    }

  private:
    static constexpr size_t kFields = 4;  // arrival, prompt, answer, limit

    template <class F>
    static void each_cell(std::string_view line, F use) {
        for (;;) {
            const size_t comma = line.find(',');
            std::string_view cell = trimmed(line.substr(0, comma));
            if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"')
                cell = cell.substr(1, cell.size() - 2);
            use(cell);
            if (comma == line.npos) return;
            line.remove_prefix(comma + 1);
        }
    }

    std::array<std::optional<size_t>, kFields> at_;
};

std::optional<double> number_of(const Json &object, const char *key) {
    const Json *const found = text::find_member(object, key);
    if (found == nullptr) return std::nullopt;
    if (!found->is_number()) throw BadLine(std::string("\"") + key + "\" is not a number");
    return found->get<double>();
}

// The object that has the counts: the line, or what OpenAI's form has around it.
const Json &counts_of(const Json &line) {
    const Json *object = &line;
    for (const char *key : {"response", "body", "usage"})
        if (const Json *inner = text::find_member(*object, key); inner != nullptr && inner->is_object())
            object = inner;
    return *object;
}

class JsonLine {
  public:
    JsonLine(int32_t page, const EncodePrompt &encode) : page_(page), encode_(encode) {}

    // nullopt: an answer that is an error.
    std::optional<TracedRequest> request(std::string_view text, RequestTrace &trace) const {
        const Json line = parse_json(text);
        if (!line.is_object()) throw BadLine("not a JSON object");
        TracedRequest request;
        if (const auto most = number_of(line, "max_tokens")) request.most = tokens(*most, "max_tokens");
        if (const auto arrival = number_of(line, "arrival")) {
            request.arrival = seconds(*arrival);
            trace.has_arrivals = true;
        }
        if (const auto length = number_of(line, "input_length")) {
            mooncake(line, *length, request, trace);
        } else if (const Json *prompt = text::find_member(line, "prompt")) {
            if (!prompt->is_string()) throw BadLine("\"prompt\" is not a text");
            if (request.most < 0) throw BadLine("a prompt needs \"max_tokens\", the length of its answer");
            const std::vector<int32_t> ids = encode_(prompt->get_ref<const std::string &>());
            request.prompt = static_cast<int64_t>(ids.size());
            request.answer = request.most;
            request.beginning = beginning_of(ids, page_);
            trace.has_beginnings = true;
        } else if (text::find_member(line, "error") != nullptr) {
            return std::nullopt;
        } else {
            const Json &counts = counts_of(line);
            const auto prompt_tokens = number_of(counts, "prompt_tokens");
            const auto answer_tokens = number_of(counts, "completion_tokens");
            if (!prompt_tokens || !answer_tokens)
                throw BadLine(
                    text::find_member(line, "messages") != nullptr
                        ? "\"messages\" need a chat template: give the answers of runnel batch instead"
                        : "neither \"prompt_tokens\" and \"completion_tokens\", nor \"input_length\" and "
                          "\"output_length\", nor \"prompt\"");
            request.prompt = tokens(*prompt_tokens, "prompt_tokens");
            request.answer = tokens(*answer_tokens, "completion_tokens");
        }
        return request;
    }

  private:
    void mooncake(const Json &line, double length, TracedRequest &request, RequestTrace &trace) const {
        request.prompt = tokens(length, "input_length");
        const auto answer = number_of(line, "output_length");
        if (!answer) throw BadLine("\"input_length\" without \"output_length\"");
        request.answer = tokens(*answer, "output_length");
        if (const auto timestamp = number_of(line, "timestamp")) {
            request.arrival = seconds(*timestamp / 1000);
            trace.has_arrivals = true;
        }
        const Json *const hashes = text::find_member(line, "hash_ids");
        if (hashes == nullptr) return;
        if (!hashes->is_array()) throw BadLine("\"hash_ids\" is not an array");
        trace.has_beginnings = true;
        const auto pages = static_cast<size_t>(request.prompt / page_);
        const auto each = static_cast<uint64_t>(kTokensOfHash / page_);
        for (const Json &hash : *hashes) {
            if (!hash.is_number_integer()) throw BadLine("\"hash_ids\" has an entry that is no whole number");
            for (uint64_t i = 0; i < each && request.beginning.size() < pages; ++i)
                request.beginning.push_back(hash.get<uint64_t>() * each + i);
        }
    }

    int32_t page_;
    const EncodePrompt &encode_;
};

}  // namespace

RequestTrace parse_trace(std::string_view text, const std::string &name, int32_t page,
                         const EncodePrompt &encode, const std::function<void()> &look) {
    RequestTrace trace;
    std::optional<CsvColumns> csv;
    const JsonLine json(page, encode);
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark
    bool first = true;
    for (int64_t number = 1; !text.empty(); ++number) {
        if (look && number % 1024 == 0) look();
        const size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = trimmed(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.empty()) continue;
        try {
            if (std::exchange(first, false) && line.front() != '{') {
                csv.emplace(line);
                trace.has_arrivals = csv->has_arrivals();
                continue;
            }
            if (auto request = csv ? csv->request(line) : json.request(line, trace))
                trace.requests.push_back(std::move(*request));
            else
                ++trace.left_out;
            if (trace.requests.size() > kMostRequests)
                throw BadLine("more than " + std::to_string(kMostRequests) + " requests: split the trace");
        } catch (const BadLine &error) {
            throw InputError(gguf::printable(name) + ", line " + std::to_string(number) + ": " +
                             error.what());
        } catch (const JsonError &error) {
            throw InputError(gguf::printable(name) + ", line " + std::to_string(number) +
                             " is not JSON: " + error.what());
        }
    }
    if (trace.requests.empty()) throw InputError(gguf::printable(name) + ": no requests in it");
    std::ranges::stable_sort(trace.requests, {}, &TracedRequest::arrival);
    const double begin = trace.requests.front().arrival;
    for (TracedRequest &request : trace.requests) request.arrival -= begin;
    if (trace.requests.back().arrival > kMostSeconds)
        throw InputError(gguf::printable(name) + ": the arrivals span more than 30 years");
    return trace;
}

}  // namespace runnel::commands
