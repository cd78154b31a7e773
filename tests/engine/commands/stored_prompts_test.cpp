// --prompt-cache auto, tested by running the program: run, batch and chat find what earlier runs computed. Needs $RUNNEL.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/commands/models/hub_server.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::string some_text(size_t from, size_t bytes) {
    std::string text = read_file(held_out_text());
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text.substr(from, bytes);
}

// A user with folders of their own.
struct Account {
    TemporaryDirectory directory;
    std::string system = some_text(0, 5000);  // more than 1,024 tokens

    fs::path folder() const { return directory / "cache/runnel/prompts"; }
    fs::path stats() const { return directory / "stats"; }

    Process process(Words arguments, std::optional<std::string> input = "") const {
        Process p = runnel::testing::process(std::move(arguments));
        p.arguments.insert(p.arguments.end(),
                           {"-c", "4096", "-t", "1", "--temp", "0", "-n", "12", "--overwrite"});
        p.environment = {"XDG_CACHE_HOME=" + (directory / "cache").string(),
                         "XDG_STATE_HOME=" + (directory / "state").string(), "RUNNEL_NO_HISTORY="};
        p.input = std::move(input);
        return p;
    }
    Process asking(const std::string &question, Words more = {}) const {
        Words arguments = {"run", demo_model().string(), question, "-sys", system, "--prompt-cache", "auto"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return process(std::move(arguments), std::nullopt);
    }
    // Runs with --stats-file; its content is in `numbers`.
    Result counted(Process p, json &numbers) const {
        p.arguments.insert(p.arguments.end(), {"--stats-file", stats().string()});
        const Result r = execute(p);
        numbers = json::parse(read_file(stats()), nullptr, false);
        fs::remove(stats());
        return r;
    }
    std::vector<fs::path> files() const {
        std::vector<fs::path> found;
        if (!fs::exists(folder())) return found;
        for (const auto &entry : fs::directory_iterator(folder()))
            if (entry.path().filename() != "lock") found.push_back(entry.path());
        return found;
    }
};

}  // namespace

TEST_CASE("--prompt-cache auto: a later run computes only what is new, with the same text") {
    if (absent()) return;
    const Account home;
    json first, second, third;
    const Result plain = execute(home.asking("Who is it?", {"--prompt-cache", "off"}));
    REQUIRE(plain.code == 0);
    CHECK(home.files().empty());
    const Result one = home.counted(home.asking("Who is it?"), first);
    CAPTURE(one.err);
    CHECK(one.out == plain.out);
    CHECK(one.err == plain.err);
    CHECK(first["stored_prompts"]["found_tokens"] == 0);
    CHECK(first["stored_prompts"]["saved_tokens"] >= 1024);
    CHECK(first["sandbox"]["files"] == true);
    struct stat status {};
    REQUIRE(stat(home.folder().c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0700);
    const Result two = home.counted(home.asking("Who is it?"), second);
    CHECK(two.out == plain.out);
    CHECK(second["prefill_tokens"] <= 32);
    CHECK(second["stored_prompts"]["saved_tokens"] == 0);
    const Result three = home.counted(home.asking("And what did the others say?"), third);
    CHECK(third["prefill_tokens"] <= 64);
    CHECK(three.out == execute(home.asking("And what did the others say?", {"--prompt-cache", "off"})).out);

    // With another model or type of cache nothing is found, and other files are written.
    json numbers;
    home.counted(home.asking("Who is it?", {"-ctk", "q8_0"}), numbers);
    CHECK(numbers["stored_prompts"]["found_tokens"] == 0);
    home.counted(home.asking("Who is it?", {"-ctk", "q8_0"}), numbers);
    CHECK(numbers["prefill_tokens"] <= 32);
    Process other = home.asking("Who is it?");
    other.arguments[1] = demo_draft().string();
    home.counted(other, numbers);
    CHECK(numbers["stored_prompts"]["found_tokens"] == 0);

    // Damaged files are not used, and written again.
    for (const fs::path &file : home.files()) {
        std::string text = read_file(file);
        text[text.size() / 2] ^= 1;
        std::ofstream(file, std::ios::binary) << text;
    }
    CHECK(home.counted(home.asking("Who is it?"), numbers).out == plain.out);
    CHECK(numbers["stored_prompts"]["damaged_files"] >= 1);
    CHECK(home.counted(home.asking("Who is it?"), numbers).out == plain.out);
    CHECK(numbers["prefill_tokens"] <= 32);

    // A limit of size.
    Process limited = home.asking("Who is it?", {"--prompt-cache-size", "1M"});
    limited.arguments[4] = some_text(6000, 5000);
    execute(limited);
    uint64_t bytes = 0;
    for (const fs::path &file : home.files()) bytes += fs::file_size(file);
    CHECK(bytes <= 1 << 20);

    // RUNNEL_NO_HISTORY=1 keeps prompts off the disk.
    fs::remove_all(home.folder());
    Process secret = home.asking("Who is it?");
    secret.environment.emplace_back("RUNNEL_NO_HISTORY=1");
    CHECK(execute(secret).out == plain.out);
    CHECK(!fs::exists(home.folder()));
}

TEST_CASE(
    "--prompt-cache auto: nothing is found for a replaced model file; a note names an unusable folder") {
    if (absent()) return;
    const Account home;
    const fs::path model = home.directory / "model.gguf";
    fs::copy_file(demo_model(), model);
    Process p = home.asking("Who is it?");
    p.arguments[1] = model.string();
    json numbers;
    home.counted(p, numbers);
    CHECK(numbers["stored_prompts"]["saved_tokens"] >= 1024);
    home.counted(p, numbers);
    CHECK(numbers["stored_prompts"]["found_tokens"] >= 1024);
    fs::last_write_time(model, fs::last_write_time(model) + std::chrono::seconds(1));
    home.counted(p, numbers);
    CHECK(numbers["stored_prompts"]["found_tokens"] == 0);
    fs::permissions(home.folder(), fs::perms::others_read, fs::perm_options::add);
    const Result r = execute(p);
    CHECK(r.code == 0);
    CHECK(r.err.find("open to other users") != std::string::npos);
}

TEST_CASE("batch: the beginning that rows share is kept, and nothing else") {
    if (absent()) return;
    const Account home;
    const std::string rows =
        "{\"prompt\": \"Who is it?\"}\n{\"prompt\": \"And then?\"}\n{\"prompt\": \"Why?\"}\n";
    const Words arguments = {"batch", demo_model().string(), "-sys", home.system};
    json numbers;
    const Result first = home.counted(home.process(arguments, rows), numbers);
    CAPTURE(first.err);
    REQUIRE(first.code == 0);
    CHECK(numbers["stored_prompts"]["saved_tokens"] >= 1024);
    const int64_t computed = numbers["computed_tokens"], reused = numbers["reused_tokens"];
    const Result second = home.counted(home.process(arguments, rows), numbers);
    CHECK(second.out == first.out);
    CHECK(numbers["stored_prompts"]["found_tokens"] >= 1024);
    CHECK(numbers["computed_tokens"].get<int64_t>() < computed - 1024);
    CHECK(numbers["reused_tokens"].get<int64_t>() > reused);

    const Account other;  // rows without a common beginning
    std::string long_rows;
    for (const size_t from : {0, 5000, 10000})
        long_rows += json{{"prompt", some_text(from, 5000)}}.dump() + "\n";
    home.counted(other.process({"batch", demo_model().string()}, long_rows), numbers);
    CHECK(other.files().empty());

    const Account single;  // one row shares nothing
    home.counted(single.process(arguments, "{\"prompt\": \"Who is it?\"}\n"), numbers);
    CHECK(single.files().empty());
}

TEST_CASE("chat: the system prompt is found at the next start; a chat that goes on finds all of it") {
    if (absent()) return;
    const Account home;
    const Words arguments = {"chat", demo_model().string(), "-sys", home.system};
    json numbers;
    const std::string talk = "Who is it?\nAnd then?\n";
    const Result first = home.counted(home.process(arguments, talk), numbers);
    REQUIRE(first.code == 0);
    const size_t files = home.files().size();
    CHECK(files >= 4);
    const Result second = home.counted(home.process(arguments, "Who is it?\n"), numbers);
    CHECK(first.out.starts_with(second.out));
    CHECK(numbers["stored_prompts"]["found_tokens"] >= 1024);
    const int64_t computed = numbers["prefill_tokens"], found = numbers["stored_prompts"]["found_tokens"];
    CHECK(home.files().size() == files);  // without a saved chat, no more than the system prompt is kept
    const Result other = home.counted(home.process(arguments, "Tell me more of it!\n"), numbers);
    CHECK(numbers["stored_prompts"]["found_tokens"] == found);  // all of it, whatever the message
    CHECK(computed < 32);
    const Account none;
    CHECK(other.out == execute(none.process(arguments, "Tell me more of it!\n")).out);

    const Words saved = {"chat", demo_model().string(), "--chat", "talk"};
    const std::string long_message = some_text(8000, 5000) + "\n";
    const Account twin;
    const Result whole = execute(twin.process(saved, long_message + talk));
    home.counted(home.process(saved, long_message + "Who is it?\n"), numbers);
    const Result later = home.counted(home.process(saved, "And then?\n"), numbers);
    CAPTURE(later.err);
    CHECK(whole.out.ends_with(later.out));
    CHECK(numbers["prefill_tokens"] <= 64);
    CHECK(execute(home.process({"chat", demo_model().string(), "--prompt-cache", "file.kv"}, "")).code == 2);
}

TEST_CASE("--prompt-cache auto: kill -9 at any moment leaves what the next run can use") {
    if (absent()) return;
    const Account home;
    const Result plain = execute(home.asking("Who is it?", {"--prompt-cache", "off"}));
    std::mt19937 rng(11);
    for (int i = 0; i < 6; ++i) {
        CAPTURE(i);
        if (i % 2 == 0) fs::remove_all(home.folder());
        Process p = home.asking("Who is it?");
        std::thread killer;
        p.started = [&](int pid) {
            const auto wait = std::chrono::microseconds(rng() % 250000);
            killer = std::thread([pid, wait] {
                std::this_thread::sleep_for(wait);
                kill(pid, SIGKILL);
            });
        };
        execute(p);
        killer.join();
        CHECK(execute(home.asking("Who is it?")).out == plain.out);
    }
    json numbers;
    CHECK(home.counted(home.asking("Who is it?"), numbers).out == plain.out);
    CHECK(numbers["prefill_tokens"] <= 32);
    CHECK(numbers["stored_prompts"]["damaged_files"] == 0);
}

#ifndef __SANITIZE_ADDRESS__  // the sanitizer must be the first library

TEST_CASE("--prompt-cache auto: a full disk or an unreadable folder only adds a line to --stats") {
    if (absent()) return;
    const std::string library = fs::absolute(fs::path(*program_under_test()).parent_path() / "fault.so");
    REQUIRE(fs::exists(library));
    const Account home;
    const Result plain = execute(home.asking("Who is it?", {"--prompt-cache", "off"}));
    for (const char *call : {"write:N+:ENOSPC", "rename:N:EIO"})
        for (int n = 1; n <= 7; n += 3) {
            std::string fault(call);
            fault.replace(fault.find('N'), 1, std::to_string(n));
            CAPTURE(fault);
            if (n != 7) fs::remove_all(home.folder());
            Process p = home.asking("Who is it?");
            p.environment.insert(p.environment.end(), {"LD_PRELOAD=" + library, "FAULT=" + fault});
            const Result r = execute(p);
            CAPTURE(r.err);
            CHECK(plain.out.starts_with(r.out));
            // The fault may hit the output of the answer, which is then incomplete; otherwise only the store fails.
            if (r.out == plain.out) CHECK(r.code == 0);
            if (r.code == 0) CHECK(r.out == plain.out);
            for (const fs::path &file : home.files()) CHECK(file.extension() == ".kv");
            CHECK(execute(home.asking("Who is it?")).out == plain.out);
        }
}

#endif

TEST_CASE(
    "two chats, a batch and a pull at once share the prompts, the chats and the lines typed, and lose "
    "nothing") {
    if (absent()) return;
    const Account home;
    const std::string rows = "{\"prompt\": \"Who is it?\"}\n{\"prompt\": \"And then?\"}\n";
    const auto chat = [&](const std::string &name) {
        Process p = home.process({"chat", demo_model().string(), "-sys", home.system});
        p.environment.insert(p.environment.end(), {"TERM=xterm", "LC_ALL=C"});
        p.input.reset();
        p.terminal = true;
        Words lines;
        for (int i = 1; i <= 4; ++i) lines.push_back(name + " asks " + std::to_string(i) + "\r");
        lines.emplace_back("\x04");
        p.type = [lines, next = size_t{0}, after = size_t{0}](const std::string &out,
                                                              bool reads_keys) mutable -> std::string {
            if (!reads_keys || next == lines.size() || !at_prompt(out, after)) return "";
            after = out.size();
            return lines[next++];
        };
        return p;
    };
    const Result alone = execute(home.process({"batch", demo_model().string(), "-sys", home.system}, rows));
    fs::remove_all(home.folder());
    const std::string model = noise(600000, 24);
    const HttpServer server(hub({{"small-Q4_0.gguf", model}},
                                [&](const ServerRequest &request) { return ranged(request, model); }));
    Process pull = Home().process({"pull", "some/model-GGUF", "--request-bytes", "65536"});
    for (const std::string &setting :
         {"HOME=" + home.directory.path().string(), "XDG_CACHE_HOME=" + (home.directory / "cache").string(),
          "HF_HOME=" + (home.directory / "hub").string(), "HF_ENDPOINT=" + server.address()})
        pull.environment.push_back(setting);
    std::vector<Result> results(4);
    std::vector<std::thread> threads;
    threads.emplace_back([&] { results[0] = execute(chat("Anna")); });
    threads.emplace_back([&] { results[1] = execute(chat("Bert")); });
    threads.emplace_back([&] {
        results[2] = execute(home.process({"batch", demo_model().string(), "-sys", home.system}, rows));
    });
    threads.emplace_back([&] { results[3] = execute(pull); });
    for (std::thread &thread : threads) thread.join();
    for (const Result &r : results) {
        CAPTURE(r.out);
        CAPTURE(r.err);
        CHECK(r.code == 0);
    }
    CHECK(results[2].out == alone.out);
    CHECK(read_file(home.directory / "hub/hub/models--some--model-GGUF/snapshots" / kCommit /
                    "small-Q4_0.gguf") == model);
    const std::string history = read_file(home.directory / "state/runnel/history");
    std::string chats;
    size_t count = 0;
    for (const auto &entry : fs::directory_iterator(home.directory / "state/runnel/chats")) {
        chats += read_file(entry.path());
        ++count;
    }
    CHECK(count == 2);
    for (const std::string name : {"Anna", "Bert"})
        for (int i = 1; i <= 4; ++i) {
            CAPTURE(name);
            CAPTURE(i);
            CHECK(history.find(name + "\\040asks\\040" + std::to_string(i) + "\n") != std::string::npos);
            CHECK(chats.find("\"" + name + " asks " + std::to_string(i) + "\"") != std::string::npos);
        }
    json numbers;
    CHECK(home.counted(home.process({"batch", demo_model().string(), "-sys", home.system}, rows), numbers)
              .out == alone.out);
    CHECK(numbers["stored_prompts"]["found_tokens"] >= 1024);
    CHECK(numbers["stored_prompts"]["damaged_files"] == 0);
}
