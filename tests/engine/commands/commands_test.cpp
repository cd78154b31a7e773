// Behavior that all commands share: exit codes, bad input, pipes, signals, settings. Needs $RUNNEL.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

TEST_CASE("bad usage and bad input give one line and their exit codes") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = tiny().path.string(), dir = directory.path().string();
    std::string many;
    for (int i = 0; i < 3000; ++i) many += "word ";
    ModelShape shape;
    shape.layers = 4, shape.heads = shape.kv_heads = 16, shape.head_dim = 128;
    const TemporaryModel vast(shape);  // 32 KiB of cache a token: 10^9 tokens fit on no machine
    struct Case {
        std::vector<std::string> arguments;
        int code;
        std::string part;
    };
    const Case cases[] = {
        {{"frobnicate"}, 2, "frobnicate"},
        {{"run"}, 2, "no model"},
        {{"run", model, "a", "b"}, 2, "b"},
        {{"run", model, "a", "-p", "b"}, 2, "two prompts"},
        {{"run", model, "a", "--look-up"}, 2, "no option '--look-up'; did you mean --lookup?"},
        {{"runn", model, "a"}, 2, "did you mean run?"},
        {{"show", model}, 2, "runnel inspect"},
        {{"-m", model, "-p", "a"}, 2, "runnel run -m"},
        {{"help", "rum"}, 2, "rum"},
        {{"run", model.substr(0, model.size() - 6) + ".ggfu", "a"}, 2, "did you mean"},
        {{"inspect", model, "--temp", "0"}, 2, "--temp is an option of chat, run and batch"},
        {{"run", model, "a", "--temp", "-1"}, 2, "--temp: a number from 0 to 100, not '-1'"},
        {{"run", model, "a", "--top-p", "7"}, 2, "a number from 0 to 1, not '7'"},
        {{"run", model, "a", "--min-p", "-3"}, 2, "--min-p"},
        {{"run", model, "a", "--on-overflow", "2"}, 2, "--on-overflow: error, shift or drop-middle, not '2'"},
        {{"run", model, "a", "-ctk", "1"},
         2,
         "f32, f16, bf16, q8_0, fp8, q5_1, q5_0, q4_1, q4_0 or iq4_nl, not '1'"},
        {{"run", model, "a", "--spec-verify"}, 2, "needs drafts"},
        {{"run", model, "a", "--lookup", "--spec-verify", "--samples", "2"}, 2, "--samples"},
        {{"run", model, "a", "--lookup", "--beams", "2"}, 2, "--beams"},
        {{"run", model, "a", "--lookup", "--draft-min", "20"}, 2, "--draft-max"},
        {{"run", model, "a", "--lookup", "--draft-max", "32"}, 2, "--draft-max"},
        {{"run", model, "a", "--self-draft", "2"}, 2, "1 to 1"},
        {{"run", model, "a", "--self-draft", "1", "-md", model}, 2, "choose one"},
        {{"run", model, "a", "--lookup", "--draft-rule", "luck"}, 2, "--draft-rule"},
        {{"run", model, "a", "--samples", "2", "--beams", "2"}, 2, "--beams"},
        {{"run", model, "a", "--samples", "0"}, 2, "--samples"},
        {{"run", model, "a", "-md", dir + "/draft.gguf"}, 2, "draft.gguf"},
        {{"run", model, "a", "-ncmoe", "some"}, 2, "--n-cpu-moe"},
        {{"run", model, "a", "--temp", "hot"}, 2, "--temp"},
        {{"run", model, "a", "-s", "be kind"}, 2, "--system"},
        {{"run", model, "a", "-s", ""}, 2, "--seed"},
        {{"run", model, "a", "-s", "18446744073709551616"}, 2, "2^64"},
        {{"run", model, "a", "--temp", "nan"}, 2, "--temp"},
        {{"run", model, "a", "--temp"}, 2, "--temp needs a value: write --temp N"},
        {{"run", model, "a", "--deadline", "nan"}, 2, "a number from 0 on, not 'nan'"},
        {{"run", model, "a", "--deadline", "-1"}, 2, "a number from 0 on, not '-1'"},
        {{"run", model, "a", "--repeat-penalty", "0"}, 2, "a number above 0, at most 100, not '0'"},
        {{"run", model, "a", "-ctk", "q6_0"}, 2, "--cache-type-k"},
        {{"run", model, "a", "--device", "tpu"}, 2, "--device"},
        {{"run", model, "a", "--device", "cuda:x"}, 2, "--device"},
        {{"run", model, "a", "-ngl", "some"}, 2, "--gpu-layers"},
        {{"run", model, "a", "--logit-bias", "12"}, 2, "--logit-bias"},
        {{"run", model, "a", "--logit-bias", "99999+1"}, 5, "99999"},
        {{"run", model, "a", "--system", "x"}, 2, "system prompt"},
        {{"run", model, "a", "--config", dir + "/none"}, 2, "none"},
        {{"run", dir + "/none.gguf", "a"}, 2, "none.gguf"},
        {{"run", dir, "a"}, 2, "a folder"},
        {{"run", model, "-f", dir}, 2, "directory"},
        {{"run", model, "-f", dir + "/none"}, 2, "none"},
        {{"run", model, ""}, 5, "empty"},
        {{"run", model, "-p", ""}, 5, "empty"},
        {{"run", model}, 5, "empty"},
        {{"run", model, many}, 5, "context holds 512"},
        {{"run", vast.path.string(), "a", "-c", "999999999"}, 4, "999999999"},
        {{"perplexity", model}, 2, "-f"},
        {{"perplexity", model, "-f", model, "--kl-base", model}, 2, "--kl-base"},
        {{"perplexity", model, "--kl-base", model}, 5, "saved logits"},
        {{"perplexity", model, "-f", "/dev/null"}, 5, "needs at least 1024"},
        {{"tokenize", model, "--decode", "1 2 99999"}, 5, "99999"},
        {{"tokenize", model, "--decode", "one"}, 5, "one"},
        {{"bench", model, "-p", "0", "-n", "0"}, 2, "-n"},
        {{"inspect", dir}, 2, "a folder"},
        {{"devices", "x"}, 2, "x"},
    };
    for (const Case &c : cases) {
        std::string line;
        for (const std::string &a : c.arguments) line += a.substr(0, 60) + " ";
        CAPTURE(line);
        const Result r = runnel_with(c.arguments);
        CHECK(r.code == c.code);
        check_message(r);
        CHECK(r.err.find(c.part) != std::string::npos);
    }
    if (geteuid() != 0) {  // root reads everything
        const std::string secret = (directory / "secret.gguf").string();
        write_file(secret, {});
        chmod(secret.c_str(), 0);
        CHECK(runnel_with({"run", secret, "a"}).code == 2);
    }
}

TEST_CASE("bad model files give exit code 3 and one line in every command") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string all = read_file(tiny().path);
    const std::string file = (directory / "bad.gguf").string();
    const auto put = [&](std::string_view bytes) { write_file(file, std::as_bytes(std::span(bytes))); };
    for (const size_t size : {size_t{0}, size_t{3}, size_t{8}, size_t{100}, all.size() / 2, all.size() - 1}) {
        CAPTURE(size);
        put(std::string_view(all).substr(0, size));
        for (const char *command : {"run", "inspect", "tokenize", "bench", "chat"}) {
            const Result r = runnel_with({command, file}, "x");
            CHECK(r.code == 3);
            check_message(r);
        }
    }
    put("{\"__metadata__\":{}}");
    CHECK(runnel_with({"run", file, "a"}).code == 3);
    std::string unknown = all;
    const size_t at = unknown.find("llama", unknown.find("general.architecture"));
    unknown.replace(at, 5, "zebra");
    put(unknown);
    const Result run = runnel_with({"run", file, "a"});
    CHECK(run.code == 3);
    CHECK(run.err.find("zebra") != std::string::npos);
    const Result inspect = runnel_with({"inspect", file});
    CHECK(inspect.code == 0);
    CHECK(inspect.out.find("cannot be run") != std::string::npos);
}

TEST_CASE("a full disk is an error, a closed pipe is not") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    Process full = process({"run", model, "ab", "-n", "20", "--ignore-eos"});
    full.stdout_to = "/dev/full";
    const Result r = execute(full);
    CHECK(r.code == 1);
    check_message(r);
    CHECK(r.err.find("No space left") != std::string::npos);

    Process head = process({"run", model, "ab", "-n", "400", "--ignore-eos"});
    head.stdout_limit = 1;
    const Result cut = execute(head);
    CHECK(cut.code == 0);
    CHECK(cut.err == "");
    Process list = process({"inspect", model, "--json"});
    list.stdout_limit = 1;
    CHECK(execute(list).code == 0);
}

TEST_CASE("an interrupt ends the wait for standard input") {
    if (absent()) return;
    // A named pipe that is open for writing, so that reading it never ends.
    const TemporaryDirectory directory;
    const std::string pipe = (directory / "pipe").string(), model = tiny().path.string();
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    const int writer = open(pipe.c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(writer >= 0);
    const std::vector<std::vector<std::string>> commands = {{"run", model, "-f", pipe},
                                                            {"run", model, "a", "-sysf", pipe},
                                                            {"perplexity", model, "-f", pipe},
                                                            {"tokenize", model, "-f", pipe}};
    for (const auto &arguments : commands) {
        CAPTURE(arguments[0]);
        CAPTURE(arguments[2]);
        REQUIRE(write(writer, "text", 4) == 4);
        bool waits = false;  // it has read all input so far
        Process p = process(arguments);
        p.started = [&](int pid) {
            for (int unread = 4, tries = 0; !waits && tries < 120'000; ++tries) {
                waits = ioctl(writer, FIONREAD, &unread) == 0 && unread == 0;
                usleep(1000);
            }
            kill(pid, SIGINT);
        };
        const Result r = execute(p);
        CHECK(waits);
        CHECK(r.code == 130);
        CHECK(r.err == "");
    }
    close(writer);
}

TEST_CASE("settings come from the environment, a file, and the command line, and the last one wins") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string file = (directory / "c.toml").string();
    write_file(file, std::as_bytes(std::span(std::string_view("predict = 5\n[run]\nignore-eos = true\n"))));
    const auto tokens = [&](std::vector<std::string> more, std::vector<std::string> environment) {
        Process p = process({"run", tiny().path.string(), "ab", "--json", "-s", "2"});
        p.arguments.insert(p.arguments.end(), more.begin(), more.end());
        p.environment = std::move(environment);
        const Result r = execute(p);
        CHECK(r.err == "");
        return json::parse(r.out)["completion_tokens"].get<int>();
    };
    CHECK(tokens({"--ignore-eos"}, {"RUNNEL_PREDICT=3", "RUNNEL_VERSION=1.2"}) == 3);
    CHECK(tokens({"--config", file}, {"RUNNEL_PREDICT=3"}) == 5);
    CHECK(tokens({"--config", file, "-n", "7"}, {}) == 7);
    CHECK(tokens({}, {"RUNNEL_CONFIG=" + file}) == 5);
    CHECK(tokens({"--ignore-eos", "-n", "20", "--stop", "\x01"}, {}) == 20);
    // A variable overrides a file that the environment names; a file named on the command line overrides a variable.
    CHECK(tokens({}, {"RUNNEL_CONFIG=" + file, "RUNNEL_PREDICT=3"}) == 3);
    // The same holds for options that can be repeated.
    Process biased = process({"run", tiny().path.string(), "ab", "--json", "-n", "1"});
    biased.environment = {"RUNNEL_LOGIT_BIAS=99999+1"};
    CHECK(execute(biased).code == 5);
    // An empty value is a value: it does not take the next argument.
    write_file(file, std::as_bytes(std::span(std::string_view("stats-file = \"\"\n"))));
    CHECK(tokens({"--config", file, "--system-prompt=", "-n", "3", "--ignore-eos"}, {}) == 3);
}

TEST_CASE("the user's configuration file is read without an option, and gives models short names") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string home = directory.path().string();
    std::filesystem::create_directories(directory / ".config/runnel");
    const std::string text =
        "[models]\ntiny = \"" + tiny().path.string() + "\"\n[run]\npredict = 4\nignore-eos = true\n";
    write_file(directory / ".config/runnel/config.toml", std::as_bytes(std::span(text)));
    Process p = process({"run", "tiny", "ab", "--json"});
    p.environment = {"HOME=" + home, "XDG_CONFIG_HOME=", "RUNNEL_CONFIG"};  // the last one: unset
    const Result r = execute(p);
    CHECK(r.err == "");
    CHECK(json::parse(r.out)["completion_tokens"] == 4);
    p.arguments[1] = "tniy";
    CHECK(execute(p).err.find("did you mean tiny?") != std::string::npos);
    p.environment.push_back("RUNNEL_CONFIG=");  // none
    p.arguments[1] = "tiny";
    CHECK(execute(p).code == 2);
}

TEST_CASE("help goes to stdout, a model file alone is a chat") {
    if (absent()) return;
    for (const std::vector<std::string> &arguments : {std::vector<std::string>{"help"},
                                                      {"--help"},
                                                      {"help", "chat"},
                                                      {"run", "--help-all"},
                                                      {"run", "m", "-h"}}) {
        const Result r = runnel_with(arguments);
        CHECK(r.code == 0);
        CHECK(r.err == "");
        CHECK(r.out.find("runnel") == 0);
    }
    const Result none = runnel_with({});
    CHECK(none.code == 2);
    CHECK(none.out == "");
    const Result chat = runnel_with({tiny().path.string(), "-n", "3"}, "hello\n");
    CHECK(chat.code == 0);
}
