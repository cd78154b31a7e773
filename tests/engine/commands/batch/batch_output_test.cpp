// The output of a batch and its manifest: what a crash or a power failure leaves is repaired, other content
// is refused.
#include "engine/commands/batch/batch_output.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/engine/commands/batch/made_answers.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::commands;
using runnel::testing::answer_of, runnel::testing::row_of;
using testing::Random;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kRows = 12;
const BatchSettings kSettings = {{"the model", "abc"}, {"--temp", "0.8"}, {"--seed", "7"}};

std::string get(const fs::path &path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

void put(const fs::path &path, std::string_view text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::string content_of(int64_t line) {
    return "{\"prompt\": \"row " + std::to_string(line) + "\"}";
}

// A run over the first `rows` rows; returns how many it had to compute.
int64_t run(const fs::path &out, BatchOutput::Options options, int64_t rows = kRows,
            const BatchSettings &settings = kSettings) {
    BatchOutput output(out.string(), options);
    output.begin(settings);
    std::vector<std::pair<uint64_t, int64_t>> computed;
    for (int64_t line = 1; line <= rows; ++line)
        if (!output.answered(row_of(line), content_of(line)))
            computed.emplace_back(output.reserve(row_of(line), content_of(line)), line);
    // Answers may come in any order: here in reverse.
    std::reverse(computed.begin(), computed.end());
    for (const auto &[place, line] : computed) output.put(place, answer_of(line));
    output.close();
    CHECK(output.missing() == 0);
    return output.written();
}

std::string all_answers(bool ordered) {
    std::string text;
    for (int64_t line = 1; line <= kRows; ++line) {
        const std::string answer = answer_of(line);
        text = ordered ? text + answer : answer + text;
    }
    return text;
}

std::string sorted(const std::string &text) {
    std::vector<std::string> lines;
    for (size_t at = 0; at < text.size();) {
        const size_t end = text.find('\n', at) + 1;
        lines.push_back(text.substr(at, end - at));
        at = end;
    }
    std::sort(lines.begin(), lines.end());
    std::string all;
    for (const std::string &line : lines) all += line;
    return all;
}

template <class Error>
std::string refused(const fs::path &out, const BatchOutput::Options &options,
                    const BatchSettings &settings = kSettings) {
    const std::string before = get(out);
    std::string why;
    try {
        run(out, options, kRows, settings);
        FAIL_CHECK("accepted");
    } catch (const Error &error) {
        why = error.what();
    }
    CHECK(get(out) == before);
    return why;
}

const BatchOutput::Options kResume{.resume = true};

}  // namespace

TEST_CASE("batch output: --resume continues only with the same model, options and rows") {
    const TemporaryDirectory folder;
    const fs::path out = folder / "out.jsonl";
    CHECK(run(out, {}, 5) == 5);
    CHECK(refused<UsageError>(out, {}).find("--resume") != std::string::npos);
    BatchSettings other = kSettings;
    other[1].second = "0.5";
    other[0].second = "def";
    const std::string why = refused<UsageError>(out, kResume, other);
    CHECK(why.find("the model was abc and is def; --temp was 0.8 and is 0.5") != std::string::npos);
    CHECK(run(out, kResume) == kRows - 5);
    CHECK(get(out) == all_answers(true));
    CHECK(run(out, kResume) == 0);
    CHECK(BatchOutput(out.string(), kResume).earlier("--seed") == "7");
    // A row without an id whose content has changed.
    {
        BatchOutput output(out.string(), kResume);
        output.begin(kSettings);
        CHECK(output.answered(row_of(3), content_of(3)));
        CHECK_THROWS_AS(output.answered(row_of(3), content_of(4)), InputError);
    }
    BatchOutput forced(out.string(), {.resume = true, .force = true});
    forced.begin(other);
    CHECK(forced.answered(row_of(3), content_of(4)));
    CHECK(get(out) == all_answers(true));
}

TEST_CASE("batch output: content that runnel did not write is refused and stays") {
    const TemporaryDirectory folder;
    const fs::path out = folder / "out.jsonl", manifest = folder / "out.jsonl.resume";
    const BatchOutput::Options force{.resume = true, .force = true};
    for (const char *text : {"a letter without a line end", "two\nlines\n", "{\"my\": \"settings\"}", "{",
                             "{\"line\": 1, \"text\": \"\"}\nand a note"}) {
        CAPTURE(text);
        put(out, text);
        for (const auto &options : {kResume, force}) {
            fs::remove(manifest);
            refused<InputError>(out, options);
            CHECK(!fs::exists(manifest));
        }
    }
    // The same if the manifest of a removed output still exists.
    fs::remove(out);
    run(out, {});
    const std::string left = get(manifest);
    for (const char *text : {"a letter without a line end", "{\"my\": \"settings\"}"}) {
        fs::remove(out);
        put(folder / "fresh", text);
        fs::rename(folder / "fresh", out);
        put(manifest, left);
        refused<InputError>(out, kResume);
    }
    // The same after valid answers.
    fs::remove(out);
    run(out, {.overwrite = true});
    put(out, get(out) + "a note of mine\n");
    refused<InputError>(out, kResume);
    // An edited line is refused; with force, it and the lines after it are kept.
    fs::remove(out);
    run(out, {});
    std::string edited = get(out);
    edited.replace(edited.find("xxx"), 3, "yyy");
    put(out, edited);
    CHECK(refused<InputError>(out, kResume).find("has changed") != std::string::npos);
    CHECK(run(out, force) == 0);
    CHECK(get(out) == edited);
    CHECK(run(out, kResume) == 0);
    // Another file under the manifest's name.
    put(folder / "b.jsonl.resume", "a diary");
    CHECK_THROWS_AS(run(folder / "b.jsonl", {.overwrite = true}), UsageError);
    CHECK(get(folder / "b.jsonl.resume") == "a diary");
    // Answers of an older runnel, which wrote no manifest, are continued with force.
    put(out, answer_of(1) + answer_of(2));
    fs::remove(manifest);
    CHECK(refused<InputError>(out, kResume).find("--force") != std::string::npos);
    CHECK(run(out, force) == kRows - 2);
    CHECK(get(out) == all_answers(true));
    CHECK(run(out, kResume) == 0);
    CHECK(get(out) == all_answers(true));
}

// A run writes a header, then for each row its record and its line. A power failure keeps everything up to the
// last sync and any part of what follows, independently for each file; pages that did not reach the disk may be
// zeros.
TEST_CASE("batch output: a power failure after any write is repaired") {
    const TemporaryDirectory folder;
    for (const bool ordered : {true, false}) {
        const fs::path out = folder / "out.jsonl", manifest = folder / "out.jsonl.resume";
        run(out, {.overwrite = true, .ordered = ordered});
        const std::string lines = get(out), records = get(manifest);
        CHECK(lines == all_answers(ordered));
        std::vector<size_t> line_ends{0}, record_ends;
        for (size_t i = 0; i < lines.size(); ++i)
            if (lines[i] == '\n') line_ends.push_back(i + 1);
        for (size_t i = 0; i < records.size(); ++i)
            if (records[i] == '\n') record_ends.push_back(i + 1);
        REQUIRE(record_ends.size() == kRows + 1);
        REQUIRE(line_ends.size() == kRows + 1);
        // Keeps some of the bytes that are not synced, and replaces some of those by zeros.
        const auto torn = [](const std::string &text, size_t synced, size_t written, Random &random) {
            std::string left = text.substr(0, synced + random.below(written - synced + 1));
            if (left.size() > synced && random.below(3) == 0) {
                const size_t begin = synced + random.below(left.size() - synced);
                const size_t count = 1 + random.below(left.size() - begin);
                std::fill_n(left.begin() + static_cast<std::ptrdiff_t>(begin), count, '\0');
            }
            return left;
        };
        for (uint64_t seed = 0; seed < 400; ++seed) {
            CAPTURE(ordered);
            CAPTURE(seed);
            Random random(seed);
            const size_t written = random.below(kRows + 1), synced = random.below(written + 1);
            const size_t lines_written = written > 0 && random.below(2) ? written - 1 : written;
            put(out,
                torn(lines, line_ends[std::min(synced, lines_written)], line_ends[lines_written], random));
            put(manifest, torn(records, record_ends[synced], record_ends[written], random));
            const BatchOutput::Options resume{.resume = true, .ordered = ordered};
            run(out, resume);
            CHECK(sorted(get(out)) == sorted(all_answers(ordered)));
            if (ordered) CHECK(get(out) == all_answers(true));
            CHECK(run(out, resume) == 0);
        }
    }
}
