#include "engine/measure/choice_tasks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "engine/decode/byte_reader.h"
#include "engine/decode/error.h"

namespace runnel::measure {
namespace {

[[noreturn]] void fail(const std::string &message) {
    throw decode::DecodeError(decode::DecodeError::Kind::BadInput, message);
}

[[noreturn]] void fail_line(size_t index, const std::string &problem) {
    fail("line " + std::to_string(index + 1) + ": " + problem);
}

// Without line ends; an empty last line is dropped.
std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        const size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        if (line.ends_with('\r')) line.remove_suffix(1);
        lines.push_back(line);
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
}

std::vector<ChoiceTask> read_hellaswag(std::string_view text) {
    constexpr size_t kLines = 6, kEndings = 4;
    const std::vector<std::string_view> lines = lines_of(text);
    if (lines.size() % kLines != 0)
        fail("HellaSwag tasks have six lines each, but the file has " + std::to_string(lines.size()) +
             " lines");
    std::vector<ChoiceTask> tasks;
    for (size_t at = 0; at < lines.size(); at += kLines) {
        const std::string_view right = lines[at + 1];
        if (right.size() != 1 || right[0] < '0' || right[0] > '3')
            fail_line(at + 1, "expected the number of the right ending, 0 to 3");
        ChoiceTask &task = tasks.emplace_back();
        for (size_t i = 0; i < kEndings; ++i) {
            std::string whole = std::string(lines[at]) + " " + std::string(lines[at + 2 + i]);
            const size_t end = whole.size();
            task.answers.push_back({std::move(whole), end, i == static_cast<size_t>(right[0] - '0')});
        }
    }
    return tasks;
}

// The fields of a line of CSV. A field in quotes may contain commas, and "" for a quote.
std::vector<std::string> fields_of(std::string_view line, size_t index) {
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"')
            fields.back() += '"', ++i;
        else if (c == '"' && (quoted || fields.back().empty()))
            quoted = !quoted;
        else if (c == ',' && !quoted)
            fields.emplace_back();
        else
            fields.back() += c;
    }
    if (quoted) fail_line(index, "a quoted field does not end");
    return fields;
}

std::vector<ChoiceTask> read_winogrande(std::string_view text) {
    std::vector<ChoiceTask> tasks;
    const std::vector<std::string_view> lines = lines_of(text);
    for (size_t index = 0; index < lines.size(); ++index) {
        const std::vector<std::string> fields = fields_of(lines[index], index);
        if (fields.size() != 5)
            fail_line(index, "expected five fields (number, sentence, two words, the right one), found " +
                                 std::to_string(fields.size()));
        const std::string &sentence = fields[1], &right = fields[4];
        const size_t gap = sentence.find('_');
        if (gap == std::string::npos) fail_line(index, "the sentence has no gap '_'");
        if (right != "1" && right != "2") fail_line(index, "expected 1 or 2 for the right word");
        ChoiceTask &task = tasks.emplace_back();
        for (size_t i = 0; i < 2; ++i) {
            std::string whole = sentence.substr(0, gap) + fields[2 + i];
            const size_t end = whole.size();
            task.answers.push_back({whole + sentence.substr(gap + 1), end, (right == "1") == (i == 0)});
        }
    }
    return tasks;
}

using decode::ByteReader;

std::string read_text(ByteReader &reader) {
    const auto bytes = reader.take(reader.value<uint32_t>());
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

struct AnswerList {
    std::vector<std::string> texts;
    std::vector<int32_t> labels;
};

AnswerList read_answers(ByteReader &reader, const std::string &where) {
    constexpr uint32_t kMost = 100;
    const auto count = reader.value<uint32_t>();
    if (count > kMost) fail(where + ": more than " + std::to_string(kMost) + " answers");
    AnswerList list;
    for (uint32_t i = 0; i < count; ++i) list.texts.push_back(read_text(reader));
    for (uint32_t i = 0; i < count; ++i) list.labels.push_back(reader.value<int32_t>());
    return list;
}

std::vector<ChoiceTask> read_questions(std::string_view bytes) {
    ByteReader reader(std::as_bytes(std::span(bytes)));
    const auto count = reader.value<uint32_t>();
    reader.take(uint64_t{count} * sizeof(uint32_t));
    if (reader.failed()) fail("the list of tasks is truncated, or the file has another format");
    std::vector<ChoiceTask> tasks;
    for (uint32_t i = 0; i < count; ++i) {
        const std::string where = "task " + std::to_string(i + 1);
        const std::string question = read_text(reader);
        const AnswerList list = read_answers(reader, where);
        read_answers(reader, where);
        if (reader.failed()) fail(where + ": the file is truncated, or has another format");
        if (question.empty() || list.texts.empty()) fail(where + ": no question, or no answers");
        ChoiceTask &task = tasks.emplace_back();
        for (size_t a = 0; a < list.texts.size(); ++a) {
            if (list.texts[a].empty()) fail(where + ": an answer is empty");
            std::string whole = question + " " + list.texts[a];
            const size_t end = whole.size();
            task.answers.push_back({std::move(whole), end, list.labels[a] == 1});
        }
    }
    return tasks;
}

// The numbers of the tasks that llama-perplexity takes out of `count` for HellaSwag, and for the other formats.
std::vector<size_t> hellaswag_order(size_t count, size_t wanted) {
    std::vector<size_t> left(count), order;
    std::iota(left.begin(), left.end(), size_t{0});
    std::mt19937 random(1);
    while (order.size() < wanted) {
        const size_t at = std::uniform_int_distribution<size_t>(0, left.size() - 1)(random);
        order.push_back(left[at]);
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(at));
    }
    return order;
}

std::vector<size_t> drawn_order(size_t count, size_t wanted) {
    std::vector<size_t> left(count), order;
    std::iota(left.begin(), left.end(), size_t{0});
    std::mt19937 random(1);
    const float scale = 1 / (1.0f + static_cast<float>(std::mt19937::max()));
    while (order.size() < wanted) {
        const float drawn = scale * static_cast<float>(random()) * static_cast<float>(left.size());
        const size_t at =
            std::min(static_cast<size_t>(drawn), left.size() - 1);  // rounding may reach the end
        order.push_back(left[at]);
        left[at] = left.back();
        left.pop_back();
    }
    return order;
}

}  // namespace

std::vector<ChoiceTask> read_choice_tasks(ChoiceFormat format, std::string_view bytes) {
    std::vector<ChoiceTask> tasks = format == ChoiceFormat::HellaSwag    ? read_hellaswag(bytes)
                                    : format == ChoiceFormat::Winogrande ? read_winogrande(bytes)
                                                                         : read_questions(bytes);
    if (tasks.empty()) fail("the file has no tasks");
    return tasks;
}

std::vector<ChoiceTask> draw_tasks(ChoiceFormat format, std::vector<ChoiceTask> tasks, size_t count) {
    const bool takes_all = count == 0 || count >= tasks.size();
    if (takes_all && format != ChoiceFormat::HellaSwag) return tasks;
    const size_t wanted = takes_all ? tasks.size() : count;
    std::vector<ChoiceTask> drawn;
    for (const size_t index : format == ChoiceFormat::HellaSwag ? hellaswag_order(tasks.size(), wanted)
                                                                : drawn_order(tasks.size(), wanted))
        drawn.push_back(std::move(tasks[index]));
    return drawn;
}

}  // namespace runnel::measure
