// `runnel batch --join`: shards that were interrupted and resumed, joined in any order, have the bytes of one run;
// incomplete, damaged and mixed outputs are refused. The last cases need $RUNNEL (default build/runnel).
#include "engine/commands/batch/batch_join.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/commands/arguments.h"
#include "engine/commands/batch/batch_output.h"
#include "tests/engine/commands/batch/made_answers.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::commands;
using namespace runnel::testing;
namespace fs = std::filesystem;

namespace {

std::string get(const fs::path &path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

void put(const fs::path &path, std::string_view text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// An input whose line i is blank, and has no answer, if blank[i - 1].
struct Batch {
    std::vector<bool> blank;
    std::string input = "input";
    std::string version = "1";
    BatchSettings settings = {{"the model", "abc"}, {"--seed", "7"}};

    std::string all() const {
        std::string text;
        for (size_t i = 0; i < blank.size(); ++i)
            if (!blank[i]) text += answer_of(static_cast<int64_t>(i) + 1);
        return text;
    }
    // Answers the rows of a shard, at most `most` of them: then the run ends without its end.
    void run(const fs::path &out, const Shard &shard, BatchOutput::Options how, size_t most = SIZE_MAX,
             Random *order = nullptr) const {
        BatchOutput output(out.string(), how);
        BatchSettings all = settings;
        all.emplace_back("--shard", std::to_string(shard.part) + "/" + std::to_string(shard.parts));
        output.begin(all);
        std::vector<std::pair<uint64_t, int64_t>> open;
        uint64_t rows = 0;
        for (int64_t line = shard.part; line <= static_cast<int64_t>(blank.size()); line += shard.parts) {
            if (blank[static_cast<size_t>(line) - 1]) continue;
            ++rows;
            const std::string content = input + std::to_string(line);
            if (!output.answered(row_of(line), content))
                open.emplace_back(output.reserve(row_of(line), content), line);
        }
        if (order)
            for (size_t i = open.size(); i > 1; --i) std::swap(open[i - 1], open[order->below(i)]);
        for (size_t i = 0; i < std::min(most, open.size()); ++i)
            output.put(open[i].first, answer_of(open[i].second));
        output.close();
        if (most >= open.size())
            output.complete({rows, blank.size(), blank.size() * 10, content_hash(input), version});
    }
};

// What join writes for copies of the outputs, as from other machines, or its error, which begins with "!".
std::string joined(const std::vector<std::string> &shards, const fs::path &out, bool force = false) {
    fs::remove(out);
    const TemporaryDirectory copies;
    std::vector<std::string> copied;
    for (const fs::path shard : shards) {
        copied.push_back((copies / shard.filename().string()).string());
        for (const char *end : {"", ".resume"})
            fs::copy_file(shard.string() + end, copied.back() + end, fs::copy_options::overwrite_existing);
    }
    Io io;
    const Descriptor nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC), true);
    io.err = Output(nowhere.get(), "null");
    try {
        const int code = join_batch({.shards = copied, .output = out.string(), .force = force}, io);
        CHECK(code == 0);
    } catch (const std::runtime_error &error) {
        CHECK_FALSE(fs::exists(out));
        return std::string("!") + error.what();
    }
    return get(out);
}

bool has(const std::string &text, const char *part) {
    return text.find(part) != std::string::npos;
}

// The outputs of two complete shards of twelve lines, a and b.
struct Pair {
    TemporaryDirectory directory;
    Batch batch{.blank = std::vector<bool>(12)};
    std::string a = (directory / "a.jsonl").string(), b = (directory / "b.jsonl").string();
    fs::path out = directory / "joined.jsonl";

    Pair() {
        batch.run(a, {1, 2}, {});
        batch.run(b, {2, 2}, {});
        CHECK(joined({a, b}, out) == batch.all());
    }
    std::string again(bool force = false) { return joined({a, b}, out, force); }
};

}  // namespace

TEST_CASE("batch join: shards in any order, interrupted and resumed, have the bytes of one run") {
    for (uint64_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        const TemporaryDirectory directory;
        Batch batch;
        for (uint64_t n = random.below(40); n-- > 0;) batch.blank.push_back(random.below(6) == 0);
        const auto parts = static_cast<int64_t>(1 + random.below(6));
        std::vector<std::string> names;
        for (int64_t i = 1; i <= parts; ++i) {
            const fs::path out = directory / ("part" + std::to_string(i));
            const bool ordered = random.below(2) == 0;
            BatchOutput::Options how{.ordered = ordered};
            while (random.below(2) == 0) {  // a run that is killed
                batch.run(out, {i, parts}, how, random.below(6), ordered ? nullptr : &random);
                if (random.below(2) == 0 && fs::file_size(out) > 0)  // and loses what was not on the disk
                    fs::resize_file(out, random.below(fs::file_size(out)));
                how.resume = true;
            }
            batch.run(out, {i, parts}, how, SIZE_MAX, &random);
            names.push_back(out.string());
        }
        for (size_t i = names.size(); i > 1; --i) std::swap(names[i - 1], names[random.below(i)]);
        CHECK(joined(names, directory / "all") == batch.all());
        if (names.size() > 1) {
            names.pop_back();
            CHECK(has(joined(names, directory / "all"), "1 of"));
        }
    }
}

TEST_CASE("batch join: an incomplete shard is refused until it is resumed") {
    Pair pair;
    fs::remove(pair.b);
    fs::remove(pair.b + ".resume");
    pair.batch.run(pair.b, {2, 2}, {}, 3);
    CHECK(has(pair.again(), "!1 of 2 shards are missing or not complete"));
    pair.batch.run(pair.b, {2, 2}, {.resume = true});
    CHECK(pair.again() == pair.batch.all());
    // A resumed run that was killed again has no end either.
    pair.batch.run(pair.b, {2, 2}, {.resume = true}, 0);
    CHECK(pair.again() == pair.batch.all());  // nothing was left to do
    const std::string whole = get(pair.b);
    put(pair.b, whole.substr(0, whole.size() - 10));
    CHECK(has(pair.again(), "not complete"));
    pair.batch.run(pair.b, {2, 2}, {.resume = true});
    CHECK(pair.again() == pair.batch.all());
}

TEST_CASE("batch join: complete shards continue when the input has grown") {
    Pair pair;
    pair.batch.blank.resize(17);
    pair.batch.run(pair.a, {1, 2}, {.resume = true});
    CHECK(has(pair.again(), "different inputs (17 and 12 lines)"));
    pair.batch.run(pair.b, {2, 2}, {.resume = true});
    CHECK(pair.again() == pair.batch.all());
}

TEST_CASE("batch join: shards of other inputs, settings, versions and numbers are refused") {
    Pair pair;
    const auto replaced = [&](const Batch &other, const Shard &shard) {
        fs::remove(pair.b);
        fs::remove(pair.b + ".resume");
        other.run(pair.b, shard, {});
        return pair.again();
    };
    Batch other = pair.batch;
    other.input = "another";
    CHECK(has(replaced(other, {2, 2}), "different inputs"));
    CHECK(has(pair.again(true), "different inputs"));
    other = pair.batch;
    other.blank.push_back(false);
    CHECK(has(replaced(other, {2, 2}), "different inputs (12 and 13 lines)"));
    other = pair.batch;
    other.settings[1].second = "8";
    CHECK(has(replaced(other, {2, 2}), "--seed was 7 and is 8"));
    CHECK(pair.again(true) == pair.batch.all());
    other = pair.batch;
    other.version = "2";
    CHECK(has(replaced(other, {2, 2}), "the version was 1 and is 2"));
    CHECK(has(replaced(pair.batch, {2, 3}), "one of 2 shards"));
    CHECK(has(replaced(pair.batch, {1, 2}), "are both shard 1/2"));
    CHECK(has(joined({pair.a, pair.a}, pair.out), "are both shard 1/2"));
    // A shard that --resume --force has continued with other settings.
    fs::remove(pair.b);
    fs::remove(pair.b + ".resume");
    other.version = "1";
    other.settings[1].second = "8";
    other.run(pair.b, {2, 2}, {}, 2);
    pair.batch.run(pair.b, {2, 2}, {.resume = true, .force = true});
    CHECK(has(pair.again(), "continued with --resume --force"));
    CHECK(pair.again(true) == pair.batch.all());
}

TEST_CASE("batch join: damaged outputs and manifests are refused") {
    Pair pair;
    const std::string lines = get(pair.a), manifest = get(pair.a + ".resume");
    const std::string first = lines.substr(0, lines.find('\n') + 1);
    const auto with = [&](const std::string &output, const std::string &record) {
        put(pair.a, output);
        put(pair.a + ".resume", record);
        const std::string result = pair.again();
        put(pair.a, lines);
        put(pair.a + ".resume", manifest);
        return result;
    };
    std::string changed = lines;
    changed[changed.find("xx")] = 'y';
    CHECK(has(with(changed, manifest), "has changed since it was written"));
    CHECK(has(with(lines + first, manifest), "damaged"));  // a row twice
    CHECK(has(with(first + lines, manifest), "has changed"));
    CHECK(has(with(lines.substr(first.size()), manifest), "has changed"));
    CHECK(has(with("", manifest), "not complete"));
    CHECK(has(with(lines, ""), "is missing or empty"));
    CHECK(has(with(lines, "hello\n"), "was not written by runnel batch"));
    // Rows of the other shard, with a valid record.
    fs::remove(pair.b);
    fs::remove(pair.b + ".resume");
    fs::copy_file(pair.a, pair.b);
    std::string renamed = manifest;
    renamed.replace(renamed.find("1/2"), 3, "2/2");
    put(pair.b + ".resume", renamed);
    CHECK(has(pair.again(), "which is not in shard 2/2"));
    renamed = manifest;
    renamed.replace(renamed.find("1/2"), 3, "9/2");
    put(pair.b + ".resume", renamed);
    CHECK(has(pair.again(), "is damaged: its --shard"));
    // Any single damage to the manifest is refused, or harmless.
    for (uint64_t seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        Pair fresh;
        std::string damaged = get(fresh.a + ".resume");
        if (random.below(4) == 0)
            damaged.resize(random.below(damaged.size()));
        else
            damaged[random.below(damaged.size())] ^= static_cast<char>(1 + random.below(255));
        put(fresh.a + ".resume", damaged);
        const std::string result = fresh.again();
        CHECK((result == fresh.batch.all() || result.starts_with("!")));
    }
}

namespace {

std::string prompts(size_t count, uint64_t seed) {
    Random random(seed);
    std::string text;
    for (size_t i = 0; i < count; ++i) {
        nlohmann::json row = {{"max_tokens", 1 + random.below(12)},
                              {"prompt", std::string(1 + random.below(20), static_cast<char>('a' + i % 26))}};
        if (random.below(2)) row["temperature"] = 0;
        text += random.below(9) == 0 ? "\n" : row.dump() + "\n";
    }
    return text;
}

Result batch_with(std::vector<std::string> more, std::vector<std::string> environment = {}) {
    Process p = process({"batch", tiny().path.string(), "-t", "1"});
    p.arguments.insert(p.arguments.end(), more.begin(), more.end());
    p.environment = std::move(environment);
    return execute(p);
}

}  // namespace

TEST_CASE("batch join: --shard auto, a kill and --join give the bytes of one run") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string in = (directory / "in.jsonl").string(), out = (directory / "out.jsonl").string(),
                      all = (directory / "all.jsonl").string();
    put(in, prompts(60, 3));
    const std::string expected = batch_with({"-i", in, "-s", "0"}).out;
    const auto name = [&](int i) {
        return (directory / ("out." + std::to_string(i) + "-of-3.jsonl")).string();
    };
    for (int rank : {2, 0}) {
        const Result r = batch_with({"-i", in, "-o", out, "--shard", "auto"},
                                    {"SLURM_PROCID=" + std::to_string(rank), "SLURM_STEP_NUM_TASKS=3"});
        CAPTURE(r.err);
        CHECK(r.code == 0);
        CHECK(has(r.err, ("runnel: shard " + std::to_string(rank + 1) + "/3, from Slurm step").c_str()));
        CHECK(has(r.err, name(rank + 1).c_str()));
        CHECK_FALSE(fs::exists(out));
    }
    // The second shard is killed while it waits for more input.
    Process killed = process({"batch", tiny().path.string(), "-t", "1", "-o", name(2), "--shard", "2/3"});
    killed.input = get(in).substr(0, get(in).size() / 2);
    killed.input_ends = false;
    std::thread killer;
    killed.started = [&](int pid) {
        killer = std::thread([&, pid] {
            std::error_code missing;
            for (int i = 0; i < 60'000; ++i) {
                const auto size = fs::file_size(name(2), missing);
                if (!missing && size > 0) break;
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            kill(pid, SIGKILL);
        });
    };
    CHECK(execute(killed).code == 128 + SIGKILL);
    killer.join();
    const std::vector<std::string> join = {"batch", "--join", name(3), name(1), name(2), "-o", all};
    Result r = execute(process(join));
    CAPTURE(r.err);
    CHECK(r.code == 5);
    CHECK(has(r.err, "--shard 2/3 --seed 0 -o "));
    CHECK_FALSE(fs::exists(all));
    // A missing file is named after the others.
    r = execute(process({"batch", "--join", name(3), name(1), "-o", all}));
    CHECK(r.code == 5);
    CHECK(has(r.err, ("runnel: shard 2/3 is missing: runnel batch MODEL -i INPUT --shard 2/3 --seed 0 -o " +
                      name(2) + " --resume")
                         .c_str()));
    r = batch_with({"-i", in, "-o", out, "--shard", "auto/3"},
                   {"JOB_COMPLETION_INDEX=1", "SLURM_RESTART_COUNT=1"});
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(has(r.err, "--resume because SLURM_RESTART_COUNT"));
    r = execute(process(join));
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(get(all) == expected);
    CHECK(has(r.err, "rows of 3 shards"));
    CHECK(execute(process(join)).code == 2);  // the output exists
    CHECK(execute(process({"batch", "--join", name(3), name(1), name(2)})).out == expected);
}

TEST_CASE("batch join: bad arguments have exit code 2") {
    if (absent()) return;
    check_message(runnel_with({"batch", "--join"}));
    CHECK(runnel_with({"batch", "--join"}).code == 2);
    CHECK(runnel_with({"batch", "--join", "/nowhere"}).code == 2);
    CHECK(runnel_with({"batch", "--join", "/dev/null"}).code == 2);
    CHECK(runnel_with({"batch", "--join", "x", "--resume"}).code == 2);
    CHECK(runnel_with({"batch", "--join", "x", "--shard", "1/2"}).code == 2);
    const std::vector<std::string> model = {"batch", tiny().path.string()};
    const auto with = [&](std::vector<std::string> more) {
        std::vector<std::string> all = model;
        all.insert(all.end(), more.begin(), more.end());
        const Result r = runnel_with(all);
        check_message(r);
        return r.code;
    };
    CHECK(with({"--shard", "auto/0"}) == 2);
    CHECK(with({"--shard", "auto"}) == 2);
    CHECK(with({"--shard", "auto", "-o", "/nowhere/out"}) == 2);
}

// The examples are checked as text; where GNU parallel or Open MPI are installed, they also run.
TEST_CASE("batch join: the examples are valid scripts with options that exist, and their shards join") {
    if (absent()) return;
    const fs::path folder = fs::absolute("scripts/examples");
    REQUIRE(fs::exists(folder));
    size_t scripts = 0;
    for (const auto &entry : fs::directory_iterator(folder)) {
        const std::string path = entry.path().string(), text = get(path);
        CAPTURE(path);
        CHECK((has(text, "runnel batch") || has(text, "- batch")));
        CHECK(has(text, "--shard"));
        CHECK(has(text, "--resume"));
        if (!text.starts_with("#!")) continue;
        ++scripts;
        CHECK(std::system(("bash -n " + shell_word(entry.path())).c_str()) == 0);
        CHECK((entry.status().permissions() & fs::perms::owner_exec) != fs::perms::none);
    }
    CHECK(scripts == 4);
    const std::string job = get(folder / "batch-kubernetes.yaml");
    for (const char *part : {"completions: 8", "auto/8", "*-of-8", "completionMode: Indexed"})
        CHECK(has(job, part));
    const TemporaryDirectory directory;
    const std::string in = (directory / "in.jsonl").string();
    put(in, prompts(40, 8) + "a row with an error\n");
    const std::string expected = batch_with({"-i", in, "-s", "0"}).out;
    const std::string program = fs::absolute(program_under_test().value()).parent_path().string();
    for (const char *launcher : {"parallel", "mpirun"}) {
        CAPTURE(launcher);
        if (std::system((std::string("command -v ") + launcher + " >/dev/null 2>&1").c_str()) != 0) continue;
        const fs::path out = directory / (std::string(launcher) + ".jsonl");
        const std::string command = "cd " + shell_word(directory.path()) + " && PATH=" + shell_word(program) +
                                    ":$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                                    "OMPI_MCA_rmaps_base_oversubscribe=1 " +
                                    shell_word(folder / (std::string("batch-") + launcher + ".sh")) + " " +
                                    shell_word(tiny().path) + " " + shell_word(in) + " " + shell_word(out) +
                                    " 3 >/dev/null 2>" + shell_word(directory / "log");
        const int status = std::system(command.c_str());
        CAPTURE(get(directory / "log"));
        CHECK(status == 0);
        CHECK(get(out) == expected);
    }
}
