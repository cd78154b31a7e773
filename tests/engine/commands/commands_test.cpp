// The program from outside: streams, exit codes, bad input, signals. Needs $RUNNEL (default build/runnel).
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "gguf/writer.h"
#include "tests/support/data.h"
#include "tests/support/model_maker.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

bool absent() {
    if (program_under_test()) return false;
    MESSAGE("no program to test: set RUNNEL, or build build/runnel");
    return true;
}

const TemporaryModel &tiny() {
    static const TemporaryModel model{ModelShape{}};
    return model;
}

Result runnel_with(std::vector<std::string> arguments, std::optional<std::string> input = {}) {
    return execute({.arguments = std::move(arguments),
                    .input = std::move(input),
                    .environment = {},
                    .stdout_to = {},
                    .watch = nullptr,
                    .type = nullptr});
}

Process process(std::vector<std::string> arguments) {
    Process p{};
    p.stdout_limit = static_cast<size_t>(-1);
    p.arguments = std::move(arguments);
    return p;
}

// The tiny model with a chat template.
void write_with_template(const std::filesystem::path &path, std::string_view chat_template) {
    runnel::gguf::Writer writer;
    for (const auto &[key, value] : tiny().file.metadata()) writer.add(key, value);
    writer.add("tokenizer.chat_template", chat_template);
    for (const auto &t : tiny().file.tensors()) writer.add_tensor(t.name, t.type, std::span(t.shape, t.rank));
    writer.start(path);
    for (const auto &t : tiny().file.tensors()) writer.write({t.data, t.bytes});
    writer.finish();
}

// One line that begins with the program's name.
void check_message(const Result &r) {
    CAPTURE(r.err);
    CHECK(r.out == "");
    CHECK(r.err.starts_with("runnel: "));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
    CHECK(r.err.ends_with('\n'));
}

}  // namespace

TEST_CASE("run: the known continuations of the small model") {
    if (absent()) return;
    if (!has_shared_data("models/expected.json")) {
        MESSAGE("no shared data");
        return;
    }
    const std::string model = (shared_data() / "models/stories260K.gguf").string();
    const json expected = json::parse(read_file(shared_data() / "models/expected.json"));
    for (const json &c : expected["continuations"]) {
        const std::string prompt = c["prompt"];
        CAPTURE(prompt);
        Result r =
            runnel_with({"run", model, prompt, "-n", std::to_string(c["n"].get<int>()), "--temp", "0"});
        CHECK(r.code == 0);
        CHECK(r.err == "");
        while (!r.out.empty() && std::isspace(static_cast<unsigned char>(r.out.back()))) r.out.pop_back();
        CHECK(r.out == c["text"].get<std::string>());
    }
    for (const json &p : expected["perplexity"]) {
        CAPTURE(p.dump());
        const Result r = runnel_with({"perplexity", model, "-f",
                                      (shared_data() / "models" / p["text"].get<std::string>()).string(),
                                      "-c", std::to_string(p["ctx"].get<int>()), "--chunks",
                                      std::to_string(p["chunks"].get<int>()), "--json", "-q"});
        REQUIRE(r.code == 0);
        CHECK(r.err == "");
        CHECK(json::parse(r.out)["perplexity"].get<double>() ==
              doctest::Approx(p["value"].get<double>()).epsilon(0.001));
    }
}

TEST_CASE("run: stdout carries the text alone, the same for the same seed") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const Result a = runnel_with({"run", model, "ab", "-n", "30", "-s", "5"});
    CHECK(a.code == 0);
    CHECK(a.err == "");
    CHECK(a.out != "");
    CHECK(runnel_with({"run", "-m", model, "ab", "--predict", "30", "--seed", "5", "-t", "1", "-ub", "7"})
              .out == a.out);
    CHECK(runnel_with({"run", model, "-p", "ab", "-n30", "-s", "6"}).out != a.out);
    CHECK(runnel_with({"run", model, "ab", "-n", "30", "-s", "5", "--echo"}).out == "ab" + a.out);
    const Result stats = runnel_with({"run", model, "ab", "-n", "30", "-s", "5", "--stats"});
    CHECK(stats.out == a.out);
    CHECK(stats.err.find("seed 5") != std::string::npos);
    CHECK(runnel_with({"run", model, "ab", "-n", "30", "-s", "5", "--stats", "-q"}).err == "");
    CHECK(runnel_with({"run", model, "ab", "-n", "0"}).out == "");
}

TEST_CASE("run: --json") {
    if (absent()) return;
    const Result r =
        runnel_with({"run", tiny().path.string(), "ab", "-n", "12", "-s", "5", "--json", "--ignore-eos"});
    REQUIRE(r.code == 0);
    const json j = json::parse(r.out);
    CHECK(j["tokens"].size() == 12);
    CHECK(j["completion_tokens"] == 12);
    CHECK(j["prompt_tokens"].get<int>() > 0);
    CHECK(j["finish_reason"] == "length");
    for (const char *key : {"load_ms", "ttft_ms", "prefill_tps", "decode_tps"})
        CHECK(j["timings"][key].get<double>() > 0);
    CHECK(j["text"] ==
          runnel_with({"run", tiny().path.string(), "ab", "-n", "12", "-s", "5", "--ignore-eos"}).out);
}

TEST_CASE("run: where the prompt comes from") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = tiny().path.string(), file = (directory / "prompt.txt").string();
    write_file(file, std::as_bytes(std::span(std::string_view("one\n"))));
    const auto echo = [&](std::vector<std::string> more, std::optional<std::string> input = {}) {
        std::vector<std::string> arguments = {"run", model, "-n", "0", "--echo"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        const Result r = runnel_with(arguments, input);
        CHECK(r.code == 0);
        return r.out;
    };
    CHECK(echo({"arg"}) == "arg");
    CHECK(echo({}, "piped\n") == "piped");
    CHECK(echo({"arg"}, "piped\nin\n") == "arg\n\npiped\nin");
    CHECK(echo({"arg"}, "") == "arg");
    CHECK(echo({"-f", file}, "ignored") == "one");
    CHECK(echo({"-f", "-"}, "piped") == "piped");
    CHECK(echo({"arg", "-f", file}) == "arg\n\none");
    CHECK(echo({"--", "-dash"}) == "-dash");
    CHECK(echo({"[a, b]"}) == "[a, b]");
    CHECK(echo({"inspect"}) == "inspect");
}

TEST_CASE("run: the prompt is a turn of the chat template, unless --raw") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = (directory / "chat.gguf").string();
    const auto tokens_of = [&](const std::string &text) {
        return json::parse(runnel_with({"tokenize", model, "--ids", text}).out).size();
    };
    const auto prompt_tokens = [&](std::vector<std::string> more) {
        std::vector<std::string> arguments = {"run", model, "hi", "-n", "1", "--json"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        const Result r = runnel_with(arguments);
        REQUIRE(r.code == 0);
        return json::parse(r.out)["prompt_tokens"].get<size_t>();
    };
    write_with_template(directory / "chat.gguf",
                        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                        "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}");
    const std::string turn = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    CHECK(prompt_tokens({}) == tokens_of(turn));
    CHECK(prompt_tokens({"-sys", "be kind"}) == tokens_of("<|im_start|>system\nbe kind<|im_end|>\n" + turn));
    CHECK(prompt_tokens({"--raw"}) == tokens_of("hi"));
    CHECK(runnel_with({"run", model, "hi", "--raw", "--system", "x"}).code == 2);

    write_with_template(directory / "chat.gguf", "{{ something unheard of }}");
    const Result unknown = runnel_with({"run", model, "hi", "-n", "1"});
    CHECK(unknown.code == 0);
    CHECK(unknown.err.find("falling back to plain text") != std::string::npos);
}

TEST_CASE("run: stop strings, deadline, end of the context") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const std::vector<std::string> base = {"run", model, "ab", "-n", "60", "-s", "3", "--ignore-eos"};
    const std::string all = runnel_with(base).out;
    REQUIRE(all.size() > 20);
    size_t at = 5;  // of a few characters that every tokenizer cuts as it likes
    while (at + 2 < all.size() && !(isalnum(static_cast<unsigned char>(all[at])) &&
                                    isalnum(static_cast<unsigned char>(all[at + 1]))))
        ++at;
    const std::string stop = all.substr(at, 2);
    auto with = base;
    with.insert(with.end(), {"--stop", stop, "-r", "never to be seen"});
    CHECK(runnel_with(with).out == all.substr(0, all.find(stop)));

    const Result full = runnel_with({"run", model, "ab", "-c", "20", "--ignore-eos"});
    CHECK(full.code == 0);
    CHECK(full.err.find("the context of 20 tokens is full") != std::string::npos);
    // Also while the prompt was still on its way: that is no interrupt.
    for (const bool piped : {false, true}) {
        CAPTURE(piped);
        const std::vector<std::string> words = {"run",        model, piped ? "--echo" : "ab",
                                                "--deadline", "0",   "--json"};
        const Result late = runnel_with(words, piped ? std::optional("ab") : std::nullopt);
        REQUIRE(late.code == 0);
        CHECK(json::parse(late.out)["finish_reason"] == "length");
        CHECK(json::parse(late.out)["completion_tokens"] == 0);
    }
}

TEST_CASE("bad usage and bad input have their exit codes and one line") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = tiny().path.string(), dir = directory.path().string();
    std::string many;
    for (int i = 0; i < 3000; ++i) many += "word ";
    ModelShape shape;
    shape.layers = 4, shape.heads = shape.kv_heads = 16, shape.head_dim = 128;
    const TemporaryModel vast(shape);  // 32 KiB of cache a token: no machine has room for 10^9 of them
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
        {{"run", model, "a", "--look-up"}, 2, "no option '--look-up'"},
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
        {{"run", model, "a", "--deadline", "nan"}, 2, "a number from 0 on, not 'nan'"},
        {{"run", model, "a", "--deadline", "-1"}, 2, "a number from 0 on, not '-1'"},
        {{"run", model, "a", "--repeat-penalty", "0"}, 2, "a number above 0, not '0'"},
        {{"run", model, "a", "-ctk", "q4_1"}, 2, "--cache-type-k"},
        {{"run", model, "a", "--device", "tpu"}, 2, "--device"},
        {{"run", model, "a", "--device", "cuda:x"}, 2, "--device"},
        {{"run", model, "a", "-ngl", "some"}, 2, "--gpu-layers"},
        {{"run", model, "a", "--logit-bias", "12"}, 2, "--logit-bias"},
        {{"run", model, "a", "--logit-bias", "99999+1"}, 5, "99999"},
        {{"run", model, "a", "--system", "x"}, 2, "system prompt"},
        {{"run", model, "a", "--config", dir + "/none"}, 2, "none"},
        {{"run", dir + "/none.gguf", "a"}, 2, "none.gguf"},
        {{"run", dir, "a"}, 2, "directory"},
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
        {{"inspect", dir}, 2, "directory"},
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

TEST_CASE("bad model files: exit code 3 and one line, for every command") {
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

TEST_CASE("a full disk and a closed pipe") {
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

TEST_CASE("perplexity: what is saved on a full disk leaves nothing behind; a base is read back") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = tiny().path.string(), text = (directory / "t.txt").string(),
                      base = (directory / "base").string();
    std::string words;
    for (int i = 0; i < 400; ++i) words += "word" + std::to_string(i * 7919 % 1000) + " ";
    write_file(text, std::as_bytes(std::span(words)));
    const Result full =
        runnel_with({"perplexity", model, "-f", text, "-c", "32", "--save-logits", "/dev/full", "-q"});
    CHECK(full.code == 1);
    check_message(full);
    const Result saved = runnel_with({"perplexity", model, "-f", text, "-c", "32", "--save-logits", base});
    REQUIRE(saved.code == 0);
    CHECK(saved.out.starts_with("perplexity: "));
    CHECK(saved.out.find(" +/- ") != std::string::npos);
    CHECK(saved.err.starts_with("[1]"));
    const Result again = runnel_with({"perplexity", model, "--kl-base", base, "-q"});
    REQUIRE(again.code == 0);
    CHECK(again.out.ends_with(saved.out));
    CHECK(again.out.find("top-1 agreement: 100.000%") != std::string::npos);
    const json j = json::parse(runnel_with({"perplexity", model, "--kl-base", base, "--json", "-q"}).out);
    CHECK(std::abs(j["mean_kl"].get<double>()) < 1e-6);
    CHECK(j["top1_agreement"] == 1.0);
    CHECK(j["tokens"].get<int>() > 0);
}

TEST_CASE("an interrupt ends with 130, and what was generated is written") {
    if (absent()) return;
    ModelShape shape;
    shape.context = 100000;
    const TemporaryModel endless(shape);
    const std::vector<std::string> words = {"run", endless.path.string(), "ab", "--ignore-eos", "-s", "1"};
    Process p = process(words);
    bool sent = false;
    p.watch = [&sent](const std::string &out, int pid) {
        if (out.size() > 50 && !sent) kill(pid, SIGINT), sent = true;
    };
    const Result interrupted = execute(p);
    CHECK(interrupted.err == "");
    CHECK(interrupted.code == 130);
    CHECK(interrupted.out.size() > 50);
    // A deadline is a usual end. It counts from the program's start: the first that leaves time for an
    // answer.
    for (double seconds = 0.3;; seconds *= 2) {
        CAPTURE(seconds);
        Process late = process(words);
        late.arguments.insert(late.arguments.end(), {"--json", "--deadline", std::to_string(seconds)});
        const Result r = execute(late);
        REQUIRE(r.err == "");
        REQUIRE(r.code == 0);
        CHECK(json::parse(r.out)["finish_reason"] == "length");
        if (json::parse(r.out)["completion_tokens"].get<int>() > 0) break;
    }
}

TEST_CASE("an interrupt ends the wait for standard input") {
    if (absent()) return;
    // A named pipe that is open for writing, so that it has no end.
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
        bool waits = false;  // it has read what there was
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

TEST_CASE("a model file that is cut short while in use ends with one line") {
    if (absent()) return;
    ModelShape shape;
    shape.context = 100000;
    const TemporaryModel endless(shape);
    Process p = process({"run", endless.path.string(), "ab", "--ignore-eos", "-s", "1"});
    bool cut = false;
    p.watch = [&](const std::string &out, int) {
        if (out.size() > 50 && !cut) cut = true, std::filesystem::resize_file(endless.path, 4096);
    };
    const Result r = execute(p);
    CHECK(cut);
    CHECK(r.code == 1);
    CHECK(r.err.starts_with("runnel: the model file can no longer be read"));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
}

TEST_CASE("tokenize: ids, pieces, lines, and back") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const Result list = runnel_with({"tokenize", model, "--ids", "hello"});
    REQUIRE(list.code == 0);
    const json ids = json::parse(list.out);
    CHECK(ids.size() > 1);
    CHECK(runnel_with({"tokenize", model, "--ids"}, "hello").out == list.out);
    CHECK(json::parse(runnel_with({"tokenize", model, "--ids", "--no-bos", "hello"}).out).size() ==
          ids.size() - 1);
    const Result table = runnel_with({"tokenize", model, "hello"});
    CHECK(std::count(table.out.begin(), table.out.end(), '\n') == static_cast<int64_t>(ids.size()));
    CHECK(table.out.starts_with(ids[0].dump() + "\t"));
    CHECK(runnel_with({"tokenize", model, "--decode", list.out}).out == "hello");
    CHECK(runnel_with({"tokenize", model, "--jsonl"}, "\"hello\"\n\n\"\\n\"\n").out.starts_with(list.out));
    CHECK(runnel_with({"tokenize", model, "--jsonl"}, "hello\n").code == 5);
    CHECK(runnel_with({"tokenize", model, "--jsonl", "\"hello\""}).out == list.out);
    std::string many, answers;  // more than a buffer holds, the last line without its end
    for (int i = 0; i < 20000; ++i) many += "\"hello\"\n", answers += list.out;
    many.pop_back();
    CHECK(runnel_with({"tokenize", model, "--jsonl"}, many).out == answers);
    // A line is answered before the next one comes.
    Process talk = process({"tokenize", model, "--jsonl"});
    talk.terminal = true;
    talk.input = "\"hello\"\n";
    bool answered = false;
    talk.type = [&](const std::string &out, bool) -> std::string {
        if (answered || out.find(']') == std::string::npos) return "";
        return answered = true, "\x04";
    };
    CHECK(execute(talk).code == 0);
    CHECK(answered);
}

TEST_CASE("inspect --supported needs no model and lists families with what was checked") {
    const Result table = runnel_with({"inspect", "--supported"});
    CHECK(table.code == 0);
    CHECK(table.out.find("phi3, LongRoPE long") != std::string::npos);
    const json all = json::parse(runnel_with({"inspect", "--supported", "--json"}).out);
    CHECK(all["architectures"].size() >= 28);
    for (const json &row : all["verified"]) CHECK(row["mean_kl"].get<double>() < 1e-4);
    CHECK(runnel_with({"inspect", "--supported", "model.gguf"}).code == 2);
}

TEST_CASE("inspect, bench and devices speak JSON") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const json i = json::parse(runnel_with({"inspect", model, "--json"}).out);
    CHECK(i["architecture"] == "llama");
    CHECK(i["parameters"].get<int64_t>() > 1000);
    CHECK(i["bits_per_weight"] == 32.0);
    CHECK(i["context_length"] == 512);
    CHECK(i["tensors"][0]["shape"].size() >= 1);
    CHECK(i["memory"]["weights"].get<int64_t>() > 4000);
    // 2 layers, 2 heads, 16 + 16 values of 2 bytes.
    CHECK(i["memory"]["cache_per_1k_tokens"] == 1024 * 2 * 2 * 32 * 2);
    CHECK(i["metadata"]["llama.block_count"] == 2);
    CHECK(i["metadata"]["tokenizer.ggml.tokens"]["length"] == 320);
    CHECK(json::parse(
              runnel_with({"inspect", model, "--json", "--arrays"}).out)["metadata"]["tokenizer.ggml.tokens"]
              .size() == 320);
    const json b = json::parse(
        runnel_with({"bench", model, "-p", "16", "-n", "8", "-r", "2", "--depth", "0,32", "--json"}).out);
    REQUIRE(b["tests"].size() == 4);
    CHECK(b["tests"][0]["tps_mean"].get<double>() > 0);
    CHECK(b["tests"][3]["depth"] == 32);
    CHECK(b["tests"][3]["bytes_per_token"].get<double>() > b["tests"][1]["bytes_per_token"].get<double>());
    CHECK(b["bandwidth_bytes_per_second"].get<double>() > 0);
    CHECK(json::parse(runnel_with({"devices", "--json"}).out)["devices"][0]["kind"] == "cpu");
    CHECK(runnel_with({"--version"}).out.starts_with("runnel "));
    CHECK(runnel_with({"run", "--help"}).out.find("--temp") != std::string::npos);
}

TEST_CASE("settings come from the environment, a file, and the command line, the last one counting") {
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
    CHECK(tokens({"--ignore-eos"}, {"RUNNEL_PREDICT=3"}) == 3);
    CHECK(tokens({"--config", file}, {"RUNNEL_PREDICT=3"}) == 5);
    CHECK(tokens({"--config", file, "-n", "7"}, {}) == 7);
    CHECK(tokens({}, {"RUNNEL_CONFIG=" + file}) == 5);
    CHECK(tokens({"--ignore-eos", "-n", "20", "--stop", "\x01"}, {}) == 20);
    // Options that can be repeated, too.
    Process biased = process({"run", tiny().path.string(), "ab", "--json", "-n", "1"});
    biased.environment = {"RUNNEL_LOGIT_BIAS=99999+1"};
    CHECK(execute(biased).code == 5);
    // An empty value is a value: it does not take the next argument.
    write_file(file, std::as_bytes(std::span(std::string_view("stats-file = \"\"\n"))));
    CHECK(tokens({"--config", file, "--system-prompt=", "-n", "3", "--ignore-eos"}, {}) == 3);
}

TEST_CASE("chat: through pipes, nothing but answers") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const Result r = runnel_with(
        {"chat", model, "-n", "5", "-s", "1", "-q", "--temp", "0"},
        "hello\n\n/help\n\"\"\"two\nlines\"\"\"\n/unknown\n/system be kind\n/system\n/regen\n/stats\n"
        "/reset\nhello\n/exit\nnever\n");
    CHECK(r.code == 0);
    CHECK(r.out.find('\x1b') == std::string::npos);
    CHECK(r.out.find(">>>") == std::string::npos);
    CHECK(r.err.find("/bye") != std::string::npos);
    CHECK(r.err.find("no command /unknown") != std::string::npos);
    CHECK(r.err.find("be kind") != std::string::npos);
    CHECK(r.err.find("tokens/s") != std::string::npos);
    CHECK(runnel_with({"chat", model, "-q"}, "").code == 0);
}

TEST_CASE("chat: a conversation that outgrows the context forgets its beginning, and says so") {
    if (absent()) return;
    std::string input;
    for (int i = 0; i < 8; ++i) input += "message number " + std::to_string(i) + "\n";
    const std::vector<std::string> base = {"chat", tiny().path.string(), "-n", "20", "-c",
                                           "200",  "--ignore-eos"};
    const Result shifted = runnel_with(base, input);
    CHECK(shifted.code == 0);
    CHECK(shifted.err.find("are forgotten") != std::string::npos);
    auto strict = base;
    strict.insert(strict.end(), {"--on-overflow", "error"});
    const Result error = runnel_with(strict, input);
    CHECK(error.code == 5);
    CHECK(error.err.find("the context holds 200") != std::string::npos);
}

TEST_CASE("chat: at a terminal") {
    if (absent()) return;
    const TemporaryDirectory directory;
    Process p = process({"chat", tiny().path.string(), "-n", "100000", "--ignore-eos", "-c", "100000"});
    p.environment = {"XDG_STATE_HOME=" + directory.path().string(), "TERM=dumb", "LC_ALL=C"};
    p.terminal = true;
    int stage = 0;
    bool stopped = false;
    size_t answer_at = 0;
    // A message; Ctrl-C in its endless answer; Ctrl-C in a line; SIGINT from elsewhere in a line, which is
    // nothing; Ctrl-D.
    int program = 0;
    p.watch = [&](const std::string &, int pid) { program = pid; };
    p.type = [&](const std::string &out, bool reads_keys) -> std::string {
        const size_t prompt = out.rfind(">>> ");
        const bool at_prompt =
            reads_keys && prompt != std::string::npos && out.find('\n', prompt) == std::string::npos;
        if (stage == 0 && at_prompt) return stage = 1, answer_at = out.size(), "gr\xc3\xbc\xc3\x9f dich\n";
        if (stage == 1 && out.size() > answer_at + 200) return stage = 2, stopped = true, "\x03";
        if (stage == 2 && at_prompt && prompt > answer_at)
            return stage = 3, answer_at = out.size(), "given up\x03";
        if (stage == 3 && at_prompt && prompt > answer_at) {
            kill(program, SIGINT);
            return stage = 4, "\x04";
        }
        return "";
    };
    const Result r = execute(p);
    CAPTURE(r.out);
    CHECK(stopped);
    CHECK(stage == 4);
    CHECK(r.code == 0);
    const std::filesystem::path history = directory / "runnel/history";
    REQUIRE(std::filesystem::exists(history));
    CHECK((std::filesystem::status(history).permissions() & std::filesystem::perms::all) ==
          (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}
